"""The names of the learner's constants, and the values that each can have."""

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The values that a constant can have.

    Attributes:
      kind: int, or float, which also takes whole numbers.
      least, most: the smallest and the largest one.
      what: for messages.
    """

    kind: type[int] | type[float]
    least: float
    most: float
    what: str

    def admit(self, value: object) -> bool:
        """Whether a value is one of them."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return (self.kind is float or isinstance(value, int)) and self.least <= value <= self.most


_TINY = 1e-30

BOUNDS: Mapping[str, Bounds] = {
    "peak_learning_rate": Bounds(kind=float, least=1e-12, most=1e6, what="a number from 1e-12 to 1e6"),
    "weight_decay": Bounds(kind=float, least=0, most=1e6, what="a number from 0 to 1e6"),
    "warmup_steps": Bounds(kind=int, least=0, most=2**30, what="a whole number from 0 to 2^30"),
    "max_step": Bounds(kind=int, least=2, most=2**30, what="a whole number from 2 to 2^30"),
    "alpha": Bounds(kind=float, least=0, most=1, what="a number from 0 to 1"),
    "b1": Bounds(kind=float, least=0, most=math.nextafter(1, 0), what="a number from 0 to below 1"),
    "b2": Bounds(kind=float, least=0, most=math.nextafter(1, 0), what="a number from 0 to below 1"),
    "eps": Bounds(kind=float, least=_TINY, most=1, what="a number above 0, up to 1"),
    "max_gradient_norm": Bounds(kind=float, least=_TINY, most=1e6, what="a number above 0, up to 1e6"),
    "z_loss_scale": Bounds(kind=float, least=0, most=1e6, what="a number from 0 to 1e6"),
    "update_scale": Bounds(kind=float, least=_TINY, most=1e6, what="a number above 0, up to 1e6"),
}  # fmt: skip
"""Every constant that can be given, by its name in tables and behind PREFIX in `--set`."""
