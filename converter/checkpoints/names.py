CONFIG_NAME = "maxtext.yml"


ITEMS = "items"
"""The directory of a step's arrays."""

MARKER = "commit_success.txt"
"""Orbax's sign that a directory is complete."""

TREE_METADATA = "_METADATA"
CUSTOM_METADATA = "_CHECKPOINT_METADATA"
"""Orbax's files of a step: the tree of its arrays, below ITEMS, and what was recorded with it, beside."""


def items_path(step: int = 0) -> str:
    """Where a step's arrays are, below the checkpoint."""
    return f"{step}/{ITEMS}"


def leaf_key(path: str) -> str:
    """The name of a leaf on disk: the tree path joined by dots."""
    return path.replace("/", ".")


RECEIPT_NAME = "ax2mt.json"


METADATA_KEY = "ax2mt"
