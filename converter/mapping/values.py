"""Value rules: what becomes of a tensor's values, apart from their places. Data, with inverse and rule for moments.

A parameter that is multiplied by s on its way has gradients divided by s there. So an optimizer's first moment is
divided by s, and its second by s squared.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

QK_NORM = "qk_norm"
"""The fit of q/k norm scales to a model that norms before RoPE, see `qk_norm`."""

PLAIN, FITTED = "plain", "fit"
"""States of a fit: values are copied, or fitted."""

FITS = frozenset({QK_NORM})
"""The fits there are; a table's row names one, and the option of that name switches it on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """Values stay as they are, bit for bit."""

    def inverse(self) -> "Copy":
        return self

    def moment(self, order: int) -> "Copy":
        """The rule for an optimizer's moment of this order (1: of the gradient, 2: of its square)."""
        del order
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Values are multiplied by `constant * (times * size)^power`.

    Attributes:
      constant: a plain factor, not zero.
      size: the axis whose solved size counts; empty for none.
      times: a factor on that size.
      power: the exponent.
    """

    constant: float = 1.0
    size: str = ""
    times: int = 1
    power: float = 1.0

    def factor(self, sizes: Mapping[str, int]) -> float:
        """The number that values are multiplied by."""
        return self.constant * (self.times * sizes[self.size]) ** self.power if self.size else self.constant

    def inverse(self) -> "Scale":
        return Scale(constant=1 / self.constant, size=self.size, times=self.times, power=-self.power)

    def moment(self, order: int) -> "Scale":
        """The rule for an optimizer's moment of this order (1: of the gradient, 2: of its square)."""
        return Scale(constant=self.constant**-order, size=self.size, times=self.times, power=-order * self.power)

    def apply(self, values: np.ndarray, sizes: Mapping[str, int]) -> np.ndarray:
        """Multiplies in float64 and rounds once to the values' own dtype; takes the result's memory and no more."""
        result = np.empty(values.shape, values.dtype)
        # numpy converts in small buffers, piece by piece.
        np.multiply(values, self.factor(sizes), out=result, dtype=np.float64, casting="unsafe")
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Values are replaced by fitted ones. The target's parameters are then others: there is no way back, nor moments.

    Attributes:
      name: one of FITS.
    """

    name: str


ValueRule = Copy | Scale | Fit

COPY = Copy()


def scaled(rule: ValueRule, factor: float) -> ValueRule:
    """A rule whose values are multiplied by a further factor; a fit has no such rule."""
    if factor == 1:
        return rule
    if isinstance(rule, Fit):
        raise TypeError(f"a fit ({rule.name}) cannot be scaled")
    old = rule if isinstance(rule, Scale) else Scale()
    return dataclasses.replace(old, constant=old.constant * factor)
