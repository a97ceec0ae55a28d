import errno

from converter.errors import DestinationError
from converter.storage.registry import storage_of
from converter.words import format_size


def write_error(path: str, error: OSError) -> DestinationError:
    """What the system says about a failed write, with the room that is left."""
    if error.errno == errno.ENOENT:
        return DestinationError(
            f"{path}: cannot be written: its directory were removed while the conversion ran; run the same command"
        )
    return DestinationError(f"{path}: cannot be written: {error.strerror or error}{free_text(path)}")


def free_text(path: str) -> str:
    """The room that is left at a path, for the end of a message; nothing if that is not known."""
    try:
        space = storage_of(path).space(path)
    except OSError:
        return ""
    return f" ({format_size(space.free)} free)" if space else ""
