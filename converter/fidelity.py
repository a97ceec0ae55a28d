"""What equal shapes cannot show: whether MaxText can compute the same function from the converted weights.

AXLearn applies the q/k RMSNorm scales after RoPE, MaxText before it. In each rotated pair the attention score then
depends on the scales in the same way exactly if they are equal inside the pair, for q and for k. Where only their
product is equal inside the pairs, another split of the product would be exact, the copied one is not; where the product
differs, no choice of scales is exact in stock MaxText (docs/exactness.md).
"""

from dataclasses import dataclass

import numpy as np

from converter.block_reader import BlockReader
from converter.errors import MappingError
from converter.mapping import LAYER_AXIS, LAYER_FIELD
from converter.matching import Match
from converter.source import Source
from converter.zarr2 import ArraySpec

MAX_SCALE_BYTES = 64 << 20
"""q/k norm scales have some hundred numbers a layer."""


@dataclass(frozen=True, slots=True)
class PairMismatch:
    """How unequal the q/k norm scales of one layer are inside the rotated pairs.

    Each figure is the maximum over the pairs of |a - b| / |a + b|: 0 for equal, 1 where one of them is zero.

    Attributes:
      layer: number of the layer in the model.
      product: of the product of the query's and the key's scale.
      query: of the query's scale alone.
      key: of the key's scale alone.
    """

    layer: int
    product: float
    query: float
    key: float

    @property
    def exact(self) -> bool:
        """Whether stock MaxText computes the same scores from the copied scales."""
        return self.query == 0 and self.key == 0


def pair_mismatches(source: Source) -> tuple[PairMismatch, ...]:
    """Measures every layer; empty where the table names no q/k norms.

    Raises:
      SourceError: the scales cannot be read.
    """
    match = source.match
    rule = match.table.fidelity
    if rule is None:
        return ()
    places = list(dict.fromkeys(row.source_place for row in match.rows if row.source_place))
    result: list[PairMismatch] = []
    for block, place in enumerate(places):
        query, key = (
            _scales(source, match, path.replace(LAYER_FIELD, place)) for path in (rule.query_scale, rule.key_scale)
        )
        if query.shape != key.shape or query.shape[1] % 2:
            raise MappingError(
                f"mapping '{match.table.name}': [fidelity] needs q and k scales of one even length, found "
                f"{list(query.shape)} and {list(key.shape)} at {place}"
            )
        for repeat in range(query.shape[0]):
            result.append(scale_mismatches(repeat * match.blocks + block, query[repeat], key[repeat]))
    return tuple(sorted(result, key=lambda entry: entry.layer))


def scale_mismatches(layer: int, query: np.ndarray, key: np.ndarray) -> PairMismatch:
    """Measures one layer's scales [H], rotated pairs side by side."""
    query, key = query.astype(np.float64), key.astype(np.float64)
    return PairMismatch(layer, _mismatch(query * key), _mismatch(query), _mismatch(key))


def _mismatch(values: np.ndarray) -> float:
    first, second = values[0::2], values[1::2]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.abs(first - second) / np.abs(first + second)
    ratio = np.where(first == second, 0.0, ratio)
    return float(np.max(np.where(np.isnan(ratio), np.inf, ratio)))


def _scales(source: Source, match: Match, path: str) -> np.ndarray:
    """A q/k norm scale as float64 [layers, head dim]."""
    row = next((row for row in match.rows if path in row.sources), None)
    if row is None or source.arrays[path].bytes > MAX_SCALE_BYTES:
        why = "which no row reads" if row is None else "which is too large for a q/k norm scale"
        raise MappingError(f"mapping '{match.table.name}': [fidelity] names {path}, {why}")
    names = [str(dim) for dim in row.expression.sources[row.sources.index(path)]]
    values = read_whole(source.arrays[path]).astype(np.float64)
    values = np.moveaxis(values, names.index(LAYER_AXIS), 0) if LAYER_AXIS in names else values[None]
    return values.reshape(values.shape[0], -1)


def read_whole(array: ArraySpec) -> np.ndarray:
    """Reads a small array.

    Raises:
      SourceError: it cannot be read.
    """
    return BlockReader(array).read(tuple((0, length) for length in array.shape))
