"""The engine: what is on disk afterwards, what it counted, what it told, and how it goes on with an interrupted run."""

import itertools
import math
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore as ts

from converter.arrays.array import Array
from converter.arrays.digest import chunk_digest
from converter.checkpoints.names import leaf_key
from converter.conversion.stage import Stage
from converter.conversion.stream import Counts, Written, run
from converter.errors import SourceError
from converter.planning.options import Options
from converter.planning.plan import Plan, make_plan
from converter.planning.routes import REWRITE
from converter.planning.source import open_source
from converter.work import Silent
from tests.helpers.axlearn_checkpoint import SMALL, STACK, envy_tensors, expected_leaves, write_checkpoint
from tests.helpers.compare import assert_same_leaves
from tests.helpers.conversion import conversion_of

EXPERTS = f"{STACK}/layer1/feed_forward/wi_0_weight"
QKV = f"{STACK}/layer0/self_attention/attention/i_proj/i_proj/qkv_proj/weight"
CHUNKS = {EXPERTS: (2, 1, 12, 7), QKV: (1, 12, 8, 6), "model/decoder/emb/token_emb/weight": (7, 5)}
ROUTES: list[dict[str, Any]] = [
    {}, {"rewrite": True}, {"link": True}, {"store": "ocdbt"}, {"store": "ocdbt", "rewrite": True}, {"store": "zarr2"}
]  # fmt: skip
each_route = pytest.mark.parametrize("route", ROUTES, ids=lambda r: "-".join(map(str, r.values())) or "pass")


@pytest.fixture(scope="module")
def tensors() -> dict[str, np.ndarray]:
    return envy_tensors()


@pytest.fixture
def source(tensors: dict[str, np.ndarray], tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "step_00000100", tensors, chunks=CHUNKS)


def planned(source: Path, **options: Any) -> Plan:
    return make_plan(open_source(str(source)), Options(**options))


def worked(plan: Plan, place: Path, *, progress: Any = None, **arguments: Any) -> Written:
    """One run, or the next one, in the work area of a destination."""
    stage = staged(plan, place)
    try:
        stage.begin({"plan": "this one"}, fresh=False)
        return run(conversion_of(plan, place / "out", **arguments), stage, progress or Silent())
    finally:
        stage.close()


def staged(plan: Plan, place: Path) -> Stage:
    return Stage(str(place / "out"), plan.options.store, plan.leaves)


def directory(plan: Plan, place: Path, leaf: Array) -> Path:
    stage = staged(plan, place)
    stage.close()
    return Path(stage.leaf_directory(leaf))


def leaves_on_disk(plan: Plan, place: Path) -> dict[str, np.ndarray]:
    """What TensorStore reads from the work area."""
    result: dict[str, np.ndarray] = {}
    for leaf in plan.leaves:
        kvstore: dict[str, Any] = {"driver": "file", "path": f"{directory(plan, place, leaf)}/"}
        if plan.options.store == "ocdbt":
            kvstore = {"driver": "ocdbt", "base": kvstore, "path": f"{leaf_key(leaf.path)}/"}
        spec = {"driver": {2: "zarr", 3: "zarr3"}[leaf.encoding.zarr_format], "kvstore": kvstore}
        store = ts.open({**spec, "fill_missing_data_reads": False}, read=True).result()
        result[leaf.path] = store.read().result()
    return result


def chunk_files(plan: Plan, place: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Every chunk file that there must be: leaf and grid index."""
    files: dict[str, tuple[str, tuple[int, ...]]] = {}
    for leaf in plan.leaves:
        for index in itertools.product(*map(range, leaf.grid)):
            file = directory(plan, place, leaf) / leaf.encoding.chunk_key(index)
            files[str(file)] = (leaf.path, index)
    return files


def grid_size(array: Any) -> int:
    return math.prod(array.grid)


@each_route
def test_every_chunk_is_read_once_and_written_once(
    route: dict[str, Any], source: Path, tensors: dict[str, np.ndarray], tmp_path: Path
) -> None:
    plan = planned(source, **route)
    written = worked(plan, tmp_path)
    assert_same_leaves(leaves_on_disk(plan, tmp_path), expected_leaves(tensors))
    rewritten = [task for task in plan.tasks if task.route == REWRITE]
    assert written.counts == Counts(
        decoded=sum(grid_size(array) for task in rewritten for array in task.sources),
        encoded=sum(grid_size(leaf) for task in rewritten for leaf in task.leaves),
        passed=sum(grid_size(leaf) for task in plan.tasks if task.route != REWRITE for leaf in task.leaves),
        kept=0,
    )
    assert max(task.memory for task in plan.tasks) <= written.peak_in_flight <= plan.options.max_memory


@pytest.mark.parametrize("route", [{}, {"rewrite": True}, {"store": "zarr2"}], ids=["pass", "rewrite", "zarr2"])
def test_digests_are_those_of_the_files(route: dict[str, Any], source: Path, tmp_path: Path) -> None:
    plan = planned(source, **route)
    written = worked(plan, tmp_path)
    found: dict[str, dict[tuple[int, ...], int]] = {leaf.path: {} for leaf in plan.leaves}
    for file, (path, index) in chunk_files(plan, tmp_path).items():
        found[path][index] = chunk_digest(index, Path(file).read_bytes())
    assert written.digests == found
    resumed = worked(plan, tmp_path)
    assert resumed.digests == found


def test_linked_chunks_have_no_digests(source: Path, tmp_path: Path) -> None:
    plan = planned(source, link=True)
    written = worked(plan, tmp_path)
    linked = {leaf.path for task in plan.tasks if task.route != REWRITE for leaf in task.leaves}
    assert {path for path, chunks in written.digests.items() if None in chunks.values()} == linked


@pytest.mark.parametrize("rewrite", [False, True], ids=["pass", "rewrite"])
def test_the_number_of_jobs_does_not_show(rewrite: bool, source: Path, tmp_path: Path) -> None:
    plan = planned(source, rewrite=rewrite)
    outcomes = []
    for jobs in (1, 2, 7):
        place = tmp_path / f"jobs{jobs}"
        written = worked(plan, place, jobs=jobs)
        files = sorted(os.path.relpath(file, place) for file in map(str, place.rglob("*")) if os.path.isfile(file))
        outcomes.append((written.digests, written.counts, files))
    assert outcomes[0] == outcomes[1] == outcomes[2]


class Told(Silent):
    """Remembers what it was told, and does something from the nth piece of work on."""

    def __init__(self, at: int = 0, action: Callable[[], None] | None = None):
        self.leaves = self.total = self.done = self.units = 0
        self.finished: list[str] = []
        self.at, self.action = at, action
        self.lock = threading.Lock()

    def start(self, leaves: int, total_bytes: int) -> None:
        self.leaves, self.total = leaves, total_bytes

    def advance(self, count: int) -> None:
        with self.lock:
            self.done += count
            self.units += 1
            if self.action and self.units >= self.at:
                self.action()

    def leaf_done(self, path: str) -> None:
        self.finished.append(path)


@each_route
def test_progress_adds_up(route: dict[str, Any], source: Path, tensors: dict[str, np.ndarray], tmp_path: Path) -> None:
    plan = planned(source, **route)
    leaves = expected_leaves(tensors)
    for _ in range(2):  # also where all is there already
        told = Told()
        worked(plan, tmp_path, progress=told, jobs=1)
        assert (told.leaves, told.total) == (len(leaves), sum(leaf.nbytes for leaf in leaves.values()))
        assert told.done == told.total
        assert told.units == sum(task.units for task in plan.tasks)
        assert sorted(told.finished) == sorted(leaves)


class Stopped(BaseException):
    """What ends a run from outside, like KeyboardInterrupt."""


def stop() -> None:
    raise Stopped


@pytest.mark.parametrize("done", [1, 5, 12])
@pytest.mark.parametrize("route", [{}, {"rewrite": True}, {"store": "ocdbt"}], ids=["pass", "rewrite", "ocdbt"])
def test_an_interrupted_run_is_gone_on_with(
    route: dict[str, Any], done: int, source: Path, tensors: dict[str, np.ndarray], tmp_path: Path
) -> None:
    plan = planned(source, **route)
    whole = worked(plan, tmp_path / "whole")
    with pytest.raises(Stopped):
        worked(plan, tmp_path, progress=Told(done, stop), jobs=1)
    rest = worked(plan, tmp_path)
    assert rest.counts.kept >= done  # others may have finished what they had begun
    assert rest.digests == whole.digests
    assert 0 < rest.counts.passed + rest.counts.encoded < whole.counts.passed + whole.counts.encoded
    assert worked(plan, tmp_path).counts == Counts(kept=sum(task.units for task in plan.tasks))
    assert_same_leaves(leaves_on_disk(plan, tmp_path), expected_leaves(tensors))


def test_only_what_is_damaged_or_missing_is_done_again(
    source: Path, tensors: dict[str, np.ndarray], tmp_path: Path
) -> None:
    plan = planned(source)
    worked(plan, tmp_path)
    files = chunk_files(plan, tmp_path)
    passed = next(Path(f) for f, (path, i) in files.items() if path.endswith("MoeBlock_0/wi_0") and i == (1, 0, 0, 1))
    rewritten = next(Path(f) for f, (path, _) in files.items() if path.endswith("layers_0/self_attention/key/kernel"))
    data = bytearray(passed.read_bytes())
    data[len(data) // 2] ^= 4
    passed.write_bytes(data)
    rewritten.unlink()
    before = {file: (os.stat(file).st_ino, os.stat(file).st_mtime_ns) for file in files if os.path.exists(file)}
    again = worked(plan, tmp_path)
    assert (again.counts.passed, again.counts.encoded) == (1, 1)
    after = {file: (os.stat(file).st_ino, os.stat(file).st_mtime_ns) for file in files}
    assert {file for file in files if after[file] != before.get(file)} == {str(passed), str(rewritten)}
    assert_same_leaves(leaves_on_disk(plan, tmp_path), expected_leaves(tensors))


def test_a_failure_ends_all_workers_and_is_told_as_it_is(source: Path, tmp_path: Path) -> None:
    plan = planned(source)
    file = source / "gda" / EXPERTS / "0.2.0.1"
    told = Told(1, lambda: file.unlink(missing_ok=True))
    with pytest.raises(SourceError) as caught:
        worked(plan, tmp_path, progress=told, jobs=3)
    assert caught.value.message == f"{EXPERTS}: chunk 0.2.0.1: {file} cannot be read: No such file or directory"
    assert told.units < sum(task.units for task in plan.tasks)


@pytest.mark.parametrize("store", ["files", "ocdbt"])
def test_a_streamed_leaf_that_another_failure_stopped_is_not_finished(store: str, tmp_path: Path) -> None:
    tensors = envy_tensors({**SMALL, "embed": 256, "moe_mlp": 512, "experts": 16, "repeats": 4})
    source = write_checkpoint(tmp_path / "step_00000100", tensors)
    damaged = source / "gda" / EXPERTS.replace("wi_0", "wi_1") / "0.0.0.0"
    damaged.write_bytes(damaged.read_bytes()[: damaged.stat().st_size // 4])
    # Two arrays of one chunk each, side by side as slabs; one is damaged, and fails while the other is under way.
    plan = planned(source, rewrite=True, store=store, max_memory=28 << 20)
    assert sum(task.blocking.streamed for task in plan.tasks if task.blocking) >= 2
    for number in range(3):
        place = tmp_path / str(number)
        place.mkdir()
        told = Told()
        with pytest.raises(SourceError, match=r"wi_1_weight: chunk 0\.0\.0\.0: .*ends too early"):
            worked(plan, place, progress=told)
        stage = staged(plan, place)
        assert not any(stage.open_leaf(leaf).missing_files() for leaf in plan.leaves if leaf.path in told.finished)
        stage.close()


def test_computed_values_take_the_place_of_moved_ones(
    source: Path, tensors: dict[str, np.ndarray], tmp_path: Path
) -> None:
    plan = planned(source)
    path = "params/params/decoder/layers/layers_1/self_attention/query_norm/scale"
    computed = {path: np.arange(12, dtype=np.float32).reshape(6, 2)}
    worked(plan, tmp_path, computed=computed)
    assert_same_leaves(leaves_on_disk(plan, tmp_path), {**expected_leaves(tensors), **computed})
