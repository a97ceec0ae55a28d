"""Local files that processes of several hosts write at once, on a file system that they share; without any lock.

What makes that safe are operations that all such file systems have: a link or a rename of a directory fails where its
target is there already, and nothing can be made below a directory that is gone. Locks of files are not relied on: NFS
may keep them for one host only, and Lustre may have none.
"""

import contextlib
import errno
import os
import secrets

from converter.errors import DestinationError
from converter.storage.base import Mark, Publication
from converter.storage.chunk_file import PART, ChunkFile, open_chunk_file, write_whole
from converter.storage.litter import without_litter
from converter.storage.local import LocalStorage
from converter.storage.publishing import flush_directory

NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
"""What file systems without hard links answer."""


class SharedFiles(LocalStorage):
    """Files below one directory. See `base.Storage`.

    Nothing is made at or above that directory: once it was moved away, a process that was suspended does no harm.
    """

    def __init__(self, root: str):
        """Takes the directory; it need not be there yet."""
        self.root = root
        self._part = f".{os.getpid():x}-{secrets.token_hex(4)}{PART}"

    def create(self, name: str, size: int = 0, mark: Mark | None = None) -> ChunkFile:
        """Begins a file; `commit` raises `FileExistsError` where another process was first."""
        assert mark is None
        return open_chunk_file(name, size, self._part, _settle)

    def write(self, name: str, data: bytes, *, durable: bool = False) -> None:
        """Writes a small file in place of what is there."""
        write_whole(open_chunk_file(name, 0, self._part), data, durable=durable)

    def make_directory(self, directory: str) -> None:
        """Makes directories below the root only."""
        path = self.root
        for name in os.path.relpath(directory, self.root).split(os.sep):
            path = os.path.join(path, name)
            with contextlib.suppress(FileExistsError):
                os.mkdir(path)

    def link(self, source: str, name: str) -> None:
        try:
            super().link(source, name)
        except FileExistsError:
            if not os.path.samefile(source, name):
                raise

    def has_links(self) -> bool:
        """Whether the file system has hard links; tried below the root."""
        first, second = os.path.join(self.root, f"probe{self._part}"), os.path.join(self.root, f"link{self._part}")
        try:
            with open(first, "xb"):
                pass
            os.link(first, second)
        except OSError as error:
            if error.errno in NO_LINKS:
                return False
            raise
        finally:
            for name in (first, second):
                with contextlib.suppress(OSError):
                    os.unlink(name)
        return True

    def rename_once(self, source: str, target: str) -> bool:
        """Moves a directory to a name that nothing has; returns whether it did.

        Raises:
          FileNotFoundError: there is no such directory, or nothing that the target could be in.
        """
        try:
            os.rename(source, target)
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
                return False
            raise
        return True

    def publish(self, publication: Publication) -> None:
        """Moves a finished tree to its place, together with any process that does the same.

        Every entry is moved once, by whichever process comes first, and the markers after all others.

        Raises:
          DestinationError: something else is there, or it cannot be moved.
        """
        try:
            _move(publication)
        except OSError as error:
            raise DestinationError(
                f"{publication.destination}: the checkpoint cannot be put in place: {error.strerror}"
            ) from None


def claim(source: str, name: str) -> bool:
    """Gives a file a second name that nothing has; returns whether it did. Of several processes, one does.

    Where there are no hard links, the file is moved, which keeps those apart that do not come at the same moment.
    """
    try:
        _link(source, name)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        if os.path.lexists(name):
            return False
        os.rename(source, name)
    return True


def _settle(part: str, name: str) -> None:
    """Gives a file that is whole its name, where nothing has it.

    Raises:
      FileExistsError: another file has the name.
    """
    _link(part, name)
    os.unlink(part)


def _link(source: str, name: str) -> None:
    """Links a file; a server's answer may be lost, so that the call fails and the link is there: the inode shows it."""
    try:
        os.link(source, name)
    except FileExistsError:
        if not os.path.samefile(source, name):
            raise


def _move(publication: Publication) -> None:
    finished, destination = publication.finished, publication.destination
    if not os.path.isdir(destination):
        try:
            os.rename(finished, destination)
        except FileNotFoundError:
            if not os.path.isdir(destination):
                raise
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise
        else:
            flush_directory(os.path.dirname(destination))
            return
    there = _names(destination)
    here = _names(finished)  # looked at last: what another process moves meanwhile is in neither
    foreign = [name for name in there if name in here or not _is_part(name, publication)]
    if foreign:
        raise OSError(errno.ENOTEMPTY, f"something appeared there meanwhile: {', '.join(sorted(foreign)[:3])}")
    for name in sorted(here, key=publication.is_marker):
        if publication.is_marker(name):
            flush_directory(destination)
        with contextlib.suppress(FileNotFoundError):  # another process was first
            os.rename(os.path.join(finished, name), os.path.join(destination, name))
    flush_directory(destination)


def _is_part(name: str, publication: Publication) -> bool:
    return name in publication.others or publication.is_marker(name)


def _names(directory: str) -> list[str]:
    try:
        return without_litter(os.listdir(directory))
    except FileNotFoundError:
        return []
