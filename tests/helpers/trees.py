"""Whole trees of files in a store of objects, for every store that tests have."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol


class Objects(Protocol):
    """What a store has to offer for that."""

    at_once: int

    def put(self, bucket: str, name: str, data: bytes, /) -> Any: ...

    def read(self, bucket: str, name: str, /) -> bytes: ...

    def names(self, bucket: str, prefix: str = "", /) -> list[str]: ...


class Trees:
    """Adds trees to a store; see `Objects`.

    Attributes:
      at_once: requests that are worth having in flight at once.
    """

    at_once = 1

    def upload_tree(
        self: Objects, directory: Path, bucket: str, prefix: str = "", *, without: str | None = None
    ) -> None:
        """Writes each file below a directory as an object, except those whose path has `without` in it.

        Directories leave no trace, as in the real stores.
        """
        files = {name: data for name, data in local_tree(directory).items() if without is None or without not in name}
        with ThreadPoolExecutor(self.at_once) as pool:
            list(pool.map(lambda name: self.put(bucket, _join(prefix, name), files[name]), files))

    def download_tree(self: Objects, bucket: str, prefix: str, directory: Path) -> None:
        """Writes each object below a prefix as a file."""
        for name, data in _tree(self, bucket, prefix).items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def tree(self: Objects, bucket: str, prefix: str = "") -> dict[str, bytes]:
        """All contents below a prefix, by the rest of the name: compares with `local_tree`."""
        return _tree(self, bucket, prefix)


def local_tree(directory: Path) -> Mapping[str, bytes]:
    """All contents below a directory, by path."""
    files = (path for path in sorted(directory.rglob("*")) if path.is_file())
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in files}


def _tree(store: Objects, bucket: str, prefix: str) -> dict[str, bytes]:
    start = _join(prefix, "")
    names = store.names(bucket, start)
    with ThreadPoolExecutor(store.at_once) as pool:
        contents = pool.map(lambda name: store.read(bucket, name), names)
        return {name.removeprefix(start): data for name, data in zip(names, contents, strict=True)}


def _join(prefix: str, rest: str) -> str:
    return f"{prefix.rstrip('/')}/{rest}" if prefix else rest
