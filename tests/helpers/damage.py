"""Ways to damage the files of a checkpoint."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def edit(file: Path, **changes: Any) -> None:
    """Changes fields of a JSON object; None removes a field."""
    content = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))


def edit_index(source: Path, change: Callable[[list[Any]], Any]) -> None:
    file = source / "index"
    content = json.loads(file.read_text())
    file.write_text(json.dumps(change(content) or content))


def entry(index: list[Any], path: str) -> Any:
    return next(value for name, value in index if name == path)


def replace_by_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


def replace_by_dangling_link(file: Path) -> None:
    file.unlink()
    file.symlink_to("nowhere")


def replace_by_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def overwrite(offset: int, data: bytes) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        content = bytearray(file.read_bytes())
        content[offset : offset + len(data)] = data
        file.write_bytes(content)

    return change


def cut_to(length: int) -> Callable[[Path], Any]:
    return lambda file: file.write_bytes(file.read_bytes()[:length])
