CONFIG_NAME = "maxtext.yml"


def items_path(step: int = 0) -> str:
    """Where a step's arrays are, below the checkpoint."""
    return f"{step}/items"


def leaf_key(path: str) -> str:
    """The name of a leaf on disk: the tree path joined by dots."""
    return path.replace("/", ".")


RECEIPT_NAME = "ax2mt.json"


METADATA_KEY = "ax2mt"
