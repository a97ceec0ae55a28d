"""Every family in every form: what AXLearn saves, what MaxText loads, leaf by leaf against plain numpy."""

import itertools
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from converter import api
from converter.choices import LAYOUTS, ROPES, Compressor, Layout, Rope
from converter.errors import MappingError, SourceError, UsageError
from converter.planning.options import Options
from tests.conftest import AXLEARN, Cli
from tests.helpers import axlearn_checkpoint, families
from tests.helpers.axlearn_checkpoint import write_checkpoint
from tests.helpers.compare import assert_same_leaves
from tests.helpers.families import FAMILIES, read_tensors
from tests.helpers.forms import unrolled, unscanned, write_orbax_checkpoint
from tests.helpers.restorer import Restorer

Tensors = Mapping[str, np.ndarray]
MODELS = (*FAMILIES, "micro-hybrid")


def sharded(tensors: Tensors) -> dict[str, tuple[int, ...]]:
    """Chunks as a mesh of data and model axes makes them: the second dimension and the one before the last are cut."""
    shapes = {path: values.shape for path, values in tensors.items() if values.ndim > 2}
    return {
        path: tuple(-(-n // 2) if dim in (1, len(shape) - 2) else n for dim, n in enumerate(shape))
        for path, shape in shapes.items()
    }


def sharded_layers(tensors: Tensors) -> dict[str, tuple[int, ...]]:
    return {path: (1, *values.shape[1:]) for path, values in tensors.items() if "/repeat/" in path}


SOURCES: dict[str, Callable[[Path, Tensors], Path]] = {
    "sharded": lambda place, tensors: write_checkpoint(place, tensors, chunks=sharded(tensors)),
    "sharded layers": lambda place, tensors: write_checkpoint(place, tensors, chunks=sharded_layers(tensors)),
    "unrolled": lambda place, tensors: write_checkpoint(place, unrolled(tensors)),
    "orbax": write_orbax_checkpoint,
    "orbax, sharded": lambda place, tensors: write_orbax_checkpoint(place, tensors, chunks=sharded(tensors)),
    "orbax, unrolled": lambda place, tensors: write_orbax_checkpoint(place, unrolled(tensors)),
    "orbax, directories": lambda place, tensors: write_orbax_checkpoint(place, tensors, database=False),
}


def expected(
    name: str, layout: Layout, *, untie: bool = False, dtype: str | None = None, interleaved: bool = False
) -> dict[str, np.ndarray]:
    oracle = axlearn_checkpoint if name == "micro-hybrid" else families
    leaves = oracle.expected_leaves(read_tensors(name), untie=untie, interleaved=interleaved)
    leaves = unscanned(leaves) if layout == "unscanned" else leaves
    return {path: values.astype(ml_dtypes.bfloat16) for path, values in leaves.items()} if dtype else leaves


def settings(name: str) -> tuple[str, ...]:
    """What the golden's `trainer_config` says, which these steps do not have beside them."""
    return ("num_experts_per_tok=3",) if name == "micro-qwen" else ()


EVERYWHERE = ("sharded", "unrolled", "orbax", "orbax, unrolled")
MATRIX: list[tuple[str, str, Layout, Rope]] = [
    *(("micro-hybrid", form, LAYOUTS[i % 2], ROPES[i // 2 % 2]) for i, form in enumerate(SOURCES)),
    *(("micro-hybrid", form, LAYOUTS[(i + 1) % 2], ROPES[i % 2]) for i, form in enumerate(SOURCES) if "unr" in form),
    *(("micro-fuji-gqa", form, LAYOUTS[(i + 1) % 2], ROPES[i // 2 % 2]) for i, form in enumerate(SOURCES)),
    *(
        (name, form, LAYOUTS[(i + j) % 2], ROPES[(i + j // 2) % 2])
        for i, name in enumerate(FAMILIES)
        for j, form in enumerate(EVERYWHERE)
        if name != "micro-fuji-gqa"
    ),
]
"""Every form of a source into both layouts; named layers of two kinds too. The families differ in their tables only: of
them every pair of a family, a form, a layout and an order."""


def test_the_matrix_has_every_pair() -> None:
    kinds = [MODELS, EVERYWHERE, LAYOUTS, ROPES]
    for (one, values), (other, others) in itertools.combinations(enumerate(kinds), 2):
        assert set(itertools.product(values, others)) <= {(case[one], case[other]) for case in MATRIX}
    assert set(itertools.product(SOURCES, LAYOUTS)) <= {case[1:3] for case in MATRIX}


@pytest.mark.parametrize(("name", "form", "layout", "rope"), MATRIX)
def test_every_leaf(name: str, form: str, layout: Layout, rope: Rope, tmp_path: Path, newest_orbax: Restorer) -> None:
    source = SOURCES[form](tmp_path / "step_00000100", read_tensors(name))
    result = api.convert(source, tmp_path / "out", layout=layout, rope=rope, set=settings(name))
    leaves = expected(name, layout, interleaved=rope == "interleaved")
    assert_same_leaves(newest_orbax.restore(tmp_path / "out"), leaves)
    verified = api.verify(source, tmp_path / "out")
    assert verified.ok, verified.findings
    assert verified.leaves == len(result.plan.leaves)
    assert api.verify(tmp_path / "out").ok


@pytest.mark.parametrize(
    ("form", "layout", "passed"),
    [
        ("unrolled", "scanned", True),
        ("unrolled", "unscanned", True),
        ("sharded layers", "unscanned", True),
        ("orbax", "scanned", True),
        ("orbax, unrolled", "scanned", True),
        ("orbax, unrolled", "unscanned", True),
        ("orbax", "unscanned", False),
        ("sharded", "unscanned", False),
    ],
)
def test_what_is_not_split_or_permuted_is_passed(form: str, layout: Layout, passed: bool, tmp_path: Path) -> None:
    source = SOURCES[form](tmp_path / "step_00000100", read_tensors("micro-hybrid"))
    plan = api.plan(source, layout=layout)
    reasons = {task.reason for task in plan.tasks}
    permuted = {"", "re-ordered inside an axis", "split into 3 leaves"}
    assert reasons == permuted if passed else reasons == {*permuted, "chunks hold 2 layers"}


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("sharded", {"store": "ocdbt"}),
        ("orbax, unrolled", {"store": "ocdbt"}),
        ("orbax, unrolled", {"store": "zarr2"}),
        ("orbax, unrolled", {"rewrite": True}),
        ("sharded", {"compress": "zstd", "untie": True, "jobs": 1}),
        ("orbax, unrolled", {"check": True}),
    ],
    ids=str,
)
def test_other_options_of_unscanned(form: str, options: dict[str, Any], tmp_path: Path, newest_orbax: Restorer) -> None:
    source = SOURCES[form](tmp_path / "step_00000100", read_tensors("micro-hybrid"))
    api.convert(source, tmp_path / "out", layout="unscanned", **options)
    leaves = expected("micro-hybrid", "unscanned", untie="untie" in options)
    assert_same_leaves(newest_orbax.restore(tmp_path / "out"), leaves)
    assert api.verify(source, tmp_path / "out").ok


@pytest.mark.parametrize(
    ("form", "layout"),
    [("unrolled", "scanned"), ("unrolled", "unscanned"), ("sharded layers", "unscanned"), ("orbax", "scanned")],
)
def test_links(form: str, layout: Layout, tmp_path: Path, newest_orbax: Restorer) -> None:
    source = SOURCES[form](tmp_path / "step_00000100", read_tensors("micro-fuji-gqa"))
    result = api.convert(source, tmp_path / "out", link=True, layout=layout)
    assert_same_leaves(newest_orbax.restore(tmp_path / "out"), expected("micro-fuji-gqa", layout))
    linked = [path for path in (tmp_path / "out").rglob("*") if path.is_file() and path.stat().st_nlink > 1]
    # Only q, k and v are other files: each layer's chunk is a file of the source, however many there are.
    passed = [task for task in result.plan.tasks if task.route != "rewrite"]
    assert len(linked) == (0 if form == "orbax" else sum(task.units for task in passed))
    assert {task.route for task in passed} == {"pass" if form == "orbax" else "link"}
    assert api.verify(source, tmp_path / "out").ok


@pytest.mark.parametrize(("name", "layout"), [("micro-fuji-gqa", "unscanned"), ("micro-hybrid", "scanned")])
def test_a_cast_rounds_to_the_nearest_even(name: str, layout: Layout, tmp_path: Path, newest_orbax: Restorer) -> None:
    source = SOURCES["unrolled"](tmp_path / "step_00000100", read_tensors(name))
    api.convert(source, tmp_path / "out", dtype="bfloat16", layout=layout)
    leaves = expected(name, layout, dtype="bfloat16")
    assert_same_leaves(newest_orbax.restore(tmp_path / "out"), leaves)
    assert api.verify(source, tmp_path / "out").ok
    findings = api.verify(source, tmp_path / "out", dtype="float16").findings
    assert {finding.check for finding in findings} == {"dtype"}


def test_casting_what_has_the_dtype_changes_nothing(tmp_path: Path, newest_orbax: Restorer) -> None:
    tensors = {path: values.astype(ml_dtypes.bfloat16) for path, values in read_tensors("micro-fuji-gqa").items()}
    source = write_checkpoint(tmp_path / "step_00000100", tensors)
    result = api.convert(source, tmp_path / "out", dtype="bfloat16")
    assert {task.reason for task in result.plan.tasks} == {"", "split into 3 leaves"}
    assert_same_leaves(newest_orbax.restore(tmp_path / "out"), expected("micro-fuji-gqa", "scanned", dtype="bfloat16"))


def test_a_value_that_the_cast_cannot_hold(tmp_path: Path) -> None:
    tensors = read_tensors("micro-fuji-gqa")
    scale = "model/decoder/output_norm/scale"
    tensors[scale] = np.where(np.arange(48) == 5, np.float32(3.4e38), tensors[scale])
    source = write_checkpoint(tmp_path / "step_00000100", tensors)
    with pytest.raises(MappingError, match=r"decoder_norm/scale: 1 values are too large for bfloat16, the first is 3"):
        api.convert(source, tmp_path / "out", dtype="bfloat16")


def test_the_state_of_an_unrolled_training(tmp_path: Path, newest_orbax: Restorer) -> None:
    tensors = read_tensors("micro-fuji-gqa")
    moments = {
        f"learner/optimizer/1/0/{name}/{path.removeprefix('model/')}": values * factor
        for path, values in tensors.items()
        for name, factor in (("mu", np.float32(0.5)), ("nu", np.float32(0.25)))
    }
    counts = {f"learner/optimizer/1/{number}/count": np.int32(100) for number in (0, 3)}
    every = {**tensors, **moments, **{path: np.array(count) for path, count in counts.items()}}
    source = write_orbax_checkpoint(tmp_path / "step_00000100", unrolled(every))
    api.convert(source, tmp_path / "out", state=True, layout="unscanned")
    found = newest_orbax.restore(tmp_path / "out", step=99)
    for path, values in expected("micro-fuji-gqa", "unscanned").items():
        inside = path.removeprefix("params/")
        for place, factor in ((path, 1), (f"opt_state/0/mu/{inside}", 0.5), (f"opt_state/0/nu/{inside}", 0.25)):
            np.testing.assert_array_equal(found[place], values * np.float32(factor), err_msg=place)
    assert api.verify(source, tmp_path / "out").ok


@pytest.mark.parametrize(
    ("name", "layout"), [("micro-fuji-mha-unrolled-orbax", "scanned"), ("micro-hybrid-unrolled", "unscanned")]
)
def test_goldens_compute_axlearns_logits(name: str, layout: Layout, tmp_path: Path, in_process: Cli) -> None:
    done = in_process("convert", AXLEARN / name, tmp_path / "out", "--untie", "--layout", layout)
    assert done.code == 0, done.err
    ids, out = tmp_path / "ids.npz", tmp_path / "logits.npz"
    np.savez(ids, input_ids=families.golden(name, "input_ids"))
    patch = ["--norm-after-rope"] if "hybrid" in name else []
    computed = in_process("logits", tmp_path / "out", "--tokens", ids, "--out", out, *patch)
    assert computed.code == 0, computed.err
    with np.load(out) as file:
        found = file["logits"]
    assert np.abs(found - families.golden(name)).max() < 3e-5


def test_more_than_ten_layers_are_ordered_by_number(tmp_path: Path, newest_orbax: Restorer) -> None:
    tensors = {
        path: np.concatenate([values * (n + 1) for n in range(4)]) if "/repeat/" in path else values
        for path, values in read_tensors("micro-fuji-gqa").items()
    }
    source = write_checkpoint(tmp_path / "step_00000100", unrolled(tensors))
    for layout in LAYOUTS:
        api.convert(source, tmp_path / layout, layout=layout)
        leaves = families.expected_leaves(tensors)
        wanted = unscanned(leaves) if layout == "unscanned" else leaves
        assert_same_leaves(newest_orbax.restore(tmp_path / layout), wanted)


LAYER = "model/decoder/transformer/layer1/feed_forward/linear2/weight"


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda tensors: tensors.pop(LAYER), MappingError, f"missing in the checkpoint: {LAYER}, for there are layers"),
        (
            lambda tensors: tensors.update({LAYER: tensors[LAYER][:-2]}),
            MappingError,
            f"{LAYER} has the shape [78, 48], but {LAYER.replace('layer1', 'layer0')} has [80, 48]",
        ),
        (
            lambda tensors: tensors.update({LAYER: tensors[LAYER].astype(np.float64)}),
            SourceError,
            f"{LAYER}: dtype float64, but {LAYER.replace('layer1', 'layer0')} has float32",
        ),
    ],
    ids=["missing", "shape", "dtype"],
)
def test_layers_that_are_not_alike(change: Callable, error: type, message: str, tmp_path: Path) -> None:
    tensors = unrolled(read_tensors("micro-fuji-gqa"))
    change(tensors)
    source = write_checkpoint(tmp_path / "step_00000100", tensors)
    with pytest.raises(error) as raised:
        api.plan(source, mapping="fuji")
    assert message in "\n".join([raised.value.message, *raised.value.details])


def test_layers_in_two_layouts(tmp_path: Path) -> None:
    tensors = read_tensors("micro-fuji-gqa")
    source = write_checkpoint(tmp_path / "step_00000100", {**tensors, **unrolled(tensors)})
    with pytest.raises(MappingError) as raised:
        api.plan(source, mapping="fuji")
    assert "layers in several layouts: scanned, unrolled" in raised.value.details


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "bfloat16", "link": True}, "--link passes chunks through, --dtype bfloat16 rewrites them"),
        ({"dtype": "bfloat16", "state": True}, "--state keeps what a training needs exactly, --dtype bfloat16 rounds"),
        ({"dtype": "float16"}, "--dtype float16: expected bfloat16"),
        ({"compress": "none", "store": "zarr2"}, "--store zarr2 keeps its checksums in zstd's frames, --compress none"),
        ({"layout": "sideways"}, "--layout sideways: expected one of scanned, unscanned"),
    ],
)
def test_options_that_contradict_each_other(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        api.plan(AXLEARN / "micro-fuji-gqa", **options)


@pytest.mark.parametrize("form", ["sharded", "unrolled"])
def test_a_changed_element_of_one_layer_is_found(form: str, tmp_path: Path) -> None:
    tensors = read_tensors("micro-hybrid")
    source = SOURCES[form](tmp_path / "step_00000100", tensors)
    api.convert(source, tmp_path / "out", layout="unscanned", store="zarr2")
    path = next(path for path in tensors if path.endswith("layer1/feed_forward/wo_weight"))
    tensors[path][1, 2, 3, 4] += 1
    SOURCES[form](tmp_path / "other" / "step_00000100", tensors)
    findings = api.verify(tmp_path / "other", tmp_path / "out").findings
    values = [finding for finding in findings if finding.check == "values"]
    assert [(finding.place, finding.first_index) for finding in values] == [
        ("params/params/decoder/layers_3/MoeBlock_0/wo", (2, 3, 4))
    ]


def test_a_swap_of_two_layers_is_named(tmp_path: Path) -> None:
    source = SOURCES["unrolled"](tmp_path / "step_00000100", read_tensors("micro-fuji-gqa"))
    api.convert(source, tmp_path / "out", layout="unscanned")
    items = tmp_path / "out" / "0" / "items"
    one, other = (items / f"params.params.decoder.layers_{n}.mlp.wo.kernel" for n in (0, 2))
    one.rename(items / "aside")
    other.rename(one)
    (items / "aside").rename(other)
    findings = [finding for finding in api.verify(source, tmp_path / "out").findings if finding.check == "values"]
    assert len(findings) == 2
    assert "layers_2/mlp/wo/kernel; the two are swapped" in findings[0].diagnosis


def test_parameters_of_both_layouts(tmp_path: Path) -> None:
    source = SOURCES["orbax, unrolled"](tmp_path / "step_00000100", read_tensors("micro-hybrid"))
    api.convert(source, tmp_path / "out", layout="unscanned")
    for report in (api.parameters(source, tmp_path / "out"), api.parameters(source, layout="unscanned")):
        assert report.equivalent
    with pytest.raises(UsageError, match=r"--layout scanned: .*out is unscanned"):
        api.parameters(source, tmp_path / "out", layout="scanned")
    published = api.parameters(model="fuji-405B-v3", layout="unscanned")
    assert published.target_total == 405_945_663_488


def test_every_pair_of_option_values_is_described(in_process: Cli) -> None:
    for command, option in itertools.product(("convert", "plan"), ("--layout", "--dtype")):
        assert option in in_process(command, "--help").out


@pytest.mark.parametrize(
    ("options", "transfer", "compressor"),
    [
        ({}, "local", "zstd"),
        ({"layout": "unscanned"}, "local", "none"),
        ({"layout": "unscanned", "compress": "zstd"}, "local", "zstd"),
        ({"compress": "none"}, "local", "none"),
        ({"layout": "unscanned", "store": "zarr2"}, "local", "zstd"),
        ({"layout": "unscanned"}, "download", "none"),
        ({"layout": "unscanned"}, "upload", "zstd"),
        ({"layout": "unscanned"}, "in store", "zstd"),
    ],
)
def test_what_compresses_rewritten_chunks(options: dict[str, Any], transfer: str, compressor: str) -> None:
    made = Options(**options, transfer=transfer)
    made.check()
    assert made.compressor == compressor


@pytest.mark.parametrize(("compress", "codecs"), [(None, set()), ("zstd", {"zstd"})])
def test_unscanned_chunks_are_not_compressed(compress: Compressor | None, codecs: set[str], tmp_path: Path) -> None:
    result = api.convert(AXLEARN / "micro-gala", tmp_path / "out", layout="unscanned", compress=compress)
    leaf = tmp_path / "out/0/items/params.params.decoder.layers_1.mlp.wo.kernel/zarr.json"
    names = {codec["name"] for codec in json.loads(leaf.read_text())["codecs"]}
    assert names - {"bytes", "crc32c", "transpose"} == codecs
    assert json.loads((tmp_path / "out" / "ax2mt.json").read_text())["options"]["compress"] == (compress or "none")
    assert {leaf.compressor is None for leaf in result.plan.leaves if "layers_1" in leaf.path} == {not codecs}


KILLED = """
import os, signal, sys
from converter import api
from converter.work import Silent

class Killed(Silent):
    left = 20
    def leaf_done(self, path):
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)

api.convert(sys.argv[1], sys.argv[2], layout="unscanned", jobs=1, progress=Killed())
"""


def chunks_of(items: Path) -> dict[str, bytes]:
    """Every chunk file of a checkpoint, by its path."""
    files = (path for path in items.glob("params.*/**/*") if path.is_file() and path.name != "zarr.json")
    return {str(path.relative_to(items)): path.read_bytes() for path in files}


def test_a_killed_run_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    source = SOURCES["sharded"](tmp_path / "step_00000100", read_tensors("micro-hybrid"))
    done = subprocess.run([sys.executable, "-c", KILLED, str(source), str(tmp_path / "out")], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    resumed = api.convert(source, tmp_path / "out", layout="unscanned")
    assert resumed.resumed
    assert 0 < resumed.written.counts.kept < sum(task.units for task in resumed.plan.tasks)
    api.convert(source, tmp_path / "other", layout="unscanned")
    one, other = (chunks_of(tmp_path / name / "0" / "items") for name in ("out", "other"))
    assert one == other
    assert len(one) > 40
    assert api.verify(source, tmp_path / "out", decode=True).ok
