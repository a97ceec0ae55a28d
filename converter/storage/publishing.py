"""How a finished tree takes its place on a local file system: in one step that is the last one, and by renames alone.

A destination that is not there yet appears by a rename, a tree that is there is exchanged for the new one, and an empty
directory is filled: the entries are renamed into it one by one, the markers last. Readers look for a marker; without
one there is nothing for them. Each of these can be killed at any moment: `is_published` and `take_back` tell and undo
how far it came.
"""

import ctypes
import errno
import os
import re
import shutil
import stat
from typing import Protocol

from converter.errors import DestinationError
from converter.storage.base import Publication
from converter.storage.litter import PROBE, without_litter

DEFAULT_ACL = "system.posix_acl_default"
"""Linux: the extended attribute from which what is made in a directory takes its access rights."""

REFUSALS = frozenset({errno.EXDEV, errno.EBUSY, errno.EACCES, errno.EPERM, errno.EROFS})
"""What a system says of a directory that cannot be moved: overlays, mount points, permission, sticky, immutable."""

_OCTAL = re.compile(r"\\([0-7]{3})")


class Mover(Protocol):
    """The steps that a publication is made of."""

    def rename(self, source: str, target: str) -> None:
        """Moves a file or directory on one file system."""
        ...

    def exchange(self, first: str, second: str) -> bool:
        """Swaps two directories in one step, where the system can; returns whether it did."""
        ...


def publish(mover: Mover, publication: Publication) -> None:
    """See `base.Storage.publish`."""
    finished, destination = publication.finished, publication.destination
    try:
        if not os.path.isdir(destination):
            mover.rename(finished, destination)
        elif is_empty(destination):
            _fill(mover, publication)
        else:
            _take_over_attributes(destination, finished)
            if not mover.exchange(finished, destination):
                _replace(mover, publication)
        flush_directory(os.path.dirname(destination))
    except OSError as error:
        raise DestinationError(f"{destination}: the checkpoint cannot be put in place: {error.strerror}") from None


def is_empty(directory: str) -> bool:
    """Whether a directory holds nothing, or nothing but litter.

    Raises:
      OSError: it cannot be listed.
    """
    return not without_litter(os.listdir(directory))


def is_published(publication: Publication) -> bool:
    """Whether a tree that was being published has arrived: its markers are at the destination, and not here."""
    there, here = (_markers(place, publication) for place in (publication.destination, publication.finished))
    return bool(there) and not here


def take_back(mover: Mover, publication: Publication) -> None:
    """See `base.Storage.take_back`: what was at the destination is there again."""
    finished, destination = publication.finished, publication.destination
    try:
        if os.path.isdir(publication.replaced) and not os.path.lexists(destination):
            mover.rename(publication.replaced, destination)
        elif os.path.isdir(destination) and _markers(finished, publication) and not _markers(destination, publication):
            for name in publication.others:
                here, there = os.path.join(finished, name), os.path.join(destination, name)
                if os.path.lexists(there) and not os.path.lexists(here):
                    mover.rename(there, here)
    except OSError as error:
        raise DestinationError(f"{destination}: cannot be cleared of an interrupted run: {error.strerror}") from None


def prepare(mover: Mover, destination: str, work_area: str) -> None:
    """See `base.Storage.prepare`."""
    if not os.path.isdir(destination):
        return
    mount = _mount_below(os.path.realpath(destination))
    if mount is not None:
        raise DestinationError(f"{mount}: is a mount point, which cannot be replaced; give a directory below it")
    empty = False
    try:
        empty = is_empty(destination)
        (_try_to_fill if empty else _try_to_replace)(mover, destination, work_area)
        if empty:
            _inherit(destination, work_area)
    except OSError as error:
        what = "filled" if empty else "replaced"
        advice = _advice(error, empty=empty)
        raise DestinationError(f"{destination}: cannot be {what}: {error.strerror}; {advice}") from None


def flush(path: str) -> None:
    """Makes a directory tree durable: its whole file system in one go where the system can, else file by file."""
    if _sync_file_system(path):
        return
    for directory, _, files in os.walk(path, topdown=False):
        for name in (*files, ""):
            descriptor = os.open(os.path.join(directory, name) if name else directory, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _fill(mover: Mover, publication: Publication) -> None:
    """Moves everything into an empty directory, the markers last; moves it back if that fails."""
    finished, destination = publication.finished, publication.destination
    markers = _markers(finished, publication)
    others = [name for name in without_litter(os.listdir(finished)) if name not in markers]
    moved: list[str] = []
    try:
        for name in (*others, *markers):
            if name in markers:
                flush_directory(destination)
            mover.rename(os.path.join(finished, name), os.path.join(destination, name))
            moved.append(name)
    except OSError:
        for name in reversed(moved):
            mover.rename(os.path.join(destination, name), os.path.join(finished, name))
        raise
    flush_directory(destination)


def _markers(directory: str, publication: Publication) -> list[str]:
    try:
        return list(filter(publication.is_marker, os.listdir(directory)))
    except OSError:
        return []


def _try_to_fill(mover: Mover, destination: str, work_area: str) -> None:
    """Moves an empty directory in and removes it there: quotas of projects and encryption forbid what modes allow."""
    inside, beside = os.path.join(destination, PROBE), os.path.join(work_area, PROBE)
    for place in (inside, beside):
        if os.path.isdir(place):
            os.rmdir(place)
    os.mkdir(beside)
    try:
        mover.rename(beside, inside)
    except OSError:
        os.rmdir(beside)
        raise
    os.rmdir(inside)


def _try_to_replace(mover: Mover, destination: str, work_area: str) -> None:
    """Asks the system to move the destination onto a directory that is not empty, which it never does.

    That it is not empty is the last thing to be looked at (Linux, fs/namei.c): another answer than the one for a
    directory of our own says that the destination cannot be moved elsewhere either.
    """
    beside = os.path.join(work_area, PROBE)
    full, own = os.path.join(beside, "full"), os.path.join(beside, "own")
    for place in (full, own):
        os.makedirs(os.path.join(place, "x"), exist_ok=True)
    try:
        usual = _move_errno(mover, own, full)
        found = _move_errno(mover, destination, full) if usual else None
        if found != usual and found in REFUSALS:
            raise OSError(found, os.strerror(found), destination)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _move_errno(mover: Mover, source: str, target: str) -> int | None:
    """What the system has against a rename; None where it was done."""
    try:
        mover.rename(source, target)
    except OSError as error:
        return error.errno
    return None


def _mount_below(directory: str) -> str | None:
    """A mount point at or below a directory, where Linux reports it: others, bind mounts too, look like directories."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            # proc(5): the fifth field is the mount point, with blanks and backslashes as octal numbers.
            points = [_OCTAL.sub(lambda match: chr(int(match[1], 8)), line.split(" ")[4]) for line in file]
    except OSError:
        return None
    return next((point for point in points if f"{point}/".startswith(f"{directory}/")), None)


def _advice(error: OSError, *, empty: bool) -> str:
    if error.errno == errno.EXDEV and not empty:
        return "it is in a lower layer of an overlay file system; give another directory, or remove it first"
    if error.errno == errno.EXDEV:
        return "a quota or a mount of its own sets it apart from its parent; give a directory below it"
    return "give another directory"


def _inherit(destination: str, work_area: str) -> None:
    """Lets what is made in the work area have the group and the rights that it would have if made at the destination.

    As far as we may: the group by the set-group-ID bit, and default access control lists.
    """
    status, own = os.stat(destination), os.stat(work_area)
    inherits = status.st_mode & stat.S_ISGID
    try:
        os.chown(work_area, -1, status.st_gid if inherits else os.getegid())
        os.chmod(work_area, stat.S_IMODE(own.st_mode) & ~stat.S_ISGID | inherits)
    except OSError:
        pass
    try:
        os.setxattr(work_area, DEFAULT_ACL, os.getxattr(destination, DEFAULT_ACL))
    except (OSError, AttributeError):
        pass


def _take_over_attributes(old: str, new: str) -> None:
    """Gives a directory owner, group and mode of the one that it replaces, as far as we may."""
    status = os.stat(old)
    for user, group in ((-1, status.st_gid), (status.st_uid, -1)):
        try:
            os.chown(new, user, group)
        except OSError:
            pass
    os.chmod(new, stat.S_IMODE(status.st_mode))


def _replace(mover: Mover, publication: Publication) -> None:
    """Two renames, where one is not to be had; what was there comes back if the second one fails."""
    mover.rename(publication.destination, publication.replaced)
    try:
        mover.rename(publication.finished, publication.destination)
    except OSError:
        mover.rename(publication.replaced, publication.destination)
        raise


def _sync_file_system(path: str) -> bool:
    """Linux syncfs; returns whether it was done. An I/O error counts as not done, so that `flush` meets it by file."""
    try:
        syncfs = ctypes.CDLL(None, use_errno=True).syncfs
    except (OSError, AttributeError):
        return False
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return syncfs(descriptor) == 0
    finally:
        os.close(descriptor)


def flush_directory(path: str) -> None:
    """Makes the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def exchange(first: str, second: str) -> bool:
    """Swaps two directories in one step, where the system can (Linux renameat2); returns whether it did."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    here, exchange = -100, 2
    return rename(here, os.fsencode(first), here, os.fsencode(second), exchange) == 0
