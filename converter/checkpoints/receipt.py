"""Digests that travel with a checkpoint: one record a leaf, and a receipt for every other file.

A leaf's digest is the sum, modulo 2^128, of `xxh3_128(grid index || bytes)` over its chunks, as they are stored: chunks
may come in any order and from any thread, and a chunk in a wrong place counts as a wrong chunk. The grid index is one
little-endian 64-bit number a dimension. So a chunk that is passed on is digested without decoding it, and the stored
bytes determine every element, together with the array's metadata, which is in the receipt. A leaf that was linked to
the source has no digest, for its chunks were never read: its kind is `none`, that of all others `stored`. In an object
store, which passes chunks on by itself, the kind is `sums`: instead of a chunk's bytes, its size and the CRC-32C of its
content count, and the store's own CRC-32C of the object shows that it is whole.

The records live in `_CHECKPOINT_METADATA` under `custom_metadata.ax2mt`. The receipt is the file `ax2mt.json` beside
the checkpoint: where the weights came from, and size and digest of every file that holds no chunk of an array.
"""

import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import xxhash

from converter.arrays import CHUNKS, MANIFEST_NAME
from converter.checkpoints.names import METADATA_KEY, RECEIPT_NAME
from converter.errors import VerificationError
from converter.storage import DIRECTORY, FILE, has_litter_in, in_parallel, parse_json, read_small, storage_of

VERSION = 1
MAX_RECEIPT_BYTES = 256 << 20
"""A receipt of a million files; a larger file is not a receipt."""

STORED, SUMS, NO_DIGEST = "stored", "sums", "none"
"""Kinds of record."""

ARRAY_METADATA = ("zarr.json", ".zarray")

_MODULUS = 1 << 128
_READ_BYTES = 4 << 20


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


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a checkpoint came from, for its receipt.

    Attributes:
      tool: program and version.
      source: the AXLearn step directory.
      step: the training step.
      mapping: name of the mapping table.
      mapping_digest: hash of the table's text.
      options: what shaped the result.
      config: the keys of maxtext.yml with their values, those of the model under "model", of training under "training".
      patches: the changes to MaxText that the checkpoint needs.
      conversion: the digest of all that decided over the result.
    """

    tool: str
    source: str
    step: int | None
    mapping: str
    mapping_digest: str
    options: Mapping[str, Any]
    config: Mapping[str, Mapping[str, Any]]
    patches: Sequence[Mapping[str, Any]] = ()
    conversion: str = ""


def write_receipt(directory: str, origin: Origin) -> str:
    """Writes the receipt of a finished checkpoint.

    Args:
      directory: the checkpoint, the directory above its steps.
      origin: where the weights came from.

    Returns:
      The receipt's path.

    Raises:
      OSError: a file cannot be read, or the receipt not written.
    """
    files = {path: file_digest(os.path.join(directory, path)) for path in metadata_files(directory)}
    document = {
        "version": VERSION,
        "tool": origin.tool,
        "source": origin.source,
        "step": origin.step,
        "mapping": {"name": origin.mapping, "digest": origin.mapping_digest},
        "options": dict(origin.options),
        "config": {kind: dict(keys) for kind, keys in origin.config.items()},
        "patches": [dict(patch) for patch in origin.patches],
        "conversion": origin.conversion,
        "files": files,
    }
    path = os.path.join(directory, RECEIPT_NAME)
    storage_of(directory).write(path, _render(document))
    return path


def check_receipt(directory: str, *, apart: str = "") -> list[tuple[str, str]]:
    """Checks every file other than array chunks against the receipt.

    Args:
      directory: the checkpoint, the directory above its steps.
      apart: a file that may differ, because its content is looked at elsewhere.

    Returns:
      Findings as (path below the directory, what is wrong); empty where all is as it was written.
    """
    document, problem = read_receipt(directory)
    if document is None:
        return [(RECEIPT_NAME, problem)]
    expected: Mapping[str, Any] = document["files"]
    findings: list[tuple[str, str]] = []
    present = set(metadata_files(directory))
    looked_at = [path for path in expected if not has_litter_in(path)]

    def look(path: str) -> str:
        if path not in present:
            return "is missing"
        try:
            found = file_digest(os.path.join(directory, path))
        except OSError as error:
            return f"cannot be read: {error.strerror}"
        return "" if found == expected[path] or path == apart else _difference(expected[path], found)

    problems = zip(looked_at, in_parallel(look, looked_at, directory), strict=True)
    findings += [(path, problem) for path, problem in problems if problem]
    findings += [(path, "is not in the receipt") for path in sorted(present - expected.keys())]
    return findings


def read_receipt(directory: str) -> tuple[dict[str, Any] | None, str]:
    """The receipt, checked against its own digest; or None and the reason."""
    label = RECEIPT_NAME
    try:
        data = read_small(os.path.join(directory, RECEIPT_NAME), MAX_RECEIPT_BYTES, VerificationError, label=label)
    except VerificationError as error:
        return None, error.message.removeprefix(f"{label}: ")
    try:
        document = parse_json(data, VerificationError, label=label)
        document.pop("digest")
        intact = data == _render(document) and isinstance(document["files"], dict)
    except (VerificationError, KeyError):
        return None, "is damaged: expected a receipt of ax2mt"
    if not intact:
        return None, "is damaged: it differs from its own digest"
    return document, ""


def recorded_mapping(directory: str) -> tuple[str, str]:
    """Name of the mapping table that made a checkpoint, and hash of its text; both empty without an intact receipt."""
    document, _ = read_receipt(directory)
    mapping = (document or {}).get("mapping")
    if not isinstance(mapping, dict):
        return "", ""
    return str(mapping.get("name", "")), str(mapping.get("digest", ""))


def metadata_files(directory: str) -> list[str]:
    """All files below a checkpoint that hold no chunk of an array, without the receipt and litter; sorted.

    A directory with array metadata holds chunks only, besides that metadata; an OCDBT database that we wrote has its
    chunks in a directory of their own. Those that others wrote mix chunks with the tree: all of it counts as metadata.
    """
    storage = storage_of(directory)
    files = [
        blob.name
        for blob in storage.walk(directory)
        if blob.kind == FILE
        or (blob.kind != DIRECTORY and not storage.is_directory(os.path.join(directory, blob.name)))
    ]
    arrays = {os.path.dirname(name) for name in files if os.path.basename(name) in ARRAY_METADATA}
    databases = {os.path.dirname(name) for name in files if os.path.basename(name) == MANIFEST_NAME}
    chosen = [name for name in files if name != RECEIPT_NAME and not _is_chunk(name, arrays, databases)]
    return sorted(name for name in chosen if not has_litter_in(name))


def file_digest(path: str) -> dict[str, Any]:
    """Size in bytes and xxh3_128 of a file."""
    state = xxhash.xxh3_128()
    size = 0
    with storage_of(path).open(path) as file:
        while data := file.read(_READ_BYTES):
            state.update(data)
            size += len(data)
    return {"bytes": size, "xxh3": state.hexdigest()}


def _is_chunk(path: str, arrays: Collection[str], databases: Collection[str]) -> bool:
    """Whether a file is a chunk, by the directories of arrays and databases that it is in."""
    below, described = path, os.path.basename(path) in ARRAY_METADATA
    while below:
        above, name = os.path.split(below)
        if above in arrays and not described:
            return True
        if above in databases and name == CHUNKS and below != path:
            return True
        below, described = above, False
    return False


def _render(document: Mapping[str, Any]) -> bytes:
    """The receipt's text: the document, and its digest as the last field."""
    body = json.dumps(document, indent=1)
    digest = xxhash.xxh3_128_hexdigest(body.encode())
    return f'{body[:-2]},\n "digest": "{digest}"\n}}\n'.encode()


def _difference(record: Any, found: Mapping[str, Any]) -> str:
    if not isinstance(record, dict) or record.get("bytes") != found["bytes"]:
        expected = record.get("bytes") if isinstance(record, dict) else "an unreadable entry"
        return f"has {found['bytes']} bytes, the receipt says {expected}"
    return "differs from what was written (its digest is another)"
