"""How arrays form a checkpoint: one module a format, names, commit, receipt."""

from converter.checkpoints.axlearn import Checkpoint, is_committed
from converter.checkpoints.command import train_command
from converter.checkpoints.commit import Commit, StagedLeaf
from converter.checkpoints.committer import Committer
from converter.checkpoints.inspection import Inspection, inspect
from converter.checkpoints.kind import (
    AXLEARN,
    check_alone,
    check_order,
    check_pair,
    check_source,
    checkpoint_kind,
    open_checkpoint,
)
from converter.checkpoints.maxtext import (
    CUSTOM_METADATA,
    Target,
    has_items,
    is_maxtext_checkpoint,
    open_target,
    orbax_problems,
)
from converter.checkpoints.maxtext_config import config_yaml, load_config, same_value, whole_config
from converter.checkpoints.names import CONFIG_NAME, RECEIPT_NAME, leaf_key
from converter.checkpoints.receipt import (
    NO_DIGEST,
    SUMS,
    Origin,
    check_receipt,
    file_digest,
    is_fitting,
    is_recorded,
    metadata_entry,
    read_receipt,
    read_records,
    recorded_fits,
    recorded_mapping,
    recorded_settings,
    stored_record,
    sum_record,
    write_receipt,
)
from converter.checkpoints.trainer_config import trained_learner

__all__ = [
    "AXLEARN",
    "CONFIG_NAME",
    "CUSTOM_METADATA",
    "NO_DIGEST",
    "RECEIPT_NAME",
    "SUMS",
    "Checkpoint",
    "Commit",
    "Committer",
    "Inspection",
    "Origin",
    "StagedLeaf",
    "Target",
    "check_alone",
    "check_order",
    "check_pair",
    "check_receipt",
    "check_source",
    "checkpoint_kind",
    "config_yaml",
    "file_digest",
    "has_items",
    "inspect",
    "is_committed",
    "is_fitting",
    "is_maxtext_checkpoint",
    "is_recorded",
    "leaf_key",
    "load_config",
    "metadata_entry",
    "open_checkpoint",
    "open_target",
    "orbax_problems",
    "read_receipt",
    "read_records",
    "recorded_fits",
    "recorded_mapping",
    "recorded_settings",
    "same_value",
    "stored_record",
    "sum_record",
    "train_command",
    "trained_learner",
    "whole_config",
    "write_receipt",
]
