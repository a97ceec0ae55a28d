"""Plans from metadata alone: the published counts, the routes, the budget, and what is imported for them."""

import json
from pathlib import Path

import pytest

from converter.cli.app import run
from converter.planning.options import JOBS, Options
from converter.planning.plan import COPIERS, PASS_MEMORY, make_plan
from converter.planning.source import open_source
from tests.conftest import AXLEARN, DATA
from tests.helpers.axlearn_checkpoint import PUBLISHED, envy_shapes, write_metadata
from tests.helpers.conversion import run as convert

COUNTS = {
    "envy-switch-base": 22_077_958_656,
    "envy-switch-large": 78_386_454_528,
    "envy-switch-xxl": 396_486_064_128,
}


def metadata(directory: Path, model: str) -> str:
    """The published shapes with the published sharding of the experts, and no chunk."""
    shapes = envy_shapes(PUBLISHED[model])
    chunks = {
        path: (shape[0], shape[1] // 16, shape[2] // 16, shape[3])
        for path, shape in shapes.items()
        if path.endswith(("wi_0_weight", "wi_1_weight", "wo_weight"))
    }
    return str(write_metadata(directory / "step_00000100", shapes, chunks=chunks))


def plan(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert run(["plan", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("model", COUNTS)
def test_the_published_counts_come_out_on_both_sides(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    totals = plan(capsys, metadata(tmp_path, model), "--metadata-only")["totals"]
    assert totals["source_parameters"] == totals["target_parameters"] == COUNTS[model]
    assert totals["difference"] == 0


def test_untied_output_is_counted_as_an_addition(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = metadata(tmp_path, "envy-switch-base")
    totals = plan(capsys, source, "--metadata-only", "--untie")["totals"]
    assert totals["added_parameters"] == 32768 * 1536
    assert totals["target_parameters"] == COUNTS["envy-switch-base"] + 32768 * 1536
    assert totals["difference"] == 0


def routes(document: dict) -> dict[str, str]:
    return {leaf["path"].split("layers_1/")[-1]: task["route"] for task in document["tasks"] for leaf in task["leaves"]}


def test_only_what_is_split_or_re_ordered_is_rewritten(capsys: pytest.CaptureFixture[str]) -> None:
    source = str(DATA / "axlearn" / "micro-hybrid")
    found = routes(plan(capsys, source))
    rewritten = {"query/kernel", "key/kernel", "value/kernel", "query_norm/scale", "key_norm/scale"}
    for path, route in found.items():
        assert route == ("rewrite" if any(path.endswith(name) for name in rewritten) else "pass"), path
    assert set(routes(plan(capsys, source, "--rewrite")).values()) == {"rewrite"}
    assert set(routes(plan(capsys, source, "--store", "zarr2")).values()) == {"rewrite"}
    assert "link" in routes(plan(capsys, source, "--link")).values()


def test_a_budget_too_small_names_the_smallest_that_works(capsys: pytest.CaptureFixture[str]) -> None:
    source = str(DATA / "axlearn" / "micro-hybrid")
    assert run(["plan", source, "--max-memory", "1MiB"]) == 2
    message = capsys.readouterr().err
    smallest = message.rsplit("--max-memory ", 1)[1].split()[0]
    assert run(["plan", source, "--max-memory", smallest]) == 0


def test_the_memory_in_flight_is_that_of_every_thread() -> None:
    made = make_plan(open_source(str(AXLEARN / "micro-hybrid")), Options())
    rewrites = sorted(task.memory for task in made.tasks if task.blocking is not None)
    assert all(task.memory == PASS_MEMORY for task in made.tasks if task.blocking is None)
    assert made.totals.memory == sum(rewrites[-JOBS:]) + COPIERS * PASS_MEMORY
    only_rewrites = make_plan(open_source(str(AXLEARN / "micro-hybrid")), Options(rewrite=True))
    assert only_rewrites.totals.memory == sum(sorted(task.memory for task in only_rewrites.tasks)[-JOBS:])


@pytest.mark.parametrize("jobs", [1, 8, 64])
def test_the_memory_counts_the_jobs(jobs: int, tmp_path: Path) -> None:
    result = convert(AXLEARN / "micro-hybrid", tmp_path / "out", jobs=jobs)
    made = make_plan(open_source(str(AXLEARN / "micro-hybrid")), Options(), jobs=jobs)
    assert made.totals == result.plan.totals
    assert 0 < result.written.peak_in_flight <= made.totals.memory
    units = sorted(task.memory for task in made.tasks for _ in range(task.units))
    assert made.totals.memory == sum(units[-jobs:]) + COPIERS * PASS_MEMORY
