from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class StagedLeaf:
    """A leaf that is ready to become part of a checkpoint.

    Attributes:
      path: its path in the tree, with slashes.
      key: its name in the checkpoint.
      directory: what holds its files, and nothing else.
      shape: the array's.
      dtype: the array's.
    """

    path: str
    key: str
    directory: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Commit:
    """What is committed: a checkpoint of staged leaves.

    Attributes:
      output: the checkpoint's directory.
      store: how the leaves are stored.
      leaves: all of them.
      custom_metadata: what goes into the step's `_CHECKPOINT_METADATA`, as JSON values.
      step: the number of the step directory.
      lists: paths of nodes of the tree that are lists; all others are dictionaries.
      empty: paths where the tree holds None.
      chunks_elsewhere: the leaves' chunks are in an object store, where they stay; only metadata is committed.
    """

    output: str
    store: str
    leaves: tuple[StagedLeaf, ...]
    custom_metadata: dict[str, Any]
    step: int = 0
    lists: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()
    chunks_elsewhere: bool = False


def decode(document: dict[str, Any]) -> Commit:
    """A commit from the JSON values of its fields."""
    leaves = (StagedLeaf(**{**leaf, "shape": tuple(leaf["shape"])}) for leaf in document["leaves"])
    trees = {name: tuple(document[name]) for name in ("lists", "empty")}
    return Commit(**{**document, **trees, "leaves": tuple(leaves)})
