"""How far two models' logits are apart: in numbers that compare across models, and by position."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

AT_ONCE = 16
"""Tokens whose logits are compared at a time."""

POSITION_EDGES = (0, 16, 64, 256, 400, 1024, 4096, 1 << 31)


@dataclass(frozen=True, slots=True)
class Difference:
    """The distance of logits from their reference.

    Attributes:
      max_abs: largest absolute difference.
      relative: norm of the difference over the norm of the reference.
      kl_mean: Kullback-Leibler divergence from the reference, mean over the tokens, in nats.
      kl_max: the same, of the worst token.
      top1: share of the tokens with the same most likely next token.

    All are NaN where logits are not finite.
    """

    max_abs: float
    relative: float
    kl_mean: float
    kl_max: float
    top1: float


@dataclass(frozen=True, slots=True)
class Bucket:
    """The distance over a range of positions, `last` included."""

    first: int
    last: int
    difference: Difference


class Distance:
    """Collects logits as they come and compares them with reference logits."""

    def __init__(self, reference: np.ndarray, positions: np.ndarray):
        """Takes reference logits [tokens, V] and the position of each token."""
        self.reference = reference
        self.positions = positions
        self.largest, self.error, self.norm, self.divergence = np.zeros((4, len(reference)))
        self.same = np.zeros(len(reference), bool)
        self.finite = np.ones((2, len(reference)), bool)

    def add(self, start: int, logits: np.ndarray) -> None:
        """Compares logits [tokens, V] of the tokens from `start` on."""
        # A few at a time: in float64 and with all that is in between they take twenty times their size.
        for first in range(0, len(logits), AT_ONCE):
            self._add(start + first, logits[first : first + AT_ONCE])

    def _add(self, start: int, logits: np.ndarray) -> None:
        part = slice(start, start + len(logits))
        wanted, found = self.reference[part].astype(np.float64), logits.astype(np.float64)
        self.finite[:, part] = [np.isfinite(values).all(axis=-1) for values in (wanted, found)]
        with np.errstate(invalid="ignore", over="ignore"):
            self._measure(part, wanted, found)

    def _measure(self, part: slice, wanted: np.ndarray, found: np.ndarray) -> None:
        gap = np.abs(found - wanted)
        self.largest[part] = gap.max(axis=-1)
        self.error[part] = np.square(gap).sum(axis=-1)
        self.norm[part] = np.square(wanted).sum(axis=-1)
        p, q = _log_softmax(wanted), _log_softmax(found)
        self.divergence[part] = np.maximum((np.exp(p) * (p - q)).sum(axis=-1), 0.0)
        self.same[part] = wanted.argmax(axis=-1) == found.argmax(axis=-1)

    def not_finite(self) -> tuple[int, int]:
        """How many tokens of the reference, and of what is compared, have NaN or infinity among their logits."""
        reference, compared = (int(count) for count in np.count_nonzero(~self.finite, axis=-1))
        return reference, compared

    def total(self) -> Difference:
        """Over all tokens."""
        return self._over(np.ones(len(self.positions), bool))

    def buckets(self) -> tuple[Bucket, ...]:
        """By position, for each range that has tokens."""
        result: list[Bucket] = []
        for low, high in itertools.pairwise(POSITION_EDGES):
            chosen = (self.positions >= low) & (self.positions < high)
            if chosen.any():
                result.append(Bucket(low, int(self.positions[chosen].max()), self._over(chosen)))
        return tuple(result)

    def _over(self, chosen: np.ndarray) -> Difference:
        if not self.finite[:, chosen].all():
            # Infinities can cancel out in a figure; no figure is given then that a limit could let pass.
            return Difference(*(5 * (math.nan,)))
        return Difference(
            max_abs=float(self.largest[chosen].max()),
            relative=float(np.sqrt(self.error[chosen].sum() / max(self.norm[chosen].sum(), 1e-300))),
            kl_mean=float(self.divergence[chosen].mean()),
            kl_max=float(self.divergence[chosen].max()),
            top1=float(self.same[chosen].mean()),
        )


def exceeded(difference: Difference, limits: Sequence[tuple[str, float]]) -> tuple[str, ...]:
    """The limits that a difference is over, as lines; a difference that is not a number exceeds every limit.

    Args:
      difference: what was measured.
      limits: name of a figure and the largest value allowed (for `top1`, the smallest).
    """
    lines: list[str] = []
    for name, limit in limits:
        value = getattr(difference, name)
        fine = value >= limit if name == "top1" else value <= limit
        if not fine:
            lines.append(f"{name} is {value:.3g}, {'at least' if name == 'top1' else 'at most'} {limit:.3g} is allowed")
    return tuple(lines)


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
