"""Verification of every store: what the stored digests are, and a flipped bit of a chunk found at its leaf."""

import json
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorstore as ts
import xxhash

from converter.choices import STORES
from converter.verification.result import Verification
from tests.conftest import AXLEARN
from tests.helpers.verification import against_digests, both_ways

NAME = "micro-hybrid"
EXPERTS = "params.params.decoder.layers.layers_1.MoeBlock_0.wi_0"
FLIPS = 12

each_store = pytest.mark.parametrize("store", STORES)
Converted = Callable[..., Path]


def kvstore_of(checkpoint: Path, store: str, key: str) -> Any:
    """Where a leaf's chunks are."""
    items = f"{checkpoint / '0' / 'items'}/"
    spec: Any = {"driver": "file", "path": f"{items}{key}/"}
    if store == "ocdbt":
        spec = {"driver": "ocdbt", "base": {"driver": "file", "path": items}, "path": f"{key}/"}
    return ts.KvStore.open(spec).result()


def chunks_of(checkpoint: Path, store: str, key: str) -> dict[tuple[int, ...], bytes]:
    """The stored bytes of each chunk of a leaf, by its place in the grid."""
    kvstore = kvstore_of(checkpoint, store, key)
    names = [name.decode() for name in kvstore.list().result()]
    return {
        tuple(int(part) for part in name.removeprefix("c/").replace("/", ".").split(".")): kvstore[name]
        for name in names
        if name not in ("zarr.json", ".zarray")
    }


def flip(checkpoint: Path, chunk: bytes, generator: random.Random) -> None:
    """Flips one bit of a chunk, in whichever file holds it."""
    for path in (path for path in (checkpoint / "0" / "items").rglob("*") if path.is_file()):
        data = bytearray(path.read_bytes())
        at = data.find(chunk)
        if at >= 0:
            data[at + generator.randrange(len(chunk))] ^= 1 << generator.randrange(8)
            path.write_bytes(data)
            return
    raise AssertionError("no file holds the chunk")


def against_source(checkpoint: Path) -> Verification:
    return both_ways(AXLEARN / NAME, checkpoint)


@each_store
@pytest.mark.parametrize("rewrite", [False, True])
def test_digests_are_of_the_stored_chunks_in_their_places(store: str, rewrite: bool, converted: Converted) -> None:
    checkpoint = converted(NAME, store=store, rewrite=rewrite)
    records = json.loads((checkpoint / "0" / "_CHECKPOINT_METADATA").read_text())["custom_metadata"]["ax2mt"]["leaves"]
    assert len(records) == 27
    for key, record in records.items():
        chunks = chunks_of(checkpoint, store, key)
        digests = (
            xxhash.xxh3_128_intdigest(struct.pack(f"<{len(index)}Q", *index) + data) for index, data in chunks.items()
        )
        assert record == {"kind": "stored", "xxh3": f"{sum(digests) % 2**128:032x}", "chunks": len(chunks)}


@each_store
def test_a_flipped_bit_of_a_chunk_is_found_at_its_leaf(store: str, converted: Converted, tmp_path: Path) -> None:
    checkpoint = converted(NAME, store=store)
    chunks = list(chunks_of(checkpoint, store, EXPERTS).values())
    generator = random.Random(5)
    for number in range(FLIPS):
        copy = Path(shutil.copytree(checkpoint, tmp_path / str(number)))
        flip(copy, chunks[number % len(chunks)], generator)
        with_source = against_source(copy).findings
        assert [(f.check, f.place) for f in with_source] == [("chunks", EXPERTS.replace(".", "/"))]
        alone = against_digests(copy).findings
        # The files of a database are in the receipt too; chunks of plain stores are not.
        assert EXPERTS.replace(".", "/") in {f.place for f in alone if f.check in ("chunks", "digest")}, alone
        assert {f.check for f in alone} <= ({"chunks", "receipt"} if store == "ocdbt" else {"chunks", "digest"})


@each_store
def test_chunks_that_changed_places_are_found(store: str, converted: Converted, tmp_path: Path) -> None:
    # Each chunk is whole and its checksum right: only the place in the digest, and the source, can tell.
    sharded = "micro-hybrid-sharded"
    copy = Path(shutil.copytree(converted(sharded, store=store), tmp_path / "copy"))
    kvstore = kvstore_of(copy, store, EXPERTS)
    one, other = sorted(name for name in kvstore.list().result() if not name.endswith((b"zarr.json", b".zarray")))[:2]
    kvstore[one], kvstore[other] = kvstore[other], kvstore[one]
    leaf = EXPERTS.replace(".", "/")
    (finding,) = both_ways(AXLEARN / sharded, copy).findings
    assert (finding.check, finding.place) == ("values", leaf)
    alone = against_digests(copy).findings
    assert [(f.check, f.place) for f in alone if f.check != "receipt"] == [("digest", leaf)]
