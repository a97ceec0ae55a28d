"""Conversions of arrays and chunks that are large against the memory budget: streamed, slab by slab, or refused."""

import math
import os
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from converter.axes import blocking
from converter.conversion import stream
from converter.conversion.destination import RESERVE
from converter.conversion.stage import Stage
from converter.errors import UsageError
from converter.planning.options import Options
from converter.planning.plan import make_plan
from converter.planning.source import open_source
from converter.work import Silent
from tests.helpers.axlearn_checkpoint import SMALL, STACK, envy_tensors, expected_leaves, write_checkpoint
from tests.helpers.compare import assert_same_leaves
from tests.helpers.conversion import conversion_of, run
from tests.helpers.forms import unscanned
from tests.helpers.restorer import Restorer

QKV = f"{STACK}/layer0/self_attention/attention/i_proj/i_proj/qkv_proj/weight"
OUT = f"{STACK}/layer1/self_attention/attention/o_proj/weight"
EXPERTS = f"{STACK}/layer1/feed_forward/wi_0_weight"

BIG = {**SMALL, "embed": 256, "moe_mlp": 512, "experts": 16, "repeats": 4}
"""wi_0, wi_1 and wo have 32 MiB each."""

TIGHT = 14 << 20


@pytest.fixture(scope="session")
def big_tensors() -> dict[str, np.ndarray]:
    return envy_tensors(BIG)


@pytest.mark.parametrize("compressor", ["zstd", None])
def test_an_array_and_a_chunk_far_larger_than_the_budget(
    compressor: str | None, big_tensors: dict[str, np.ndarray], tmp_path: Path, newest_orbax: Restorer
) -> None:
    source = write_checkpoint(tmp_path / "step_00000100", big_tensors, compressor=compressor)
    result = run(source, tmp_path / "out", max_memory=TIGHT, rewrite=True)
    task = next(task for task in result.plan.tasks if task.sources[0].path == EXPERTS)
    assert task.blocking
    assert task.blocking.streamed
    assert task.sources[0].chunk_bytes > 2 * TIGHT
    assert result.plan.totals.memory <= TIGHT
    assert_same_leaves(newest_orbax.restore(tmp_path / "out"), expected_leaves(big_tensors))


def test_streamed_edge_chunks(big_tensors: dict[str, np.ndarray], tmp_path: Path, newest_orbax: Restorer) -> None:
    chunks = {EXPERTS: (3, 7, 200, 500), QKV: (3, 200, 8, 6), OUT: (3, 256, 4, 6)}
    source = write_checkpoint(tmp_path / "step_00000100", big_tensors, chunks=chunks)
    result = run(source, tmp_path / "out", max_memory=TIGHT, rewrite=True)
    task = next(task for task in result.plan.tasks if task.sources[0].path == EXPERTS)
    assert task.blocking
    assert task.blocking.streamed
    assert_same_leaves(newest_orbax.restore(tmp_path / "out"), expected_leaves(big_tensors))


@pytest.mark.parametrize("chunks", [{}, {EXPERTS: (3, 7, 200, 500), QKV: (3, 200, 8, 6), OUT: (3, 256, 4, 6)}])
def test_chunks_that_are_moved_slab_by_slab(
    chunks: dict[str, tuple[int, ...]],
    big_tensors: dict[str, np.ndarray],
    tmp_path: Path,
    newest_orbax: Restorer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blocking, "SLAB", 4000)
    monkeypatch.setattr(blocking, "GROUPED_BLOCK", 4000)
    source = write_checkpoint(tmp_path / "step_00000100", big_tensors, chunks=chunks)
    result = run(source, tmp_path / "out", rewrite=True)
    slabs = {task.sources[0].path: task.blocking.slab for task in result.plan.tasks if task.blocking}
    assert slabs[EXPERTS]
    assert slabs[QKV]
    assert not any(task.blocking.streamed for task in result.plan.tasks if task.blocking)
    assert_same_leaves(newest_orbax.restore(tmp_path / "out"), expected_leaves(big_tensors))


def test_no_task_is_planned_with_more_memory_than_there_is(big_tensors: dict[str, np.ndarray], tmp_path: Path) -> None:
    place = write_checkpoint(tmp_path / "step_00000100", big_tensors, chunks={EXPERTS: (3, 16, 256, 512)})
    source = open_source(str(place))
    for mebibytes in range(13, 150):
        made = make_plan(source, Options(rewrite=True, max_memory=mebibytes << 20))
        assert max(task.memory for task in made.tasks) <= mebibytes << 20


def test_an_edge_chunk_under_a_budget_between_the_ways_to_move_it(
    big_tensors: dict[str, np.ndarray], tmp_path: Path, newest_orbax: Restorer
) -> None:
    source = write_checkpoint(tmp_path / "step_00000100", big_tensors, chunks={EXPERTS: (3, 16, 256, 512)})
    run(source, tmp_path / "out", rewrite=True, max_memory=62 << 20)
    assert_same_leaves(newest_orbax.restore(tmp_path / "out"), expected_leaves(big_tensors))


def test_a_budget_that_no_block_fits(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "step_00000100", envy_tensors())
    with pytest.raises(UsageError, match=r"--max-memory 64 bytes is too small: .* give --max-memory (\d+)MiB or more"):
        run(source, tmp_path / "out", max_memory=64)
    assert sorted(os.listdir(tmp_path)) == ["step_00000100"]


def test_expected_bytes_cover_what_is_written(big_tensors: dict[str, np.ndarray], tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "step_00000100", big_tensors)
    result = run(source, tmp_path / "out", untie=True, rewrite=True)
    assert result.written_bytes == sum(f.stat().st_size for f in (tmp_path / "out").rglob("*") if f.is_file())
    assert result.written_bytes < conversion_of(result.plan, tmp_path / "out").expected_bytes + RESERVE


def test_a_stream_holds_no_more_slabs_than_planned(
    big_tensors: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("converter.conversion.work_area.COPIERS", 0)
    source = open_source(str(write_checkpoint(tmp_path / "step_00000100", big_tensors)))
    plan = make_plan(source, Options(rewrite=True, max_memory=28 << 20))
    task = next(task for task in plan.tasks if task.sources[0].path == EXPERTS)
    assert task.blocking
    assert task.blocking.streamed
    stage = Stage(str(tmp_path / "out"), "files", plan.leaves)
    stage.begin({}, fresh=True)
    conversion = conversion_of(replace(plan, tasks=(task,)), tmp_path / "out", jobs=1)
    tracemalloc.start()
    stream.run(conversion, stage, Silent())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    stage.close()
    # The slab and its rearranged copy; what zstd and the file hold is not traced.
    assert peak < 2.5 * task.blocking.block_bytes


LAYERED = {**SMALL, "embed": 96, "moe_mlp": 192, "experts": 4, "repeats": 12}
"""A twelfth of the published chunks: 9 MiB, of all layers of one expert group."""


@pytest.mark.parametrize(("budget", "streamed"), [(32 << 20, False), (14 << 20, True)])
def test_leaves_of_twelve_layers_from_chunks_that_hold_all(
    budget: int, streamed: bool, tmp_path: Path, newest_orbax: Restorer
) -> None:
    """Each chunk is decoded once, however many leaves it becomes, and never beside all of them at once."""
    tensors = envy_tensors(LAYERED)
    chunks = {EXPERTS: (12, 2, 96, 192), OUT: (12, 48, *tensors[OUT].shape[2:])}
    source = write_checkpoint(tmp_path / "step_00000100", tensors, chunks=chunks)
    result = run(source, tmp_path / "out", layout="unscanned", max_memory=budget)
    tasks = {task.sources[0].path: task for task in result.plan.tasks}
    blocking = tasks[EXPERTS].blocking
    assert blocking
    assert blocking.streamed == streamed
    assert len(tasks[EXPERTS].leaves[0].each) == 12
    written = result.written
    assert result.plan.totals.memory <= budget
    assert written.peak_in_flight <= budget
    rewritten = [array for task in tasks.values() if task.route == "rewrite" for array in task.sources]
    assert written.counts.decoded == sum(math.prod(array.grid) for array in rewritten)
    assert_same_leaves(newest_orbax.restore(tmp_path / "out"), unscanned(expected_leaves(tensors)))
