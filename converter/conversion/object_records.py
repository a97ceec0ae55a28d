"""Records of done shares, see `shares`, as objects of a store.

They are below a directory that the journal names, another one each time that a conversion is begun: what a process
writes that was suspended until its conversion was done, or given up, counts for no other.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from converter.conversion.shares import MAX_RECORD_BYTES, DoneShare, decode, record_name, shares_in
from converter.planning import Portion, Share

if TYPE_CHECKING:
    from converter.storage import ObjectStorage


@dataclass(frozen=True, slots=True)
class ObjectRecords:
    """The records of one conversion.

    Attributes:
      storage: where they are.
      directory: the URL that they are below.
    """

    storage: "ObjectStorage"
    directory: str

    def write(self, portion: Portion) -> None:
        """Says that a share is done; what was written, a listing shows."""
        self.storage.put(self._name(portion.share), DoneShare.of(portion, {}).encode())

    def remove(self, share: Share) -> None:
        """Takes a record back."""
        self.storage.delete(self._name(share))

    def shares(self) -> list[Share]:
        """The shares that are done."""
        return shares_in(blob.name for blob in self.storage.walk(self.directory))

    def read(self, count: int | None = None, *, most: int | None = None) -> list[DoneShare]:
        """The records of shares that are done.

        Args:
          count: only those of so many processes.
          most: so many at most; each is a request.

        Raises:
          DestinationError: one is damaged.
        """
        names = [self._name(share) for share in self.shares() if count in (None, share.count)][:most]
        contents = self.storage.together(lambda name: self.storage.read(name, MAX_RECORD_BYTES), names)
        return [decode(name, data) for name, data in zip(names, contents, strict=True)]

    def _name(self, share: Share) -> str:
        return f"{self.directory}/{record_name(share)}"
