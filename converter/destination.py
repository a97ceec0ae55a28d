"""The destination: what is refused before any work. How a checkpoint takes its place there is in `publishing`."""

import os
import re
import shutil

from converter.digest import RECEIPT_NAME
from converter.errors import DestinationError
from converter.litter import without_litter
from converter.maxtext import CONFIG_NAME
from converter.memory import format_size

SUFFIX = ".ax2mt-wip"
"""The work area of a conversion, beside its destination."""

JOURNAL_SUFFIX = ".ax2mt-wip.json"

RESERVE = 64 << 20
"""Bytes that must stay free beyond what we expect to write: metadata, and chunks that compress a little worse."""


def resolve_destination(path: str) -> str:
    """The absolute path that a user's path means; a link to a directory is followed, for it cannot be replaced."""
    target = os.path.abspath(os.path.expanduser(path))
    return os.path.realpath(target) if os.path.isdir(target) else target


def check_destination(path: str, source: str, *, overwrite: bool) -> str:
    """Refuses a destination that must not be written.

    Args:
      path: the destination as the user gave it.
      source: the source step directory.
      overwrite: whether a checkpoint that is there may be replaced.

    Returns:
      The destination as an absolute path.

    Raises:
      DestinationError: it is remote, overlaps the source, or exists and is not empty (or with `overwrite`, holds
        something else than a MaxText checkpoint).
    """
    if re.match(r"[a-z0-9]+://", path):
        raise DestinationError(f"{path}: remote storage is not supported; write to a file system and copy from there")
    if not is_unicode(path):
        raise DestinationError(f"{path}: this name is not valid UTF-8, and Orbax cannot write there; give another name")
    target = resolve_destination(path)
    check_overlap(target, source)
    if os.path.ismount(target):
        raise DestinationError(f"{target}: is a mount point, which cannot be replaced; give a directory below it")
    if not os.path.lexists(target):
        return target
    if not os.path.isdir(target):
        raise DestinationError(f"{target}: exists and is no directory; give a new directory")
    try:
        names = without_litter(os.listdir(target))
    except OSError as error:
        raise DestinationError(f"{target}: cannot be listed: {error.strerror}") from None
    if not names:
        return target
    if not overwrite:
        raise DestinationError(f"{target}: exists and is not empty; give a new directory, or --overwrite a checkpoint")
    if not is_maxtext_checkpoint(target):
        raise DestinationError(
            f"{target}: --overwrite replaces only a MaxText checkpoint (step directories with items/_METADATA, "
            f"{CONFIG_NAME}, nothing else); found {_shown(names)}"
        )
    return target


def _shown(names: list[str]) -> str:
    return ", ".join(sorted(names)[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def is_unicode(path: str) -> bool:
    """Whether a path's name is text: Linux allows any bytes, the libraries that write checkpoints do not."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_overlap(target: str, source: str) -> None:
    """Refuses a destination in the source or around it; its work area would not be better off there.

    Args:
      target: the destination, as an absolute path.
      source: a directory of the source.

    Raises:
      DestinationError: they overlap, symbolic links followed.
    """
    real, real_source = os.path.realpath(target), os.path.realpath(os.path.expanduser(source))
    for place in (real, real + SUFFIX, real + JOURNAL_SUFFIX):
        if os.path.commonpath([place, real_source]) in (place, real_source):
            raise DestinationError(f"{place}: overlaps the source {source}; give a directory outside of it")


def is_maxtext_checkpoint(path: str) -> bool:
    """Whether a directory holds MaxText checkpoints and nothing else, apart from litter."""
    names = [name for name in without_litter(os.listdir(path)) if name not in (CONFIG_NAME, RECEIPT_NAME)]
    return bool(names) and all(
        name.isdigit() and os.path.isfile(os.path.join(path, name, "items", "_METADATA")) for name in names
    )


def check_space(path: str, needed: int) -> None:
    """Refuses a destination whose file system has too little room.

    Raises:
      DestinationError: with the bytes needed and free.
    """
    place = path
    while not os.path.isdir(place):
        place = os.path.dirname(place)
    free = shutil.disk_usage(place).free
    if free < needed + RESERVE:
        raise DestinationError(
            f"{path}: too little room: {format_size(needed + RESERVE)} needed, {format_size(free)} free on {place}"
        )
