"""What a checkpoint says of itself in its metadata: how it was made, and one record a leaf.

A leaf's digest is the sum, modulo 2^128, of `xxh3_128(grid index || bytes)` over its chunks, as they are stored: chunks
may come in any order and from any thread, and a chunk in a wrong place counts as a wrong chunk. The grid index is one
little-endian 64-bit number a dimension. So a chunk that is passed on is digested without decoding it, and the stored
bytes determine every element, together with the array's metadata, which is in the receipt. A leaf that was linked to
the source has no digest, for its chunks were never read: its kind is `none`, that of all others `stored`. In an object
store, which passes chunks on by itself, the kind is `sums`: instead of a chunk's bytes, its size and the CRC-32C of its
content count, and the store's own CRC-32C of the object shows that it is whole.

All of this lives in `_CHECKPOINT_METADATA` under `custom_metadata.ax2mt`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from converter.checkpoints.names import METADATA_KEY
from converter.checkpoints.receipt import VERSION, read_receipt

STORED, SUMS, NO_DIGEST = "stored", "sums", "none"
"""Kinds of record."""

_MODULUS = 1 << 128


def stored_record(chunks: Mapping[tuple[int, ...], int | None]) -> dict[str, Any]:
    """The record of a leaf whose chunks were digested as they were stored.

    Args:
      chunks: the chunk's place in the grid to its digest; None for one that was never read.
    """
    digests = [digest for digest in chunks.values() if digest is not None]
    if not digests or len(digests) < len(chunks):
        return {"kind": NO_DIGEST, "xxh3": "", "chunks": 0}
    return {"kind": STORED, "xxh3": f"{sum(digests) % _MODULUS:032x}", "chunks": len(digests)}


def sum_record(chunks: Mapping[tuple[int, ...], int], place: str) -> dict[str, Any]:
    """The record of a leaf in an object store.

    Args:
      chunks: the chunk's place in the grid to the digest that `arrays.sum_digest` makes.
      place: where its chunks are, below the directory of arrays.
    """
    total = f"{sum(chunks.values()) % _MODULUS:032x}"
    return {"kind": SUMS, "xxh3": total, "chunks": len(chunks), "place": place}


def is_fitting(record: Mapping[str, Any] | None, chunks: Mapping[tuple[int, ...], int]) -> bool:
    """Whether a record is that of chunks, by digests of the record's kind."""
    if record is not None and record["kind"] == SUMS:
        return sum_record(chunks, record["place"]) == record
    return stored_record(chunks) == record


def metadata_entry(
    records: Mapping[str, Mapping[str, Any]],
    *,
    fits: Mapping[str, Any],
    options: Mapping[str, Any],
    settings: Mapping[str, Any],
    tree: str,
    state: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """What goes into the step's custom metadata.

    Args:
      records: leaf key to record.
      fits: name to "plain" or "fit" for each fit of the mapping table: whether values were fitted by it.
      options: name to whether it was on, for each other option of the table.
      settings: keys of MaxText's configuration that the user or the training's own configuration set: facts about the
        source that its tensors do not show.
      tree: what became the parameters: AXLearn's, or their average.
      state: what is to be known of the training state; None where only parameters were converted.
    """
    leaves = {key: dict(record) for key, record in records.items()}
    made = {"options": dict(options), "settings": dict(settings), "tree": tree}
    made["state"] = None if state is None else dict(state)
    return {METADATA_KEY: {**fits, "version": VERSION, **made, "leaves": leaves}}


def recorded_fits(custom_metadata: Any, fits: Collection[str]) -> frozenset[str]:
    """Those of a mapping table's fits that values of a checkpoint were made with, by its step's custom metadata."""
    entry = _own_entry(custom_metadata)
    return frozenset(name for name in fits if entry.get(name) == "fit")


def recorded_options(custom_metadata: Any, directory: str) -> frozenset[str] | None:
    """The options of a mapping table that a checkpoint was made with, but for its fits.

    Args:
      custom_metadata: of the step.
      directory: the checkpoint, whose receipt says the same, should the metadata be lost.

    Returns:
      Their names; None where nothing says what the checkpoint was made with.
    """
    entry = _own_entry(custom_metadata)
    if not entry:
        document, _ = read_receipt(directory)
        return None if document is None else _names_on(document.get("options"))
    return _names_on(entry.get("options"))


def _names_on(options: Any) -> frozenset[str]:
    return frozenset(name for name, on in options.items() if on is True) if isinstance(options, dict) else frozenset()


def recorded_settings(custom_metadata: Any) -> dict[str, Any]:
    """The keys of MaxText's configuration that were set when a checkpoint was converted; empty where none is known."""
    settings = _own_entry(custom_metadata).get("settings")
    return settings if isinstance(settings, dict) else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """Which trees of AXLearn's a checkpoint was made of, as far as it says so.

    Attributes:
      tree: the one that became the parameters; empty where none is named.
      optimizer: MaxText's optimizer, whose state was written; empty where only parameters were.
    """

    tree: str = ""
    optimizer: str = ""


def recorded_trees(custom_metadata: Any, directory: str) -> Made:
    """Which trees a checkpoint was made of.

    Args:
      custom_metadata: of the step.
      directory: the checkpoint, whose receipt says the same, should the metadata be lost.
    """
    entry = _own_entry(custom_metadata)
    if not entry:
        options = (read_receipt(directory)[0] or {}).get("options")
        entry = options if isinstance(options, dict) else {}
    tree, state = entry.get("tree"), entry.get("state")
    optimizer = state.get("optimizer") if isinstance(state, dict) else None
    return Made(tree=tree if isinstance(tree, str) else "", optimizer=optimizer if isinstance(optimizer, str) else "")


def is_recorded(custom_metadata: Any) -> bool:
    """Whether a checkpoint says what was set when it was converted, be it nothing."""
    return isinstance(_own_entry(custom_metadata).get("settings"), dict)


def _own_entry(custom_metadata: Any) -> dict[str, Any]:
    entry = custom_metadata.get(METADATA_KEY) if isinstance(custom_metadata, dict) else None
    return entry if isinstance(entry, dict) else {}


def read_records(custom_metadata: Mapping[str, Any]) -> dict[str, dict[str, Any]] | None:
    """The records of a step's custom metadata by leaf key; None where there are none that this version can read."""
    entry = custom_metadata.get(METADATA_KEY)
    if not isinstance(entry, dict) or entry.get("version") != VERSION or not isinstance(entry.get("leaves"), dict):
        return None
    leaves = entry["leaves"]
    fits = all(
        isinstance(record, dict)
        and record.get("kind") in (STORED, SUMS, NO_DIGEST)
        and isinstance(record.get("xxh3"), str)
        and type(record.get("chunks")) is int
        and (record["kind"] != SUMS or isinstance(record.get("place"), str))
        for record in leaves.values()
    )
    return leaves if fits else None
