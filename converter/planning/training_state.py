"""The state of a training: what AXLearn's checkpoint has of it, and what MaxText's optimizer needs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from converter.arrays import Array, ArrayReader, Encoding
from converter.checkpoints import MAX_COUNT, PARAMETERS, STEP_PATH, Checkpoint, Optimizer
from converter.errors import MappingError, SourceError, UsageError
from converter.mapping import (
    EXPERT_ROLES,
    SAME,
    Fit,
    Learner,
    Match,
    MatchedRow,
    Scale,
    Tree,
    moved_row,
    schedule_count,
    schedule_form,
)
from converter.planning.optimizer_trees import MOMENTS, find_adam, find_counts
from converter.words import option_flag, shorten

BETAS = {"b1": 0.9, "b2": 0.95}
"""Decay of the first and of the second moment where a learner's is not known: AXLearn's published learners."""

COUNT_DTYPES = ("int32", "int64", "uint32", "uint64")

_SCALAR_DTYPE = "int32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    """A leaf that holds one number, which is computed and not moved.

    Attributes:
      path: of the leaf.
      value: what it holds.
      meaning: for reports.
    """

    path: str
    value: int
    meaning: str

    def leaf(self, store: str) -> Array:
        """The array that is written."""
        return Array(path=self.path, dtype=_SCALAR_DTYPE, shape=(), chunks=(), encoding=Encoding.rewritten(store))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingState:
    """The state with which a training continues in MaxText, beside the parameters.

    Attributes:
      optimizer: how MaxText keeps it.
      step: updates that were done.
      trees: the moments.
      counts: AXLearn's counts; all have to be equal to the step.
      scalars: the step and the counts as MaxText has them; see `with_learner`.
      notes: what the user has to know about it, one line each.
    """

    optimizer: Optimizer
    step: int
    trees: tuple[Tree, ...]
    counts: tuple[str, ...]
    scalars: tuple[Scalar, ...] = ()
    notes: tuple[str, ...] = ()


def find_state(
    match: Match, checkpoint: Checkpoint, optimizer: Optimizer, *, capacity_known: bool = False
) -> TrainingState:
    """The state of the training, from the index alone; see `check_counts` for the numbers.

    Args:
      match: the table on the parameters.
      checkpoint: the step.
      optimizer: MaxText's.
      capacity_known: whether the training's configuration says how many tokens an expert takes.

    Raises:
      SourceError: there is no Adam state, or it is incomplete.
      MappingError: there are several, or one that MaxText cannot have.
    """
    step = checkpoint.step
    if step is None or not 0 <= step <= MAX_COUNT:
        found = "none" if step is None else step
        raise SourceError(f"{checkpoint.directory}: --state needs the step, which the index has; found {found}")
    root, *inside = match.table.maxtext.prefix.split("/")
    if root != PARAMETERS:
        raise MappingError(
            f"mapping '{match.table.name}': --state needs parameters below {PARAMETERS}/, which MaxText's train state "
            f"has; found the prefix {match.table.maxtext.prefix!r}"
        )
    base = find_adam(match)
    return TrainingState(
        optimizer=optimizer,
        step=step,
        trees=tuple(
            Tree(
                name=name,
                source=f"{base}/{name}",
                target="/".join((optimizer.moments[name], *inside)),
                order=order,
            )
            for name, order in MOMENTS.items()
        ),
        counts=find_counts(match, base),
        notes=_never_exact(match, capacity_known),
    )


def _never_exact(match: Match, capacity_known: bool) -> tuple[str, ...]:
    """What no conversion can make equal, one line each; a capacity that is known has a note of its own."""
    notes = [
        "the position in the data is not in AXLearn's checkpoint: MaxText starts the data from the beginning, unless "
        "its input pipeline skips what was seen"
    ]
    if not capacity_known and any(EXPERT_ROLES & set(row.row.roles) for row in match.rows):
        notes.append(
            "AXLearn drops tokens over an expert's capacity in training, and MaxText cannot drop the same ones: "
            "over_capacity_1 and over_capacity_2 in AXLearn's summaries say how many"
        )
    return tuple(notes)


def with_learner(state: TrainingState, learner: Learner, *, force: bool) -> TrainingState:
    """The state as MaxText's optimizer has it: with its step and counts, and its moments' factors.

    Args:
      state: what the checkpoint holds.
      learner: the constants of its training.
      force: convert also what cannot continue exactly.

    Raises:
      UsageError: the optimizer cannot continue from this state.
    """
    optimizer, step = state.optimizer, state.step
    notes: list[str] = []
    if optimizer.corrected:
        notes = _check_corrected(optimizer, learner, step, force=force)
    factors = _corrections(optimizer, learner, step)
    return replace(
        state,
        trees=tuple(replace(tree, factor=factors[tree.name]) for tree in state.trees),
        scalars=_scalars(optimizer, learner, step),
        notes=(*notes, *state.notes),
    )


def check_counts(state: TrainingState, arrays: Mapping[str, Array], directory: str) -> None:
    """Reads AXLearn's counts, and refuses one that contradicts the step.

    Raises:
      SourceError: with the count and the step.
    """
    problems: list[str] = []
    for path in state.counts:
        array = arrays[path]
        if array.shape != () or array.dtype not in COUNT_DTYPES:
            problems.append(f"{path} is {array.dtype}{list(array.shape)}, no count")
            continue
        value = int(ArrayReader(array).read_whole())
        if value != state.step:
            problems.append(f"{path} is {value}")
    if problems:
        raise SourceError(
            f"{directory}: the step is {state.step}, but {'; '.join(shorten(problems, 4))}: updates were skipped, or "
            "the checkpoint is damaged; convert it without --state"
        )


def check_dtypes(match: Match, state: TrainingState, arrays: Mapping[str, Array]) -> None:
    """Refuses moments of another dtype than their parameter: MaxText has one dtype for both.

    Raises:
      MappingError: naming the moments.
    """
    wrong = [
        f"{path}: {arrays[path].dtype}, expected {arrays[parameter].dtype}"
        for tree in state.trees
        for row in match.rows
        for parameter, path in zip(row.sources, moved(match, row, tree).sources, strict=True)
        if arrays[path].dtype != arrays[parameter].dtype
    ]
    if wrong:
        raise MappingError(f"{wrong[0]}; --state needs moments of their parameter's dtype", shorten(wrong[1:]))


def check_exact(match: Match) -> None:
    """Refuses copies of a trained tensor and values that are not AXLearn's: training cannot continue from them exactly.

    Two copies get a gradient each where AXLearn adds both up. A fitted value has other gradients than the moments are
    of. A value that is scaled by s is updated as fast as before, and so 1/s times too fast.

    Raises:
      UsageError: naming the options and tensors.
    """
    reasons = inexact_reasons(match)
    if reasons:
        raise UsageError(
            f"--state: training would not continue exactly: {'; '.join(reasons)}; --force converts it anyway"
        )


def inexact_reasons(match: Match) -> list[str]:
    """Why training does not continue exactly from these rows, one text for each reason."""
    copies = dict.fromkeys(row.row.option for row in match.rows if row.row.option)
    fits = dict.fromkeys(row.value.name for row in match.rows if isinstance(row.value, Fit))
    reasons = [f"{option_flag(name)} adds a copy of a trained tensor, with gradients of its own" for name in copies]
    reasons += [f"{option_flag(name)} writes other values than the moments belong to" for name in fits]
    factors = [row.sources[0] for row in match.rows if isinstance(row.value, Scale) and not row.row.option]
    if factors:
        reasons.append(f"the values of {factors[0]} are scaled, but not the size of their updates")
    return reasons


def moved(match: Match, row: MatchedRow, tree: Tree) -> MatchedRow:
    """A row of the parameters, applied to another tree."""
    return moved_row(row, parameter_tree(match, ""), tree)


def parameter_tree(match: Match, name: str) -> Tree:
    """The tree that becomes MaxText's parameters."""
    return Tree(name=name, source=match.prefix, target=match.table.maxtext.prefix)


def _check_corrected(optimizer: Optimizer, learner: Learner, step: int, *, force: bool) -> list[str]:
    """Refuses what an optimizer with corrected moments cannot continue from; returns notes on what is assumed."""
    advice = "use --optimizer adamw"
    if step == 0:
        raise UsageError(
            f"--optimizer {optimizer.name}: keeps moments corrected for the first steps, and there are none at step 0; "
            f"{advice}"
        )
    if learner.warmup_steps is not None and schedule_form(learner.warmup_steps.value, step) != SAME:
        raise UsageError(
            f"--optimizer {optimizer.name}: its one count serves Adam and the schedule, which fits only after a "
            f"warm-up; this is step {step}, and the warm-up has {learner.warmup_steps.value} steps: {advice}"
        )
    notes: list[str] = []
    if learner.update_scales is not None and learner.update_scales.value:
        text = (
            f"--optimizer {optimizer.name}: the learner multiplies the updates of some parameters by a factor "
            f"(muP), for which there is a patch of MaxText's adamw only"
        )
        if not force:
            raise UsageError(f"{text}: {advice}, or --force to continue with other updates")
        notes.append(f"{text}: training does not continue exactly")
    assumed = [f"{name} {value}" for name, value in BETAS.items() if getattr(learner, name) is None]
    assumed += ["a step past the warm-up"] if learner.warmup_steps is None else []
    if assumed:
        notes.append(f"--optimizer {optimizer.name}: assumes {' and '.join(assumed)}: the checkpoint does not say")
    return notes


def _corrections(optimizer: Optimizer, learner: Learner, step: int) -> dict[str, float]:
    """What each moment is multiplied by."""
    if not optimizer.corrected:
        return dict.fromkeys(MOMENTS, 1.0)
    found = {name: getattr(learner, name) for name in BETAS}
    betas = [value if found[name] is None else found[name].value for name, value in BETAS.items()]
    return {name: 1 / (1 - beta**step) for name, beta in zip(MOMENTS, betas, strict=True)}


def _scalars(optimizer: Optimizer, learner: Learner, step: int) -> tuple[Scalar, ...]:
    scalars = [
        Scalar(path=STEP_PATH, value=step, meaning="updates done"),
        Scalar(path=optimizer.count, value=step, meaning="Adam's count"),
    ]
    if optimizer.schedule:
        value = schedule_count(learner, step)
        scalars.append(Scalar(path=optimizer.schedule, value=value, meaning="the schedule's count"))
    return tuple(scalars)
