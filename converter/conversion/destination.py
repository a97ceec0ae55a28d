"""The destination: what is refused before any work. How a checkpoint takes its place there is in `publishing`."""

import os

from converter.checkpoints import AXLEARN, CONFIG_NAME, checkpoint_kind, is_maxtext_checkpoint
from converter.errors import DestinationError, SourceError
from converter.location import check_committable, locate
from converter.storage import storage_of, without_litter
from converter.words import first_names, format_size

SUFFIX = ".ax2mt-wip"
"""The work area of a conversion, beside its destination."""

JOURNAL_SUFFIX = ".ax2mt-wip.json"

MAX_NAMED = 5
"""Entries of a directory that a message names."""

LONGEST_BELOW = 512
"""Bytes of a path that a chunk takes below the destination at most, temporary names too."""

RESERVE = 64 << 20
"""Bytes that must stay free beyond what we expect to write: metadata, and chunks that compress a little worse."""


def resolve_destination(path: str) -> str:
    """The absolute path that a user's path means; a link to a directory is followed, for it cannot be replaced.

    Raises:
      DestinationError: it is not a local path.
    """
    target = locate(path, DestinationError).path
    storage = storage_of(target)
    return storage.resolve(target) if storage.renames and storage.is_directory(target) else target


def check_destination(path: str, source: str, *, overwrite: bool) -> str:
    """Refuses a destination that must not be written.

    Args:
      path: the destination as the user gave it.
      source: the source step directory.
      overwrite: whether a checkpoint that is there may be replaced.

    Returns:
      The destination as an absolute path.

    Raises:
      DestinationError: it is remote, overlaps the source, has a name that no checkpoint can be read under, or exists
        and is not empty (or with `overwrite`, holds something else than a MaxText checkpoint).
    """
    target = resolve_destination(path)
    check_committable(target, DestinationError)
    _check_length(target)
    check_overlap(target, source)
    storage = storage_of(target)
    if not storage.renames:
        # What is there is looked at when the work begins: see `object_stage`.
        if "/" not in target.partition("://")[2]:
            raise DestinationError(f"{target}: is a whole bucket; give a name in it, such as {target}/checkpoint")
        return target
    if storage.is_mount(target):
        raise DestinationError(f"{target}: is a mount point, which cannot be replaced; give a directory below it")
    if not storage.exists(target):
        return target
    if not storage.is_directory(target):
        raise DestinationError(f"{target}: exists but is not a directory; give a new directory")
    try:
        names = without_litter(storage.names(target))
    except OSError as error:
        raise DestinationError(f"{target}: cannot be listed: {error.strerror}") from None
    if not names:
        return target
    if checkpoint_kind(target) == AXLEARN:
        raise DestinationError(f"{target}: is an AXLearn checkpoint, which is never replaced; give a new directory")
    if not overwrite:
        raise not_empty(target)
    if not is_maxtext_checkpoint(target):
        raise not_replaceable(target, first_names(sorted(names), MAX_NAMED))
    return target


def not_empty(destination: str) -> DestinationError:
    """Something is there, and nobody asked for it to be replaced."""
    return DestinationError(
        f"{destination}: exists and is not empty; give a new directory, or --overwrite a checkpoint"
    )


def not_replaceable(destination: str, found: str) -> DestinationError:
    """What is there and was to be replaced is something else than a checkpoint."""
    return DestinationError(
        f"{destination}: --overwrite replaces only a MaxText checkpoint (step directories with items/_METADATA, "
        f"{CONFIG_NAME}, nothing else); found {found}"
    )


def _check_length(target: str) -> None:
    """Refuses names that leave no room for the work area's name beside them, or for the files below."""
    *parents, name = target.split("/")
    limits = storage_of(target).limits(target)
    rooms = [(part, limits.name) for part in parents]
    for part, room in (*rooms, (name, limits.blob - len(JOURNAL_SUFFIX))):
        length = len(os.fsencode(part))
        if length > room:
            raise DestinationError(
                f"{target}: the name is too long: {length} bytes, at most {room}; give a shorter name"
            )
    length, room = len(os.fsencode(target)), limits.path - LONGEST_BELOW
    if length > room:
        raise DestinationError(f"{target}: the path is too long: {length} bytes, at most {room}; give a shorter path")


def check_overlap(target: str, source: str) -> None:
    """Refuses a destination in the source or around it; its work area would not be better off there.

    Args:
      target: the destination, as an absolute path.
      source: a directory of the source.

    Raises:
      DestinationError: they overlap, symbolic links followed.
    """
    source_place = locate(source, SourceError).path
    real, real_source = storage_of(target).resolve(target), storage_of(source_place).resolve(source_place)
    for place in (real, real + SUFFIX, real + JOURNAL_SUFFIX):
        if f"{place}/".startswith(f"{real_source}/") or f"{real_source}/".startswith(f"{place}/"):
            raise DestinationError(f"{place}: overlaps the source {source}; give a directory outside of it")


def check_space(path: str, needed: int) -> None:
    """Refuses a destination whose file system has too little room.

    Raises:
      DestinationError: with the bytes needed and free.
    """
    space = storage_of(path).space(path)
    if space is not None and space.free < needed + RESERVE:
        raise DestinationError(
            f"{path}: too little room: {format_size(needed + RESERVE)} needed, {format_size(space.free)} free on "
            f"{space.place}"
        )
