"""Tells AXLearn's checkpoints from MaxText's, so that one in the other's place is named and not called absent."""

import os

from converter.checkpoints.axlearn_steps import is_step, list_steps
from converter.checkpoints.maxtext import has_items
from converter.errors import DestinationError, SourceError, UsageError
from converter.location import Location

AXLEARN = "AXLearn"
MAXTEXT = "MaxText"


def checkpoint_kind(path: str) -> str:
    """Whose checkpoint a directory is: AXLEARN or MAXTEXT, empty for neither; names alone are looked at."""
    try:
        if is_step(path) or list_steps(path):
            return AXLEARN
    except SourceError:
        return ""  # whoever reads it says why it cannot be read
    # A training run of MaxText keeps its steps in checkpoints/.
    return MAXTEXT if has_items(path) or has_items(os.path.join(path, "checkpoints")) else ""


def check_source(source: Location) -> None:
    """Refuses a MaxText checkpoint as the source.

    Raises:
      SourceError: with what was expected.
    """
    if checkpoint_kind(source.path) == MAXTEXT:
        raise SourceError(
            f"{source.given}: is a MaxText checkpoint; expected SRC to be an AXLearn step or trainer directory"
        )


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
    check_order(source, destination)
    if os.path.realpath(source.path) == os.path.realpath(destination.path) and os.path.exists(source.path):
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
