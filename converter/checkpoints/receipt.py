"""The receipt of a checkpoint: where the weights came from, and size and digest of every file that holds no chunk.

It is the file `ax2mt.json` beside the checkpoint. The chunks have digests of their own, see `records`.
"""

import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import xxhash

from converter.arrays import CHUNKS, MANIFEST_NAME
from converter.checkpoints.names import RECEIPT_NAME
from converter.choices import CAST_DTYPES, CastDtype
from converter.errors import VerificationError
from converter.storage import DIRECTORY, FILE, has_litter_in, in_parallel, parse_json, read_small, storage_of

VERSION = 1
MAX_RECEIPT_BYTES = 256 << 20
"""A receipt of a million files; a larger file is not a receipt."""

ARRAY_METADATA = ("zarr.json", ".zarray")

_READ_BYTES = 4 << 20


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


def recorded_dtype(directory: str) -> CastDtype | None:
    """The dtype that `convert` cast a checkpoint's weights to; None where it cast none, or no receipt is intact."""
    document, _ = read_receipt(directory)
    options = (document or {}).get("options")
    dtype = options.get("dtype") if isinstance(options, dict) else None
    return next((known for known in CAST_DTYPES if known == dtype), None)


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
