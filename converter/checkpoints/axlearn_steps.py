"""Finds the AXLearn step that a path means: trainer directories, step names, the commit marker.

    <trainer dir>/checkpoints/step_00000100/index

A step is committed when `index` is a file; AXLearn writes it last (axlearn/common/checkpointer.py). A newer step that
was never committed is passed over, with a note. A step that claims to be there and cannot be read is an error: nobody
asked for older weights.
"""

import dataclasses
import os
import re
from dataclasses import dataclass

from converter.checkpoints.axlearn import Checkpoint, check_committed, read_checkpoint, status_of
from converter.checkpoints.axlearn_orbax import is_orbax_step, read_orbax_checkpoint
from converter.errors import SourceError
from converter.storage import DANGLING, DIRECTORY, Blob, storage_of

MAX_NOTES = 8

_LIKE_A_STEP = re.compile(r"step_(\d{1,18})")
_OTHER_STEP = "name another step with --step to convert that one"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundStep:
    """The step that a path means.

    Attributes:
      directory: of a committed step.
      latest: it was chosen as the latest one; nobody named it.
      notes: the newer steps that were passed over, and why, one line each.
    """

    directory: str
    latest: bool = False
    notes: tuple[str, ...] = ()


def open_step(path: str, step: int | None = None) -> Checkpoint:
    """Finds the step that a path means and reads its index.

    Args:
      path: a step directory, a `checkpoints` directory, or the trainer directory above it.
      step: the wanted step; None for the latest committed one.

    Raises:
      SourceError: see `find_step` and `read_checkpoint`; or the step has no arrays, or is another step than its
        directory's name says.
    """
    found = find_step(path, step)
    try:
        read = read_orbax_checkpoint if is_orbax_step(found.directory) else read_checkpoint
        checkpoint = read(found.directory)
        _check_whole(checkpoint)
    except SourceError as error:
        if not found.latest:
            raise
        raise SourceError(f"{error.message}; {_OTHER_STEP}", error.details) from None
    return dataclasses.replace(checkpoint, notes=found.notes)


def find_step(path: str, step: int | None = None) -> FoundStep:
    """Finds the step directory that a user's path means.

    Args:
      path: a step directory, a `checkpoints` directory, or the trainer directory above it; local, see `location`.
      step: the wanted step; None for the latest committed one.

    Raises:
      SourceError: nothing is there, no such step is committed, or a newer step or a directory above it cannot be read.
    """
    status = status_of(path)
    if status is None or status.kind != DIRECTORY:
        found = "does not exist" if status is None else "is not a directory"
        raise SourceError(f"{path} {found}; expected an AXLearn step or trainer directory")
    if is_step(path):
        check_committed(path)
        named = step_number(path)
        if step is not None and named != step:
            found = "has no step in its name" if named is None else f"is step {named}, not step {step}"
            raise SourceError(f"{path} {found}; pass the directory above it, or drop --step")
        return FoundStep(directory=path)
    if step is not None:
        return FoundStep(directory=_named_step(path, step))
    return _latest_step(path)


def list_steps(path: str) -> dict[int, str]:
    """The steps below a trainer or `checkpoints` directory by number: every entry with a step's name, whatever it is.

    Raises:
      SourceError: a directory cannot be listed, or there are steps in both directories.
    """
    return _look_below(path).steps


def holds_steps(path: str) -> bool:
    """Whether a directory is a step or holds steps, in any state.

    Raises:
      SourceError: see `list_steps`.
    """
    return is_step(path) or bool(list_steps(path))


def step_number(directory: str) -> int | None:
    """The step in a step directory's name."""
    return _number(os.path.basename(storage_of(directory).resolve(directory)))


def step_state(directory: str) -> str:
    """What a step is: "committed", "uncommitted" or "unreadable"."""
    try:
        return "uncommitted" if _why_not_committed(directory) else "committed"
    except SourceError:
        return "unreadable"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Below:
    """What lies below a trainer directory: steps, and paths with names like steps', which AXLearn does not write."""

    steps: dict[int, str]
    misnamed: tuple[tuple[int, str], ...]


def _look_below(path: str) -> _Below:
    steps: dict[int, str] = {}
    misnamed: list[tuple[int, str]] = []
    for place in (path, os.path.join(path, "checkpoints")):
        here: dict[int, str] = {}
        for name in sorted(_names(place)):
            number = _number(name)
            like = _LIKE_A_STEP.match(name)
            if number is not None:
                here[number] = os.path.join(place, name)
            elif like is not None:
                misnamed.append((int(like[1]), os.path.join(place, name)))
        if steps and here:
            raise SourceError(f"{path}: steps both here and in {place}; pass the one that is meant")
        steps = steps or here
    return _Below(steps=dict(sorted(steps.items())), misnamed=tuple(misnamed))


def _named_step(path: str, step: int) -> str:
    """The directory of a step by its number; needs no permission to list the directories above it."""
    name = f"step_{step:08d}"
    places = [os.path.join(path, name), os.path.join(path, "checkpoints", name)]
    found = [place for place in places if status_of(place) is not None]
    if len(found) > 1:
        raise SourceError(f"{path}: step {step} is both {found[0]} and {found[1]}; pass the one that is meant")
    if not found:
        below = _look_below(path)
        if not below.steps:
            raise _nothing_here(path, below)
        raise SourceError(f"{path}: no step {step}; there are {_list(list(below.steps))}")
    _follow(found[0])
    check_committed(found[0])
    return found[0]


def _latest_step(path: str) -> FoundStep:
    below = _look_below(path)
    if not below.steps:
        raise _nothing_here(path, below)
    notes: list[tuple[int, str]] = []
    for number, place in reversed(below.steps.items()):
        try:
            why = _why_not_committed(place)
        except SourceError as error:
            raise SourceError(f"{error.message}; {_OTHER_STEP}") from None
        if not why:
            odd = "its name is not step_ and 8 digits; it is a temporary or renamed copy"
            notes += [(other, f"{name} was passed over: {odd}") for other, name in below.misnamed if other > number]
            return FoundStep(directory=place, latest=True, notes=_shown(notes))
        notes.append((number, f"{place} was passed over: {why}"))
    raise SourceError(
        f"{path}: none of the steps {_list(list(below.steps))} is committed (none has an index file); "
        "the training was stopped before a save finished"
    )


def _why_not_committed(directory: str) -> str:
    """Why a step is passed over; empty for a committed one.

    Raises:
      SourceError: that cannot be determined, or the step was committed and is not usable.
    """
    status = _follow(directory)
    if status is None:
        raise SourceError(f"{directory} was removed while it was looked for")
    if status.kind != DIRECTORY:
        return "it is not a directory"
    if _follow(os.path.join(directory, "index")) is None:
        return "it has no index file, so its save or its copy did not finish"
    check_committed(directory)
    return ""


def is_step(path: str) -> bool:
    """Whether a directory is a step, committed or not, rather than one above steps."""
    return (
        step_number(path) is not None
        or status_of(os.path.join(path, "index")) is not None
        or storage_of(path).is_directory(os.path.join(path, "gda"))
    )


def _check_whole(checkpoint: Checkpoint) -> None:
    directory = checkpoint.directory
    named = step_number(directory)
    if named is not None and checkpoint.step is not None and named != checkpoint.step:
        raise SourceError(
            f"{directory}: the index is of step {checkpoint.step}, the directory's name says step {named}; "
            "copy the step again, or rename the directory if the index is right"
        )
    # The dot asks for permission to enter, which all arrays need.
    if checkpoint.tensors and not checkpoint.state and status_of(os.path.join(directory, "gda", ".")) is None:
        raise SourceError(f"{directory}: there is an index, but no gda/ directory; the step was copied incompletely")


def _follow(place: str) -> Blob | None:
    """The same, but a link that leads nowhere is an error."""
    status = status_of(place)
    if status is not None and status.kind == DANGLING:
        raise SourceError(f"{place} is a link to {status.problem}, where nothing is")
    return status


def _names(place: str) -> list[str]:
    try:
        return storage_of(place).names(place)
    except (FileNotFoundError, NotADirectoryError):
        _follow(place)
        return []
    except OSError as error:
        raise SourceError(f"{place}: cannot be listed: {error.strerror}") from None


def _number(name: str) -> int | None:
    """The step of a name as AXLearn writes it: eight digits, more only where the number needs them."""
    like = _LIKE_A_STEP.fullmatch(name)
    return int(like[1]) if like and name == f"step_{int(like[1]):08d}" else None


def _nothing_here(path: str, below: _Below) -> SourceError:
    names = [os.path.basename(place) for _, place in below.misnamed]
    found = f" (found {', '.join(names[:4])}{' ...' if len(names) > 4 else ''})" if names else ""
    return SourceError(
        f"{path}: no AXLearn checkpoint here; expected step_* directories with 8 digits, or index and gda/{found}"
    )


def _shown(notes: list[tuple[int, str]]) -> tuple[str, ...]:
    """The newest first; a long list is cut."""
    lines = [text for _, text in sorted(notes, key=lambda note: -note[0])]
    more = len(lines) - MAX_NOTES
    return (*lines[:MAX_NOTES], *([f"{more} more newer steps were passed over"] if more > 0 else []))


def _list(numbers: list[int]) -> str:
    shown = [str(number) for number in numbers[-8:]]
    return ("... " if len(numbers) > 8 else "") + ", ".join(shown)
