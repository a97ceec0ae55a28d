"""The constants of AXLearn's learner, as far as they shape the state that is written."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Learner:
    """What is known of AXLearn's learner.

    Attributes:
      b1: decay of Adam's first moment.
      b2: of its second one.
      warmup_steps: steps in which the schedule rises; None where it is not known.
      known: whether these are the checkpoint's own and not those of the published models.
    """

    b1: float = 0.9
    b2: float = 0.95
    warmup_steps: int | None = None
    known: bool = False


PUBLISHED = Learner()


def schedule_count(learner: Learner, step: int) -> int:
    """The count that MaxText's schedule goes on with.

    AXLearn counts the update that it makes from 1, MaxText from 0: one more than the step is exact at any step, with a
    schedule that is one step longer than AXLearn's.
    """
    del learner
    return step + 1
