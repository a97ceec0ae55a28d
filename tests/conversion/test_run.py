"""Whole conversions: goldens bit for bit, every leaf against an independent numpy oracle, and what a failure leaves."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converter.choices import STORES
from converter.conversion.destination import SUFFIX
from converter.errors import DestinationError, InexactError, SourceError
from tests.conftest import AXLEARN, MAXTEXT
from tests.helpers.axlearn_checkpoint import (
    SMALL,
    STACK,
    envy_tensors,
    expected_leaves,
    write_checkpoint,
)
from tests.helpers.compare import assert_same_leaves
from tests.helpers.conversion import run
from tests.helpers.refusals import nothing_published
from tests.helpers.restorer import Restorer

QKV = f"{STACK}/layer0/self_attention/attention/i_proj/i_proj/qkv_proj/weight"
OUT = f"{STACK}/layer1/self_attention/attention/o_proj/weight"
EXPERTS = f"{STACK}/layer1/feed_forward/wi_0_weight"
EMBEDDING = "model/decoder/emb/token_emb/weight"


def maxtexts_leaves(orbax: Restorer, name: str, *, untie: bool = False) -> dict[str, np.ndarray]:
    """The parameters of the checkpoint that MaxText saved of the same weights; its step counter is not ours to have."""
    leaves = orbax.restore(MAXTEXT / name / ("scanned-untied" if untie else "scanned"), plain=False)
    del leaves["step"]
    return leaves


# Every way in which bytes can travel: passed through undecoded, hard-linked, or decoded and encoded again.
ROUTES = [{"store": store} for store in STORES] + [
    {"store": "files", "rewrite": True},
    {"store": "ocdbt", "rewrite": True},
    {"store": "files", "link": True},
]
each_route = pytest.mark.parametrize("route", ROUTES, ids=lambda route: "-".join(map(str, route.values())))


@each_route
@pytest.mark.parametrize("untie", [False, True], ids=["tied", "untied"])
@pytest.mark.parametrize("name", ["micro-hybrid", "micro-hybrid-qkpair", "envy-test"])
def test_equals_maxtexts_own_checkpoint(
    name: str, untie: bool, route: dict[str, Any], converted: Callable[..., Path], any_orbax: Restorer
) -> None:
    own = maxtexts_leaves(any_orbax, name, untie=untie)
    assert len(own) == (25 if name == "envy-test" else 27) + untie
    assert_same_leaves(any_orbax.restore(converted(name, untie=untie, **route)), own)


@each_route
def test_sharded_source_equals_the_unsharded_one(
    route: dict[str, Any], converted: Callable[..., Path], any_orbax: Restorer
) -> None:
    # The same weights as micro-hybrid-qkpair, saved from a mesh: chunks along experts and model dimensions.
    own = maxtexts_leaves(any_orbax, "micro-hybrid-qkpair")
    assert_same_leaves(any_orbax.restore(converted("micro-hybrid-sharded", **route)), own)


@each_route
def test_bfloat16_golden_keeps_every_bit(
    route: dict[str, Any], converted: Callable[..., Path], any_orbax: Restorer
) -> None:
    # MaxText has no checkpoint of this one; the source chunks are decoded here by zstandard and numpy alone.
    source = read_step(AXLEARN / "envy-test-bf16" / "checkpoints" / "step_00000100")
    leaves = any_orbax.restore(converted("envy-test-bf16", **route))
    assert {str(leaf.dtype) for leaf in leaves.values()} == {"bfloat16"}
    assert_same_leaves(leaves, expected_leaves(source))


def read_step(directory: Path) -> dict[str, np.ndarray]:
    """Model tensors of a step whose arrays are single chunks."""
    import zstandard

    from tests.helpers.axlearn_checkpoint import numpy_dtype

    tensors = {}
    for path, entry in json.loads((directory / "index").read_text()):
        if path.startswith("model/"):
            place = directory / "gda" / path
            shape = json.loads((place / ".zarray").read_text())["shape"]
            data = zstandard.ZstdDecompressor().decompress((place / ".".join("0" * len(shape))).read_bytes())
            tensors[path] = np.frombuffer(data, numpy_dtype(entry["dtype"])).reshape(shape)
    return tensors


SHARDINGS: Mapping[str, Mapping[str, Sequence[int]]] = {
    "whole": {},
    "heads": {QKV: (2, 12, 2, 6), OUT: (2, 12, 1, 6)},
    "heads across the parts": {QKV: (2, 12, 3, 6)},
    "layer axis": {QKV: (1, 12, 8, 6), EXPERTS: (1, 4, 12, 10), OUT: (1, 6, 4, 6)},
    "head dim": {QKV: (2, 12, 8, 2), OUT: (2, 12, 4, 3)},
    "uneven": {QKV: (2, 5, 8, 6), EXPERTS: (2, 3, 7, 4), EMBEDDING: (7, 5), OUT: (2, 7, 3, 4)},
    "ones": {QKV: (1, 6, 1, 1), EXPERTS: (1, 1, 6, 10), EMBEDDING: (1, 12)},
}


@pytest.mark.parametrize("compressor", ["zstd", None])
@pytest.mark.parametrize("sharding", SHARDINGS)
@pytest.mark.parametrize("rewrite", [False, True], ids=["pass", "rewrite"])
def test_any_sharding(
    sharding: str, compressor: str | None, rewrite: bool, tmp_path: Path, newest_orbax: Restorer
) -> None:
    tensors = envy_tensors(seed=len(sharding))
    source = write_checkpoint(tmp_path / "step_00000100", tensors, chunks=SHARDINGS[sharding], compressor=compressor)
    run(source, tmp_path / "out", untie=True, rewrite=rewrite)
    assert_same_leaves(newest_orbax.restore(tmp_path / "out"), expected_leaves(tensors, untie=True))


@pytest.mark.parametrize("seed", range(12))
def test_random_models_and_shardings(seed: int, tmp_path: Path, newest_orbax: Restorer) -> None:
    random = np.random.default_rng(seed)
    dims = {
        "embed": int(random.integers(1, 20)),
        "repeats": int(random.integers(1, 12)),
        "kv_heads": int(random.integers(1, 4)),
        "head_dim": 2 * int(random.integers(1, 6)),
        "mlp": int(random.integers(1, 30)),
        "moe_mlp": int(random.integers(1, 30)),
        "experts": int(random.integers(2, 9)),
        "vocab": int(random.integers(1, 40)),
    }
    dims["heads"] = dims["kv_heads"] * int(random.integers(1, 4))
    dtype = ["float32", "bfloat16"][seed % 2]
    tensors = envy_tensors(dims, hybridnorm=bool(seed % 3), dtype=dtype, seed=seed)
    chunks = {path: tuple(int(random.integers(1, n + 1)) for n in v.shape) for path, v in tensors.items()}
    source = write_checkpoint(tmp_path / "step_00000100", tensors, chunks=chunks)
    run(source, tmp_path / "out", untie=bool(seed & 1), jobs=1 + seed % 3, **ROUTES[seed % len(ROUTES)])
    assert_same_leaves(newest_orbax.restore(tmp_path / "out"), expected_leaves(tensors, untie=bool(seed & 1)))


@each_route
def test_all_zero_chunks_are_stored(route: dict[str, Any], tmp_path: Path, any_orbax: Restorer) -> None:
    tensors = {path: np.zeros_like(values) for path, values in envy_tensors().items()}
    source = write_checkpoint(tmp_path / "step_00000100", tensors, chunks={EXPERTS: (2, 1, 12, 10)})
    run(source, tmp_path / "out", **route)
    assert_same_leaves(any_orbax.restore(tmp_path / "out"), expected_leaves(tensors))


@each_route
def test_signed_zeros_infinities_and_nan_payloads_survive(
    route: dict[str, Any], tmp_path: Path, newest_orbax: Restorer
) -> None:
    tensors = envy_tensors()
    odd = np.array([0x80000000, 0x7FC00001, 0xFF800000, 0x7F800001, 0x00000001], np.uint32).view(np.float32)
    for path in (EXPERTS, QKV, EMBEDDING):
        tensors[path] = np.resize(odd, tensors[path].shape)
    source = write_checkpoint(tmp_path / "step_00000100", tensors)
    run(source, tmp_path / "out", **route)
    assert_same_leaves(newest_orbax.restore(tmp_path / "out"), expected_leaves(tensors))


def test_layers_are_told_apart_by_number_not_by_text(tmp_path: Path, newest_orbax: Restorer) -> None:
    # Twelve repeats: an order by text would put 10 and 11 before 2.
    tensors = envy_tensors({**SMALL, "repeats": 12})
    for path, values in tensors.items():
        if STACK in path:
            tensors[path] = values * 0 + np.arange(12, dtype=np.float32).reshape(12, *(1,) * (values.ndim - 1))
    source = write_checkpoint(tmp_path / "step_00000100", tensors)
    run(source, tmp_path / "out")
    leaves = newest_orbax.restore(tmp_path / "out")
    for path, values in leaves.items():
        if "/layers/" in path:
            assert np.moveaxis(values, 1, 0).reshape(12, -1)[:, 0].tolist() == list(range(12)), path


def test_the_learners_state_is_left_behind_and_counted(tmp_path: Path) -> None:
    result = run(AXLEARN / "envy-test-inputiter", tmp_path / "out")
    assert set(result.plan.dropped) == {"optimizer state", "optimizer step counters", "training random key"}
    assert result.plan.dropped["training random key"] == (("prng_key", 4),)
    assert result.plan.others
    assert result.plan.totals.source_parameters == result.plan.totals.target_parameters == 15064
    assert result.plan.totals.difference == 0


def damaged(tmp_path: Path, path: str, key: str, change: Callable[[bytes], bytes]) -> Path:
    source = write_checkpoint(tmp_path / "step_00000100", envy_tensors())
    file = source / "gda" / path / key
    file.write_bytes(change(file.read_bytes()))
    return source


@pytest.mark.parametrize("path", [EXPERTS, QKV], ids=["experts", "qkv"])
@each_route
@pytest.mark.parametrize(
    "change",
    [lambda data: data[: len(data) // 2], lambda data: b"\0" * len(data), lambda data: data + b"more", lambda d: d + d],
    ids=["truncated", "garbage", "trailing", "doubled"],
)
def test_a_damaged_chunk_stops_everything(
    change: Callable[[bytes], bytes], route: dict[str, Any], path: str, tmp_path: Path
) -> None:
    source = damaged(tmp_path, path, "0.0.0.0", change)
    if route.get("link") and path == EXPERTS and change(b"ab") != b"\0\0":
        pytest.skip("--link follows no frames, so that only the head of a linked chunk is looked at")
    with pytest.raises(SourceError, match=path):
        run(source, tmp_path / "out", **route)
    nothing_published(tmp_path, "step_00000100")


def test_a_missing_chunk_is_found_before_any_work(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "step_00000100", envy_tensors(), chunks={EXPERTS: (2, 1, 12, 10)})
    (source / "gda" / EXPERTS / "0.2.0.0").unlink()
    with pytest.raises(SourceError) as caught:
        run(source, tmp_path / "out")
    assert caught.value.details == (f"{EXPERTS}: chunk 0.2.0.0: missing",)
    assert sorted(os.listdir(tmp_path)) == ["step_00000100"]


def test_refused_before_any_work(tmp_path: Path, golden: Callable[[str], Path]) -> None:
    target = tmp_path / "out"
    target.mkdir()
    (target / "mine").write_text("precious")
    with pytest.raises(DestinationError, match="not empty"):
        run(golden("envy-test"), target)
    with pytest.raises(DestinationError, match="--overwrite replaces only"):
        run(golden("envy-test"), target, overwrite=True)
    assert (target / "mine").read_text() == "precious"
    assert os.listdir(tmp_path) == ["out"]


def test_overwrite_replaces_a_checkpoint(tmp_path: Path, newest_orbax: Restorer) -> None:
    run(AXLEARN / "micro-hybrid", tmp_path / "out")
    run(AXLEARN / "envy-test", tmp_path / "out", overwrite=True)
    own = maxtexts_leaves(newest_orbax, "envy-test")
    assert_same_leaves(newest_orbax.restore(tmp_path / "out"), own)
    assert os.listdir(tmp_path) == ["out"]


def test_failed_overwrite_keeps_what_was_there(tmp_path: Path, newest_orbax: Restorer) -> None:
    run(AXLEARN / "envy-test", tmp_path / "out")
    source = damaged(tmp_path, EXPERTS, "0.0.0.0", lambda data: data[:-9])
    with pytest.raises(SourceError):
        run(source, tmp_path / "out", overwrite=True)
    nothing_published(tmp_path, "out", "step_00000100")
    own = maxtexts_leaves(newest_orbax, "envy-test")
    assert_same_leaves(newest_orbax.restore(tmp_path / "out"), own)


def test_an_abandoned_work_area_is_taken_over(tmp_path: Path, newest_orbax: Restorer) -> None:
    stale = tmp_path / f"out{SUFFIX}" / "leaves" / "params.params.token_embedder.embedding"
    stale.mkdir(parents=True)
    (stale / "zarr.json").write_text("{}")
    (stale / "0.0").write_text("from who knows what")
    run(AXLEARN / "envy-test", tmp_path / "out")
    own = maxtexts_leaves(newest_orbax, "envy-test")
    assert_same_leaves(newest_orbax.restore(tmp_path / "out"), own)
    assert os.listdir(tmp_path) == ["out"]


def test_require_exact(tmp_path: Path) -> None:
    with pytest.raises(InexactError) as caught:
        run(AXLEARN / "micro-hybrid", tmp_path / "out", require_exact=True)
    assert [line.split(":")[0] for line in caught.value.details] == ["layer 0", "layer 1", "layer 2", "layer 3"]
    assert os.listdir(tmp_path) == []
    assert all(entry.exact for entry in run(AXLEARN / "micro-hybrid-qkpair", tmp_path / "out").mismatches)


def test_the_source_is_not_touched(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "step_00000100", envy_tensors())
    before = {path: (path.stat().st_mtime_ns, path.stat().st_nlink) for path in source.rglob("*") if path.is_file()}
    run(source, tmp_path / "out")
    after = {path: (path.stat().st_mtime_ns, path.stat().st_nlink) for path in source.rglob("*") if path.is_file()}
    assert after == before
