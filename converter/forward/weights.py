"""A model's weights, read lazily: one interface over an AXLearn and over a MaxText checkpoint.

A tensor is a `View`: it looks the same whichever checkpoint it comes from, and is read block by block. Its name is its
role in the model, see `roles`; the head dimension is in the checkpoint's own order of rotated pairs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from converter.arrays import ArrayReader
from converter.errors import SourceError
from converter.forward.views import View
from converter.mapping import KEY_SCALE, QUERY_SCALE, RANKS

REQUIRED = ("attention_norm", "query", "key", "value", "out", "ffn_norm")


@dataclass(frozen=True)
class Weights:
    """A model's tensors.

    Attributes:
      path: the checkpoint, for messages.
      top: tensors outside the layers, by name.
      layers: for each layer its tensors, by name.
      fitted: names of those whose values were fitted, by what the checkpoint says.
      notes: what the user has to know about the choice of these tensors, one line each.
      settings: keys of MaxText's configuration that the user set when the checkpoint was converted.
      orders: options of the table that left axes in AXLearn's order.
    """

    path: str
    top: Mapping[str, View]
    layers: tuple[Mapping[str, View], ...]
    fitted: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    orders: frozenset[str] = frozenset()

    @property
    def width(self) -> int:
        """Elements of a hidden state."""
        return self.top["embedding"].shape[1]

    @property
    def vocabulary(self) -> int:
        return self.top["embedding"].shape[0]

    @property
    def experts(self) -> int:
        """Experts of a layer; 0 without any."""
        return max((layer["gate"].shape[1] for layer in self.layers if "gate" in layer), default=0)

    @property
    def largest_block(self) -> int:
        """Bytes that reading takes at most."""
        views = [*self.top.values(), *(view for layer in self.layers for view in layer.values())]
        return max(view.memory for view in views)

    def check(self) -> None:
        """Holds the tensors of the layers against each other.

        Raises:
          SourceError: shapes that no model has; `details` has a line for each finding.
        """
        problems = [f"{name} is missing" for name in ("embedding", "final_norm") if name not in self.top]
        if not self.layers:
            problems.append("there are no layers")
        if problems:
            raise SourceError(f"{self.path}: these tensors do not form a decoder", problems)
        for number, layer in enumerate(self.layers):
            missing = [name for name in REQUIRED if name not in layer]
            experts = "expert_wi_0" in layer
            wanted = ("gate", "expert_wi_0", "expert_wi_1", "expert_wo") if experts else ("wi_0", "wi_1", "wo")
            missing += [name for name in wanted if name not in layer]
            if (QUERY_SCALE in layer) != (KEY_SCALE in layer):
                missing += [name for name in (QUERY_SCALE, KEY_SCALE) if name not in layer]
            problems += [f"layer {number}: {name} is missing" for name in missing]
            if not missing:
                problems += [f"layer {number}: {text}" for text in _shape_problems(layer, self.width)]
        if problems:
            raise SourceError(f"{self.path}: these tensors do not form a decoder", problems[:20])


def layer_view(reader: ArrayReader, axis: int | None, repeat: int, order: tuple[int, ...] | None = None) -> View:
    """One layer of an array.

    Args:
      reader: reads the array.
      axis: the dimension that holds the layers; None where there is none.
      repeat: the layer's position on it.
      order: the dimension of each axis of the view, counted with the layer axis left out; None for all in turn.

    Raises:
      SourceError: the array has no such layer.
    """
    shape = reader.array.shape
    if axis is not None and (axis >= len(shape) or repeat >= shape[axis]):
        raise SourceError(f"{reader.array.path}: shape {list(shape)} has no layer {repeat} on axis {axis}")
    rest = [dim for dim in range(len(shape)) if dim != axis]
    box = tuple((repeat, repeat + 1) if dim == axis else (0, length) for dim, length in enumerate(shape))
    return View(reader, box, tuple(rest) if order is None else tuple(rest[dim] for dim in order))


def _shape_problems(layer: Mapping[str, View], width: int) -> list[str]:
    shapes = {name: view.shape for name, view in layer.items()}
    bad = [name for name, shape in shapes.items() if len(shape) != RANKS[name]]
    if bad:
        return [f"{name} ({layer[name].array.path}) has shape {list(shapes[name])}" for name in bad]
    _, heads, size = shapes["query"]
    kv_heads = shapes["key"][1]
    expected = {
        "attention_norm": (width,),
        "query": (width, heads, size),
        "key": (width, kv_heads, size),
        "value": (width, kv_heads, size),
        "query_scale": (size,),
        "key_scale": (size,),
        "out": (heads, size, width),
        "ffn_norm": (width,),
        "post_ffn_norm": (width,),
    }
    if "gate" in shapes:
        experts, inner = shapes["gate"][1], shapes["expert_wi_0"][2]
        expected |= {"gate": (width, experts), "expert_wo": (experts, inner, width)}
        expected |= dict.fromkeys(("expert_wi_0", "expert_wi_1"), (experts, width, inner))
    else:
        inner = shapes["wi_0"][1]
        expected |= {"wi_0": (width, inner), "wi_1": (width, inner), "wo": (inner, width)}
    found = [
        f"{name} ({layer[name].array.path}) has shape {list(shapes[name])}, expected {list(shape)}"
        for name, shape in expected.items()
        if name in shapes and shapes[name] != shape
    ]
    if not found and (kv_heads == 0 or heads % kv_heads):
        found.append(f"{heads} query heads cannot be divided evenly among {kv_heads} key heads evenly")
    return found
