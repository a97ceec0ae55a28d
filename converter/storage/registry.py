from collections.abc import Callable
from typing import TYPE_CHECKING

from converter.storage.base import Storage
from converter.storage.local import LocalStorage

if TYPE_CHECKING:
    from converter.storage.remote import ObjectStorage


def _gcs() -> Storage:
    from converter.storage.gcs import GcsStorage

    return GcsStorage()


def _s3() -> Storage:
    from converter.storage.s3 import S3Storage

    return S3Storage()


MAKERS: dict[str, Callable[[], Storage]] = {"": LocalStorage, "gs": _gcs, "s3": _s3}
"""A URL's scheme to what makes its storage; plain paths have none."""


class _Storages(dict[str, Storage]):
    """A URL's scheme to its storage, which is made when it is first asked for: most commands name files alone."""

    def __missing__(self, scheme: str) -> Storage:
        return self.setdefault(scheme, MAKERS[scheme]())

    def __contains__(self, scheme: object) -> bool:
        return scheme in MAKERS or super().__contains__(scheme)


STORAGES = _Storages()


def storage_of(name: str) -> Storage:
    """The storage that a path or URL belongs to."""
    scheme, mark, _ = name.partition("://")
    return STORAGES[scheme if mark and scheme in STORAGES else ""]


def is_remote(name: str) -> bool:
    """Whether a name is the URL of a storage that is not a file system."""
    scheme, mark, _ = name.partition("://")
    return bool(mark) and scheme in STORAGES


def object_storage(name: str) -> "ObjectStorage":
    """The store of objects that a URL belongs to."""
    from converter.storage.remote import ObjectStorage

    storage = storage_of(name)
    assert isinstance(storage, ObjectStorage), name
    return storage
