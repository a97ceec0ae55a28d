"""MaxText's train state around the parameters: where an optimizer keeps its moments and counts.

Facts about MaxText 0.2.5, read from checkpoints that it saved itself. `opt_state` of `adamw` is a list of three: Adam's
own state, nothing, and the schedule's count; `adam_pax` has a dictionary with one count, which serves the schedule too,
and keeps its moments after their correction for the bias of the first steps. MaxText restores what is there and fills
up the rest with zeros, without a word.
"""

from collections.abc import Mapping
from dataclasses import dataclass

STEP_PATH = "step"
STATE_PATH = "opt_state"
PARAMETERS = "params"
"""The first part of the path of every parameter; below a moment's own path all parts but this one follow."""

MAX_COUNT = 2**31 - 2
"""Steps and counts are int32, and the schedule's count may be one more than the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """How an optimizer of MaxText's keeps its state.

    Attributes:
      name: MaxText's `opt_type`.
      moments: name of a moment to its path.
      count: path of Adam's count.
      schedule: path of the schedule's count; empty where Adam's serves for it.
      lists: paths of nodes that are lists.
      empty: paths where the tree holds None.
      corrected: whether moments are stored corrected for the bias of the first steps: divided by 1 - beta^count.
    """

    name: str
    moments: Mapping[str, str]
    count: str
    schedule: str
    lists: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()
    corrected: bool = False


ADAMW = Optimizer(
    name="adamw",
    moments={"mu": "opt_state/0/mu", "nu": "opt_state/0/nu"},
    count="opt_state/0/count",
    schedule="opt_state/2/count",
    lists=("opt_state",),
    empty=("opt_state/1",),
)
ADAM_PAX = Optimizer(
    name="adam_pax",
    moments={"mu": "opt_state/mu", "nu": "opt_state/nu"},
    count="opt_state/count",
    schedule="",
    corrected=True,
)
REFUSED_OPTIMIZERS = {
    "sgd": "keeps no moments, so that Adam's would be lost",
    "skip_step_on_spikes": "keeps a history of losses and gradient norms that AXLearn's checkpoint does not have",
    "muon": "keeps another momentum for matrices than Adam's, which AXLearn's checkpoint does not have",
}
"""MaxText's other optimizers: why AXLearn's state cannot become theirs."""

OPTIMIZERS = {optimizer.name: optimizer for optimizer in (ADAMW, ADAM_PAX)}


def step_directory(step: int) -> int:
    """The step directory of a state: MaxText names a checkpoint by the last step that it holds, counted from 0.

    In a directory named by the number of updates, MaxText would skip the first save of its own as one that exists. A
    state without any update has no last step; its directory is 0.
    """
    return max(step - 1, 0)
