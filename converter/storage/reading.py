"""Small files and whole trees, whatever storage they are in: what is wrong with a file becomes one clear error."""

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from converter.errors import Ax2mtError, DestinationError, SourceError
from converter.storage.litter import litter_in
from converter.storage.registry import is_remote, storage_of


@contextmanager
def store_errors(destination: str) -> Iterator[None]:
    """Turns what a store of objects refuses, wherever it was asked, into an error of the side that it belongs to.

    Args:
      destination: the URL that is written; empty where none is.

    Raises:
      DestinationError, SourceError: instead of an `OSError` that names a URL.
    """
    try:
        yield
    except OSError as error:
        name = str(error.filename or "")
        if not is_remote(name):
            raise
        side = DestinationError if destination and name.startswith(destination.rstrip("/")) else SourceError
        raise side(f"{name}: {error.strerror or error}") from None


Item = TypeVar("Item")
Value = TypeVar("Value")


def in_parallel(work: Callable[[Item], Value], items: Sequence[Item], place: str) -> Iterator[Value]:
    """Results in order; as many at once as are worth it where a place's bytes live."""
    concurrency = min(storage_of(place).concurrency, len(items))
    if concurrency < 2:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(concurrency, "ax2mt-read") as pool:
        yield from pool.map(work, items)


def is_file(name: str) -> bool:
    """Whether a name is a file's, links followed."""
    return not storage_of(name).missing((name,))


def read_small(name: str, limit: int, error: type[Ax2mtError], *, label: str = "") -> bytes:
    """Reads a file of bounded size.

    Args:
      name: the file.
      limit: bytes that it may have.
      error: what is raised where it cannot be read.
      label: how it is called in messages; its name by default.

    Raises:
      Ax2mtError: it is missing, cannot be read, or is larger.
    """
    label = label or name
    try:
        data = storage_of(name).read(name, limit + 1)
    except FileNotFoundError:
        raise error(f"{label}: is missing") from None
    except OSError as problem:
        raise error(f"{label}: cannot be read: {problem.strerror}") from None
    if len(data) > limit:
        raise error(f"{label}: larger than {limit >> 20} MiB, the most that such a file can have")
    return data


def read_json(name: str, limit: int, error: type[Ax2mtError], *, label: str = "", kind: type[Any] = dict) -> Any:
    """Reads a JSON file as `read_small` does; it holds an object, or a list where `kind` is `list`.

    Raises:
      Ax2mtError: as there; or it is not UTF-8, no JSON, nested too deeply, or holds something else.
    """
    return parse_json(read_small(name, limit, error, label=label), error, label=label or name, kind=kind)


def parse_json(data: bytes, error: type[Ax2mtError], *, label: str, kind: type[Any] = dict) -> Any:
    """The same for a text that was read; `label` is how its file is called in messages."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as problem:
        raise error(f"{label}: not valid JSON: {str(problem)[:200]}") from None
    if not isinstance(content, kind):
        raise error(f"{label}: expected a JSON {'object' if kind is dict else 'list'}, found {short_text(content)}")
    return content


def short_text(value: object) -> str:
    """A value of somebody else's JSON for a message."""
    try:
        text = repr(value)
    except RecursionError:
        return "a deeply nested value"
    return text if len(text) <= 80 else text[:77] + "..."


def find_litter(directory: str, limit: int) -> list[str]:
    """Paths of litter below a directory, sorted, `limit` at most; what a litter directory holds is not listed."""
    found: set[str] = set()
    for blob in storage_of(directory).walk(directory):
        if litter := litter_in(blob.name):
            found.add(litter)
    return sorted(found)[:limit]
