"""Local file systems, and whatever is mounted to look like one."""

import errno
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import converter.storage.publishing as publishing
from converter.storage.base import DANGLING, DIRECTORY, FILE, OTHER, UNREADABLE, Blob, Limits, Mark, Publication, Space
from converter.storage.chunk_file import PART, ChunkFile, open_chunk_file, write_whole
from converter.storage.file_reader import FileReader
from converter.storage.lock import FileLock

LONGEST_NAME = 255
"""Bytes of a name, where the file system does not say."""

READ_SIZE = 64 << 10
"""Most small files fit."""

LONGEST_PATH = 4096
"""Bytes of a path in Linux."""


_KINDS = {stat.S_IFREG: FILE, stat.S_IFDIR: DIRECTORY}
_OTHERS = {stat.S_IFSOCK: "socket", stat.S_IFIFO: "pipe", stat.S_IFCHR: "device"}


class LocalStorage:
    """See `base.Storage`. Operations that are made of others call those, so that a test can let any of them fail."""

    concurrency = 1
    renames = True

    def pin(self, directory: str, *, described: bool = False, parts: Iterable[str] = ()) -> None:
        """A listing of files costs little, and files have no versions to be read by."""

    def browsing(self, directory: str) -> AbstractContextManager[None]:  # noqa: ARG002
        return nullcontext()

    def release(self, directory: str) -> None:
        """Nothing is pinned."""

    def resolve(self, name: str) -> str:
        return os.path.realpath(name)

    def stat(self, name: str) -> Blob:
        try:
            return _blob(name, os.stat(name))
        except FileNotFoundError:
            if os.path.islink(name):
                return Blob(name=name, kind=DANGLING, problem=os.readlink(name))
            raise

    def exists(self, name: str) -> bool:
        return os.path.lexists(name)

    def is_directory(self, name: str) -> bool:
        return os.path.isdir(name)

    def is_mount(self, name: str) -> bool:
        return os.path.ismount(name)

    def is_writable(self, directory: str) -> bool:
        return os.access(directory, os.W_OK | os.X_OK)

    def names(self, directory: str) -> "list[str]":
        return os.listdir(directory)

    def list(self, directory: str) -> Iterator[Blob]:
        with os.scandir(directory) as entries:
            for entry in entries:
                try:
                    yield _blob(entry.name, entry.stat())
                except FileNotFoundError:
                    if entry.is_symlink():
                        yield Blob(name=entry.name, kind=DANGLING, problem=os.readlink(entry.path))
                except OSError as error:
                    yield Blob(name=entry.name, kind=UNREADABLE, problem=error.strerror or str(error))

    def walk(self, directory: str) -> Iterator[Blob]:
        waiting = [""]
        while waiting:
            prefix = waiting.pop()
            try:
                with os.scandir(os.path.join(directory, prefix)) as entries:
                    for entry in entries:
                        try:
                            blob = _blob(prefix + entry.name, entry.stat(follow_symlinks=False))
                        except FileNotFoundError:
                            continue
                        if blob.kind == DIRECTORY:
                            waiting.append(f"{blob.name}/")
                        yield blob
            except OSError:
                continue  # removed meanwhile, or not for us to see

    def is_unfinished(self, name: str) -> bool:
        return name.endswith(PART)

    def missing(self, names: Iterable[str]) -> "list[str]":
        return [name for name in names if not os.path.isfile(name)]

    def read(self, name: str, limit: int) -> bytes:
        # A pipe is opened without waiting for its other end.
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file", name)
            data = piece = os.read(descriptor, min(READ_SIZE, limit))
            while piece and len(data) < limit:
                piece = os.read(descriptor, limit - len(data))
                data += piece
            return data
        finally:
            os.close(descriptor)

    def open(self, name: str) -> FileReader:
        return FileReader(name)

    def location(self, name: str) -> str:  # noqa: ARG002
        return ""

    def kvstore(self, directory: str) -> dict[str, Any]:
        return {"driver": "file", "path": directory.rstrip("/") + "/"}

    def create(self, name: str, size: int = 0, mark: Mark | None = None) -> ChunkFile:
        assert mark is None
        return open_chunk_file(name, size)

    def write(self, name: str, data: bytes, *, durable: bool = False) -> None:
        write_whole(self.create(name), data, durable=durable)

    def link(self, source: str, name: str) -> None:
        if not (os.path.lexists(name) and os.path.samefile(source, name)):
            os.link(os.path.realpath(source), name)

    def make_directory(self, directory: str) -> None:
        os.makedirs(directory, exist_ok=True)

    def remove(self, name: str) -> None:
        """Also after an error, all that can be removed is."""
        if not os.path.isdir(name) or os.path.islink(name):
            os.unlink(name)
            return
        try:
            shutil.rmtree(name)
        except OSError:
            shutil.rmtree(name, ignore_errors=True)
            raise

    def remove_empty(self, directory: str) -> None:
        os.rmdir(directory)

    def flush(self, directory: str) -> None:
        publishing.flush(directory)

    def lock(self, name: str) -> FileLock:
        return FileLock(name)

    def space(self, name: str) -> Space | None:
        place = _nearest(name)
        return Space(free=shutil.disk_usage(place).free, place=place)

    def limits(self, name: str) -> Limits:
        try:
            longest = os.pathconf(_nearest(name), "PC_NAME_MAX")
        except (OSError, ValueError):
            longest = LONGEST_NAME
        return Limits(name=longest, blob=longest - len(PART), path=LONGEST_PATH)

    def rename(self, source: str, target: str) -> None:
        """Moves a file or directory on one file system."""
        os.rename(source, target)

    def exchange(self, first: str, second: str) -> bool:
        """Swaps two directories in one step, where the system can; returns whether it did."""
        return publishing.exchange(first, second)

    def prepare(self, destination: str, work_area: str) -> None:
        publishing.prepare(self, destination, work_area)

    def publish(self, publication: Publication) -> None:
        publishing.publish(self, publication)

    def is_published(self, publication: Publication) -> bool:
        return publishing.is_published(publication)

    def take_back(self, publication: Publication) -> None:
        publishing.take_back(self, publication)


def _nearest(path: str) -> str:
    """The directory at a path, or the nearest one above it."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def _blob(name: str, status: os.stat_result) -> Blob:
    mode = stat.S_IFMT(status.st_mode)
    kind = _KINDS.get(mode, OTHER)
    size = 0 if kind == DIRECTORY else status.st_size
    problem = _OTHERS.get(mode, "special file") if kind == OTHER else ""
    return Blob(name=name, kind=kind, size=size, version=status.st_mtime_ns, problem=problem)
