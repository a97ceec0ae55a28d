"""What equal shapes cannot show: whether MaxText can compute the same function from the converted weights.

AXLearn applies the q/k RMSNorm scales after RoPE, MaxText before it. In each rotated pair the attention score then
depends on the scales in the same way exactly if they are equal inside the pair, for q and for k. Where only their
product is equal inside the pairs, another split of the product is exact (`qk_norm` writes it), the copied one is not;
where the product differs, no choice of scales is exact in stock MaxText (docs/exactness.md). So what is judged is the
scales that the converted checkpoint has.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from converter.arrays import ArrayReader
from converter.axes import AxisMap
from converter.errors import MappingError
from converter.mapping import KEY_SCALE, LAYER_AXIS, QK_NORM, QUERY_SCALE, MappingTable, Match, MatchedRow
from converter.planning.source import Source
from converter.words import option_flag

MAX_SCALE_BYTES = 64 << 20
"""q/k norm scales have some hundred numbers a layer."""

ROUNDING = 4 * float(np.finfo(np.float32).eps)
"""Relative difference of products that float32 scales may have although they were made equal."""


TIED_KEY = "logits_via_embedding"
"""MaxText's key for logits from the embedding table, which it rounds to bfloat16 for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedies:
    """Options of a table that bring MaxText closer to AXLearn, as on the command line; empty where it has none.

    Attributes:
      untie: writes the output projection as a leaf of its own.
      fit: fits the q/k norm scales to stock MaxText.
    """

    untie: str = ""
    fit: str = ""

    @classmethod
    def of(cls, table: MappingTable) -> "Remedies":
        """The options that advice may name for checkpoints of this table."""
        untie = next((rule.unless for rule in table.config if rule.key == TIED_KEY), "")
        fits = QK_NORM in table.fits and table.arithmetic is not None
        return cls(untie=option_flag(untie) if untie in table.options else "", fit=option_flag(QK_NORM) if fits else "")


@dataclass(frozen=True, slots=True)
class PairMismatch:
    """How unequal the q/k norm scales of one layer are inside the rotated pairs.

    Each figure is the maximum over the pairs of |a - b| / |a + b|: 0 for equal, 1 where one of them is zero.

    Attributes:
      layer: number of the layer in the model.
      product: of the product of the query's and the key's scale.
      query: of the query's scale alone.
      key: of the key's scale alone.
      exact: whether stock MaxText computes the same scores from the scales that the converted checkpoint has.
    """

    layer: int
    product: float
    query: float
    key: float
    exact: bool

    @property
    def separable(self) -> bool:
        """Whether there are scales with which stock MaxText is exact: those that `--qk-norm fit` finds."""
        return self.product <= ROUNDING


def pair_mismatches(source: Source, computed: Mapping[str, np.ndarray]) -> tuple[PairMismatch, ...]:
    """Measures every layer; empty where the table has no q/k norm scales.

    Args:
      source: an AXLearn checkpoint.
      computed: MaxText's leaf path to its value, for the scales that are not copied (see `qk_norm`).

    Raises:
      SourceError: the scales cannot be read.
    """
    match = source.match
    places = list(dict.fromkeys(row.source_place for row in match.rows if row.source_place))
    result: list[PairMismatch] = []
    for place, rows in match.rows_of(QUERY_SCALE, KEY_SCALE).items():
        query, key = (layers_first(read_scale(source, row), row) for row in rows)
        if query.shape != key.shape or query.shape[1] % 2:
            raise MappingError(
                f"mapping '{match.table.name}': q and k scales must have one even length, found "
                f"{list(query.shape)} and {list(key.shape)} at {place}"
            )
        written = [_computed(match, row, computed) for row in rows]
        own_query, own_key = (
            copied if other is None else other for copied, other in zip((query, key), written, strict=True)
        )
        for repeat in range(query.shape[0]):
            layer = repeat * match.blocks + places.index(place)
            result.append(scale_mismatches(layer, query[repeat], key[repeat], own_query[repeat], own_key[repeat]))
    return tuple(sorted(result, key=lambda entry: entry.layer))


def scale_mismatches(
    layer: int, query: np.ndarray, key: np.ndarray, written_query: np.ndarray, written_key: np.ndarray
) -> PairMismatch:
    """Measures one layer.

    Args:
      layer: number of the layer in the model.
      query: AXLearn's scale [H] of the query, rotated pairs side by side.
      key: of the key.
      written_query: the converted checkpoint's scale of the query, in the same order.
      written_key: of the key.
    """
    query, key, written_query, written_key = (
        values.astype(np.float64) for values in (query, key, written_query, written_key)
    )
    product = query * key
    equal = (_mismatch(written_query), _mismatch(written_key)) == (0, 0)
    written = written_query * written_key
    with np.errstate(invalid="ignore"):
        kept = bool(np.all((written == product) | (np.abs(written - product) <= ROUNDING * np.abs(product))))
    return PairMismatch(layer, _mismatch(product), _mismatch(query), _mismatch(key), equal and kept)


def _mismatch(values: np.ndarray) -> float:
    first, second = values[0::2], values[1::2]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.abs(first - second) / np.abs(first + second)
    ratio = np.where(first == second, 0.0, ratio)
    return float(np.max(np.where(np.isnan(ratio), np.inf, ratio)))


def read_scale(source: Source, row: MatchedRow) -> np.ndarray:
    """A row's q/k norm scales, all layers.

    Raises:
      MappingError: the tensor cannot be such a scale.
      SourceError: it cannot be read.
    """
    array = source.arrays[row.sources[0]]
    if len(row.sources) > 1 or array.bytes > MAX_SCALE_BYTES:
        why = "joined from several tensors" if len(row.sources) > 1 else "too large"
        raise MappingError(f"mapping '{source.match.table.name}': {array.path} is {why} for a q/k norm scale")
    return ArrayReader(array).read_whole()


def _computed(match: Match, row: MatchedRow, computed: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """What the row's leaf gets instead of its source, in the source's order; None where it is copied."""
    if row.targets[0] not in computed:
        return None
    axis_map = AxisMap(row.expression, {name: match.sizes[name] for name in row.expression.names()})
    return layers_first(axis_map.inverse().forward([computed[row.targets[0]]])[0], row)


def layers_first(values: np.ndarray, row: MatchedRow) -> np.ndarray:
    """A row's source tensor as float64 [layers, head dim]."""
    names = [str(dim) for dim in row.expression.sources[0]]
    wide = values.astype(np.float64)
    wide = np.moveaxis(wide, names.index(LAYER_AXIS), 0) if LAYER_AXIS in names else wide[None]
    return wide.reshape(wide.shape[0], -1)
