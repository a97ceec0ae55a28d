"""The formats of checkpoints: which one a path holds, so that each is opened by its module and none is called absent.

A format is one module of this package, and one entry in FORMATS.
"""

from collections.abc import Callable
from dataclasses import dataclass

from converter.checkpoints.axlearn import Checkpoint
from converter.checkpoints.axlearn_steps import holds_steps, open_step
from converter.checkpoints.maxtext import holds_items
from converter.errors import DestinationError, SourceError, UsageError
from converter.location import Location
from converter.storage import storage_of

AXLEARN = "AXLearn"
MAXTEXT = "MaxText"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFormat:
    """A format that checkpoints are stored in.

    Attributes:
      side: whose checkpoints are stored so, AXLEARN or MAXTEXT.
      detect: whether a local path means such a checkpoint, by names alone; raises SourceError where it may not look.
      open: reads the metadata of the checkpoint that a path means, at a step or the latest one; None for a format that
        is not a source.
    """

    side: str
    detect: Callable[[str], bool]
    open: Callable[[str, int | None], Checkpoint] | None = None

    def holds(self, path: str) -> bool:
        """Whether a path means such a checkpoint; false if that cannot be determined: whoever reads it says why."""
        try:
            return self.detect(path)
        except SourceError:
            return False


FORMATS = (
    CheckpointFormat(side=AXLEARN, detect=holds_steps, open=open_step),
    CheckpointFormat(side=MAXTEXT, detect=holds_items),
)


def checkpoint_kind(path: str) -> str:
    """Whose checkpoint a directory is: AXLEARN or MAXTEXT, empty for neither; names alone are looked at."""
    with storage_of(path).browsing(path):
        return next((entry.side for entry in FORMATS if entry.holds(path)), "")


def open_checkpoint(path: str, step: int | None, *, given: str = "") -> Checkpoint:
    """Opens the source that a path means, in whichever format it is stored.

    Args:
      path: a step, or a directory above steps.
      step: the wanted step; None for the latest committed one.
      given: the path in the user's words.

    Raises:
      SourceError: it is a MaxText checkpoint; or nothing is there that can be read, and AXLearn's own format says what
        was expected.
    """
    found = next((entry for entry in FORMATS if entry.holds(path)), FORMATS[0])
    if found.open is None:
        raise _not_a_source(given or path)
    return found.open(path, step)


def check_source(source: Location) -> None:
    """Refuses a MaxText checkpoint as the source.

    Raises:
      SourceError: with what was expected.
    """
    if checkpoint_kind(source.path) == MAXTEXT:
        raise _not_a_source(source.given)


def _not_a_source(given: str) -> SourceError:
    return SourceError(f"{given}: is a MaxText checkpoint; expected SRC to be an AXLearn step or trainer directory")


def check_order(source: Location, destination: Location) -> None:
    """Refuses swapped arguments.

    Raises:
      UsageError: the source is MaxText's and the destination AXLearn's.
    """
    if (checkpoint_kind(source.path), checkpoint_kind(destination.path)) == (MAXTEXT, AXLEARN):
        raise UsageError(
            f"SRC and DST are swapped: {source.given} is a MaxText checkpoint, {destination.given} an AXLearn "
            f"checkpoint; give {destination.given} first"
        )


def check_pair(source: Location, destination: Location) -> None:
    """Refuses two checkpoints that cannot be a source and its conversion.

    Raises:
      UsageError: they are swapped, or the same.
      SourceError: the source is MaxText's.
      DestinationError: the destination is AXLearn's.
    """
    with storage_of(source.path).browsing(source.path), storage_of(destination.path).browsing(destination.path):
        _check_pair(source, destination)


def _check_pair(source: Location, destination: Location) -> None:
    check_order(source, destination)
    real = [storage_of(place.path).resolve(place.path) for place in (source, destination)]
    if real[0] == real[1] and storage_of(real[0]).exists(real[0]):
        raise UsageError(f"SRC and DST are the same directory, {source.path}; expected a checkpoint and its conversion")
    check_source(source)
    if checkpoint_kind(destination.path) == AXLEARN:
        raise DestinationError(
            f"{destination.given}: is an AXLearn checkpoint; expected DST to be the MaxText checkpoint made of it"
        )


def check_alone(destination: Location) -> None:
    """Refuses an AXLearn checkpoint where a MaxText checkpoint is looked at without its source.

    Raises:
      UsageError: with what to give.
    """
    if checkpoint_kind(destination.path) == AXLEARN:
        raise UsageError(
            f"{destination.given}: is an AXLearn checkpoint, which holds no digests; give its conversion too: "
            "verify SRC DST"
        )
