"""Chooses how the bytes of each array travel, the cheapest valid way.

* `pass`: only axes move. The source's compressed chunks are valid chunks of the target under zarr3's `transpose` codec,
  so they are copied (or linked) and never decoded.
* `rewrite`: everything else is decoded, rearranged and encoded block by block.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from converter.arrays import ZSTD, Array, Encoding
from converter.axes import AxisMap
from converter.mapping import COPY, Fit, ValueRule

MAX_PASSED_CHUNK = 512 << 20
"""Decoded bytes. A checkpoint that one host saved has whole arrays in one chunk; such chunks are cut up instead, since
whoever restores a part of a leaf has to decode whole chunks."""

MAX_MOVED_CHUNK = 2 << 30
"""The same where the store itself passes chunks on: cutting one up would bring all its bytes to this machine."""

PASS, LINK, REWRITE = "pass", "link", "rewrite"


@dataclass(frozen=True, slots=True)
class Route:
    """How one array travels.

    Attributes:
      name: PASS, LINK or REWRITE.
      reason: why it is not a cheaper one; empty for the cheapest.
      encoding: how the target's chunks are stored.
    """

    name: str
    reason: str
    encoding: Encoding


def choose_route(
    axis_map: AxisMap,
    arrays: Sequence[Array],
    *,
    store: str,
    rewrite: bool = False,
    link: bool = False,
    in_store: bool = False,
    value: ValueRule = COPY,
    dtype: str | None = None,
    stacked: bool = False,
    compress: bool = True,
) -> Route:
    """Chooses the route of one task.

    Args:
      axis_map: how elements move.
      arrays: the sources.
      store: one of the stores of `encoding`.
      rewrite: never pass chunks through.
      link: hard-link chunks instead of copying them.
      in_store: an object store passes chunks on by itself.
      value: what becomes of the values.
      dtype: what they are cast to; None for none.
      stacked: the target has a leaf for each layer, along its first dimension.
      compress: compress chunks that are rewritten.
    """
    reason = _why_not_passed(axis_map, arrays, store, rewrite, value)
    cast = dtype is not None and dtype != arrays[0].dtype
    if cast and not rewrite:
        reason = f"cast to {dtype}"
    limit = MAX_MOVED_CHUNK if in_store else MAX_PASSED_CHUNK
    reason = reason or _why_too_large(arrays[0], limit)
    reason = reason or (_why_not_split(axis_map, arrays[0]) if stacked else "")
    if reason:
        return Route(REWRITE, reason, Encoding.rewritten(store, compress=compress))
    permutation = axis_map.axis_permutation()
    assert permutation is not None
    order = tuple(permutation.index(dim) for dim in range(len(permutation)))
    level = arrays[0].encoding.level
    if link and arrays[0].database_key is not None:
        return Route(PASS, "chunks in a database", Encoding.passed(store, order, level, checksum=True))
    if link:
        return Route(LINK, "", Encoding.passed(store, order, level, checksum=False))
    return Route(PASS, "", Encoding.passed(store, order, level, checksum=True))


def _why_not_passed(axis_map: AxisMap, arrays: Sequence[Array], store: str, rewrite: bool, value: ValueRule) -> str:
    if rewrite:
        return "asked for"
    if store == "zarr2":
        return "zarr v2 cannot store moved axes"
    if len(axis_map.expression.targets) > 1:
        return f"split into {len(axis_map.expression.targets)} leaves"
    if len(arrays) > 1:
        return f"joined from {len(arrays)} arrays"
    if value != COPY:
        return "values are fitted" if isinstance(value, Fit) else "values are scaled"
    if axis_map.axis_permutation() is None:
        return "re-ordered inside an axis"
    array = arrays[0]
    if array.encoding.is_transposed:
        return "chunks in order F"
    if array.compressor is not None and array.compressor.get("id") != ZSTD:
        return f"compressor {array.compressor.get('id')}"
    return ""


def _why_too_large(array: Array, limit: int) -> str:
    return f"chunks of {array.chunk_bytes >> 20} MiB are cut into smaller ones" if array.chunk_bytes > limit else ""


def _why_not_split(axis_map: AxisMap, array: Array) -> str:
    """Why chunks of an array whose axes only move cannot become those of a leaf for each layer; empty if they can."""
    permutation = axis_map.axis_permutation()
    assert permutation is not None
    layers = array.chunks[permutation[0]]
    return f"chunks hold {layers} layers" if layers > 1 else ""
