"""A progress line of what the engine reports."""

import sys
import threading
import time
from typing import Any

from converter.cli.streams import is_terminal
from converter.words import format_size


class Bar:
    """A line on stderr with leaves, bytes, rate and remaining time; a plain line now and then where it is a file."""

    INTERVAL = 10.0

    def __init__(self, title: str, *, verbose: bool = False):
        from rich.console import Console

        self.console = Console(stderr=True, emoji=False)
        self.on_terminal = is_terminal(sys.stderr)
        self.title = title
        self.verbose = verbose
        self.lock = threading.Lock()
        self.leaves = self.finished = self.total = self.done = 0
        self.moved_objects = self.moved_bytes = 0
        self.started = self.last = time.monotonic()
        self.bar: Any = None
        self.said = False

    def start(self, leaves: int, total_bytes: int) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self.leaves, self.total = leaves, total_bytes
        self.started = self.last = time.monotonic()
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[leaves]}  {task.fields[bytes]}  {task.fields[rate]}"),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            disable=not self.on_terminal,
        )
        self.task = self.bar.add_task(self.title, total=max(total_bytes, 1), **self._fields())
        self.bar.start()

    def advance(self, count: int) -> None:
        with self.lock:
            self.done += count
            self.bar.update(self.task, completed=self.done, **self._fields())
            if not self.on_terminal and self._is_time():
                fields = self._fields()
                elapsed = time.monotonic() - self.started
                rest = elapsed * (self.total - self.done) / self.done if self.done else 0.0
                self._print(f"{fields['leaves']}, {fields['bytes']}, {fields['rate']}, {rest:.0f} s left")

    def moved(self, objects: int, count: int) -> None:
        with self.lock:
            self.moved_objects += objects
            self.moved_bytes += count

    def leaf_done(self, path: str) -> None:
        with self.lock:
            self.finished += 1
            self.bar.update(self.task, completed=self.done, **self._fields())
            if self.verbose:
                self._print(f"{path} done")

    def say(self, text: str) -> None:
        with self.lock:
            if self.on_terminal:
                self.said = True
                print(f"\r\033[K{self.title}: {text}", end="\r", file=sys.stderr, flush=True)
            elif self.verbose or self._is_time():
                self._print(text)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()
        if self.said:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def _is_time(self) -> bool:
        """Whether the last line is so old that another one is due."""
        now = time.monotonic()
        due = now - self.last >= self.INTERVAL
        self.last = now if due else self.last
        return due

    def _fields(self) -> dict[str, Any]:
        elapsed = max(time.monotonic() - self.started, 1e-3)
        moved = ""
        if self.moved_objects:
            moved = f" ({self.moved_objects:,} objects, {format_size(self.moved_bytes)} stored, moved by the store)"
        return {
            "leaves": f"{self.finished}/{self.leaves} leaves",
            "bytes": f"{format_size(self.done)} of {format_size(self.total)}{moved}",
            "rate": f"{format_size(int(self.done / elapsed))}/s",
        }

    def _print(self, text: str) -> None:
        self.console.print(f"{self.title}: {text}", highlight=False, markup=False, soft_wrap=True)
