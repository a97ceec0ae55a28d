"""MaxText's training flags from the constants of AXLearn's learner.

MaxText's `adamw` is optax's: p -= lr(c) (adam + adam_weight_decay p). The decay, which AXLearn does not multiply by the
learning rate, is divided by its peak. All flags are written for every conversion, with the optimizer's state or
without: whoever trains on, trains by this rule.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from converter.mapping.learner import Constant, Learner
from converter.mapping.schedule import SAME, Schedule, make_schedule

RULE = "AXLearn's update rule"
"""The origin of flags that are the same for every learner."""

FIXED: Mapping[str, Any] = {
    "lr_schedule_type": "cosine",
    "adam_eps_root": 0.0,
    "mu_dtype": "float32",
    "weight_dtype": "float32",
}
"""Flags that are the same for every learner: AXLearn keeps parameters and moments in float32."""

FOLLOWING: Mapping[str, tuple[str, ...]] = {
    "learning_rate": ("peak_learning_rate",),
    "adam_weight_decay": ("weight_decay", "peak_learning_rate"),
    "adam_b1": ("b1",),
    "adam_b2": ("b2",),
    "adam_eps": ("eps",),
    "gradient_clipping_threshold": ("max_gradient_norm",),
    "z_loss_multiplier": ("z_loss_scale",),
    "learning_rate_final_fraction": ("alpha",),
    "steps": ("max_step",),
    "learning_rate_schedule_steps": ("max_step", "warmup_steps"),
    "warmup_steps_fraction": ("warmup_steps", "max_step"),
}
"""Flags that follow from the learner's constants."""

FLAGS = frozenset({"opt_type", *FIXED, *FOLLOWING})
"""All training flags that are written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFlags:
    """MaxText's training flags.

    Attributes:
      values: flag to value, without those that follow from a constant that is not known.
      origins: where each comes from.
      missing: flags without a value.
      comments: lines about the schedule for maxtext.yml.
    """

    values: Mapping[str, Any]
    origins: Mapping[str, str]
    missing: tuple[str, ...]
    comments: tuple[str, ...]


def training_flags(learner: Learner, step: int | None, optimizer: str = "adamw") -> TrainingFlags:
    """The flags of a learner.

    Args:
      learner: its constants.
      step: the updates done; None where that is not known.
      optimizer: MaxText's `opt_type`: one that follows AXLearn's rule.
    """
    values = {"opt_type": optimizer, **FIXED}
    origins = dict.fromkeys(values, RULE)
    schedule = make_schedule(learner, step)
    missing: list[str] = []
    for flag, names in FOLLOWING.items():
        known = learner.known(*names)
        if known is None:
            missing.append(flag)
            continue
        values[flag] = _value(flag, known, schedule)
        origins[flag] = _origin(flag, names, [getattr(learner, name) for name in names])
    return TrainingFlags(
        values=values, origins=origins, missing=tuple(missing), comments=_schedule_lines(learner, schedule, step)
    )


def _value(flag: str, known: Sequence[Any], schedule: Schedule | None) -> Any:
    if flag == "adam_weight_decay":
        decay, peak = known
        return decay / peak
    if schedule is not None and flag == "learning_rate_schedule_steps":
        return schedule.length
    if schedule is not None and flag == "warmup_steps_fraction":
        return schedule.warmup_fraction
    (value,) = known
    return value if flag == "steps" else float(value)


def _origin(flag: str, names: Sequence[str], constants: Sequence[Constant]) -> str:
    """What a flag was made of, and where that is known from: once, where all of it is known from one place."""
    sources = list(dict.fromkeys(constant.origin for constant in constants))
    if len(names) == 1 and len(sources) == 1:
        return sources[0]
    if len(sources) == 1:
        return f"{_formula(flag, names, constants)}; {sources[0]}"
    return "; ".join(
        [
            _formula(flag, names, constants),
            *(f"{name}: {one.origin}" for name, one in zip(names, constants, strict=True)),
        ]
    )


def _formula(flag: str, names: Sequence[str], constants: Sequence[Constant]) -> str:
    text = [f"{name} {constant.value}" for name, constant in zip(names, constants, strict=True)]
    return (" / " if flag == "adam_weight_decay" else ", ").join(text)


def _schedule_lines(learner: Learner, schedule: Schedule | None, step: int | None) -> tuple[str, ...]:
    if schedule is None:
        return ()
    known = learner.known("warmup_steps", "max_step")
    assert known is not None
    warmup, end = known
    at = "an unknown step" if step is None else f"step {step}"
    lines = ["Schedule: AXLearn counts updates from 1, optax from 0."]
    if schedule.form == SAME:
        lines.append(
            f"Form B, for a state past the warm-up of {warmup} steps ({at}): the warm-up is one step shorter, and the "
            "schedule's count in the optimizer state is the step. Every learning rate is AXLearn's, and is logged for "
            "its own step."
        )
    else:
        lines.append(
            f"Form A, for a state inside the warm-up of {warmup} steps, or without one ({at}): the schedule is one "
            "step longer, and its count in the optimizer state is the step plus 1. Every learning rate is AXLearn's; "
            "MaxText logs that of the step before."
        )
    lines.append(
        "Without the optimizer state (load_parameters_path) Adam's counts, the schedule and MaxText's step start at 0: "
        f"the run goes through the whole schedule, warm-up included, in {end} steps of its own."
    )
    if step is not None and step >= end:
        lines.append(
            f"This checkpoint has reached the schedule's end, step {end}: to train on from its optimizer state, set "
            "another learner.max_step."
        )
    return tuple(lines)
