"""NaN and infinity in what a model computes: where they begin, and whether its weights have them."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from converter.forward.views import View


@dataclass(frozen=True, slots=True, kw_only=True)
class NonFinite:
    """Where a model's values stop being finite numbers.

    Attributes:
      place: what holds NaN or infinity first, such as "layer 3, attention".
      weights: names of the weights used there that hold NaN or infinity themselves; empty where values overflowed.
    """

    place: str
    weights: tuple[str, ...]


def is_finite(values: np.ndarray) -> bool:
    """Whether no value is NaN or infinite."""
    return bool(np.isfinite(values.max()) and np.isfinite(values.min()))


def find_non_finite(values: np.ndarray, place: str, weights: Mapping[str, View]) -> NonFinite | None:
    """Looks at the values that a part of a model computed, and at its weights if something is wrong with the values.

    Args:
      values: what was computed.
      place: the name of the part.
      weights: the weights that it used, by name; they are read again.

    Returns:
      None where all values are finite.
    """
    if is_finite(values):
        return None
    damaged = (name for name, view in weights.items() if not all(is_finite(block.values) for block in view.blocks()))
    return NonFinite(place=place, weights=tuple(damaged))
