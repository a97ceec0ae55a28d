"""Listings that are kept: of all that is below a prefix, or of single directories while something is looked for."""

import bisect
from collections.abc import Callable, Iterable, Iterator

from converter.storage.base import DIRECTORY, FILE, Blob


class Snapshot:
    """The objects below a prefix at one moment: what is read of a checkpoint is read as it was then.

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

    def has_below(self, prefix: str) -> bool:
        """Whether there are objects whose names begin with a prefix."""
        return next(self.below(prefix), None) is not None

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


class Listings:
    """Listings of the directories at and below a prefix, each made when it is first needed.

    Attributes:
      prefix: the URL that all names begin with; ends in a slash.
    """

    def __init__(self, prefix: str, shallow: Callable[[str], Iterable[Blob]], head: Callable[[str], Blob | None]):
        """Takes the directory, and the two requests: what a prefix holds, and the object of a name."""
        self.prefix = prefix
        self._shallow = shallow
        self._head = head
        self._found: dict[str, dict[tuple[str, str], Blob]] = {}

    def covers(self, name: str) -> bool:
        """Whether it finds out about a name."""
        return f"{name}/".startswith(self.prefix)

    def get(self, name: str) -> Blob | None:
        """The object of a name. Nothing is an object where names are below it: a checkpoint is a directory."""
        if f"{name}/" == self.prefix:
            return None if self._entries(self.prefix) else self._head(name)
        return self._entries(_above(name)).get((FILE, name))

    def has_below(self, prefix: str) -> bool:
        """Whether there are objects whose names begin with a directory's."""
        if prefix == self.prefix:
            return bool(self._entries(prefix))
        return (DIRECTORY, prefix[:-1]) in self._entries(_above(prefix[:-1]))

    def entries(self, prefix: str) -> Iterator[Blob]:
        """What a listing of a directory shows."""
        yield from self._entries(prefix).values()

    def _entries(self, prefix: str) -> dict[tuple[str, str], Blob]:
        if prefix not in self._found:
            # What a directory does not show is not asked for.
            there = prefix == self.prefix or self.has_below(prefix)
            self._found[prefix] = {(blob.kind, blob.name): blob for blob in self._shallow(prefix)} if there else {}
        return self._found[prefix]


def _above(name: str) -> str:
    return name.rpartition("/")[0] + "/"
