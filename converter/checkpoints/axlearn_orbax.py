"""An AXLearn step that its OrbaxCheckpointer saved.

    step_00000100/{_CHECKPOINT_METADATA, index/index, state/{_METADATA, manifest.ocdbt, d/, ocdbt.process_0/}}

`index/index` is the native format's index, and the step stands only there. The arrays are zarr v2, below keys joined by
".", in an OCDBT database or in directories. `_METADATA` lists them, and nodes of the tree that hold nothing. Orbax
renames a finished step into its place (axlearn/common/checkpointer_orbax.py).
"""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from converter.checkpoints.axlearn import Checkpoint, read_checkpoint
from converter.checkpoints.names import TREE_METADATA
from converter.errors import SourceError
from converter.storage import read_json, storage_of

MAX_METADATA_BYTES = 256 << 20

EMPTY_TYPES = ("Dict", "List", "None", "Tuple")
"""Orbax's `value_type` of nodes that hold no array."""


def is_orbax_step(directory: str) -> bool:
    """Whether a step is in this format, committed or not: its index is a directory."""
    index = os.path.join(directory, "index")
    return storage_of(index).is_directory(index)


def read_orbax_checkpoint(directory: str) -> Checkpoint:
    """Reads the index of a committed step, and where its arrays are.

    Raises:
      SourceError: the index or Orbax's metadata is missing or damaged, or describes arrays that AXLearn does not write.
    """
    checkpoint = read_checkpoint(directory)
    state = os.path.join(directory, "state")
    file = os.path.join(state, TREE_METADATA)
    metadata = read_json(file, MAX_METADATA_BYTES, SourceError)
    stored = _stored(metadata, file)
    if metadata.get("use_zarr3"):
        raise SourceError(f"{file}: use_zarr3 is true, expected arrays of zarr v2 as AXLearn writes them")
    tensors = {
        path: entry
        if path in stored or entry.problem
        else dataclasses.replace(entry, problem=f"{file}: {path} is in the index, but Orbax stored no such array")
        for path, entry in checkpoint.tensors.items()
    }
    return dataclasses.replace(
        checkpoint, tensors=tensors, state=state, is_database=bool(metadata.get("use_ocdbt", True))
    )


def _stored(metadata: Mapping[str, Any], file: str) -> set[str]:
    """Paths of the arrays that the metadata lists."""
    try:
        return {
            "/".join(str(part["key"]) for part in entry["key_metadata"])
            for entry in metadata["tree_metadata"].values()
            if entry["value_metadata"]["value_type"] not in EMPTY_TYPES
        }
    except (KeyError, TypeError, AttributeError):
        raise SourceError(f"{file}: damaged: expected Orbax's tree metadata") from None
