"""Conversions from and into Cloud Storage: the same bits as a local one, in any order of kills, faults and runs."""

import itertools
import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore as ts

from converter.storage import CONVERSION, gcs, retries
from converter.storage.gcs import GcsStorage
from tests.conftest import AXLEARN, Cli, Completed
from tests.helpers.gcs import FakeGcs, Fault
from tests.helpers.trees import local_tree

NAME = "micro-hybrid-sharded"
SOURCE = AXLEARN / NAME
URL = "gs://bucket/run"
CHUNKS = r"0/items/.*/c/|gda/.*/[0-9.]+$"
RESIDUE_TEXT = "SGdLxw=="


@pytest.fixture
def store(gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch) -> FakeGcs:
    """A bucket with AXLearn's checkpoint, another bucket, and retries that do not wait."""
    monkeypatch.setattr(retries, "pause", lambda _: None)
    gcs.make_bucket("bucket")
    gcs.make_bucket("other", location="EU")
    gcs.upload_tree(SOURCE, "bucket", "run")
    gcs.set(patterns={"chunks": CHUNKS, "tails": "/tails/"})
    gcs.reset_counters()
    return gcs


def leaves(items: str) -> dict[str, np.ndarray]:
    """All leaves by a plain Orbax restore."""
    import jax
    import orbax.checkpoint as ocp

    tree = ocp.PyTreeCheckpointer().restore(items)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def assert_equal(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    assert [key for key in expected if found[key].tobytes() != expected[key].tobytes()] == []


def assert_clean(gcs: FakeGcs, bucket: str = "bucket") -> None:
    """Nothing is left of a work area."""
    assert [name for name in gcs.objects(bucket) if ".ax2mt-wip" in name] == []


def markers(gcs: FakeGcs, prefix: str = "out/", bucket: str = "bucket") -> list[str]:
    return [name for name in gcs.objects(bucket, prefix) if name.endswith("commit_success.txt")]


@pytest.fixture(scope="module")
def expected(converted: Callable[..., Path]) -> dict[str, np.ndarray]:
    """The leaves of the local conversion."""
    return leaves(str(converted(NAME) / "0" / "items"))


@pytest.mark.parametrize("format", ["files", "ocdbt"])
@pytest.mark.parametrize(
    ("source", "target"),
    [(str(SOURCE), "gs://bucket/out"), (URL, "gs://bucket/out"), (URL, "gs://other/out")],
    ids=["upload", "one bucket", "two buckets"],
)
def test_the_same_bits_as_a_local_conversion(
    source: str, target: str, format: str, in_process: Cli, store: FakeGcs, expected: dict[str, np.ndarray]
) -> None:
    import orbax.checkpoint as ocp

    done = in_process("convert", source, target, "--store", format, "--json")
    assert done.code == 0, done.err
    moved = done.document["counts"]["moved"] if "counts" in done.document else None
    counters = store.counters()
    bucket = target.split("/")[2]
    assert_clean(store, bucket)
    with ocp.CheckpointManager(target) as manager:
        assert manager.all_steps() == [0]
    assert_equal(leaves(f"{target}/0/items"), expected)
    chunks = {n: o for n, o in store.objects(bucket, "out/0/items").items() if re.search(r"/c/\d|/c$|/c/", n)}
    assert {one["crc32c"] for one in chunks.values()} == {RESIDUE_TEXT}
    if source == URL:
        passed = counters["requests"]["objects.compose"]
        assert passed > 20
        assert counters["received"]["tails"] == 4 * passed
        assert moved in (None, passed)
    for arguments in (("verify", source, target), ("verify", target, "--decode")):
        proof = in_process(*arguments)
        assert proof.code == 0, proof.out + proof.err
    store.reset_counters()
    assert in_process("verify", target).code == 0
    assert store.counters()["sent"]["chunks"] == 0


def test_passed_chunks_never_pass_this_machine(in_process: Cli, store: FakeGcs) -> None:
    plan = in_process("plan", URL, "--json").document
    passed = {source["path"] for task in plan["tasks"] if task["route"] == "pass" for source in task["sources"]}
    assert len(passed) > 10
    store.set(patterns={"passed": f"gda/({'|'.join(map(re.escape, passed))})/[0-9.]+$", "chunks": CHUNKS})
    store.reset_counters()
    assert in_process("convert", URL, "gs://bucket/out").code == 0
    counters = store.counters()
    composed = [name for name, one in store.objects("bucket", "out/").items() if "componentCount" in one]
    assert len(composed) == counters["requests"]["objects.compose"] > 20
    assert counters["sent"]["passed"] == 0


def test_from_the_store_to_files(
    in_process: Cli, store: FakeGcs, tmp_path: Path, converted: Callable[..., Path]
) -> None:
    assert store
    assert in_process("convert", URL, tmp_path / "out").code == 0
    here, there = local_tree(converted(NAME) / "0" / "items"), local_tree(tmp_path / "out" / "0" / "items")
    chunks = {name for name in here if "/c/" in name}
    assert chunks
    assert {name: there[name] for name in chunks} == {name: here[name] for name in chunks}
    assert in_process("verify", URL, tmp_path / "out").code == 0


def test_logits_are_those_of_the_same_files(in_process: Cli, store: FakeGcs, converted: Callable[..., Path]) -> None:
    store.upload_tree(converted(NAME), "bucket", "out")
    for place, here in ((URL, SOURCE), ("gs://bucket/out", converted(NAME))):
        there, expected = (in_process("logits", one, "--json") for one in (place, here))
        assert there.code == 0, there.err
        measured = dict.fromkeys(("seconds", "peak_memory"))
        assert json.loads(there.out.replace(place, str(here))) | measured == expected.document | measured


def test_a_copy_of_the_bucket_keeps_its_proof(in_process: Cli, store: FakeGcs, tmp_path: Path) -> None:
    assert in_process("convert", URL, "gs://bucket/out").code == 0
    store.download_tree("bucket", "out", tmp_path / "copy")
    assert in_process("verify", tmp_path / "copy").code == 0
    chunk = next(path for path in sorted((tmp_path / "copy").rglob("c/0/*")) if path.is_file())
    data = bytearray(chunk.read_bytes())
    data[-10] ^= 1
    chunk.write_bytes(data)
    assert in_process("verify", tmp_path / "copy").code == 6


def test_damage_in_the_bucket_is_found(in_process: Cli, store: FakeGcs) -> None:
    assert in_process("convert", URL, "gs://bucket/out", "--store", "files").code == 0
    names = [name for name in store.objects("bucket", "out/") if "/c/" in name]
    data = bytearray(store.read("bucket", names[0]))
    data[-10] ^= 1
    store.put("bucket", names[0], bytes(data))
    failed = in_process("verify", "gs://bucket/out")
    assert failed.code == 6
    assert "chunk" in failed.out
    leaf = ts.open({"driver": "zarr3", "kvstore": f"gs://bucket/{names[0].partition('/c/')[0]}/"}).result()
    with pytest.raises(ValueError, match="Digest mismatch"):  # so would Orbax, which restores with TensorStore
        leaf.read().result()
    store.remove("bucket", names[0])
    assert in_process("verify", "gs://bucket/out").code == 6


def interrupted(store: FakeGcs, in_process: Cli, fault: Fault, *arguments: object) -> Completed:
    """A conversion that a fault ends."""
    store.inject(fault)
    done = in_process("convert", URL, "gs://bucket/out", *arguments)
    store.clear_faults()
    return done


@pytest.mark.parametrize(
    "place",
    [
        ("objects.compose", ""), ("objects.insert", "tails/"), ("objects.insert", "/c/"),
        ("objects.insert", "zarr.json"),
        ("objects.insert", "manifest.ocdbt"), ("objects.insert", "maxtext.yml"), ("objects.insert", "/_METADATA"),
        ("objects.insert", "items/commit_success"), ("objects.insert", "0/commit_success"),
        ("objects.insert", "files.zip"), ("objects.delete", "ax2mt-wip"),
    ],
    ids="-".join,
)  # fmt: skip
def test_a_run_that_ended_anywhere_is_taken_up(
    place: tuple[str, str], in_process: Cli, store: FakeGcs, expected: dict[str, np.ndarray]
) -> None:
    operation, name = place
    form = "files" if name == "zarr.json" else "ocdbt"
    skip = {"objects.compose": 20, "objects.delete": 44}.get(operation, 0)
    done = interrupted(store, in_process, Fault(operation=operation, name=name, status=403, skip=skip), "--store", form)
    if done.code:
        assert done.code == 5, done.err
        assert len(done.err.strip().splitlines()) == 1
        assert markers(store) in ([], ["out/0/items/commit_success.txt"]) or operation == "objects.delete"
    store.reset_counters()
    again = in_process("convert", URL, "gs://bucket/out", "--store", form)
    if place[0] == "objects.delete" and not done.code:
        assert again.code in (0, 5)
    else:
        assert again.code == 0, again.err
    if operation == "objects.compose":
        assert store.counters()["requests"]["objects.compose"] < 30
    assert_clean(store)
    assert_equal(leaves("gs://bucket/out/0/items"), expected)
    assert in_process("verify", "gs://bucket/out").code == 0


def test_another_conversion_is_refused(in_process: Cli, store: FakeGcs, expected: dict[str, np.ndarray]) -> None:
    assert interrupted(store, in_process, Fault(operation="objects.compose", status=403, skip=5)).code == 5
    refused = in_process("convert", URL, "gs://bucket/out", "--untie")
    assert refused.code == 5
    assert "holds another conversion" in refused.err
    assert "untie: then False, now True" in refused.err or "untie" in refused.err
    assert in_process("convert", URL, "gs://bucket/out", "--untie", "--fresh").code == 0
    assert_clean(store)
    assert leaves("gs://bucket/out/0/items").keys() > expected.keys()
    assert in_process("verify", "gs://bucket/out").code == 0


def test_a_chunk_of_another_conversion_is_never_taken(in_process: Cli, store: FakeGcs) -> None:
    assert interrupted(store, in_process, Fault(operation="objects.compose", status=403, skip=5)).code == 5
    for name in [name for name in store.objects("bucket") if name.endswith("journal.json")]:
        store.remove("bucket", name)
    refused = in_process("convert", URL, "gs://bucket/out", "--store", "files")
    assert refused.code == 5
    assert "holds parts of an interrupted conversion; --fresh removes them" in refused.err
    assert in_process("convert", URL, "gs://bucket/out", "--store", "files", "--fresh").code == 0
    conversions = {one["metadata"][CONVERSION] for one in store.objects("bucket", "out/").values()}
    assert len(conversions) == 1


def test_what_is_there_is_not_replaced(in_process: Cli, store: FakeGcs) -> None:
    store.put("bucket", "out/notes", b"mine")
    for options in ((), ("--fresh",), ("--overwrite",)):
        refused = in_process("convert", URL, "gs://bucket/out", *options)
        assert refused.code == 5, refused.err
    assert "--overwrite replaces only a MaxText checkpoint" in refused.err
    assert store.read("bucket", "out/notes") == b"mine"
    assert_clean(store)
    for target in ("gs://bucket", "gs://bucket/run/x", URL):
        assert in_process("convert", URL, target).code in (2, 5)


def test_overwrite_removes_the_markers_first(in_process: Cli, store: FakeGcs, expected: dict[str, np.ndarray]) -> None:
    assert in_process("convert", URL, "gs://bucket/out", "--untie").code == 0
    assert in_process("convert", URL, "gs://bucket/out").code == 5
    removed: list[str] = []

    def note(operation: str, place: str) -> bool:
        if operation == "objects.delete" and "/out/" in f"/{place}":
            removed.append(place)
        return False

    store.inject(Fault(predicate=note))
    done = in_process("convert", URL, "gs://bucket/out", "--overwrite")
    store.clear_faults()
    assert done.code == 0, done.err
    assert removed[:2] == ["bucket/out/0/commit_success.txt", "bucket/out/0/items/commit_success.txt"]
    assert "was removed before the new one was complete" in done.out
    assert_equal(leaves("gs://bucket/out/0/items"), expected)
    assert in_process("verify", "gs://bucket/out").code == 0
    assert_clean(store)


def test_an_interrupted_overwrite_is_taken_up(in_process: Cli, store: FakeGcs) -> None:
    assert in_process("convert", URL, "gs://bucket/out", "--untie").code == 0
    fault = Fault(operation="objects.delete", name="out/", status=403, skip=30)
    assert interrupted(store, in_process, fault, "--overwrite").code == 5
    assert markers(store) == []
    assert in_process("convert", URL, "gs://bucket/out", "--overwrite").code == 0
    assert in_process("verify", "gs://bucket/out").code == 0
    assert_clean(store)


@pytest.mark.parametrize("when", ["objects.compose", "objects.insert"])
def test_a_source_that_changes_is_an_error_of_the_source(when: str, in_process: Cli, store: FakeGcs) -> None:
    chunk = next(
        n for n in store.objects("bucket", "run/") if re.search(r"gda/model/.*(wo_weight|linear2.*)/[0-9.]+$", n)
    )
    done: list[int] = []

    def change(operation: str, _: str) -> bool:
        if operation == when and not done:
            done.append(1)
            store.put("bucket", chunk, store.read("bucket", chunk))
        return False

    store.inject(Fault(predicate=change))
    failed = in_process("convert", URL, "gs://bucket/out")
    assert failed.code == 3, failed.err
    assert len(failed.err.strip().splitlines()) == 1
    assert store.objects("bucket", "out") == {}
    store.clear_faults()
    assert in_process("convert", URL, "gs://bucket/out").code == 0


@pytest.mark.parametrize(
    ("fault", "command", "code", "text"),
    [
        (Fault(operation="objects.media", name=r"gda/.*/0\.0", status=403), "plan", 0, ""),
        (Fault(operation="objects.media", name=r"gda/", status=403), "convert", 3, "objectViewer"),
        (Fault(operation="objects.list", status=403), "plan", 3, "objectViewer"),
        (Fault(operation="objects.insert", status=403), "convert", 5, "objectUser"),
        (Fault(operation="objects.compose", status=503), "convert", 5, "503"),
        (Fault(operation="objects.list", status=429, retry_after=1), "plan", 3, "429"),
        (Fault(operation="objects.media", kind="drop"), "plan", 3, "connection"),
        (Fault(operation="objects.insert", kind="cut", after=5), "convert", 5, "connection"),
    ],
    ids=["not needed", "403 read", "403 list", "403 write", "503", "429", "dropped", "cut"],
)
def test_refusals_are_one_line(
    fault: Fault, command: str, code: int, text: str, in_process: Cli, store: FakeGcs
) -> None:
    store.inject(fault)
    done = in_process(command, URL, *(["gs://bucket/out"] if command == "convert" else []))
    assert done.code == code, done.err
    assert text in done.err
    assert done.err.startswith("ax2mt: gs://") if code else not done.err
    assert "Traceback" not in done.err
    assert markers(store) == []


def test_passing_faults_change_nothing(in_process: Cli, store: FakeGcs, expected: dict[str, np.ndarray]) -> None:
    store.inject(Fault(every=5, status=503))
    store.inject(Fault(operation="objects.(insert|compose|delete)", kind="lost", every=7))
    store.inject(Fault(operation="objects.media", kind="drop", after=10, every=6))
    done = in_process("convert", URL, "gs://bucket/out", "-v")
    store.clear_faults()
    assert done.code == 0, done.err
    assert re.search(r"ax2mt: gs://bucket/.*: 503 Backend Error; retry 1 of 6 in", done.err)
    assert_equal(leaves("gs://bucket/out/0/items"), expected)
    assert_clean(store)


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [(("--link",), 2, "--link makes hard links"), (("--store", "zarr2"), 2, "--store zarr2 is for local files")],
)
def test_options_that_a_store_does_not_have(
    options: tuple[str, ...], code: int, text: str, in_process: Cli, store: FakeGcs
) -> None:
    done = in_process("convert", URL, "gs://bucket/out", *options)
    assert (done.code, text in done.err) == (code, True), done.err
    assert store.objects("bucket", "out") == {}


@pytest.mark.parametrize("options", [("--check",), ("--rewrite",), ("--qk-norm", "fit"), ("--max-memory", "64MiB")])
def test_other_options(options: tuple[str, ...], in_process: Cli, store: FakeGcs, tmp_path: Path) -> None:
    assert store
    assert in_process("convert", SOURCE, tmp_path / "out", *options).code == 0
    assert in_process("convert", URL, "gs://bucket/out", *options).code == 0
    assert_equal(leaves("gs://bucket/out/0/items"), leaves(str(tmp_path / "out" / "0" / "items")))
    assert in_process("verify", URL, "gs://bucket/out").code == 0


def test_a_plan_takes_few_requests(in_process: Cli, store: FakeGcs) -> None:
    reports = [in_process("plan", place, "--json") for place in (URL, SOURCE)]
    assert json.loads(reports[0].out.replace(URL, str(SOURCE))) == reports[1].document
    arrays = sum(len(task["sources"]) for task in reports[1].document["tasks"])
    # The trainer's directory, its checkpoints, the step's files, and all that is below the step; the index.
    assert store.counters()["requests"] == {"objects.list": 4, "objects.media": 1 + arrays}


def test_a_plan_of_many_pages(in_process: Cli, store: FakeGcs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gcs, "PAGE", 10)
    plans = [in_process("plan", place, "--json") for place in (URL, SOURCE)]
    assert json.loads(plans[0].out.replace(URL, str(SOURCE))) == plans[1].document
    pages = len(store.objects("bucket", "run/")) / 10
    assert pages > 20
    assert pages < store.counters()["requests"]["objects.list"] < 3 * pages


def test_inspect_takes_few_requests(in_process: Cli, store: FakeGcs, converted: Callable[..., Path]) -> None:
    store.upload_tree(converted(NAME, store="files"), "bucket", "out")
    for place, here in ((URL, SOURCE), ("gs://bucket/out", converted(NAME, store="files"))):
        store.reset_counters()
        found, expected = in_process("inspect", place, "--json"), in_process("inspect", here, "--json").document
        assert json.loads(found.out.replace(place, str(here))) == expected
        # Three directories on the way, and all that is below the step; the index or `_METADATA` with its twin.
        leaves, small = len(expected["leaves"]), 1 if place == URL else 2
        assert store.counters()["requests"] == {"objects.list": 4, "objects.media": small + leaves}


def test_all_steps_of_a_trainer_are_looked_at_at_once(in_process: Cli, store: FakeGcs) -> None:
    for number in range(200, 1000, 100):
        store.put("bucket", f"run/checkpoints/step_{number:08}/gda/model/x/.zarray", b"{}")
    store.reset_counters()
    found = in_process("inspect", URL, "--json").document
    assert (found["facts"]["committed_steps"], len(found["facts"]["uncommitted_steps"])) == ([100], 8)
    assert store.counters()["requests"]["objects.list"] == 12


@pytest.mark.parametrize("command", ["plan", "inspect"])
def test_array_metadata_is_read_at_once(
    command: str, in_process: Cli, store: FakeGcs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight requests wait for each other, which those that are sent one by one would do for ever."""
    assert store
    meeting, number, get = threading.Barrier(8), itertools.count(), GcsStorage.get

    def meet(storage: GcsStorage, name: str, *rest: Any) -> Any:
        if name.endswith("/.zarray") and next(number) < meeting.parties:
            meeting.wait(120)
        return get(storage, name, *rest)

    monkeypatch.setattr(GcsStorage, "get", meet)
    done = in_process(command, URL)
    assert done.code == 0, done.err
    assert next(number) > meeting.parties
