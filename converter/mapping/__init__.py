"""A model family as data: the table file, its rows, matching against a checkpoint, MaxText configuration."""

from converter.mapping.choose import choose_table
from converter.mapping.config import model_config
from converter.mapping.file import find_mapping, is_bundled, load_bundled, load_mapping
from converter.mapping.match import Match, MatchedRow, Shape, join, match_table, matches
from converter.mapping.published import check_model, find_published, published_shapes
from converter.mapping.roles import EXPERT_ROLES, HEAD_DIM, HEADS, KEY_SCALE, QUERY_SCALE, RANKS, ROTATED
from converter.mapping.settings import (
    Arithmetic,
    Configuration,
    arithmetic_keys,
    configure,
    converted_keys,
    parse_setting,
    source_arithmetic,
    training_keys,
    undecided_keys,
)
from converter.mapping.table import (
    LAYER_AXIS,
    LAYER_FIELD,
    MODEL,
    TRAINING,
    ConfigRule,
    DropRow,
    LayerLayout,
    MappingTable,
    TensorRow,
)
from converter.mapping.values import COPY, FITTED, PLAIN, QK_NORM, Fit, Scale, ValueRule

__all__ = [
    "COPY",
    "EXPERT_ROLES",
    "FITTED",
    "HEADS",
    "HEAD_DIM",
    "KEY_SCALE",
    "LAYER_AXIS",
    "LAYER_FIELD",
    "MODEL",
    "PLAIN",
    "QK_NORM",
    "QUERY_SCALE",
    "RANKS",
    "ROTATED",
    "TRAINING",
    "Arithmetic",
    "ConfigRule",
    "Configuration",
    "DropRow",
    "Fit",
    "LayerLayout",
    "MappingTable",
    "Match",
    "MatchedRow",
    "Scale",
    "Shape",
    "TensorRow",
    "ValueRule",
    "arithmetic_keys",
    "check_model",
    "choose_table",
    "configure",
    "converted_keys",
    "find_mapping",
    "find_published",
    "is_bundled",
    "join",
    "load_bundled",
    "load_mapping",
    "match_table",
    "matches",
    "model_config",
    "parse_setting",
    "published_shapes",
    "source_arithmetic",
    "training_keys",
    "undecided_keys",
]
