"""What the processes of one conversion leave for each other: a record of each share that is done.

A record is written when all units of its share are in their places. Nobody waits for one: whoever writes a record looks
whether it completes the work.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from converter.arrays import ChunkRecord
from converter.errors import DestinationError
from converter.planning import Portion, Share
from converter.storage import parse_json

DONE = "done"
"""The directory of records, in the work area."""

MAX_RECORD_BYTES = 1 << 30

Chunks: TypeAlias = Mapping[str, Mapping[tuple[int, ...], ChunkRecord]]
"""Leaf path to the place of a chunk to its record."""

_NAME = re.compile(r"([0-9]+)-of-([0-9]+)\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class DoneShare:
    """A share that some process has done.

    Attributes:
      share: which one.
      units: how many units it had.
      size: decoded bytes of these, about.
      division: how the work was divided, see `planning.Portion`.
      written: the chunks; empty where a store's listing shows them.
    """

    share: Share
    units: int
    size: int
    division: str
    written: Chunks

    @classmethod
    def of(cls, portion: Portion, chunks: Chunks) -> "DoneShare":
        """The record of a portion whose units are all in their places."""
        return cls(
            share=portion.share,
            units=portion.unit_count,
            size=portion.bytes,
            division=portion.division,
            written=chunks,
        )

    def encode(self) -> bytes:
        """The record's file."""
        chunks = {
            path: {
                _key(index): [None if one.digest is None else f"{one.digest:x}", one.size]
                for index, one in of_leaf.items()
            }
            for path, of_leaf in self.written.items()
        }
        document = {"units": self.units, "bytes": self.size, "division": self.division, "chunks": chunks}
        return json.dumps(document, separators=(",", ":")).encode()


def decode(name: str, data: bytes) -> DoneShare:
    """A record from its file.

    Raises:
      DestinationError: it is damaged.
    """
    content = parse_json(data, DestinationError, label=name)
    try:
        share = shares_in([name.rpartition("/")[2]])[0]
        return DoneShare(
            share=share,
            units=int(content["units"]),
            size=int(content["bytes"]),
            division=str(content["division"]),
            written={path: _chunks(of_leaf) for path, of_leaf in content["chunks"].items()},
        )
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        raise DestinationError(f"{name}: is damaged; remove it and run the same command again") from None


def _chunks(content: Mapping[str, Any]) -> dict[tuple[int, ...], ChunkRecord]:
    return {
        tuple(map(int, key.split("."))) if key else (): ChunkRecord(
            None if digest is None else int(digest, 16), int(size)
        )
        for key, (digest, size) in content.items()
    }


def _key(index: tuple[int, ...]) -> str:
    return ".".join(map(str, index))


def record_name(share: Share) -> str:
    """The name of a share's record."""
    return f"{share.index}-of-{share.count}.json"


def shares_in(names: Iterable[str]) -> list[Share]:
    """The shares whose records have these names, in order."""
    found = (_NAME.fullmatch(name) for name in names)
    shares = (Share(int(match[1]), int(match[2])) for match in found if match)
    return sorted(shares, key=lambda share: (share.count, share.index))


def is_complete(done: Collection[Share]) -> bool:
    """Whether shares cover all work: those of one number of processes do."""
    counts = {share.count for share in done}
    return any(not missing(done, count) for count in counts)


def missing(done: Collection[Share], count: int) -> list[Share]:
    """The shares of so many processes that are not done."""
    there = {share.index for share in done if share.count == count}
    return [Share(index, count) for index in range(count) if index not in there]


def still_awaited(done: Collection[Share], count: int) -> list[Share]:
    """The shares of so many processes that are missing; none where the work is complete, be it by another number."""
    return [] if is_complete(done) else missing(done, count)


def check_division(portion: Portion, done: Iterable[DoneShare]) -> None:
    """Refuses a share that does not complete those that are done: another --max-memory makes other units.

    Raises:
      DestinationError: the work was divided otherwise.
    """
    for other in done:
        if other.share.count == portion.share.count and other.division != portion.division:
            raise DestinationError(
                f"--process {portion.share}: share {other.share} was made with other units of work; give all "
                "processes the same --max-memory, or finish with --process 0/1"
            )
