"""TensorStore, gcsfs and Orbax work on the fake of Cloud Storage."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore as ts
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from tests.helpers.gcs import FakeGcs, Fault
from tests.helpers.trees import local_tree

RESIDUE = "SGdLxw=="


def zarr3(shape: tuple[int, ...], chunk: tuple[int, ...], codecs: list[dict[str, Any]]) -> dict[str, Any]:
    grid = {"name": "regular", "configuration": {"chunk_shape": chunk}}
    return {
        "zarr_format": 3, "node_type": "array", "shape": shape, "data_type": "float32", "chunk_grid": grid,
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}}, "fill_value": 0,
        "codecs": codecs, "attributes": {},
    }  # fmt: skip


LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
ZSTD = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}
CRC32C = {"name": "crc32c"}


def test_tensorstore_writes_and_reads_zarr3(gcs: FakeGcs) -> None:
    gcs.make_bucket("bucket")
    values = np.random.default_rng(0).standard_normal((6, 4), "f4")
    spec = {
        "driver": "zarr3", "kvstore": "gs://bucket/deep/array/",
        "metadata": zarr3((6, 4), (3, 2), [LITTLE, ZSTD, CRC32C]),
    }  # fmt: skip
    ts.open(spec, create=True).result().write(values).result()
    chunks = {f"deep/array/c/{row}/{column}" for row in (0, 1) for column in (0, 1)}
    assert set(gcs.objects("bucket")) == chunks | {"deep/array/zarr.json"}
    assert {one["crc32c"] for name, one in gcs.objects("bucket").items() if name in chunks} == {RESIDUE}
    again = ts.open({"driver": "zarr3", "kvstore": "gs://bucket/deep/array/"}).result()
    np.testing.assert_array_equal(again.read().result(), values)


def test_tensorstore_writes_on_conditions(gcs: FakeGcs) -> None:
    gcs.make_bucket("bucket")
    store: Any = ts.KvStore.open("gs://bucket/d/").result()
    absent = store.read("x").result().stamp.generation
    written = store.write("x", b"one", if_equal=absent).result()
    assert gcs.read("bucket", "d/x") == b"one"
    store.write("x", b"two", if_equal=absent).result()
    assert gcs.read("bucket", "d/x") == b"one"
    store.write("x", b"two", if_equal=written.generation).result()
    assert gcs.read("bucket", "d/x") == b"two"
    assert store.read("x", byte_range=slice(1, 3)).result().value == b"wo"
    assert gcs.counters()["sent"]["all"] == 2
    assert store.read("x", if_not_equal=store.read("x").result().stamp.generation).result().state == "unspecified"
    store.delete_range(ts.KvStore.KeyRange("", "")).result()
    assert gcs.objects("bucket") == {}


def test_tensorstore_reads_ocdbt(gcs: FakeGcs) -> None:
    gcs.make_bucket("bucket")
    store: Any = ts.KvStore.open({"driver": "ocdbt", "base": "gs://bucket/o/"}).result()
    store["a"], store["b"] = b"1", b"2"
    assert store.list().result() == [b"a", b"b"]
    again: Any = ts.KvStore.open({"driver": "ocdbt", "base": "gs://bucket/o/"}).result()
    assert again["b"] == b"2"
    assert "o/manifest.ocdbt" in gcs.objects("bucket")


def test_tensorstore_retries_what_fails(gcs: FakeGcs) -> None:
    gcs.make_bucket("bucket")
    gcs.put("bucket", "x", b"data")
    retries = {"max_retries": 3, "initial_delay": "1ms", "max_delay": "1ms"}
    spec = {"driver": "gcs", "bucket": "bucket", "context": {"gcs_request_retries": retries}}
    store: Any = ts.KvStore.open(spec).result()
    gcs.inject(Fault(operation="objects.media", times=1))
    gcs.inject(Fault(operation="objects.media", kind="drop", after=2, skip=1, times=1))
    assert store["x"] == b"data"
    assert gcs.counters()["requests"]["objects.media"] == 3


@pytest.mark.parametrize("other_bucket", [False, True], ids=["one bucket", "two buckets"])
def test_chunks_composed_with_tails_are_an_array(other_bucket: bool, gcs: FakeGcs) -> None:
    """A zarr 2 array becomes a zarr 3 one with crossed axes, while only 4 bytes a chunk leave this process."""
    source_bucket = gcs.make_bucket("source")
    target_bucket = gcs.make_bucket("target", location="EU") if other_bucket else source_bucket
    gcs.set(rewrite_limit=40_000, patterns={"tails": "tail/"})
    values = np.random.default_rng(0).standard_normal((3, 4, 64, 96), "f4")
    metadata = {
        "shape": values.shape,
        "chunks": (3, 2, 32, 96),
        "dtype": "<f4",
        "compressor": {"id": "zstd", "level": 1},
    }
    source = {"driver": "zarr", "kvstore": "gs://source/in/", "metadata": {**metadata, "fill_value": None}}
    ts.open(source, create=True).result().write(values).result()
    gcs.reset_counters()

    client = storage.Client(project="p", credentials=AnonymousCredentials())
    bucket, order = client.bucket(target_bucket), (1, 0, 2, 3)
    chunks = [blob for blob in client.list_blobs(source_bucket, prefix="in/") if not blob.name.endswith(".zarray")]
    for chunk in chunks:
        index = chunk.name.rpartition("/")[2].split(".")
        tail = bucket.blob(f"tail/{chunk.name}")
        tail.upload_from_string(base64.b64decode(chunk.crc32c)[::-1], content_type="application/octet-stream")
        whole = bucket.blob(f"tmp/{chunk.name}") if other_bucket else chunk
        token = whole.rewrite(chunk)[0] if other_bucket else None
        while token:
            token = whole.rewrite(chunk, token=token)[0]
        target = bucket.blob("out/c/" + "/".join(index[axis] for axis in order))
        target.content_type = "application/octet-stream"
        target.compose([whole, tail], if_generation_match=0)
    assert len(chunks) == 4
    assert gcs.counters()["received"] == {"all": 16, "tails": 16}
    assert gcs.counters()["sent"]["all"] == 0
    assert gcs.counters()["requests"].get("objects.rewrite", 0) == (8 if other_bucket else 0)
    composed = gcs.objects(target_bucket, "out/")
    assert {one["crc32c"] for one in composed.values()} == {RESIDUE}

    transpose = {"name": "transpose", "configuration": {"order": order}}
    shape, chunk_shape = (tuple(whole[axis] for axis in order) for whole in (values.shape, (3, 2, 32, 96)))
    spec = {"driver": "zarr3", "kvstore": f"gs://{target_bucket}/out/"}
    ts.open({**spec, "metadata": zarr3(shape, chunk_shape, [transpose, LITTLE, ZSTD, CRC32C])}, create=True).result()
    np.testing.assert_array_equal(ts.open(spec).result().read().result(), values.transpose(order))

    name = next(iter(composed))
    flipped = bytearray(gcs.read(target_bucket, name))
    flipped[-40] ^= 1
    assert gcs.put(target_bucket, name, bytes(flipped))["crc32c"] != RESIDUE
    with pytest.raises(ValueError, match=r"(?i)DATA_LOSS|CRC-32C"):
        ts.open(spec).result().read().result()
    client.close()


def test_gcsfs(gcs: FakeGcs, tmp_path: Path) -> None:
    import gcsfs

    gcs.make_bucket("bucket")
    for name in ("a/b/1", "a/b/2", "a/c"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    gcs.upload_tree(tmp_path, "bucket", "top")
    filesystem: Any = gcsfs.GCSFileSystem()
    assert sorted(filesystem.find("bucket/top")) == ["bucket/top/a/b/1", "bucket/top/a/b/2", "bucket/top/a/c"]
    assert sorted(filesystem.ls("bucket/top/a", detail=False)) == ["bucket/top/a/b", "bucket/top/a/c"]
    assert filesystem.cat_file("bucket/top/a/b/1", start=2, end=4) == b"b/"
    assert filesystem.isdir("gs://bucket/top/a")
    filesystem.pipe_file("bucket/top/new", b"new")
    with filesystem.open("bucket/top/long", "wb", block_size=256 << 10) as file:
        file.write(bytes(700_000))
    assert gcs.read("bucket", "top/long") == bytes(700_000)
    filesystem.cp_file("bucket/top/new", "bucket/top/copy")
    filesystem.rm("bucket/top/a", recursive=True)
    assert sorted(gcs.objects("bucket")) == ["top/copy", "top/long", "top/new"]
    assert not filesystem.exists("bucket/top/a/c")


@pytest.fixture(scope="module")
def orbax_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], Path]:
    """A checkpoint that Orbax wrote to a local directory, with or without OCDBT."""
    import jax.numpy as jnp
    import orbax.checkpoint as ocp

    written: dict[bool, Path] = {}

    def find(use_ocdbt: bool) -> Path:
        if use_ocdbt not in written:
            directory = tmp_path_factory.mktemp("orbax")
            handler = ocp.PyTreeCheckpointHandler(use_ocdbt=use_ocdbt, use_zarr3=True)
            with ocp.CheckpointManager(directory, item_handlers={"items": handler}) as manager:
                manager.save(0, args=ocp.args.Composite(items=ocp.args.PyTreeSave({"params": {"w": jnp.arange(12.0)}})))
            written[use_ocdbt] = directory
        return written[use_ocdbt]

    return find


@pytest.mark.parametrize("use_ocdbt", [True, False], ids=["ocdbt", "files"])
def test_orbax_restores_from_the_fake(use_ocdbt: bool, gcs: FakeGcs, orbax_checkpoint: Callable[[bool], Path]) -> None:
    import orbax.checkpoint as ocp

    local = orbax_checkpoint(use_ocdbt)
    assert (local / "0" / "items" / "manifest.ocdbt").exists() == use_ocdbt
    gcs.make_bucket("bucket")
    gcs.upload_tree(local, "bucket", "run/checkpoints")
    whole = gcs.tree("bucket", "run/checkpoints")
    assert whole == local_tree(local)
    markers = {"0/commit_success.txt", "0/items/commit_success.txt"}
    assert markers <= set(whole)
    for marker in markers:
        gcs.remove("bucket", f"run/checkpoints/{marker}")
    handlers = {"items": ocp.PyTreeCheckpointHandler(use_ocdbt=use_ocdbt, use_zarr3=True)}
    with ocp.CheckpointManager("gs://bucket/run/checkpoints", item_handlers=handlers) as manager:
        assert manager.all_steps() == []
    for marker in sorted(markers):
        gcs.put("bucket", f"run/checkpoints/{marker}", whole[marker])
    with ocp.CheckpointManager("gs://bucket/run/checkpoints", item_handlers=handlers) as manager:
        assert manager.all_steps() == [0]
        arguments = {"params": {"w": ocp.RestoreArgs(restore_type=np.ndarray)}}
        wanted = ocp.args.Composite(items=ocp.args.PyTreeRestore(restore_args=arguments))
        restored = manager.restore(0, args=wanted)
    np.testing.assert_array_equal(restored["items"]["params"]["w"], np.arange(12, dtype="f4"))
    assert gcs.tree("bucket", "run/checkpoints") == whole
