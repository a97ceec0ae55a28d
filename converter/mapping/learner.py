"""The constants of AXLearn's learner, and where each is known from.

They are in no checkpoint. In this order, they come from the user (`--set learner.NAME=VALUE`), from the training's own
configuration (`checkpoints.trainer_config`), from the mapping table's published sizes, or from its `[learner]` section.
Where a training's configuration is there, the table is not asked: what the training says nothing of stays unknown.

The rule that they belong to (axlearn/common/optimizers.py, adamw_decoupled_optimizer behind clip_by_global_norm), with
the schedule s of `schedule`: p -= s * (peak_learning_rate * update_scale * adam + weight_decay * p).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from converter.errors import UsageError
from converter.mapping.match import Match, MatchedRow
from converter.mapping.path_pattern import PathPattern, PatternError
from converter.mapping.stacks import stack_parts
from converter.mapping.table import LAYER_FIELD, Number

PREFIX = "learner."
"""Stands before the name of a constant in `--set`."""

BY_USER = "--set"
TRAINER_CONFIG = "trainer_config"
"""Where a constant is known from, as maxtext.yml and messages say it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A value, and where it is known from."""

    value: Any
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Learner:
    """AXLearn's learner; None for each constant that is not known.

    Attributes:
      peak_learning_rate: the factor on Adam's update at the schedule's peak.
      weight_decay: the part of each parameter that an update takes at the schedule's peak; not multiplied by the
        learning rate.
      warmup_steps: updates of the linear warm-up.
      max_step: the last update of the cosine.
      alpha: the schedule at max_step; 1 is its peak.
      b1, b2, eps: Adam's.
      max_gradient_norm: gradients are clipped to this global norm.
      z_loss_scale: factor of the squared logarithm of the softmax's normalizer in the loss.
      update_scales: MaxText's leaf to the factor on Adam's update of it, where it is not 1. A leaf is a path in the
        parameter tree, such as params/decoder/decoder_norm/scale; `*` stands for one part of it.
      optimizer: the optimizer, where MaxText has none like it; empty for AdamW.
    """

    peak_learning_rate: Constant | None = None
    weight_decay: Constant | None = None
    warmup_steps: Constant | None = None
    max_step: Constant | None = None
    alpha: Constant | None = None
    b1: Constant | None = None
    b2: Constant | None = None
    eps: Constant | None = None
    max_gradient_norm: Constant | None = None
    z_loss_scale: Constant | None = None
    update_scales: Constant | None = None
    optimizer: str = ""

    def known(self, *names: str) -> tuple[Any, ...] | None:
        """The values of constants; None where one is not known."""
        found = [getattr(self, name) for name in names]
        return None if None in found else tuple(constant.value for constant in found)

    @property
    def missing(self) -> tuple[str, ...]:
        """The constants that are not known, by the names that `--set` takes them under."""
        names = [entry.name for entry in fields(self) if getattr(self, entry.name) is None]
        return tuple(PREFIX + _SETTING.get(name, name) for name in names)


_SETTING: Mapping[str, str] = {"update_scales": "update_scale"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedLearner:
    """What a training's own configuration says of its learner.

    Attributes:
      constants: name to value, of those in BOUNDS; without what it does not say.
      scale_rules: patterns of parameter paths with the factor on the update, the first match counts; None where the
        configuration does not say it.
      default_scale: the factor of all other parameters.
      problems: what of it is not understood, one line each.
    """

    constants: Mapping[str, Number] = field(default_factory=dict)
    scale_rules: tuple[tuple[str, float], ...] | None = None
    default_scale: float = 1.0
    problems: tuple[str, ...] = ()


def find_learner(
    match: Match, given: Mapping[str, Number], trained: TrainedLearner | None = None, *, strict: bool = True
) -> tuple[Learner, tuple[str, ...]]:
    """The learner of a checkpoint's training.

    Args:
      match: the table on the checkpoint's tensors.
      given: constants that the user set, by name.
      trained: what the training's own configuration says; None where there is none.
      strict: refuse what the user set where it is impossible; otherwise it is left out, with a line.

    Returns:
      The learner, and what could not be found out, one line each.

    Raises:
      UsageError: constants that the user set are impossible together, or with the others.
    """
    constants = _table_constants(match) if trained is None else _trained_constants(trained)
    constants |= {name: Constant(value=value, origin=BY_USER) for name, value in given.items()}
    notes = list(trained.problems if trained is not None else ())
    scale = constants.pop("update_scale", None)
    if trained is not None and scale is None:
        scales, problem = _trained_scales(match, trained)
        notes += [problem] if problem else []
    else:
        scales = _marked_scales(match, scale, strict=strict)
    warmup, end = constants.get("warmup_steps"), constants.get("max_step")
    if warmup is not None and end is not None and warmup.value >= end.value:
        line = f"the warm-up of {warmup.value} steps ({warmup.origin}) does not end before max_step {end.value}"
        if strict and BY_USER in (warmup.origin, end.origin):
            raise UsageError(f"--set {PREFIX}warmup_steps, {PREFIX}max_step: {line} ({end.origin})")
        notes.append(f"{line} ({end.origin})")
        del constants["warmup_steps"], constants["max_step"]
    known = trained is not None and "peak_learning_rate" in trained.constants
    return Learner(update_scales=scales, optimizer="" if known else match.table.optimizer, **constants), tuple(notes)


def _marked_scales(match: Match, scale: Constant | None, *, strict: bool) -> Constant | None:
    """One factor for all rows that the table marks; None where there are such rows and no factor is known."""
    if any(row.update_scale for row in match.table.rows):
        return scale and Constant(
            value=_leaf_scales(match, [scale.value if row.row.update_scale else 1.0 for row in match.rows]),
            origin=scale.origin,
        )
    if strict and scale is not None and scale.origin == BY_USER:
        raise UsageError(f"--set {PREFIX}update_scale: mapping '{match.table.name}' has no rows with update_scale")
    return Constant(value={}, origin=f"mapping '{match.table.name}'")


def _trained_constants(trained: TrainedLearner) -> dict[str, Constant]:
    return {name: Constant(value=value, origin=TRAINER_CONFIG) for name, value in trained.constants.items()}


def _table_constants(match: Match) -> dict[str, Constant]:
    """The table's constants. Sizes that several published models share have what all of these agree on."""
    table = match.table
    models = [model for model in table.models if _is_of(match, model.sizes, {*model.kinds, *table.axlearn.cycle})]
    learners = [{**table.learner, **model.learner} for model in models] or [dict(table.learner)]
    agreed = {name: value for name, value in learners[0].items() if all(other.get(name) == value for other in learners)}
    origin = f"mapping '{table.name}', not in the checkpoint"
    if models:
        origin = f"published value of {' or '.join(model.name for model in models)}, not in the checkpoint"
    return {name: Constant(value=value, origin=origin) for name, value in agreed.items()}


def _is_of(match: Match, sizes: Mapping[str, int], kinds: set[str]) -> bool:
    return kinds == match.kinds and all(match.sizes.get(axis) == size for axis, size in sizes.items())


def _trained_scales(match: Match, trained: TrainedLearner) -> tuple[Constant | None, str]:
    """The factors by the training's patterns; None with the reason if they are not known."""
    if trained.scale_rules is None:
        return None, ""
    try:
        rules = [(PathPattern.compile(text), scale) for text, scale in trained.scale_rules]
    except PatternError as error:
        return None, f"{TRAINER_CONFIG}: a pattern of scale_by_path cannot be read: {error}"
    by_row: list[float] = []
    for row in match.rows:
        found = {
            _scale_of(_below(match, part), rules, trained.default_scale)
            for path in row.sources
            for part in match.parts(path)
        }
        if len(found) > 1:
            return None, f"{TRAINER_CONFIG}: the tensors that become {row.targets[0]} have different update scales"
        by_row.append(found.pop())
    return Constant(value=_leaf_scales(match, by_row), origin=TRAINER_CONFIG), ""


def _below(match: Match, path: str) -> str:
    prefix = match.table.axlearn.prefix
    return path.removeprefix(f"{prefix}/") if prefix else path


def _scale_of(path: str, rules: Sequence[tuple[PathPattern, float]], default: float) -> float:
    return next((scale for pattern, scale in rules if pattern.matches(path)), default)


def _leaf_scales(match: Match, by_row: Sequence[float]) -> dict[str, float]:
    """Leaf to scale, without those of 1; a `*` stands for the number of a layer where that says no more than it may.

    Args:
      match: the table on the checkpoint's tensors.
      by_row: the scale of each row of the match.
    """
    exact: dict[str, float] = {}
    wide: dict[str, set[float]] = {}
    names: dict[str, str] = {}
    for row, scale in zip(match.rows, by_row, strict=True):
        for target, pattern in zip(row.targets, _patterns(match, row), strict=True):
            for leaf in stack_parts(target) or (target,):
                exact[leaf], names[leaf] = scale, pattern
                wide.setdefault(pattern, set()).add(scale)
    result: dict[str, float] = {}
    for leaf, scale in exact.items():
        if scale != 1:
            result[_in_tree(names[leaf] if len(wide[names[leaf]]) == 1 else leaf)] = scale
    return result


def _patterns(match: Match, row: MatchedRow) -> list[str]:
    """A row's leaves with `*` for the parts of the layer's place that number layers."""
    layout = next((layout for layout in match.table.maxtext.layers if layout.name == match.target_layout), None)
    if not row.row.in_layer or layout is None:
        return list(row.targets)
    place = "/".join("*" if "{" in part else part for part in layout.path.split("/"))
    prefix = match.table.maxtext.prefix
    paths = [path.replace(LAYER_FIELD, place) for path in row.row.maxtext]
    return [f"{prefix}/{path}" if prefix else path for path in paths]


def _in_tree(leaf: str) -> str:
    """A leaf's path in the parameter tree: items hold that tree below a first part of their own."""
    return leaf.partition("/")[2] or leaf
