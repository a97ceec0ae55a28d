"""What an AXLearn checkpoint holds beside the parameters: an optimizer's moments, counts, an average of the parameters.

AXLearn's optimizers are chains of any length, and a CompositeLearner keeps each learner's state below a name of its
own, so that the place of a tree is not known (`learner/optimizer/1/0/mu/...` with the published learner). Trees are
found by their shape: below them is the path of every parameter. A moment's tree is called `mu` or `nu`, Adam's count
is beside both, an average's tree is called `ema`.
"""

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
    Shape,
    Tree,
    join,
    moved_row,
    schedule_count,
    schedule_form,
)
from converter.words import option_flag, shorten

MOMENTS = {"mu": 1, "nu": 2}
"""Adam's moments: the name of the tree, in AXLearn as in MaxText, and the order."""

BETAS = {"b1": 0.9, "b2": 0.95}
"""Decay of the first and of the second moment where a learner's is not known: AXLearn's published learners."""

AVERAGE = "ema"
COUNT = "count"

OTHERS = {
    "gradient_square_ema": "AdaStar",
    "v_row": "Adafactor",
    "v_col": "Adafactor",
    "trace": "SGD with momentum",
}
"""Optimizers of AXLearn's whose state no optimizer of MaxText can continue from, by what they keep for each parameter:
a tree of that name, or a tensor of that name below the parameter's path."""

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
    """The state of a training that goes on in MaxText, beside the parameters.

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


def find_average(match: Match) -> str:
    """Where the moving average of the parameters is.

    Args:
      match: the table on the parameters.

    Raises:
      SourceError: there is none.
      MappingError: there are several.
    """
    shapes = match.shapes
    found = [root for root in _trees(match, shapes) if _name(root) == AVERAGE]
    if not found:
        raise SourceError(
            f"--tree {AVERAGE}: the checkpoint holds no moving average of the parameters "
            f"(.../{AVERAGE}/<parameter>); {_found_text(match, shapes)}"
        )
    if len(found) > 1:
        raise MappingError(f"--tree {AVERAGE}: the checkpoint holds {len(found)} averages: {', '.join(found)}")
    return found[0]


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
    shapes, step = match.shapes, checkpoint.step
    if step is None or not 0 <= step <= MAX_COUNT:
        found = "none" if step is None else step
        raise SourceError(f"{checkpoint.directory}: --state needs the step, which the index has; found {found}")
    root, *inside = match.table.maxtext.prefix.split("/")
    if root != PARAMETERS:
        raise MappingError(
            f"mapping '{match.table.name}': --state needs parameters below {PARAMETERS}/, which MaxText's train state "
            f"has; found the prefix {match.table.maxtext.prefix!r}"
        )
    base = _adam(match, shapes)
    _check_moments(match, base)
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
        counts=_counts(match, shapes, base),
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
    """Refuses what training cannot go on with exactly: copies of a trained tensor, and values that are not AXLearn's.

    Two copies get a gradient each where AXLearn adds both up. A fitted value has other gradients than the moments are
    of. A value that is scaled by s is updated as fast as before, and so 1/s times too fast.

    Raises:
      UsageError: naming the options and tensors.
    """
    reasons = inexact_reasons(match)
    if reasons:
        raise UsageError(
            f"--state: training would not go on exactly: {'; '.join(reasons)}; --force converts all the same"
        )


def inexact_reasons(match: Match) -> list[str]:
    """Why training does not go on exactly from these rows, one text a reason."""
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


def _parameters(match: Match) -> dict[str, str]:
    """Path below the prefix to whole path, of every source tensor."""
    prefix = join(match.prefix, "")
    return {path.removeprefix(prefix): path for row in match.rows for path in row.sources}


def _trees(match: Match, shapes: Mapping[str, Shape]) -> dict[str, set[str]]:
    """Every tree beside the parameters that has paths of parameters below it: its path, and the parameters found."""
    parameters = _parameters(match)
    deepest = max(path.count("/") for path in parameters) + 1
    own = join(match.prefix, "")
    found: dict[str, set[str]] = {}
    for path in shapes:
        if path.startswith(own):
            continue
        parts = path.split("/")
        for at in range(max(1, len(parts) - deepest), len(parts)):
            below = "/".join(parts[at:])
            if below in parameters:
                found.setdefault("/".join(parts[:at]), set()).add(below)
                break
    return found


def _name(root: str) -> str:
    return root.rpartition("/")[2]


def _adam(match: Match, shapes: Mapping[str, Shape]) -> str:
    """The node that holds Adam's moments."""
    roots = [root for root in _trees(match, shapes) if _name(root) in MOMENTS]
    bases = list(dict.fromkeys(root.rpartition("/")[0] for root in roots))
    other = _other_optimizer(match, shapes)
    if other and not bases:
        raise SourceError(
            f"--state: the checkpoint holds the state of {other}, which no optimizer of MaxText can continue from; "
            f"convert without --state, to train on with another optimizer; {_found_text(match, shapes)}"
        )
    if not bases:
        raise SourceError(
            f"--state: the checkpoint holds no Adam state (.../mu and .../nu with the path of every parameter below); "
            f"{_found_text(match, shapes)}"
        )
    if len(bases) > 1:
        raise MappingError(
            f"--state: the checkpoint holds {len(bases)} optimizers' states, MaxText has one: "
            f"{', '.join(shorten(bases, 4))}"
        )
    (base,) = bases
    missing = [name for name in MOMENTS if f"{base}/{name}" not in roots]
    if missing:
        there = ", ".join(f"{base}/{name}" for name in MOMENTS if name not in missing)
        raise SourceError(
            f"--state: found {there} but no {base}/{missing[0]}: this is not Adam's state, or is incomplete"
        )
    return base


def _other_optimizer(match: Match, shapes: Mapping[str, Shape]) -> str:
    """The name of an optimizer that keeps something else than Adam's moments for the parameters; empty for none."""
    own, parameters = join(match.prefix, ""), tuple(f"/{path}" for path in _parameters(match))
    names = [_name(root) for root in _trees(match, shapes)]
    below = [path.rpartition("/") for path in shapes if not path.startswith(own)]
    names += [name for parameter, _, name in below if name in OTHERS and parameter.endswith(parameters)]
    return next((OTHERS[name] for name in names if name in OTHERS), "")


def _check_moments(match: Match, base: str) -> None:
    """Refuses moments that are not one for each parameter, each of its parameter's shape."""
    shapes, parameters = match.shapes, _parameters(match)
    expected = {f"{base}/{name}/{path}": full for name in MOMENTS for path, full in parameters.items()}
    missing = [path for path in expected if path not in shapes]
    if missing:
        raise SourceError(
            f"--state: {len(missing)} of {len(expected)} moments are missing, the first is {missing[0]}",
            shorten(missing[1:]),
        )
    prefixes = tuple(f"{base}/{name}/" for name in MOMENTS)
    extra = [path for path in shapes if path.startswith(prefixes) and path not in expected]
    if extra:
        raise MappingError(f"--state: {extra[0]} is a moment of no parameter", shorten(extra[1:]))
    wrong = [
        f"{path} has the shape {list(shapes[path])}, its parameter {list(shapes[full])}"
        for path, full in expected.items()
        if shapes[path] != shapes[full]
    ]
    if wrong:
        raise SourceError(f"--state: {wrong[0]}", shorten(wrong[1:]))


def _counts(match: Match, shapes: Mapping[str, Shape], base: str) -> tuple[str, ...]:
    """Adam's count, and all others of the learner but those of averages, which are no part of what MaxText has."""
    adam = f"{base}/{COUNT}"
    if adam not in shapes:
        raise SourceError(f"--state: {adam} is missing; expected Adam's count beside its moments")
    averages = {root.rpartition("/")[0] for root in _trees(match, shapes) if _name(root) == AVERAGE}
    own = join(match.prefix, "")
    others = [
        path
        for path in shapes
        if _name(path) == COUNT
        and path != adam
        and not path.startswith(own)
        and path.rpartition("/")[0] not in averages
    ]
    return (adam, *sorted(others))


def _found_text(match: Match, shapes: Mapping[str, Shape]) -> str:
    """What a checkpoint holds beside the parameters."""
    count = len(_parameters(match))
    found = [f"{root} ({len(below)} of {count} parameters)" for root, below in _trees(match, shapes).items()]
    own = join(match.prefix, "")
    others = [path for path in shapes if not path.startswith(own)]
    if found:
        return f"found {', '.join(shorten(found, 4))}"
    return f"found {', '.join(shorten(others, 4))}" if others else "found the parameters alone"


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
        notes.append(f"--optimizer {optimizer.name}: assumes {' and '.join(assumed)}, which nothing here tells")
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
