"""AXLearn's learning-rate schedule, expressed by MaxText's flags.

AXLearn multiplies update number n, counted from 1, by n/W up to the warm-up's end W, then by

    alpha + (1 - alpha) (1 + cos(pi (n - W) / (T - W))) / 2

up to T (axlearn/common/schedule.py, cosine_with_linear_warmup; the count is raised before the schedule sees it, see
scale_by_schedule of axlearn/common/optimizers.py). In MaxText update n sees a count c: the learning rate is linear up
to int(length * fraction), and the cosine ends at length - 1 (create_learning_rate_schedule of
maxtext/utils/maxtext_utils.py, 0.2.5). optax counts from 0, so that c = n - 1 in a run of MaxText's own. Two pairs of
length and warm-up give AXLearn's schedule, each with its own count for a state of N updates.
"""

from dataclasses import dataclass

from converter.mapping.learner import Learner

LATER, SAME = "A", "B"
"""Forms of the schedule: its count is one ahead of the updates, or it is their number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The flags of a schedule, and where it stands.

    Attributes:
      form: LATER is exact for every update, but MaxText logs the learning rate of the update before. SAME is exact from
        update W on, and logs the right one.
      length: MaxText's learning_rate_schedule_steps.
      warmup_fraction: MaxText's warmup_steps_fraction. The half step keeps MaxText's int() from rounding down a step.
    """

    form: str
    length: int
    warmup_fraction: float


def schedule_form(warmup_steps: int, step: int | None) -> str:
    """The form for a state of that many updates; None for an unknown number."""
    return SAME if step is not None and step >= warmup_steps - 1 and warmup_steps > 0 else LATER


def make_schedule(learner: Learner, step: int | None) -> Schedule | None:
    """The schedule of a learner.

    Args:
      learner: its constants.
      step: the updates done; None where that is not known.

    Returns:
      The flags; None where warm-up or end are not known.
    """
    known = learner.known("warmup_steps", "max_step")
    if known is None:
        return None
    warmup, end = known
    form = schedule_form(warmup, step)
    length, middle = (end, warmup - 0.5) if form == SAME else (end + 1, warmup + 0.5)
    return Schedule(form=form, length=length, warmup_fraction=middle / length)


def schedule_count(learner: Learner, step: int) -> int:
    """The count of MaxText's schedule (`opt_state.2.count`) in a state of `step` updates: for a learner that is not
    known, the one of form LATER."""
    schedule = make_schedule(learner, step)
    return step if schedule is not None and schedule.form == SAME else step + 1
