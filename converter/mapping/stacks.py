"""Layers that live in names, one name a layer: each tensor of theirs is seen as one, with an axis of layers in front.

A stack is called as its parts, with all their numbers where they have one: `decoder/layers_{0..11}/mlp/wo/kernel`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from converter.mapping.table import REPEAT_FIELDS, LayerLayout

Shape = tuple[int, ...]

STACK_AXIS = 0
"""Where a stack has its axis of layers."""

MAX_LAYERS = 10_000
"""Layers of a model; the largest published one has 126."""

_NUMBERS = re.compile(r"\{(\d{1,6})(?:,(\d{1,6}))?(?:\.\.(\d{1,6}))?\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """A checkpoint's tensors with those of layers in names put together.

    Attributes:
      layouts: the layouts there can be; the paths of those without an axis say which layers were found.
      shapes: path to shape of every tensor, a stack's among them and none of its parts.
      stacks: path of a stack to the paths of its parts, in order.
      problems: layers that are missing, and tensors that differ from layer to layer, one line each.
    """

    layouts: tuple[LayerLayout, ...]
    shapes: Mapping[str, Shape]
    stacks: Mapping[str, tuple[str, ...]]
    problems: tuple[str, ...] = ()


def fold(shapes: Mapping[str, Shape], layouts: Sequence[LayerLayout]) -> Folded:
    """Puts the layers together that live in names, in whichever tree of the checkpoint.

    Args:
      shapes: path to shape of every tensor.
      layouts: the source's layouts; one without an axis is looked for, all others stay as they are.
    """
    result = Folded(layouts=tuple(layouts), shapes=shapes, stacks={})
    for number, layout in enumerate(layouts):
        if layout.axis is None:
            result = _fold(result, number, layout)
    return result


def _fold(folded: Folded, place: int, layout: LayerLayout) -> Folded:
    pattern = _pattern(layout)
    found: dict[tuple[str, str], dict[int, str]] = {}
    for path in folded.shapes:
        if match := pattern.fullmatch(path):
            found.setdefault((match[1], match[3]), {})[int(match[2])] = path
    if not found:
        return folded
    count = min(max(max(parts) for parts in found.values()) + 1, MAX_LAYERS)
    numbers = numbers_text(range(count))
    stacks: dict[str, tuple[str, ...]] = {}
    problems: list[str] = []
    shapes: dict[str, Shape] = {}
    name_of = {path: f"{key[0]}{numbers}{key[1]}" for key, parts in found.items() for path in parts.values()}
    for path, shape in folded.shapes.items():
        name = name_of.get(path, path)
        if name == path and name in stacks:
            problems.append(f"{path}: a tensor with the name of a stack of layers")
        if name != path and name not in shapes:
            shapes[name] = (count, *shape)
        elif name == path:
            shapes[name] = shape
    for (before, after), parts in found.items():
        ordered = [parts[number] for number in sorted(parts)]
        missing = next((number for number in range(count) if number not in parts), None)
        if missing is not None:
            problems.append(
                f"missing in the checkpoint: {before}{missing}{after}, for there are layers up to {count - 1}"
            )
        first = ordered[0]
        odd = next((path for path in ordered if folded.shapes[path] != folded.shapes[first]), None)
        if odd is not None:
            problems.append(
                f"{odd} has the shape {list(folded.shapes[odd])}, but {first} has {list(folded.shapes[first])}; "
                "the layers of a model are alike"
            )
        shapes[f"{before}{numbers}{after}"] = (count, *folded.shapes[first])
        stacks[f"{before}{numbers}{after}"] = tuple(ordered)
    layouts = list(folded.layouts)
    layouts[place] = LayerLayout(layout.name, _numbered(layout.path, numbers), STACK_AXIS)
    return Folded(
        layouts=tuple(layouts),
        shapes=shapes,
        stacks={**folded.stacks, **stacks},
        problems=(*folded.problems, *problems),
    )


def stack_name(path: str, numbers: Sequence[int]) -> str:
    """The name of a stack: a path with `{layer}` or `{repeat}` in it, and the numbers that stand there."""
    return _numbered(path, numbers_text(numbers))


def stack_parts(name: str) -> tuple[str, ...]:
    """The paths of a stack's parts; empty for a path that is not a stack's name."""
    match = _NUMBERS.search(name)
    if match is None:
        return ()
    first = int(match[1])
    second = int(match[2]) if match[2] else None
    last = int(match[3]) if match[3] else (first if second is None else second)
    step = 1 if second is None else second - first
    return tuple(f"{name[: match.start()]}{number}{name[match.end() :]}" for number in range(first, last + 1, step))


def numbers_text(numbers: Sequence[int]) -> str:
    """Evenly spaced numbers as a shell writes them: {0..5}, {1,3..11}, {1,3}, {0}."""
    first, last = numbers[0], numbers[-1]
    step = numbers[1] - first if len(numbers) > 1 else 1
    if step == 1:
        return f"{{{first}}}" if len(numbers) == 1 else f"{{{first}..{last}}}"
    return f"{{{first},{numbers[1]}}}" if len(numbers) == 2 else f"{{{first},{numbers[1]}..{last}}}"


def _numbered(path: str, numbers: str) -> str:
    for field in REPEAT_FIELDS:
        path = path.replace(field, numbers)
    return path


def _pattern(layout: LayerLayout) -> re.Pattern[str]:
    """A tensor of a layer: what stands before the layer's number, the number, what follows."""
    before, after = re.split("|".join(map(re.escape, REPEAT_FIELDS)), layout.path)
    inner = re.escape(after).replace(r"\{block\}", r"\d{1,4}")
    return re.compile(rf"((?:.*/)?{re.escape(before)})(0|[1-9]\d{{0,3}})({inner}/.+)")
