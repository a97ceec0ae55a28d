"""Digests of leaves and files: exact values, what they must not depend on, and what they must notice."""

import json
import os
import random
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from converter.arrays.digest import chunk_digest
from converter.checkpoints.receipt import (
    Origin,
    check_receipt,
    file_digest,
    metadata_files,
    read_receipt,
    write_receipt,
)
from converter.checkpoints.records import (
    NO_DIGEST,
    is_recorded,
    metadata_entry,
    read_records,
    recorded_fits,
    recorded_options,
    recorded_settings,
    stored_record,
)

ORIGIN = Origin("ax2mt 0.1", "/train/envy/step_00000100", 100, "envy", "ab" * 32, {"untie": True}, {})


def test_a_chunks_digest_by_the_letter() -> None:
    data = b"twelve bytes"
    expected = xxhash.xxh3_128_intdigest(struct.pack("<QQ", 3, 1) + data)
    assert chunk_digest((3, 1), data) == expected
    assert chunk_digest((), b"") == xxhash.xxh3_128_intdigest(b"")


chunks = st.dictionaries(st.tuples(st.integers(0, 9), st.integers(0, 9)), st.binary(max_size=40), min_size=2)


@given(chunks=chunks, seed=st.integers(0))
def test_order_does_not_matter_but_places_do(chunks: dict[tuple[int, ...], bytes], seed: int) -> None:
    record = stored_record({index: chunk_digest(index, data) for index, data in chunks.items()})
    shuffled = random.Random(seed).sample(sorted(chunks.items()), len(chunks))
    assert stored_record({index: chunk_digest(index, data) for index, data in shuffled}) == record
    assert (record["kind"], record["chunks"], len(record["xxh3"])) == ("stored", len(chunks), 32)
    (first, one), (second, other) = sorted(chunks.items())[:2]
    swapped = {**chunks, first: other, second: one}
    changed = stored_record({index: chunk_digest(index, data) for index, data in swapped.items()})
    assert (changed == record) == (one == other)


def test_sums_keep_to_128_bits() -> None:
    most = (1 << 128) - 1
    assert stored_record({(0,): most, (1,): 3}) == {"kind": "stored", "xxh3": "0" * 31 + "2", "chunks": 2}
    assert stored_record({}) == {"kind": NO_DIGEST, "xxh3": "", "chunks": 0}


RECORD = {"kind": "stored", "xxh3": "0" * 32, "chunks": 4}


def test_records_travel_in_the_custom_metadata() -> None:
    records = {"params.a": RECORD, "params.b": stored_record({})}
    entry = metadata_entry(
        records, fits={"qk_norm": "fit"}, options={"untie": True, "other": False},
        settings={"rope_max_timescale": 7}, tree="params", state=None,
    )  # fmt: skip
    assert recorded_fits(entry, {"qk_norm", "other"}) == {"qk_norm"}
    assert recorded_settings(entry) == {"rope_max_timescale": 7}
    assert recorded_options(entry, "") == {"untie"}
    assert recorded_options({"ax2mt": {"settings": {}}}, "") == frozenset()  # of a version that had no such record
    assert (recorded_fits(None, {"qk_norm"}), recorded_settings({"ax2mt": []}), is_recorded({"ax2mt": {}})) == (
        frozenset(),
        {},
        False,
    )
    assert read_records(json.loads(json.dumps({"scan_layers": True, **entry}))) == records


BROKEN: dict[str, Any] = {
    "nothing": {},
    "no object": {"ax2mt": []},
    "no leaves": {"ax2mt": {"version": 1}},
    "another version": {"ax2mt": {"version": 2, "leaves": {"a": RECORD}}},
    "no records": {"ax2mt": {"version": 1, "leaves": {"a": "x"}}},
    "unknown kind": {"ax2mt": {"version": 1, "leaves": {"a": {**RECORD, "kind": "sum"}}}},
    "a number as digest": {"ax2mt": {"version": 1, "leaves": {"a": {**RECORD, "xxh3": 0}}}},
    "no count": {"ax2mt": {"version": 1, "leaves": {"a": {**RECORD, "chunks": True}}}},
}


@pytest.mark.parametrize("kind", BROKEN)
def test_records_that_cannot_be_read(kind: str) -> None:
    assert read_records(BROKEN[kind]) is None


CHUNKED = {"0/items/params.a/zarr.json", "0/items/params.b/.zarray"}
FILES = {"0/_CHECKPOINT_METADATA", "0/items/_METADATA", "0/items/d/x", "0/items/manifest.ocdbt", "maxtext.yml"}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    chunks = {"0/items/params.a/c/0/0", "0/items/params.a/0.0", "0/items/params.b/0.1"}
    for number, path in enumerate(sorted(FILES | CHUNKED | chunks)):
        file = tmp_path / "out" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes([number]) * number)
    return tmp_path / "out"


def test_which_files_hold_no_chunks(checkpoint: Path) -> None:
    (checkpoint / "ax2mt.json").write_text("{}")
    assert metadata_files(str(checkpoint)) == sorted(FILES | CHUNKED)


def test_a_files_digest(tmp_path: Path) -> None:
    data = random.Random(0).randbytes((4 << 20) + 5)
    (tmp_path / "file").write_bytes(data)
    assert file_digest(str(tmp_path / "file")) == {"bytes": len(data), "xxh3": xxhash.xxh3_128_hexdigest(data)}


def test_a_receipt_can_be_read_again(checkpoint: Path) -> None:
    path = write_receipt(str(checkpoint), ORIGIN)
    assert path == str(checkpoint / "ax2mt.json")
    document, problem = read_receipt(str(checkpoint))
    assert problem == ""
    assert document == {
        "version": 1,
        "tool": "ax2mt 0.1",
        "source": "/train/envy/step_00000100",
        "step": 100,
        "mapping": {"name": "envy", "digest": "ab" * 32},
        "options": {"untie": True},
        "config": {},
        "patches": [],
        "conversion": "",
        "files": {name: file_digest(str(checkpoint / name)) for name in sorted(FILES | CHUNKED)},
    }
    assert check_receipt(str(checkpoint)) == []


def test_a_receipt_of_names_that_are_hard_to_write(checkpoint: Path) -> None:
    (checkpoint / 'a "quoted"\nname ☃').write_text("x")
    write_receipt(str(checkpoint), ORIGIN)
    assert check_receipt(str(checkpoint)) == []


def test_every_change_of_a_file_is_found(checkpoint: Path) -> None:
    write_receipt(str(checkpoint), ORIGIN)
    (checkpoint / "maxtext.yml").write_text("longer than it was before")
    before = (checkpoint / "0/items/_METADATA").read_bytes()
    (checkpoint / "0/items/_METADATA").write_bytes(bytes([before[0] ^ 1]) + before[1:])
    (checkpoint / "0/items/d/x").unlink()
    (checkpoint / "0/items/d/y").write_text("new")
    (checkpoint / "0/items/params.a/c/0/0").write_text("a chunk is no business of the receipt")
    assert check_receipt(str(checkpoint)) == [
        ("0/items/_METADATA", "differs from what was written (its digest is another)"),
        ("0/items/d/x", "is missing"),
        ("maxtext.yml", "has 25 bytes, the receipt says 9"),
        ("0/items/d/y", "is not in the receipt"),
    ]


def test_a_flipped_bit_in_any_byte_of_the_receipt_is_found(checkpoint: Path) -> None:
    file = Path(write_receipt(str(checkpoint), ORIGIN))
    whole = file.read_bytes()
    for at in range(len(whole)):
        data = bytearray(whole)
        data[at] ^= 1 << at % 8
        file.write_bytes(data)
        document, problem = read_receipt(str(checkpoint))
        assert document is None, at
        assert problem.startswith("is damaged: "), at
    for length in (0, 1, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        assert read_receipt(str(checkpoint))[0] is None, length


def test_a_receipt_that_is_not_there_or_cannot_be_read(checkpoint: Path) -> None:
    assert check_receipt(str(checkpoint)) == [("ax2mt.json", "is missing")]
    (checkpoint / "ax2mt.json").mkdir()
    assert check_receipt(str(checkpoint)) == [("ax2mt.json", "cannot be read: it is not a regular file")]
    shutil.rmtree(checkpoint / "ax2mt.json")
    for text in ("[]", "{}", '{"digest": 1}', "[" * 100_000):
        (checkpoint / "ax2mt.json").write_text(text)
        ((name, problem),) = check_receipt(str(checkpoint))
        assert (name, problem.split(":")[0]) == ("ax2mt.json", "is damaged")


def test_a_receipt_stays_true_when_the_checkpoint_moves(checkpoint: Path) -> None:
    write_receipt(str(checkpoint), ORIGIN)
    os.rename(checkpoint, checkpoint.with_name("elsewhere"))
    assert check_receipt(str(checkpoint.with_name("elsewhere"))) == []
