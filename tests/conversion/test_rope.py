"""`--rope interleaved`: rotated pairs stay as AXLearn has them, and MaxText's configuration says so."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorstore as ts
import yaml

from converter import api
from converter.choices import ROPES
from converter.errors import MappingError, UsageError
from tests.conftest import AXLEARN, Cli
from tests.conversion.test_forms import SOURCES, expected
from tests.helpers.axlearn_checkpoint import write_checkpoint
from tests.helpers.compare import assert_same_leaves
from tests.helpers.conversion import conversion_of
from tests.helpers.families import read_tensors, separate
from tests.helpers.forms import unrolled
from tests.helpers.restorer import Restorer
from tests.mapping.test_plain_family import TABLE
from tests.mapping.test_plain_family import tensors as plain_tensors

FLAGS = {"rope_type": "llama3.1", "rope_use_scale": False}


@pytest.fixture
def made(converted: Callable[..., Path], tmp_path: Path) -> Path:
    """A copy of a conversion whose pairs are as AXLearn has them."""
    return Path(shutil.copytree(converted("micro-hybrid-qkpair", rope="interleaved"), tmp_path / "out"))


def flags_of(checkpoint: Path) -> dict[str, Any]:
    return {
        key: value for key, value in yaml.safe_load((checkpoint / "maxtext.yml").read_text()).items() if key in FLAGS
    }


def test_nothing_is_decoded_where_heads_are_apart(tmp_path: Path, newest_orbax: Restorer) -> None:
    tensors = unrolled(separate(read_tensors("micro-fuji-gqa")))
    source = write_checkpoint(tmp_path / "step_00000100", tensors)
    result = api.convert(source, tmp_path / "out", rope="interleaved")
    assert {(task.route, task.reason) for task in result.plan.tasks} == {("pass", "")}
    assert result.written.counts.decoded == 0
    assert flags_of(tmp_path / "out") == FLAGS
    assert_same_leaves(newest_orbax.restore(tmp_path / "out"), expected("micro-fuji-gqa", "scanned", interleaved=True))
    verified = api.verify(source, tmp_path / "out")
    assert verified.ok
    assert verified.stored_leaves == verified.leaves


@pytest.mark.parametrize(
    ("name", "scales"), [("micro-hybrid", 2), ("micro-honeycrisp-qkproduct", 1), ("micro-qwen", 1)]
)
def test_the_norm_scales_are_passed(name: str, scales: int) -> None:
    permuted, interleaved = (api.plan(AXLEARN / name, rope=rope).tasks for rope in ROPES)
    for tasks, route in ((permuted, "rewrite"), (interleaved, "pass")):
        assert [task.route for task in tasks if "scale_query" in task.sources[0].path] == [route] * scales
    fused = [task for task in interleaved if task.reason]
    assert {task.reason for task in fused} == {"split into 3 leaves"}
    assert {task.note for task in fused} == {"in the order of AXLearn (--rope interleaved)"}


OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "untied, database": ("sharded", {"untie": True, "store": "ocdbt"}),
    "zarr2": ("orbax", {"store": "zarr2", "compress": "zstd"}),
    "linked": ("unrolled", {"link": True, "layout": "unscanned"}),
    "cast": ("unrolled", {"dtype": "bfloat16"}),
    "not compressed": ("sharded", {"compress": "none", "layout": "unscanned"}),
    "rewritten": ("sharded", {"rewrite": True}),
}  # fmt: skip


@pytest.mark.parametrize("case", OPTIONS)
def test_with_other_options(case: str, tmp_path: Path, newest_orbax: Restorer) -> None:
    form, options = OPTIONS[case]
    source = SOURCES[form](tmp_path / "step_00000100", read_tensors("micro-hybrid"))
    result = api.convert(source, tmp_path / "out", rope="interleaved", **options)
    shape = {key: options[key] for key in ("untie", "dtype") if key in options}
    leaves = expected("micro-hybrid", options.get("layout", "scanned"), interleaved=True, **shape)
    assert_same_leaves(newest_orbax.restore(tmp_path / "out"), leaves)
    assert api.verify(source, tmp_path / "out", dtype=options.get("dtype")).ok
    assert bool({"link"} & {task.route for task in result.plan.tasks}) == ("link" in options)


def test_moments_are_plain_copies(tmp_path: Path, newest_orbax: Restorer) -> None:
    source = AXLEARN.parent / "training" / "micro-envy" / "axlearn"
    result = api.convert(source, tmp_path / "out", state=True, rope="interleaved")
    tasks = {task.leaves[0].path: task for task in result.plan.tasks if "query_norm" in task.leaves[0].path}
    assert sorted({task.tree for task in tasks.values()}) == ["mu", "nu", "params"]
    assert {task.route for task in tasks.values()} == {"pass"}
    found = newest_orbax.restore(tmp_path / "out", step=19)
    gda = next((source / "checkpoints").glob("step_*")) / "gda"
    scale = "decoder/transformer/repeat/layer/layer0/self_attention/attention/scale_query/norm/scale"
    for tree, place in (("model", "params/params"), ("learner/optimizer/1/0/mu", "opt_state/0/mu/params")):
        own = read_zarr(gda / tree / scale)
        np.testing.assert_array_equal(found[f"{place}/decoder/layers/layers_0/self_attention/query_norm/scale"], own.T)
    assert api.verify(source, tmp_path / "out").ok


def read_zarr(place: Path) -> np.ndarray:
    return ts.open({"driver": "zarr", "kvstore": {"driver": "file", "path": f"{place}/"}}).result().read().result()


def test_fitted_scales_lie_as_their_kernels(tmp_path: Path, newest_orbax: Restorer) -> None:
    for rope in ROPES:
        api.convert(AXLEARN / "micro-honeycrisp", tmp_path / rope, qk_norm="fit", rope=rope)
        assert api.verify(AXLEARN / "micro-honeycrisp", tmp_path / rope).ok
    halves, pairs = (newest_orbax.restore(tmp_path / rope) for rope in ROPES)
    for side in ("query", "key"):
        path = f"params/params/decoder/layers/self_attention/{side}_norm/scale"
        np.testing.assert_array_equal(halves[path], np.concatenate([pairs[path][0::2], pairs[path][1::2]]))


def recorded_nowhere(made: Path) -> None:
    (made / "ax2mt.json").unlink()
    unrecorded_in_the_step(made)


def unrecorded_in_the_step(made: Path) -> None:
    file = made / "0" / "_CHECKPOINT_METADATA"
    content = json.loads(file.read_text())
    del content["custom_metadata"]["ax2mt"]
    file.write_text(json.dumps(content))


@pytest.mark.parametrize("loss", [lambda _: None, unrecorded_in_the_step, recorded_nowhere])
def test_verify_knows_the_order(loss: Callable[[Path], None], made: Path) -> None:
    """By the step's metadata, or by the receipt, or by maxtext.yml."""
    loss(made)
    findings = api.verify(AXLEARN / "micro-hybrid-qkpair", made).findings
    assert not [finding for finding in findings if finding.check == "values"]
    report = api.parameters(AXLEARN / "micro-hybrid-qkpair", made)
    assert "in the order of AXLearn (--rope interleaved)" in {row.note for row in report.rows}


def test_what_is_recorded_counts_more_than_the_configuration(made: Path) -> None:
    file = made / "maxtext.yml"
    lines = [line for line in file.read_text().splitlines() if line.split(":")[0] not in FLAGS]
    file.write_text("\n".join([*lines, "rope_type: default", ""]))
    findings = api.verify(AXLEARN / "micro-hybrid-qkpair", made).findings
    assert sorted(finding.message for finding in findings) == [
        'rope_type is "default", these weights need "llama3.1"',
        "rope_use_scale is missing, these weights need false",
    ]


def test_a_configuration_for_the_other_order_is_found(converted: Callable[..., Path], tmp_path: Path) -> None:
    other = Path(shutil.copytree(converted("micro-hybrid-qkpair"), tmp_path / "out"))
    with (other / "maxtext.yml").open("a") as file:
        file.write("rope_type: llama3.1\n")
    (finding,) = api.verify(AXLEARN / "micro-hybrid-qkpair", other).findings
    assert finding.message == (
        'rope_type is "llama3.1", which is for weights converted with --rope interleaved; these were converted '
        "without it"
    )


def test_other_values_in_the_order_of_axlearn_are_named(made: Path, converted: Callable[..., Path]) -> None:
    leaf = "0/items/params.params.decoder.layers.layers_0.self_attention.query_norm.scale"
    shutil.rmtree(made / leaf)
    shutil.copytree(converted("micro-hybrid-qkpair") / leaf, made / leaf)
    (finding,) = [
        entry for entry in api.verify(AXLEARN / "micro-hybrid-qkpair", made).findings if entry.check == "values"
    ]
    assert finding.diagnosis == "the RoPE permutation was applied where none is due"


def test_the_journal_tells_the_orders_apart(tmp_path: Path) -> None:
    """An interrupted run of the other order is not resumed."""
    plans = [api.plan(AXLEARN / "micro-gala", rope=rope) for rope in ROPES]
    assert [conversion_of(plan, tmp_path / "out").journal["interleaved"] for plan in plans] == [False, True]


def test_a_table_without_the_option_refuses_it(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "step_00000100", plain_tensors())
    with pytest.raises(
        MappingError, match=r"--rope interleaved: mapping 'plain' has no such option; expected one of un"
    ):
        api.plan(source, mapping=str(TABLE), rope="interleaved")
    with pytest.raises(UsageError, match="--rope sideways: expected one of permuted, interleaved"):
        api.plan(source, mapping=str(TABLE), rope="sideways")  # type: ignore[arg-type]


def test_every_command_line_has_it(in_process: Cli, tmp_path: Path) -> None:
    for command in ("plan", "params"):
        done = in_process(command, AXLEARN / "micro-gala", "--rope", "interleaved", "--json")
        assert done.code == 0, done.err
    planned = in_process("plan", AXLEARN / "micro-gala", "--rope", "interleaved", "--json").document
    assert (planned["options"]["rope"], planned["options"]["table"]) == ("interleaved", ["interleaved"])
    assert {key: planned["config"][key] for key in FLAGS} == FLAGS
    plain = in_process("plan", AXLEARN / "micro-gala", "--json").document
    assert (plain["options"]["rope"], FLAGS.keys() & plain["config"].keys()) == ("permuted", set())
    assert in_process("convert", AXLEARN / "micro-gala", tmp_path / "out", "--rope", "mixed").code == 2
    assert "--rope" in in_process("convert", "--help").out


def test_bfloat16_sources_keep_their_bits(tmp_path: Path, newest_orbax: Restorer) -> None:
    tensors = {path: values.astype(ml_dtypes.bfloat16) for path, values in read_tensors("micro-gala").items()}
    source = write_checkpoint(tmp_path / "step_00000100", tensors)
    api.convert(source, tmp_path / "out", rope="interleaved")
    leaves = expected("micro-gala", "scanned", interleaved=True, dtype="bfloat16")
    assert_same_leaves(newest_orbax.restore(tmp_path / "out"), leaves)
