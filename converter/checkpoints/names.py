CONFIG_NAME = "maxtext.yml"


ITEMS = "0/items"


def leaf_key(path: str) -> str:
    """The name of a leaf on disk: the tree path joined by dots."""
    return path.replace("/", ".")


RECEIPT_NAME = "ax2mt.json"


METADATA_KEY = "ax2mt"
