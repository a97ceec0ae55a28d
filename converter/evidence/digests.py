"""The digests that a checkpoint carries, as they stand in it: they are shown here, and checked by `verify DST`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from converter.checkpoints import Target, read_receipt, read_records


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafDigest:
    """The digest of a leaf's chunks.

    Attributes:
      path: the leaf.
      kind: what it is made of: "stored" chunks, "sums" that a store knows, or "none".
      xxh3: 32 hexadecimal digits; empty without one.
      chunks: number of chunks.
    """

    path: str
    kind: str
    xxh3: str
    chunks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDigest:
    """The digest of a file that holds no chunk.

    Attributes:
      path: below the checkpoint.
      bytes: its size.
      xxh3: XXH3 of 128 bits, 32 hexadecimal digits.
    """

    path: str
    bytes: int
    xxh3: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What the checkpoint says of itself.

    Attributes:
      problem: why there is no receipt to read; empty where there is one.
      tool: program and version that wrote it.
      mapping: name of the mapping table.
      mapping_digest: hash of the table's text.
      options: what shaped the result, as `convert` was given it.
      patches: names of the changes to MaxText that the checkpoint needs.
      leaves: digests of the leaves.
      files: digests of the other files.
    """

    problem: str = ""
    tool: str = ""
    mapping: str = ""
    mapping_digest: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    patches: tuple[str, ...] = ()
    leaves: tuple[LeafDigest, ...] = ()
    files: tuple[FileDigest, ...] = ()


def read_digests(target: Target) -> Receipt:
    """Reads the receipt and the digests of the leaves; what another program wrote into them is left out."""
    records = read_records(target.custom) or {}
    leaves = tuple(
        LeafDigest(path=path, kind=records[key]["kind"], xxh3=records[key]["xxh3"], chunks=records[key]["chunks"])
        for key, path in target.leaves.items()
        if key in records
    )
    document, problem = read_receipt(target.root)
    if document is None:
        return Receipt(problem=problem, leaves=leaves)
    mapping, patches = _object(document.get("mapping")), document.get("patches")
    return Receipt(
        tool=str(document.get("tool", "")),
        mapping=str(mapping.get("name", "")),
        mapping_digest=str(mapping.get("digest", "")),
        options=_object(document.get("options")),
        patches=tuple(str(_object(patch).get("name", "")) for patch in patches) if isinstance(patches, list) else (),
        leaves=leaves,
        files=tuple(
            FileDigest(path=path, bytes=entry["bytes"], xxh3=entry["xxh3"])
            for path, entry in document["files"].items()
            if type(_object(entry).get("bytes")) is int and isinstance(entry.get("xxh3"), str)
        ),
    )


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
