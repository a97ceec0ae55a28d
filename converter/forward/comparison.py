"""Compares the logits of an AXLearn checkpoint and of what was converted from it, and says where they differ and why.

The cause is found by undoing known differences one after the other (see `logits_causes`), each time the one that
brings the logits closest, until they are equal or nothing helps. All candidates of a round run on one reading of
the weights.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from converter.checkpoints import Made, check_pair, open_target, recorded_settings, recorded_trees
from converter.errors import Ax2mtError, DestinationError, SourceError, VerificationError
from converter.forward.causes import TIED_ROUNDING, Cause, head_findings, known_causes
from converter.forward.finite import NonFinite
from converter.forward.metrics import Bucket, Difference, Distance, exceeded
from converter.forward.model import Variant, run, working_memory
from converter.forward.run import INTERPRETER, Model, check_memory, open_model
from converter.forward.semantics import HALVES
from converter.forward.tokens import Tokens
from converter.forward.views import View
from converter.forward.weights import Weights
from converter.location import locate
from converter.mapping import KEY_SCALE, QUERY_SCALE
from converter.planning import PairMismatch, chosen_tree, scale_mismatches
from converter.work import Progress, peak_resident

EQUAL = 2e-5
"""Relative difference below which two computations in float32 are the same function."""

GAIN = 0.9
"""A switch explains something if it lowers the relative difference at least by this factor."""

TIE = 1.05
"""Of switches that help equally, up to this factor, the first and more specific one is named."""

EQUAL_VERDICT, ROUNDING_VERDICT, DIFFERENT_VERDICT = "equal", "equal but for the bfloat16 rounding", "different"
NOT_FINITE_VERDICT = "not finite"


@dataclass(frozen=True, slots=True)
class Step:
    """One known difference that was found and undone.

    Attributes:
      name: what it is.
      advice: what to do about it.
      before: the distance with it, and with those before it undone.
      after: the distance once it is undone too.
    """

    name: str
    advice: str
    before: Difference
    after: Difference


@dataclass(frozen=True, slots=True)
class Switched:
    """A known difference, and the distance where it alone is undone."""

    name: str
    difference: Difference


@dataclass(frozen=True)
class LogitsComparison:
    """What `verify --logits` found.

    Attributes:
      source: the AXLearn model.
      destination: the MaxText model.
      tokens: what both were given.
      difference: over all tokens.
      buckets: by position.
      non_finite: where NaN or infinity first appears, in the source's model and in the destination's.
      bad_tokens: how many tokens have logits that are not finite, likewise.
      verdict: equal, equal but for the rounding, different, or not finite.
      steps: the known differences that were found, the largest first.
      switched: each known difference undone alone; empty where nothing had to be explained.
      findings: further evidence, such as heads in wrong places.
      limits: the limits that were exceeded, as lines.
      mismatches: the q/k norm pairs of every layer.
      seconds: wall time.
      peak_memory: the largest resident set of this process, in bytes.
    """

    source: Model
    destination: Model
    tokens: Tokens
    difference: Difference
    buckets: tuple[Bucket, ...]
    non_finite: tuple[NonFinite | None, NonFinite | None]
    bad_tokens: tuple[int, int]
    verdict: str
    steps: tuple[Step, ...]
    switched: tuple[Switched, ...]
    findings: tuple[str, ...]
    limits: tuple[str, ...]
    mismatches: tuple[PairMismatch, ...]
    seconds: float
    peak_memory: int

    @property
    def passed(self) -> bool:
        return not self.limits

    @property
    def remaining(self) -> Difference:
        """What no known difference explains."""
        return self.steps[-1].after if self.steps else self.difference

    @property
    def explained(self) -> bool:
        return self.remaining.relative <= EQUAL


def open_pair(
    source: str,
    destination: str,
    *,
    step: int | None,
    mapping: str | None,
    settings: Sequence[str],
    norm_after: bool,
    tree: str | None = None,
) -> tuple[Model, Model]:
    """Opens both checkpoints.

    Raises:
      UsageError: they are swapped, or the tree is another than the destination was made of.
      SourceError, DestinationError: one of them is damaged, or is not of its kind.
      VerificationError: the destination's tensors cannot make the source's model.
    """
    check_pair(locate(source, SourceError), locate(destination, DestinationError))
    settings_then, made = _recorded(destination)
    chosen = chosen_tree(tree, made, destination)
    first = open_model(source, step=step, mapping=mapping, recorded=settings_then, tree=chosen)
    try:
        second = open_model(destination, mapping=mapping, settings=settings, norm_after_rope=norm_after)
    except SourceError as error:
        if not error.details:
            raise
        raise VerificationError(error.message, error.details) from None
    problems = _unlike(first.weights, second.weights)
    if problems:
        raise VerificationError(
            f"{destination}: not a conversion of {source}: its tensors form another model", problems
        )
    return first, second


def _recorded(path: str) -> tuple[dict[str, Any], Made]:
    """What a user set when a MaxText checkpoint was converted, and of which trees; empty where it cannot be read."""
    try:
        target = open_target(path)
    except Ax2mtError:
        return {}, Made()  # reported later
    return recorded_settings(target.custom), recorded_trees(target.custom, target.root)


def compare(
    source: Model,
    destination: Model,
    tokens: Tokens,
    *,
    budget: int,
    limits: Sequence[tuple[str, float]],
    explain: bool,
    progress: Progress,
) -> LogitsComparison:
    """Computes both models' logits and compares them.

    Args:
      source: the AXLearn model.
      destination: the MaxText model.
      tokens: what both are given.
      budget: bytes that the process may take.
      limits: names of figures and the largest values allowed.
      explain: look for the causes of a difference.
      progress: notified of what is being worked on.

    Raises:
      UsageError: the budget is too small.
      SourceError: a tensor cannot be read.
    """
    started = time.monotonic()
    kept = len(tokens.ids) * source.weights.vocabulary * 4
    for model in (source, destination):
        check_memory(model, tokens, budget, kept)
    reference = np.empty((len(tokens.ids), source.weights.vocabulary), np.float32)

    def keep(start: int, values: np.ndarray) -> None:
        reference[start : start + values.shape[1]] = values[0]

    variants = [Variant(source.semantics)]
    own = run(source.weights, variants, tokens, keep, progress=lambda text: progress.say(f"AXLearn: {text}"))
    search = _Search(destination.weights, tokens, reference, budget - kept, progress)
    base = Variant(destination.semantics)
    (distance,), other = search.run([base])
    steps: tuple[Step, ...] = ()
    switched: tuple[Switched, ...] = ()
    if explain and distance.total().relative > EQUAL:
        causes = known_causes(source, destination.weights.fitted, destination.semantics.query_order)
        steps, switched = _explain(search, base, distance.total(), causes)
    total = distance.total()
    return LogitsComparison(
        source=source,
        destination=destination,
        tokens=tokens,
        difference=total,
        buckets=distance.buckets(),
        non_finite=(own, other),
        bad_tokens=distance.not_finite(),
        verdict=_verdict(total, steps),
        steps=steps,
        switched=switched,
        findings=head_findings(source.weights, destination.weights, destination.semantics.query_order),
        limits=exceeded(total, limits) if not any(distance.not_finite()) else ("the logits are not finite",),
        mismatches=weight_mismatches(source.weights, destination.weights, destination.semantics.scale_order),
        seconds=time.monotonic() - started,
        peak_memory=peak_resident(),
    )


def weight_mismatches(source: Weights, destination: Weights, order: str) -> tuple[PairMismatch, ...]:
    """The q/k norm pairs of each layer of AXLearn weights, and whether the destination has exact scales for them.

    `order` is that of the pairs in the destination's scales.
    """
    result: list[PairMismatch] = []
    names = QUERY_SCALE, KEY_SCALE
    for number, (own, other) in enumerate(zip(source.layers, destination.layers, strict=True)):
        if not all(name in layer for name in names for layer in (own, other)):
            continue
        read = (other[name].read() for name in names)
        written = map(_pairs_side_by_side, read) if order == HALVES else read
        result.append(scale_mismatches(number, *(own[name].read() for name in names), *written))
    return tuple(result)


def _pairs_side_by_side(scale: np.ndarray) -> np.ndarray:
    """A scale [H] in AXLearn's order, from MaxText's."""
    return scale.reshape(2, -1).T.reshape(-1)


@dataclass(frozen=True)
class _Search:
    """Runs variants of the destination and measures how far each is from the source."""

    weights: Weights
    tokens: Tokens
    reference: np.ndarray
    budget: int
    progress: Progress

    def distances(self, variants: Sequence[Variant]) -> list[Distance]:
        result: list[Distance] = []
        most = self._together(variants)
        for first in range(0, len(variants), most):
            result += self.run(variants[first : first + most])[0]
        return result

    def run(self, variants: Sequence[Variant]) -> tuple[list[Distance], NonFinite | None]:
        """Runs variants side by side; also reports where NaN or infinity first appears."""
        result = [Distance(self.reference, self.tokens.positions) for _ in variants]

        def measure(start: int, values: np.ndarray) -> None:
            for distance, logits in zip(result, values, strict=True):
                distance.add(start, logits)

        kind = f"MaxText, {len(variants)} variants" if len(variants) > 1 else "MaxText"
        say = partial(self._say, kind)
        return result, run(self.weights, variants, self.tokens, measure, progress=say)

    def _say(self, kind: str, text: str) -> None:
        self.progress.say(f"{kind}: {text}")

    def _together(self, wanted: Sequence[Variant]) -> int:
        """How many variants fit the budget side by side; at least one."""
        tokens = len(self.tokens.ids)
        needed = ((n, working_memory(self.weights, wanted[:n], tokens)) for n in range(len(wanted), 1, -1))
        return next((n for n, memory in needed if memory + INTERPRETER <= self.budget), 1)


def _explain(
    search: _Search, base: Variant, before: Difference, causes: Sequence[Cause]
) -> tuple[tuple[Step, ...], tuple[Switched, ...]]:
    """Undoes one known difference after the other, each time the one that helps most."""
    steps: list[Step] = []
    singles: tuple[Switched, ...] = ()
    while before.relative > EQUAL:
        open_causes = [(cause, cause.switch(base)) for cause in causes]
        open_causes = [(cause, variant) for cause, variant in open_causes if variant != base]
        if not open_causes:
            break
        found = [distance.total() for distance in search.distances([variant for _, variant in open_causes])]
        if not steps:
            pairs = zip(open_causes, found, strict=True)
            singles = tuple(Switched(cause.name, difference) for (cause, _), difference in pairs)
        best = min(max(difference.relative, EQUAL) for difference in found)
        if best > before.relative * GAIN:
            break
        chosen = next(i for i, difference in enumerate(found) if difference.relative <= best * TIE)
        cause, base = open_causes[chosen]
        steps.append(Step(cause.name, cause.advice, before, found[chosen]))
        before = found[chosen]
    return tuple(steps), singles


def _verdict(difference: Difference, steps: Sequence[Step]) -> str:
    if math.isnan(difference.relative):
        return NOT_FINITE_VERDICT
    if difference.relative <= EQUAL:
        return EQUAL_VERDICT
    names = [step.name for step in steps]
    if names == [TIED_ROUNDING] and steps[0].after.relative <= EQUAL:
        return ROUNDING_VERDICT
    return DIFFERENT_VERDICT


def _unlike(source: Weights, destination: Weights) -> list[str]:
    facts = {
        "layers": lambda w: len(w.layers),
        "vocabulary": lambda w: w.vocabulary,
        "width": lambda w: w.width,
    }
    problems = [
        f"{name}: {fact(source)} in AXLearn, {fact(destination)} in MaxText"
        for name, fact in facts.items()
        if fact(source) != fact(destination)
    ]
    for number, (ours, theirs) in enumerate(zip(source.layers, destination.layers, strict=False)):
        if problems:
            break
        problems += [
            f"layer {number}: {name} is {list(view.shape)} in AXLearn, {_shape(theirs, name)} in MaxText"
            for name, view in ours.items()
            if name not in theirs or theirs[name].shape != view.shape
        ]
    return problems


def _shape(layer: Mapping[str, View], name: str) -> str:
    return str(list(layer[name].shape)) if name in layer else "missing"
