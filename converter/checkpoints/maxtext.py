"""Reads a MaxText/Orbax checkpoint back, with nothing of the code that writes one.

The tree comes from `items/_METADATA`, arrays are opened by TensorStore with the store and the zarr version named
there: zarr v2 or v3, plain directories or OCDBT, any codecs and chunks. Facts about the format: Orbax 0.12 with
MaxText 0.2.5.

    <DST>/<step>/{_CHECKPOINT_METADATA, commit_success.txt, items/{_METADATA, commit_success.txt, <arrays>}}
"""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from converter.arrays import OpenArray, new_context, open_stored_array
from converter.checkpoints.local_metadata import local_metadata
from converter.checkpoints.names import CONFIG_NAME, CUSTOM_METADATA, ITEMS, MARKER, RECEIPT_NAME, TREE_METADATA
from converter.errors import Ax2mtError, DestinationError, VerificationError, reason
from converter.location import check_committable, locate
from converter.storage import is_file, read_json, storage_of, without_litter

MAX_METADATA_BYTES = 256 << 20
SEQUENCE = 1
"""Orbax's `key_type` of a key that is an index into a list."""


@dataclass(frozen=True)
class Target:
    """A MaxText checkpoint, as its metadata describes it.

    Attributes:
      root: the directory above the steps; holds maxtext.yml and the receipt, where there are any.
      step_directory: the step.
      items: the directory of arrays.
      step: the step's number; None where the directory is not named by one.
      leaves: key on disk to the leaf's path in the tree, "/"-joined.
      skipped: leaves that the metadata marks as not stored.
      empty: paths at which the tree holds None.
      lists: paths of nodes that are lists.
      use_ocdbt: arrays are in an OCDBT database.
      use_zarr3: arrays are zarr v3.
      custom: the step's custom metadata; empty where there is none.
      problems: what is wrong with metadata and markers, in words.
    """

    root: str
    step_directory: str
    items: str
    step: int | None
    leaves: Mapping[str, str]
    skipped: tuple[str, ...]
    empty: frozenset[str]
    lists: frozenset[str]
    use_ocdbt: bool
    use_zarr3: bool
    custom: Mapping[str, Any]
    problems: tuple[str, ...]

    @cached_property
    def keys(self) -> dict[str, str]:
        """Tree path to key on disk."""
        return {path: key for key, path in self.leaves.items()}

    @cached_property
    def _context(self) -> Any:
        return new_context()

    def open(self, path: str, error: type[Ax2mtError] = VerificationError) -> OpenArray:
        """Opens a leaf.

        Args:
          path: the leaf's path in the tree.
          error: what is raised where it, or later a chunk of it, cannot be read.

        Raises:
          Ax2mtError: it is not there, or its metadata is damaged.
        """
        key = self.keys[path]
        return open_stored_array(
            path,
            directory=self.items if self.use_ocdbt else os.path.join(self.items, key),
            database_key=key if self.use_ocdbt else None,
            zarr_format=3 if self.use_zarr3 else 2,
            context=self._context,
            error=error,
        )


def find_items(path: str) -> str:
    """The directory of arrays that a user's path means.

    Args:
      path: the directory above the steps (its latest step is meant), a step, or the arrays themselves; local.

    Raises:
      VerificationError: there is no MaxText checkpoint.
    """
    for place in (path, os.path.join(path, ITEMS)):
        if is_file(os.path.join(place, TREE_METADATA)):
            return place
    try:
        steps = sorted((int(name) for name in storage_of(path).names(path) if name.isdecimal()), reverse=True)
    except OSError as error:
        raise VerificationError(f"{path}: no MaxText checkpoint: {error.strerror}") from None
    for step in steps:
        items = os.path.join(path, str(step), ITEMS)
        if storage_of(items).is_directory(items):
            return items
    raise VerificationError(f"{path}: no MaxText checkpoint here; expected <step>/items/_METADATA")


def has_items(path: str) -> bool:
    """Whether a path means a MaxText checkpoint whose tree is described."""
    try:
        return is_file(os.path.join(find_items(path), TREE_METADATA))
    except VerificationError:
        return False


def holds_items(path: str) -> bool:
    """The same, or a training run of MaxText, which keeps its steps in checkpoints/."""
    return has_items(path) or has_items(os.path.join(path, "checkpoints"))


def open_target(path: str) -> Target:
    """Reads the metadata of the checkpoint that a user names; see `find_items` for the paths that are understood.

    Raises:
      DestinationError: the path is not a local one, or Orbax cannot read there.
      VerificationError: there is no checkpoint, or its tree cannot be read.
    """
    place = locate(path, DestinationError).path
    check_committable(place, DestinationError)
    storage = storage_of(place)
    storage.release(place)
    try:
        with storage.browsing(place):
            return read_target(find_items(place))
    except OSError as error:
        raise VerificationError(f"{error.filename or place}: cannot be read: {error.strerror or error}") from None


def read_target(items: str) -> Target:
    """Reads the metadata of a checkpoint from its directory of arrays, an absolute path.

    Raises:
      VerificationError: the tree cannot be read.
    """
    step_directory = os.path.dirname(items)
    name = os.path.basename(step_directory)
    tree = read_json(os.path.join(items, TREE_METADATA), MAX_METADATA_BYTES, VerificationError)
    leaves: dict[str, str] = {}
    skipped: list[str] = []
    empty: set[str] = set()
    lists: set[str] = set()
    try:
        for entry in tree["tree_metadata"].values():
            parts = [str(part["key"]) for part in entry["key_metadata"]]
            kinds = [part.get("key_type") for part in entry["key_metadata"]]
            lists |= {"/".join(parts[:at]) for at, kind in enumerate(kinds) if kind == SEQUENCE}
            if entry["value_metadata"]["value_type"] == "None":
                empty.add("/".join(parts))
            if entry["value_metadata"].get("skip_deserialize") or entry["value_metadata"]["value_type"] == "None":
                skipped.append("/".join(parts))
            else:
                leaves[".".join(parts)] = "/".join(parts)
        use_ocdbt, use_zarr3 = bool(tree["use_ocdbt"]), bool(tree.get("use_zarr3", False))
    except (KeyError, TypeError, AttributeError):
        raise VerificationError(f"{items}/_METADATA: damaged: expected Orbax's tree metadata") from None
    problems = [
        f"{os.path.join(place, MARKER)} is missing: an object store takes the checkpoint for unfinished"
        for place in (step_directory, items)
        if not is_file(os.path.join(place, MARKER))
    ]
    custom, problem = _custom_metadata(step_directory)
    return Target(
        os.path.dirname(step_directory), step_directory, items, int(name) if name.isdecimal() else None, leaves,
        tuple(skipped), frozenset(empty), frozenset(lists),
        use_ocdbt, use_zarr3, custom, tuple(problems + ([problem] if problem else [])),
    )  # fmt: skip


def is_as_committed(target: Target, differences: Sequence[object]) -> bool:
    """Whether the receipt proves that Orbax has read this very metadata: `convert` lets it, before it publishes.

    A database keeps the arrays' metadata among its chunks, of which the receipt knows nothing.

    Args:
      target: the checkpoint.
      differences: what `check_receipt` finds, apart from maxtext.yml, which Orbax does not read.
    """
    return not target.use_ocdbt and not differences


def orbax_problems(target: Target, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """What Orbax itself reports differently: the tree's leaves and shapes, by a stock metadata read."""
    import jax
    import orbax.checkpoint as ocp
    from etils import epath

    # Orbax logs a warning for each file that it can do without.
    log = logging.getLogger("absl")
    log.addFilter(_nothing)
    try:
        # The handler's own: a checkpointer logs what it cannot read, and returns nothing.
        with local_metadata(target.root) as root:
            items = os.path.join(root, os.path.relpath(target.items, target.root))
            metadata: Any = ocp.PyTreeCheckpointHandler().metadata(epath.Path(items))
        tree = getattr(metadata, "tree", metadata)
        pairs, _ = jax.tree_util.tree_flatten_with_path(tree)
        found = {"/".join(str(getattr(k, "key", getattr(k, "idx", k))) for k in path): leaf for path, leaf in pairs}
    except Exception as error:
        return [f"Orbax cannot read the metadata: {type(error).__name__}: {reason(error)}"]
    finally:
        log.removeFilter(_nothing)
    problems = [f"{path}: Orbax does not see this leaf" for path in shapes if path not in found]
    for path, leaf in found.items():
        shape = getattr(leaf, "shape", None)
        if path in shapes and shape is not None and tuple(shape) != shapes[path]:
            problems.append(f"{path}: Orbax sees the shape {tuple(shape)}, expected {shapes[path]}")
    return problems


def _nothing(record: logging.LogRecord) -> bool:
    return record.levelno > logging.WARNING


def _custom_metadata(step_directory: str) -> tuple[dict[str, Any], str]:
    path = os.path.join(step_directory, CUSTOM_METADATA)
    try:
        custom = read_json(path, MAX_METADATA_BYTES, VerificationError)["custom_metadata"]
    except VerificationError as error:
        return {}, error.message
    except KeyError:
        return {}, f"{path}: has no custom_metadata"
    if not isinstance(custom, dict):
        return {}, f"{path}: custom_metadata is empty; MaxText looks for scan_layers there"
    return custom, ""


def is_maxtext_checkpoint(path: str) -> bool:
    """Whether a directory holds MaxText checkpoints and nothing else, apart from litter."""
    names = [name for name in without_litter(storage_of(path).names(path)) if name not in (CONFIG_NAME, RECEIPT_NAME)]
    return bool(names) and all(
        name.isdigit() and is_file(os.path.join(path, name, ITEMS, TREE_METADATA)) for name in names
    )
