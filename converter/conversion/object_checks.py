"""What may be at a destination in a store of objects: what is not ours is neither removed nor published."""

from collections.abc import Collection, Mapping

from converter.checkpoints import MARKER, is_maxtext_checkpoint
from converter.conversion.destination import not_empty, not_replaceable
from converter.errors import DestinationError
from converter.storage import CONVERSION, Blob, Mark, foreign_error

MAX_DIRECTORIES = 5


def check_removable(
    destination: str,
    there: Mapping[str, Blob],
    others: Collection[str],
    *,
    fresh: bool,
    overwrite: bool,
    replacing: bool,
) -> None:
    """Refuses to remove what nobody asked to be removed.

    Args:
      destination: the checkpoint.
      there: what is there, by names below it.
      others: the names of what the conversion that begins did not write.
      fresh: parts of interrupted conversions may be removed.
      overwrite: a checkpoint may be.
      replacing: an interrupted run was about to remove one.

    Raises:
      DestinationError: it must stay.
    """
    if overwrite and (replacing or is_maxtext_checkpoint(destination)):
        return
    if all(CONVERSION in there[name].tags for name in others) and not any(name.endswith(MARKER) for name in others):
        if fresh:
            return
        raise DestinationError(f"{destination}: holds parts of an interrupted conversion; --fresh removes them")
    if overwrite:
        shown = ", ".join(sorted({name.partition("/")[0] for name in others})[:MAX_DIRECTORIES])
        raise not_replaceable(destination, shown)
    raise not_empty(destination)


def check_ours(destination: str, there: Mapping[str, Blob], mark: Mark) -> None:
    """Refuses to make a checkpoint of more than was converted.

    Args:
      destination: the checkpoint.
      there: what is there, by names below it.
      mark: what the conversion's objects carry.

    Raises:
      DestinationError: something else is there.
    """
    others = sorted(name for name, blob in there.items() if not mark.is_on(blob))
    if others:
        raise foreign_error(destination, others)
