"""One listing of all that is below a prefix, kept: what is read of a checkpoint is read as it was then."""

import bisect
from collections.abc import Iterable, Iterator

from converter.storage.base import DIRECTORY, Blob


class Snapshot:
    """The objects below a prefix at one moment.

    Attributes:
      prefix: the URL that all names begin with; ends in a slash.
    """

    def __init__(self, prefix: str, blobs: Iterable[Blob]):
        self.prefix = prefix
        self._blobs = {blob.name: blob for blob in blobs}
        self._names = sorted(self._blobs)

    def covers(self, name: str) -> bool:
        """Whether it knows all about a name, or about what is below it."""
        return f"{name}/".startswith(self.prefix)

    def get(self, name: str) -> Blob | None:
        """The object of a name."""
        return self._blobs.get(name)

    def below(self, prefix: str) -> Iterator[Blob]:
        """The objects whose names begin with a prefix, in order."""
        at = bisect.bisect_left(self._names, prefix)
        while at < len(self._names) and self._names[at].startswith(prefix):
            yield self._blobs[self._names[at]]
            at += 1

    def entries(self, prefix: str) -> Iterator[Blob]:
        """What a listing of a directory shows: its objects, and one entry for each prefix below."""
        at = bisect.bisect_left(self._names, prefix)
        while at < len(self._names) and (name := self._names[at]).startswith(prefix):
            head, slash, _ = name[len(prefix) :].partition("/")
            if not slash:
                yield self._blobs[name]
                at += 1
                continue
            directory = f"{prefix}{head}"
            yield Blob(name=directory, kind=DIRECTORY)
            # The character behind the slash: all names below the directory are left out.
            at = bisect.bisect_left(self._names, f"{directory}0", lo=at)
