"""The plots of a report, as SVG. Holds no decisions."""

import math
from collections.abc import Callable, Sequence

from converter.forward import EQUAL, Difference, LogitsComparison
from converter.planning import PairMismatch, ParameterReport
from converter.report.drawing import WIDTH, Linear, Logarithmic, Picture, logarithmic
from converter.report.plan import OPPOSITE
from converter.report.proofs import GroupSum

ROW = 36
"""Height of a bar with the line of text above it."""

LEFT, RIGHT, TOP, BOTTOM = 46.0, WIDTH - 10.0, 14.0, 34.0
"""Where the axes of plots with two axes are; the bottom is counted from below."""


def parameter_plot(report: ParameterReport, groups: Sequence[GroupSum]) -> str:
    """Bars of the parameters of each part of the model, experts apart, and of what one token meets."""
    rows = [(group.name, group.experts, group.source - group.experts) for group in groups if group.source]
    if report.experts:
        rest, active = report.source_total - report.expert_total, report.active_total
        rows.insert(0, ("all", report.expert_total, rest))
        rows.insert(1, ("active per token", active - rest, rest))
    words = "; ".join(f"{name} {experts + rest:,}" for name, experts, rest in rows)
    picture = Picture("parameters", ROW * len(rows) + 6, "Parameters by part of the model", words)
    scale = Linear(max((experts + rest for _, experts, rest in rows), default=0), 0, WIDTH)
    for number, (name, experts, rest) in enumerate(rows):
        y = number * ROW
        share = (experts + rest) / report.source_total if report.source_total else 0.0
        picture.text(name, 0, y + 13, "label strong" if report.experts and number < 2 else "label")
        picture.text(f"{experts + rest:,}  ({share:.2%})", WIDTH, y + 13, "label value", anchor="end")
        picture.bar(0, y + 19, WIDTH, 10, "track")
        split = scale(experts)
        if experts:
            picture.bar(0, y + 19, split, 10, "mark first", f"{name}: {experts:,} in experts")
        if rest:
            picture.bar(split, y + 19, scale(experts + rest) - split, 10, "mark second", f"{name}: {rest:,} outside")
    return picture.svg()


def mismatch_plot(mismatches: Sequence[PairMismatch]) -> str:
    """For each layer how unequal the q/k norm scales are inside rotated pairs: query, key, and their product."""
    series: list[tuple[str, str, Callable[[PairMismatch], float]]] = [
        ("query", "mark second", lambda entry: entry.query),
        ("key", "mark third", lambda entry: entry.key),
        ("query × key", "mark first", lambda entry: entry.product),
    ]
    worst = max(mismatches, key=lambda entry: entry.product)
    picture = Picture(
        "pairs", 220, "Mismatch of q/k norm scales inside rotated pairs, by layer",
        f"{len(mismatches)} layers; the largest mismatch of query × key is {worst.product:.3g}, in layer {worst.layer}",
    )  # fmt: skip
    bottom = 220 - BOTTOM
    largest = max(min(get(entry), OPPOSITE) for entry in mismatches for _, _, get in series)
    y = Linear(largest * 1.05 or OPPOSITE, bottom, TOP)
    last = max(entry.layer for entry in mismatches)
    x = Linear(last or 1, LEFT + 10, RIGHT - 6)
    _value_axis(picture, y, bottom)
    step = max(1, -(-last // 8))
    for layer in range(0, last + 1, step):
        picture.text(str(layer), x(layer), bottom + 16, "tick", anchor="middle")
    picture.text("layer", RIGHT, 216, "tick", anchor="end")
    radius = 3.5 if last < 64 else 2.2
    for name, kind, get in series:
        points = [(x(entry.layer), y(get(entry)), entry) for entry in mismatches]
        picture.path([(left, top) for left, top, _ in points], f"{kind} joined")
        for left, top, entry in points:
            picture.dot(left, top, kind, f"layer {entry.layer}, {name}: {get(entry):.3g}", radius=radius)
    return picture.svg()


def position_plots(result: LogitsComparison) -> list[tuple[str, str]]:
    """How far the logits are apart by position: pairs of a caption and a plot."""
    return [
        ("Largest absolute and relative difference", _by_position(
            result, "distance", "Difference of the logits by position",
            [("absolute", "mark second", lambda d: d.max_abs), ("relative", "mark first", lambda d: d.relative)],
        )),
        ("Kullback-Leibler divergence: worst token and mean, in nats", _by_position(
            result, "divergence", "Kullback-Leibler divergence by position",
            [("worst token", "mark second", lambda d: d.kl_max), ("mean", "mark first", lambda d: d.kl_mean)],
        )),
        ("Tokens with the same most likely next token", _by_position(
            result, "agreement", "Share of tokens with the same top-1, by position",
            [("same top-1", "mark first", lambda d: d.top1)], share=True,
        )),
    ]  # fmt: skip


def cause_plot(result: LogitsComparison) -> str:
    """A waterfall: what each known difference contributes to the relative difference, one undone after the other."""
    bars = [("as it is", 0.0, result.difference.relative, "mark total")]
    bars += [
        (f"without: {step.name}", step.after.relative, step.before.relative, "mark first") for step in result.steps
    ]
    bars.append(("what remains", 0.0, result.remaining.relative, "mark total"))
    words = "; ".join(f"{name} {low:.2e} to {high:.2e}" for name, low, high, _ in bars)
    height = ROW * len(bars) + 30
    picture = Picture("causes", height, "Causes of the difference, one undone after the other", words)
    values = [value for _, low, high, _ in bars for value in (low, high)]
    scale = logarithmic([*values, EQUAL, EQUAL / 4], 4, WIDTH - 14)
    bottom = height - 24
    for value, label in scale.ticks:
        picture.line(scale(value), 0, scale(value), bottom)
        picture.text(label, scale(value), bottom + 16, "tick", anchor="middle")
    picture.line(scale(EQUAL), 0, scale(EQUAL), bottom, "limit")
    for number, (name, low, high, kind) in enumerate(bars):
        y, left, right = number * ROW, scale(low), scale(high)
        shown = f"{high:.2g}" if kind == "mark total" else f"{high:.2g} to {low:.2g}"
        picture.text(name, 4, y + 13)
        picture.text(shown, WIDTH, y + 13, "label value", anchor="end")
        picture.bar(left, y + 19, right - left, 10, kind, f"{name}: {shown}")
    return picture.svg()


def _by_position(
    result: LogitsComparison,
    name: str,
    title: str,
    series: Sequence[tuple[str, str, Callable[[Difference], float]]],
    *,
    share: bool = False,
) -> str:
    height, bottom = 200, 200 - BOTTOM
    buckets = result.buckets
    words = "; ".join(
        f"positions {bucket.first} to {bucket.last}: "
        + ", ".join(f"{word} {get(bucket.difference):.3g}" for word, _, get in series)
        for bucket in buckets
    )
    picture = Picture(name, height, title, words)
    values = [get(bucket.difference) for bucket in buckets for _, _, get in series]
    y = Linear(1.0, bottom, TOP) if share else logarithmic(values, bottom, TOP)
    _value_axis(picture, y, bottom, percent=share)
    width = (RIGHT - LEFT) / len(buckets)
    places = [round(LEFT + (number + 0.5) * width, 2) for number in range(len(buckets))]
    for place, bucket in zip(places, buckets, strict=True):
        picture.text(f"{bucket.first}–{bucket.last}", place, bottom + 16, "tick", anchor="middle")
    picture.text("position", RIGHT, height - 4, "tick", anchor="end")
    for word, kind, get in series:
        found = [(place, get(bucket.difference), bucket) for place, bucket in zip(places, buckets, strict=True)]
        points = [(place, y(value), value, bucket) for place, value, bucket in found if not math.isnan(value)]
        picture.path([(left, top) for left, top, _, _ in points], f"{kind} joined")
        for left, top, value, bucket in points:
            tip = f"positions {bucket.first} to {bucket.last}, {word}: " + (f"{value:.2%}" if share else f"{value:.3g}")
            picture.dot(left, top, kind, tip)
    return picture.svg()


def _value_axis(picture: Picture, scale: Linear | Logarithmic, bottom: float, *, percent: bool = False) -> None:
    """Lines across the plot at round values, with their labels."""
    for value, label in scale.ticks:
        picture.line(LEFT, scale(value), RIGHT, scale(value))
        picture.text(f"{value:.0%}" if percent else label, LEFT - 6, scale(value) + 4, "tick", anchor="end")
    picture.line(LEFT, bottom, RIGHT, bottom, "axis")
