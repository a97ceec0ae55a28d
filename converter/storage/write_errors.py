import errno
from collections.abc import Sequence

from converter.errors import DestinationError
from converter.storage.registry import storage_of
from converter.words import first_names, format_size

MAX_NAMED = 3
"""Objects that a message names."""


def write_error(path: str, error: OSError) -> DestinationError:
    """What the system says about a failed write, with the room that is left."""
    if error.errno == errno.ENOENT:
        return DestinationError(
            f"{path}: cannot be written: its directory was removed while the conversion ran; run the same command"
        )
    return DestinationError(f"{path}: cannot be written: {error.strerror or error}{free_text(path)}")


def foreign_error(place: str, names: Sequence[str] = ()) -> DestinationError:
    """Something that is not the conversion's is at a place, or at names below it."""
    shown = f": {first_names(names, MAX_NAMED)}" if names else ""
    return DestinationError(
        f"{place}: something else was put there while the conversion ran{shown}; remove it, and run the same command "
        "again to resume"
    )


def free_text(path: str) -> str:
    """The room that is left at a path, for the end of a message; nothing if that is not known."""
    try:
        space = storage_of(path).space(path)
    except OSError:
        return ""
    return f" ({format_size(space.free)} free)" if space else ""
