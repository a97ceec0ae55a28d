"""A model family as data: the table file, its rows, matching against a checkpoint, MaxText configuration."""

from converter.mapping.choose import choose_table
from converter.mapping.config import model_config, value_text
from converter.mapping.constants import BOUNDS
from converter.mapping.file import find_mapping, is_bundled, load_bundled, load_mapping
from converter.mapping.learner import BY_USER, TRAINER_CONFIG, Constant, Learner, TrainedLearner, find_learner
from converter.mapping.match import Match, MatchedRow, Shape, join, match_table
from converter.mapping.patches import needed_patches
from converter.mapping.path_glob import matches
from converter.mapping.published import check_model, find_published, published_shapes
from converter.mapping.roles import EXPERT_ROLES, HEAD_DIM, HEADS, KEY_SCALE, QUERY_SCALE, RANKS, ROTATED
from converter.mapping.schedule import SAME, schedule_count, schedule_form
from converter.mapping.settings import (
    Arithmetic,
    Configuration,
    arithmetic_keys,
    configure,
    converted_keys,
    is_of_training,
    parse_setting,
    source_arithmetic,
    training_keys,
    undecided_keys,
)
from converter.mapping.stacks import stack_parts
from converter.mapping.table import (
    LAYER_AXIS,
    LAYER_FIELD,
    MODEL,
    TRAINING,
    ConfigRule,
    ConformanceRules,
    DropRow,
    LayerLayout,
    MappingTable,
    TensorRow,
)
from converter.mapping.trained import Line, TrainedModel, line_matches, read_model
from converter.mapping.trees import EMA, PARAMS, Tree, moved_row
from converter.mapping.values import COPY, FITTED, PLAIN, QK_NORM, Fit, Scale, ValueRule

__all__ = [
    "BOUNDS",
    "BY_USER",
    "COPY",
    "EMA",
    "EXPERT_ROLES",
    "FITTED",
    "HEADS",
    "HEAD_DIM",
    "KEY_SCALE",
    "LAYER_AXIS",
    "LAYER_FIELD",
    "MODEL",
    "PARAMS",
    "PLAIN",
    "QK_NORM",
    "QUERY_SCALE",
    "RANKS",
    "ROTATED",
    "SAME",
    "TRAINER_CONFIG",
    "TRAINING",
    "Arithmetic",
    "ConfigRule",
    "Configuration",
    "ConformanceRules",
    "Constant",
    "DropRow",
    "Fit",
    "LayerLayout",
    "Learner",
    "Line",
    "MappingTable",
    "Match",
    "MatchedRow",
    "Scale",
    "Shape",
    "TensorRow",
    "TrainedLearner",
    "TrainedModel",
    "Tree",
    "ValueRule",
    "arithmetic_keys",
    "check_model",
    "choose_table",
    "configure",
    "converted_keys",
    "find_learner",
    "find_mapping",
    "find_published",
    "is_bundled",
    "is_of_training",
    "join",
    "line_matches",
    "load_bundled",
    "load_mapping",
    "match_table",
    "matches",
    "model_config",
    "moved_row",
    "needed_patches",
    "parse_setting",
    "published_shapes",
    "read_model",
    "schedule_count",
    "schedule_form",
    "source_arithmetic",
    "stack_parts",
    "training_keys",
    "undecided_keys",
    "value_text",
]
