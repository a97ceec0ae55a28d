"""What may be at a destination in a store of objects: what is not ours is neither removed nor published."""

from collections.abc import Collection, Mapping

from converter.checkpoints import CONFIG_NAME, MARKER, is_maxtext_checkpoint
from converter.errors import DestinationError
from converter.storage import CONVERSION, Blob, Mark

MAX_NAMED = 3
"""Objects that a message names."""

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
    shown = ", ".join(sorted({name.partition("/")[0] for name in others})[:MAX_DIRECTORIES])
    if overwrite:
        raise DestinationError(
            f"{destination}: --overwrite replaces only a MaxText checkpoint (step directories with items/_METADATA, "
            f"{CONFIG_NAME}, nothing else); found {shown}"
        )
    raise DestinationError(f"{destination}: exists and is not empty; give a new directory, or --overwrite a checkpoint")


def check_ours(destination: str, there: Mapping[str, Blob], mark: Mark) -> None:
    """Refuses to make a checkpoint of more than was converted.

    Args:
      destination: the checkpoint.
      there: what is there, by names below it.
      mark: what the conversion's objects carry.

    Raises:
      DestinationError: something else is there.
    """
    others = sorted(name for name, blob in there.items() if blob.tags.get(CONVERSION) != mark.conversion)
    if others:
        more = f" and {len(others) - MAX_NAMED} more" if len(others) > MAX_NAMED else ""
        raise DestinationError(
            f"{destination}: something else was put there while the conversion ran: {', '.join(others[:MAX_NAMED])}"
            f"{more}; remove it, and run the same command again to resume"
        )
