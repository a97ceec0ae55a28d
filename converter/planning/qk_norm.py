"""Fits q/k norm scales for stock MaxText, which applies them before RoPE where AXLearn applies them after it.

For a rotated pair with products of scales d0 and d1 let d = (d0+d1)/2 and r = (d0-d1)/(d0+d1). With the query at
position m, the key at n and the pair's frequency t, AXLearn's score is d times

    q0k0 (cos(m-n)t + r cos(m+n)t) + q1k1 (cos(m-n)t - r cos(m+n)t)
    + q0k1 (sin(m-n)t - r sin(m+n)t) - q1k0 (sin(m-n)t + r sin(m+n)t)

and stock MaxText's the same without the terms in m+n, each product times its own scales of q and k. The terms in m+n
are replaced by the multiples of those in m-n that are nearest over all causal positions: cos(m+n)t by w cos(m-n)t,
sin(m+n)t by u sin(m-n)t. Then q0k0 : q1k1 = (1+wr) : (1-wr) and q1k0 : q0k1 = (1+ur) : (1-ur), which four scales can
have; pairs that stock MaxText can compute exactly are given exact scales instead.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from converter.axes import AxisMap
from converter.mapping import KEY_SCALE, LAYER_AXIS, QK_NORM, QUERY_SCALE, Fit, source_arithmetic
from converter.planning.fidelity import ROUNDING, layers_first, read_scale
from converter.planning.source import Source

POSITIONS = 1024
"""Positions that the fit averages over; each doubling counts alike, so that more would change little."""

LARGEST = 1 - 1e-6
"""Bound of w*r and u*r: beyond 1 a scale would have to be infinite."""


def fitted_scales(source: Source, keys: Mapping[str, Any], *, positions: int = POSITIONS) -> dict[str, np.ndarray]:
    """The fitted scales of all layers.

    Args:
      source: an AXLearn checkpoint.
      keys: the effective configuration, see `settings.configure`; RoPE's base is taken from it.
      positions: length of the sequences that the fit averages over.

    Returns:
      MaxText's leaf path to its whole value, in the leaf's own shape, order and dtype; empty where the table's
      rows of q/k norms do not name this fit, or its option is off.

    Raises:
      SourceError: the scales cannot be read.
      MappingError: the table does not name RoPE's base.
    """
    match = source.match
    pairs = match.rows_of(QUERY_SCALE, KEY_SCALE)
    pairs = {place: pair for place, pair in pairs.items() if all(row.value == Fit(name=QK_NORM) for row in pair)}
    if not pairs:
        return {}
    theta = source_arithmetic(match.table, keys).rope_theta
    result: dict[str, np.ndarray] = {}
    for pair in pairs.values():
        arrays = [read_scale(source, row) for row in pair]
        scales = [layers_first(values, row) for values, row in zip(arrays, pair, strict=True)]
        fitted = [fit(query, key, positions=positions, theta=theta) for query, key in zip(*scales, strict=True)]
        for number, (row, array) in enumerate(zip(pair, arrays, strict=True)):
            values = np.stack([entry[number] for entry in fitted]).astype(array.dtype)
            names = [str(dim) for dim in row.expression.sources[0]]
            whole = np.moveaxis(values, 0, names.index(LAYER_AXIS)) if LAYER_AXIS in names else values[0]
            axis_map = AxisMap(row.expression, {name: match.sizes[name] for name in row.expression.names()})
            result[row.targets[0]] = np.ascontiguousarray(axis_map.forward([whole.reshape(array.shape)])[0])
    return result


def fit(query: np.ndarray, key: np.ndarray, *, positions: int, theta: float) -> tuple[np.ndarray, np.ndarray]:
    """Fits one layer's scales.

    Args:
      query: the query's scale [H], rotated pairs side by side.
      key: the key's.
      positions: length of the sequences that the fit averages over.
      theta: RoPE's base.

    Returns:
      Scales to apply before RoPE, float64, in the same order. Pairs in which both scales are equal are left as they
      are; where only the product is equal, the query's scale gets the product and the key's is 1.
    """
    q, k = (values.astype(np.float64).reshape(-1, 2) for values in (query, key))
    product = q * k
    mean, half = product.sum(axis=1) / 2, (product[:, 0] - product[:, 1]) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(mean == 0, 0.0, half / mean)
    across, along = _projections(len(q), positions, theta)
    both = np.arctanh(np.clip(across * ratio, -LARGEST, LARGEST))
    cross = np.arctanh(np.clip(along * ratio, -LARGEST, LARGEST))
    size, sign = np.sqrt(np.abs(mean)), np.sign(mean)
    for_query, for_key = (both - cross) / 2, (both + cross) / 2
    fitted_query = size[:, None] * np.exp(np.stack([for_query, -for_query], axis=1))
    fitted_key = (sign * size)[:, None] * np.exp(np.stack([for_key, -for_key], axis=1))
    same_product = np.abs(half) <= ROUNDING * np.abs(mean)
    fitted_query[same_product] = mean[same_product, None]
    fitted_key[same_product] = 1.0
    plain = (q[:, 0] == q[:, 1]) & (k[:, 0] == k[:, 1])
    fitted_query[plain], fitted_key[plain] = q[plain], k[plain]
    return fitted_query.reshape(-1), fitted_key.reshape(-1)


def _projections(pairs: int, positions: int, theta: float) -> tuple[np.ndarray, np.ndarray]:
    """The w and u of each pair, cut to [-1, 1].

    Means over positions 0 <= n <= m < positions, in which the keys of a query count alike, and a query at m counts
    1/(m+1): each doubling of the position counts the same, so that short sequences are served as well as long ones.
    With s = m+n and d = m-n the products of cosines and sines are sums of cos(2mt), cos(2nt) and cos(2dt), so that
    one sum over the positions is enough.
    """
    frequencies = theta ** (-np.arange(pairs) / pairs)
    at = np.arange(positions)
    cosines = np.cos(2 * np.outer(frequencies, at))
    weight = 1 / (at + 1)
    # A key at n is seen by all queries m from n on, and so often does the distance d = n occur.
    seen = np.cumsum(np.square(weight)[::-1])[::-1]
    queries, keys, count = cosines @ weight, cosines @ seen, weight.sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        across = (queries + keys) / (count + keys)
        along = np.where(count - keys > 1e-9 * count, (keys - queries) / (count - keys), 1.0)
    return np.clip(across, -1, 1), np.clip(along, -1, 1)
