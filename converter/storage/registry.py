from converter.storage.base import Storage
from converter.storage.local import LocalStorage
from converter.storage.s3 import S3Storage

STORAGES: dict[str, Storage] = {"": LocalStorage(), "s3": S3Storage()}
"""A URL's scheme to its storage; plain paths have none."""


def storage_of(name: str) -> Storage:
    """The storage that a path or URL belongs to."""
    scheme, mark, _ = name.partition("://")
    return STORAGES.get(scheme if mark else "", STORAGES[""])
