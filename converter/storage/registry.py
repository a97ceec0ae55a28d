from converter.storage.base import Storage
from converter.storage.gcs import GcsStorage
from converter.storage.local import LocalStorage
from converter.storage.remote import ObjectStorage
from converter.storage.s3 import S3Storage

STORAGES: dict[str, Storage] = {"": LocalStorage(), "gs": GcsStorage(), "s3": S3Storage()}
"""A URL's scheme to its storage; plain paths have none."""


def storage_of(name: str) -> Storage:
    """The storage that a path or URL belongs to."""
    scheme, mark, _ = name.partition("://")
    return STORAGES.get(scheme if mark else "", STORAGES[""])


def is_remote(name: str) -> bool:
    """Whether a name is the URL of a storage that is not a file system."""
    scheme, mark, _ = name.partition("://")
    return bool(mark) and scheme in STORAGES


def object_storage(name: str) -> ObjectStorage:
    """The store of objects that a URL belongs to."""
    storage = storage_of(name)
    assert isinstance(storage, ObjectStorage), name
    return storage
