"""The training state: moments, counts and the step, against a state that was put together by hand for MaxText."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import ml_dtypes
import numpy as np
import pytest

from converter.choices import STORES
from converter.errors import Ax2mtError, DestinationError, SourceError, UsageError
from converter.report.documents import DOCUMENTS
from tests.conftest import DATA, Cli
from tests.helpers.compare import assert_same_leaves
from tests.helpers.conversion import run
from tests.helpers.faulty_storage import FaultyStorage
from tests.helpers.restorer import Restorer
from tests.helpers.state_sources import COUNTS, PLAIN_CHAIN, expected_state, trained_tensors, write_trained

GOLDEN = DATA / "training" / "micro-envy"
SOURCE = GOLDEN / "axlearn"
MAPPINGS = Path(__file__).parents[2] / "mappings"
STEP = 19
"""The directory of a state after 20 updates."""

ROUTES = [{"store": store} for store in STORES] + [
    {"store": "files", "rewrite": True},
    {"store": "ocdbt", "rewrite": True},
    {"store": "files", "link": True},
]


def tree_metadata(checkpoint: Path, step: int = STEP) -> Any:
    """The tree as Orbax describes it: key to kinds of keys and values."""
    return json.loads((checkpoint / str(step) / "items" / "_METADATA").read_text())["tree_metadata"]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: "-".join(map(str, route.values())))
def test_equals_the_state_made_by_hand(
    route: dict[str, Any], tmp_path: Path, newest_orbax: Restorer, nearby: Callable[[Path], Path]
) -> None:
    done = run(nearby(SOURCE), tmp_path / "out", state=True, **route)
    expected = newest_orbax.restore(GOLDEN / "maxtext", step=STEP, plain=False)
    assert len(expected) == 84
    # Past the warm-up the schedule's count is the step; the golden has the other form, one ahead of it.
    assert expected["opt_state/2/count"] == STEP + 2
    expected["opt_state/2/count"] = np.asarray(STEP + 1, np.int32)
    assert_same_leaves(newest_orbax.restore(tmp_path / "out", step=STEP), expected)
    # Lists, None, and kinds of values: MaxText restores into the same structure or not at all.
    assert tree_metadata(tmp_path / "out") == tree_metadata(GOLDEN / "maxtext")
    assert f"load_full_state_path={tmp_path}/out/{STEP}/items" in done.command
    assert not (tmp_path / "out" / "0").exists()


def test_parameters_are_counted_once(tmp_path: Path) -> None:
    totals = run(SOURCE, tmp_path / "out", state=True).plan.totals
    alone = run(SOURCE, tmp_path / "alone").plan.totals
    assert (totals.source_parameters, totals.target_parameters, totals.difference) == (61152, 61152, 0)
    assert (totals.state_elements, totals.state_bytes) == (2 * 61152 + 3, 8 * 61152 + 12)
    assert totals.write_bytes == 3 * alone.write_bytes + 12
    assert alone.state_elements == 0


def test_parameters_alone_are_converted_as_before(tmp_path: Path, newest_orbax: Restorer) -> None:
    run(SOURCE, tmp_path / "out")
    state = newest_orbax.restore(GOLDEN / "maxtext", step=STEP, plain=False)
    parameters = {path: values for path, values in state.items() if path.startswith("params/")}
    assert_same_leaves(newest_orbax.restore(tmp_path / "out"), parameters)


@pytest.mark.parametrize(
    ("base", "counts"),
    [
        ("learner/optimizer/1/0", ("learner/optimizer/1/1/count", "learner/optimizer/1/3/count")),
        ("learner/optimizer/0", ()),
        ("learner/all/optimizer/2/0/0", ("learner/all/optimizer/2/4/count",)),
    ],
    ids=["without mup", "another chain", "CompositeLearner"],
)
def test_state_is_found_wherever_it_is(
    base: str, counts: tuple[str, ...], tmp_path: Path, newest_orbax: Restorer
) -> None:
    tensors = trained_tensors(base=base, counts=counts)
    run(write_trained(tmp_path / "step_00000100", tensors), tmp_path / "out", state=True)
    assert_same_leaves(newest_orbax.restore(tmp_path / "out", step=99), expected_state(tensors, base=base))


@pytest.mark.parametrize("dtype", ["bfloat16"])
def test_moments_keep_the_dtype_of_their_parameters(dtype: str, tmp_path: Path, newest_orbax: Restorer) -> None:
    tensors = trained_tensors(dtype=dtype)
    run(write_trained(tmp_path / "step_00000100", tensors), tmp_path / "out", state=True)
    assert_same_leaves(newest_orbax.restore(tmp_path / "out", step=99), expected_state(tensors))


@pytest.mark.parametrize(("step", "directory"), [(0, 0), (1, 0), (2, 1)])
def test_directory_is_the_last_step_counted_from_zero(
    step: int, directory: int, tmp_path: Path, newest_orbax: Restorer
) -> None:
    tensors = trained_tensors(step=step)
    source = write_trained(tmp_path / f"step_{step:08}", tensors, step=step)
    run(source, tmp_path / "out", state=True)
    found = newest_orbax.restore(tmp_path / "out", step=directory)
    assert [int(found[path]) for path in ("step", "opt_state/0/count", "opt_state/2/count")] == [step, step, step + 1]


Change = Callable[[dict[str, np.ndarray]], None]
MU = f"{PLAIN_CHAIN}/mu/decoder/output_norm/scale"
NU = f"{PLAIN_CHAIN}/nu/decoder/output_norm/scale"


def without(*names: str) -> Change:
    """Removes all tensors below these nodes."""

    def change(tensors: dict[str, np.ndarray]) -> None:
        for path in [path for path in tensors if path.startswith(names)]:
            del tensors[path]

    return change


def renamed(old: str, new: str) -> Change:
    def change(tensors: dict[str, np.ndarray]) -> None:
        for path in [path for path in tensors if path.startswith(old)]:
            tensors[new + path.removeprefix(old)] = tensors.pop(path)

    return change


def put(path: str, values: np.ndarray) -> Change:
    return lambda tensors: tensors.update({path: values})


def second_optimizer(tensors: dict[str, np.ndarray]) -> None:
    for path in [path for path in tensors if path.startswith("learner/")]:
        tensors[path.replace("learner/", "learner/second/")] = tensors[path]


def sgd(tensors: dict[str, np.ndarray]) -> None:
    renamed(f"{PLAIN_CHAIN}/mu", "learner/optimizer/0/trace")(tensors)
    without(f"{PLAIN_CHAIN}/nu")(tensors)


def adafactor(tensors: dict[str, np.ndarray]) -> None:
    without("learner/")(tensors)
    tensors["learner/optimizer/0/v_row/decoder/output_norm/scale"] = np.zeros(1, np.float32)
    tensors["learner/optimizer/0/count"] = np.array(100, np.int32)


def adastar(tensors: dict[str, np.ndarray]) -> None:
    without("learner/")(tensors)
    node = "learner/optimizer/inner_state/compute_updates"
    for name in ("gradient_square_ema", "update_ema"):
        tensors[f"{node}/pps/decoder/output_norm/scale/{name}"] = np.zeros(12, np.float32)
    tensors[f"{node}/count"] = np.array(100, np.int32)


REFUSED: dict[str, tuple[Change, int, str]] = {
    "no learner": (without("learner/"), 3, "found the parameters alone"),
    "counts alone": (without(f"{PLAIN_CHAIN}/mu", f"{PLAIN_CHAIN}/nu"), 3, "found learner/optimizer/1/0/count"),
    "momentum": (without(f"{PLAIN_CHAIN}/nu"), 3, "found learner/optimizer/1/0/mu but no learner/optimizer/1/0/nu"),
    "no mu": (without(f"{PLAIN_CHAIN}/mu"), 3, "found learner/optimizer/1/0/nu but no learner/optimizer/1/0/mu"),
    "trace": (sgd, 3, "found learner/optimizer/0/trace (23 of 23 parameters)"),
    "adafactor": (adafactor, 3, "found learner/optimizer/0/v_row (1 of"),
    "adafactor by name": (
        adafactor,
        3,
        "holds the state of Adafactor, which no optimizer of MaxText can continue from",
    ),
    "adastar by name": (adastar, 3, "holds the state of AdaStar, which no optimizer of MaxText can continue from"),
    "momentum by name": (sgd, 3, "holds the state of SGD with momentum, which no optimizer of MaxText can"),
    "a moment leaf": (without(NU), 3, f"the first is {NU}"),
    "Adam's count": (without(f"{PLAIN_CHAIN}/count"), 3, f"{PLAIN_CHAIN}/count is missing"),
    "another shape": (put(MU, np.zeros(5, np.float32)), 3, f"{MU} has the shape [5], its parameter [12]"),
    "another dtype": (put(MU, np.zeros(12, ml_dtypes.bfloat16)), 4, f"{MU}: bfloat16, expected float32"),
    "a moment too many": (
        put(f"{PLAIN_CHAIN}/mu/decoder/extra", np.zeros(3, np.float32)),
        4,
        f"{PLAIN_CHAIN}/mu/decoder/extra is a moment, but there is no such parameter",
    ),
    "two optimizers": (second_optimizer, 4, "learner/optimizer/1/0, learner/second/optimizer/1/0"),
    "Adam's count differs": (
        put(f"{PLAIN_CHAIN}/count", np.array(99, np.int32)),
        3,
        "the step is 100, but learner/optimizer/1/0/count is 99",
    ),
    "the schedule's count differs": (
        put(COUNTS[1], np.array(7, np.int32)),
        3,
        f"the step is 100, but {COUNTS[1]} is 7",
    ),
    "a count of no kind": (put(COUNTS[0], np.zeros(2, np.float32)), 3, f"{COUNTS[0]} is float32[2], no count"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_what_is_not_a_whole_state_of_adam(name: str, tmp_path: Path) -> None:
    change, code, text = REFUSED[name]
    tensors = trained_tensors()
    change(tensors)
    source = write_trained(tmp_path / "step_00000100", tensors)
    with pytest.raises(Ax2mtError) as caught:
        run(source, tmp_path / "out", state=True)
    assert caught.value.exit_code == code
    assert text in caught.value.message
    assert not (tmp_path / "out").exists()
    run(source, tmp_path / "out")  # the parameters are there all the same


def test_refuses_a_state_without_its_step(tmp_path: Path) -> None:
    source = write_trained(tmp_path / "step_00000100", trained_tensors())
    index = source / "index"
    index.write_text(json.dumps([entry for entry in json.loads(index.read_text()) if entry[0] != "step"]))
    with pytest.raises(SourceError, match="--state needs the step"):
        run(source, tmp_path / "out", state=True)


@pytest.mark.parametrize("damaged", [MU, NU, COUNTS[0]])
def test_missing_chunks_of_the_state_are_found_first(damaged: str, tmp_path: Path) -> None:
    source = write_trained(tmp_path / "step_00000100", trained_tensors())
    for chunk in (source / "gda" / damaged).glob("[0-9]*"):
        chunk.unlink()
    with pytest.raises(SourceError) as caught:
        run(source, tmp_path / "out", state=True)
    assert damaged in str(caught.value)


@pytest.mark.parametrize("options", [{"untie": True}, {"qk_norm": "fit"}], ids=["untie", "fit"])
def test_copies_and_fits_contradict_the_state(options: dict[str, Any], tmp_path: Path) -> None:
    source = write_trained(tmp_path / "step_00000100", trained_tensors())
    with pytest.raises(UsageError, match=r"would not continue exactly.*--force"):
        run(source, tmp_path / "out", state=True, **options)
    done = run(source, tmp_path / "out", state=True, force=True, **options)
    assert any("--force" in note for note in done.plan.notes)


def test_forced_copies_have_the_moments_of_their_tensor(tmp_path: Path, newest_orbax: Restorer) -> None:
    tensors = trained_tensors()
    run(write_trained(tmp_path / "step_00000100", tensors), tmp_path / "out", state=True, force=True, untie=True)
    found = newest_orbax.restore(tmp_path / "out", step=99)
    for name in ("mu", "nu"):
        expected = tensors[f"{PLAIN_CHAIN}/{name}/decoder/emb/token_emb/weight"].T
        assert np.array_equal(found[f"opt_state/0/{name}/params/decoder/logits_dense/kernel"], expected)


@pytest.mark.parametrize("store", STORES)
def test_adam_pax_has_corrected_moments_and_one_count(store: str, tmp_path: Path, newest_orbax: Restorer) -> None:
    tensors = trained_tensors(step=3)
    source = write_trained(tmp_path / "step_00000003", tensors, step=3)
    run(source, tmp_path / "out", state=True, optimizer="adam_pax", store=store)
    found = newest_orbax.restore(tmp_path / "out", step=2)
    expected = expected_state(tensors, step=3)
    for path, values in found.items():
        if path.startswith("opt_state/") and path != "opt_state/count":
            name = path.split("/")[1]
            plain = expected[path.replace("opt_state/", "opt_state/0/")].astype(np.float64)
            beta = {"mu": 0.9, "nu": 0.95}[name]
            assert np.array_equal(values, (plain * (1 / (1 - beta**3))).astype(np.float32)), path
    assert (int(found["step"]), int(found["opt_state/count"])) == (3, 3)
    assert len(found) == len(expected) - 1
    kinds = {
        part["key_type"] for entry in tree_metadata(tmp_path / "out", 2).values() for part in entry["key_metadata"]
    }
    assert kinds == {2}, "a dictionary everywhere"


def test_resumes_with_the_state(tmp_path: Path, newest_orbax: Restorer, faulty: FaultyStorage) -> None:
    tensors = trained_tensors()
    source = write_trained(tmp_path / "step_00000100", tensors)
    faulty.fail("create", r"opt_state\.0\.nu", nth=9)
    with pytest.raises(DestinationError, match="Input/output error"):
        run(source, tmp_path / "out", state=True)
    faulty.heal()
    with pytest.raises(DestinationError, match="differs from this one"):
        run(source, tmp_path / "out")  # without the state it is another conversion
    done = run(source, tmp_path / "out", state=True)
    assert done.resumed
    assert done.written.counts.kept
    assert_same_leaves(newest_orbax.restore(tmp_path / "out", step=99), expected_state(tensors))


def test_a_scaled_row_scales_its_moments_the_other_way(tmp_path: Path, newest_orbax: Restorer) -> None:
    table = (MAPPINGS / "envy.toml").read_text()
    marked = 'axlearn = "decoder/output_norm/scale"\n'
    assert table.count(marked) == 1
    own = tmp_path / "own.toml"
    own.write_text(table.replace(marked, f"{marked}scale = 4.0\n"))
    tensors = trained_tensors()
    source = write_trained(tmp_path / "step_00000100", tensors)
    with pytest.raises(UsageError, match="scaled, but not the size of their updates"):
        run(source, tmp_path / "out", state=True, mapping=str(own))
    run(source, tmp_path / "out", state=True, force=True, mapping=str(own))
    found, plain = newest_orbax.restore(tmp_path / "out", step=99), expected_state(tensors)
    factors = {"params/params": 4.0, "opt_state/0/mu/params": 1 / 4, "opt_state/0/nu/params": 1 / 16}
    scaled = {f"{tree}/decoder/decoder_norm/scale": factor for tree, factor in factors.items()}
    assert_same_leaves(
        found,
        {
            path: (values * scaled[path]).astype(values.dtype) if path in scaled else values
            for path, values in plain.items()
        },
    )


PAIRS: dict[str, tuple[tuple[str, ...], str]] = {
    "average and state": (("--tree", "ema", "--state"), "--tree ema converts others"),
    "optimizer alone": (("--optimizer", "adamw"), "add --state"),
    "force alone": (("--force",), "add --state, or drop --force"),
    "sgd": (("--state", "--optimizer", "sgd"), "keeps no moments"),
    "spikes": (("--state", "--optimizer", "skip_step_on_spikes"), "history of losses"),
    "muon": (("--state", "--optimizer", "muon"), "another momentum"),
    "unknown": (("--state", "--optimizer", "lion"), "--optimizer lion: expected one of adamw, adam_pax"),
    "untie": (("--state", "--untie"), "--untie adds a copy of a trained tensor"),
    "fit": (("--state", "--qk-norm", "fit"), "--qk-norm fit writes other values"),
}


@pytest.mark.parametrize("command", ["convert", "plan"])
@pytest.mark.parametrize("pair", PAIRS)
def test_options_that_contradict_each_other(pair: str, command: str, tmp_path: Path, in_process: Cli) -> None:
    options, text = PAIRS[pair]
    target = [tmp_path / "out"] if command == "convert" else []
    done = in_process(command, SOURCE, *target, *options)
    assert (done.code, done.out) == (2, "")
    assert text in done.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "options",
    [
        ("--check",), ("--rewrite", "--store", "zarr2"), ("--link", "--store", "ocdbt"), ("--step", "20"),
        ("--max-memory", "20MiB", "--jobs", "1"), ("--require-exact",), ("--mapping", MAPPINGS / "envy.toml"),
        ("--untie", "--force"), ("--qk-norm", "fit", "--force"), ("--set", "rope_max_timescale=10000"),
    ],
    ids=lambda options: options[0],
)  # fmt: skip
def test_options_that_go_with_the_state(
    options: tuple[str, ...], tmp_path: Path, in_process: Cli, nearby: Callable[[Path], Path]
) -> None:
    source = nearby(SOURCE)
    done = in_process("convert", source, tmp_path / "out", "--state", "--json", *options)
    assert done.code == 0, done.out
    jsonschema.validate(done.document, DOCUMENTS["convert"].schema)
    assert [tree["name"] for tree in done.document["trees"]] == ["params", "mu", "nu"]
    assert done.document["state"]["step"] == 20
    assert done.document["directory"] == "19/items"
    mapping = options if options[0] == "--mapping" else ()
    assert in_process("verify", source, tmp_path / "out", *mapping, "-q").code == 0


def test_overwrite_and_fresh_with_the_state(tmp_path: Path, in_process: Cli) -> None:
    for options in ((), ("--state", "--overwrite"), ("--state", "--overwrite", "--fresh"), ("--overwrite",)):
        done = in_process("convert", SOURCE, tmp_path / "out", "-q", *options)
        assert done.code == 0, done.err
        steps = [path.name for path in (tmp_path / "out").iterdir() if path.is_dir()]
        assert steps == (["19"] if "--state" in options else ["0"])


def test_metadata_alone_is_enough_for_the_plan(tmp_path: Path, in_process: Cli) -> None:
    source = write_trained(tmp_path / "step_00000100", trained_tensors())
    for file in list((source / "gda").rglob("*")):
        if file.is_file() and file.name != ".zarray":
            file.unlink()
    done = in_process("plan", source, "--state", "--metadata-only", "--json")
    assert done.code == 0, done.out
    jsonschema.validate(done.document, DOCUMENTS["plan"].schema)
    assert done.document["state"]["scalars"][-1]["value"] == 101
