"""Which parameters a pattern of paths means, in the tree that MaxText gives to its optimizer."""

from collections.abc import Mapping, Sequence
from typing import Any

from converter.maxtext_patch.source import PatchError


def scales(tree: Any, leaves: Mapping[str, float]) -> list[float]:
    """The scale of each parameter, in the order of the tree's leaves.

    Frozen parameters, which optax masks, count as parameters but are not in the result.

    Args:
      tree: parameters, or anything with their structure.
      leaves: scales by pattern.

    Raises:
      PatchError: a pattern matches no parameter, or two match the same.
    """
    import jax
    import optax  # pyright: ignore[reportMissingImports] (comes with MaxText)

    masked = optax.MaskedNode
    paths = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda node: isinstance(node, masked))[0]
    named = [(parameter_path(path), isinstance(value, masked)) for path, value in paths]
    found = match([path for path, _ in named], leaves)
    return [scale for scale, (_, frozen) in zip(found, named, strict=True) if not frozen]


def parameter_path(path: Any) -> tuple[str, ...]:
    """The parts of a parameter's path.

    Flax's variables add a last part `value`, and Linen's trees a first one, `params`; neither is part of the name.
    """
    import jax

    parts = jax.tree_util.keystr(path, simple=True, separator="/").split("/")
    return without_collection(tuple(parts[:-1] if parts[-1] == "value" else parts))


def without_collection(parts: tuple[str, ...]) -> tuple[str, ...]:
    """A path without the name of Flax's collection of parameters."""
    return parts[1:] if parts[:1] == ("params",) else parts


def match(paths: Sequence[tuple[str, ...]], leaves: Mapping[str, float]) -> list[float]:
    """The scale of each path: that of its pattern, or 1.

    Raises:
      PatchError: a pattern matches no path, or two match the same.
    """
    patterns = {pattern: without_collection(tuple(pattern.split("/"))) for pattern in leaves}
    unused = set(leaves)
    found: list[float] = []
    for path in paths:
        matching = [pattern for pattern, parts in patterns.items() if _matches(path, parts)]
        if len(matching) > 1:
            raise PatchError(f"scaled_updates: two patterns match {'/'.join(path)}: {matching[0]} and {matching[1]}")
        unused.difference_update(matching)
        found.append(leaves[matching[0]] if matching else 1.0)
    if unused:
        example = f"; one of its {len(paths)} parameters is {'/'.join(paths[0])}" if paths else ""
        raise PatchError(f"scaled_updates: no parameter of MaxText's matches {min(unused)}{example}")
    return found


def _matches(path: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    return len(path) == len(parts) and all(part in ("*", name) for part, name in zip(parts, path, strict=True))
