"""MaxText's own train loop continues AXLearn's training from what `convert --state` writes, and computes its steps."""

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import DATA, Cli
from tests.helpers import environments
from tests.helpers.axlearn_checkpoint import halves
from tests.helpers.training_runs import Run, TrainLoops, below, largest, relative
from tests.helpers.training_state import expected_state, maxtext_state

ENVY, FUJI = DATA / "training" / "micro-envy", DATA / "training" / "micro-fuji"
STEP = 20
"""Updates that AXLearn had done when it saved; five more follow in both programs."""

SCHEDULE = "opt_state/2/count"

SCALE = re.compile(r"(per_param_scale\.scale_by_path\[\d+\]\[1\]: )1\.0")

# One process does all runs; `--dist loadfile` keeps a module's tests on one worker. On a busy machine a run takes
# minutes: the limit is for a process that hangs.
pytestmark = [pytest.mark.maxtext, pytest.mark.timeout(1800)]


def convert(cli: Cli, source: Path, target: Path, *options: str) -> dict[str, Any]:
    """Converts with optimizer state; returns the document with the commands to train on."""
    done = cli("convert", source, target, "--state", "--json", *options)
    assert done.code == 0, done.err
    return done.document


def with_mup(source: Path, target: Path, scale: float) -> Path:
    """A golden's trainer directory with another muP scale in its configuration."""
    shutil.copytree(source, target)
    config = target / "trainer_config"
    text, count = SCALE.subn(rf"\g<1>{scale}", config.read_text())
    assert count == 8
    config.write_text(text)
    return target


class Training:
    """The conversions, and the runs that start from them.

    Attributes:
      problems: by run, why it could not be started.
    """

    def __init__(self, python: str, folder: Path, cli: Cli):
        self.folder = folder
        self.cli = cli
        self.runs: list[Run] = []
        self.problems: dict[str, str] = {}
        for prepare in (self.envy, self.interleaved, self.fuji, self.mup, self.pax):
            try:
                prepare()
            except AssertionError as error:
                self.problems[prepare.__name__] = str(error)
        self.loops = TrainLoops(python, folder, self.runs)

    def __getitem__(self, name: str) -> dict[str, np.ndarray]:
        if name not in [run.name for run in self.runs]:
            pytest.fail(f"no run {name}: {self.problems}")
        return self.loops[name]

    def envy(self) -> None:
        """Envy: exact, the same from a run directory, and everything that is not exact."""
        target = self.folder / "envy"
        made = convert(self.cli, ENVY / "axlearn", target)
        command, batches = made["command"], ENVY / "batches.npz"
        items = target / str(STEP - 1) / "items"
        assert f"load_full_state_path={items} " in command
        resumed = self.folder / "runs" / "resumed" / "checkpoints"
        resumed.mkdir(parents=True)
        shutil.copytree(items.parent, resumed / items.parent.name)
        bare = {"load_full_state_path": "", "load_parameters_path": str(items)}
        self.runs += [
            Run(name="exact", command=command, batches=batches),
            Run(name="stock", command=made["stock_command"], batches=batches),
            Run(name="norm-only", command=command, batches=batches, without=["unrounded_tied_logits"]),
            Run(name="resumed", command=command, batches=batches, changes={"load_full_state_path": ""}),
            Run(name="parameters", command=command, batches=batches, changes=bare),
        ]

    def interleaved(self) -> None:
        """Envy with the rotated pairs of q and k as AXLearn has them."""
        made = convert(self.cli, ENVY / "axlearn", self.folder / "interleaved", "--rope", "interleaved")
        self.runs.append(Run(name="interleaved", command=made["command"], batches=ENVY / "batches.npz"))

    def fuji(self) -> None:
        """Fuji, for which MaxText needs no patch."""
        made = convert(self.cli, FUJI / "axlearn", self.folder / "fuji")
        assert made["command"] == made["stock_command"]
        self.runs.append(Run(name="fuji", command=made["command"], batches=FUJI / "batches.npz"))

    def mup(self) -> None:
        """Envy with the muP scale of the published Switch-Base."""
        source = with_mup(ENVY / "axlearn", self.folder / "source of mup", 0.5)
        made = convert(self.cli, source, self.folder / "mup")
        self.runs.append(Run(name="mup", command=made["command"], batches=ENVY / "batches.npz"))

    def pax(self) -> None:
        """Envy for the other Adam of MaxText's."""
        made = convert(self.cli, ENVY / "axlearn", self.folder / "pax", "--optimizer", "adam_pax")
        self.runs.append(Run(name="pax", command=made["command"], batches=ENVY / "batches.npz"))


@pytest.fixture(scope="module")
def training(maxtext_python: str, in_process: Cli, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Training]:
    trains = subprocess.run([maxtext_python, "-c", "import ml_collections"], capture_output=True, check=False)
    if trains.returncode and not environments.in_ci():
        pytest.skip("the linked .venv-maxtext has no ml-collections, which training needs")
    result = Training(maxtext_python, tmp_path_factory.mktemp("training"), in_process)
    yield result
    result.loops.close()


def axlearn(golden: Path, name: str, prefix: str = "") -> dict[str, np.ndarray]:
    """What AXLearn's own trainer computed in the next five steps."""
    with np.load(golden / name) as file:
        return below(file, prefix)


def next_state(golden: Path) -> dict[str, np.ndarray]:
    """AXLearn's state after the five steps, as MaxText's."""
    return maxtext_state(axlearn(golden, "axlearn_state_25.npz"))


def assert_same_steps(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
    np.testing.assert_array_equal(found["step"] + 1, expected["step"])
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=0, atol=2e-6)
    np.testing.assert_allclose(found["raw_grad_norm"], expected["gradient_norm"], rtol=2e-6)
    rates = expected["learning_rate"] * expected["schedule_scale"]
    np.testing.assert_allclose(found["learning_rate"], rates, rtol=1e-6)


def assert_loaded(found: Mapping[str, np.ndarray], golden: Path, optimizer: str = "adamw") -> None:
    """Before its first step MaxText has the whole state, bit for bit: to what is missing it says nothing."""
    start, expected = below(found, "start/"), expected_state(golden, optimizer=optimizer)
    assert start.keys() == expected.keys()
    different = {path for path, values in expected.items() if start[path].tobytes() != values.tobytes()}
    # The schedule's count belongs to the flags of the schedule: together they give AXLearn's learning rates, or not.
    assert different <= {SCHEDULE}
    assert start.get(SCHEDULE, STEP) in (STEP, STEP + 1)


def moments_of(state: Mapping[str, np.ndarray], place: str = "opt_state/0") -> Callable[[str], dict[str, np.ndarray]]:
    return lambda moment: below(state, f"{place}/{moment}/params/")


@pytest.mark.parametrize(("run", "golden"), [("exact", ENVY), ("resumed", ENVY), ("fuji", FUJI)])
def test_five_steps_are_axlearns(run: str, golden: Path, training: Training) -> None:
    found = training[run]
    assert_loaded(found, golden)
    assert_same_steps(found, axlearn(golden, "axlearn_next.npz"))
    end, expected = below(found, "end/"), next_state(golden)
    assert max(largest(below(end, "params/"), below(expected, "params/")).values()) < 1e-6
    for moment in ("mu", "nu"):
        assert relative(moments_of(end)(moment), moments_of(expected)(moment)) < 2e-6
    assert (end["step"], end["opt_state/0/count"]) == (STEP + 5, STEP + 5)
    assert end[SCHEDULE] == found[f"start/{SCHEDULE}"] + 5


def permuted(state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Parameters with the pairs of q, k and their norm scales as MaxText's usual RoPE has them."""

    def turned(path: str, values: np.ndarray) -> np.ndarray:
        if path.endswith(("query/kernel", "key/kernel")):
            return halves(values)
        return halves(values.T).T if path.endswith(("query_norm/scale", "key_norm/scale")) else values

    return {path: turned(path, values) for path, values in state.items()}


def test_five_steps_in_the_order_of_axlearn(training: Training) -> None:
    found = training["interleaved"]
    assert_same_steps(found, axlearn(ENVY, "axlearn_next.npz"))
    start, end = (permuted(below(found, f"{time}/params/")) for time in ("start", "end"))
    expected = below(expected_state(ENVY), "params/")
    assert {path for path, values in expected.items() if start[path].tobytes() != values.tobytes()} == set()
    assert max(largest(end, below(next_state(ENVY), "params/")).values()) < 1e-6


def test_both_ways_of_loading_are_the_same(training: Training) -> None:
    exact, resumed = training["exact"], training["resumed"]
    assert exact.keys() == resumed.keys()
    assert [key for key in exact if exact[key].tobytes() != resumed[key].tobytes()] == []


def test_mup_scales_the_updates(training: Training) -> None:
    expected = axlearn(ENVY, "axlearn_variants.npz", "mup_0.5/")
    found = training["mup"]
    assert_loaded(found, ENVY)
    assert_same_steps(found, expected)
    # The golden has three tensors after the last step: one without a scale, the router without, and one with.
    parameters = below(maxtext_state({**axlearn(ENVY, "axlearn_state_25.npz"), **below(expected, "25/")}), "params/")
    end = below(below(found, "end/"), "params/")
    for leaf in ("token_embedder/embedding", "layers_1/MoeBlock_0/gate/kernel", "layers_0/mlp/wo/kernel"):
        (path,) = [path for path in parameters if path.endswith(leaf)]
        assert np.abs(end[path] - parameters[path]).max() < 1e-6


@pytest.mark.parametrize(("run", "name"), [("stock", "stock"), ("norm-only", "norm_after_rope_only")])
def test_what_is_not_exact_is_off_as_measured(run: str, name: str, training: Training) -> None:
    expected, measured = axlearn(ENVY, "axlearn_next.npz"), axlearn(ENVY, "maxtext_next.npz", f"{name}/")
    found = training[run]
    for ours, theirs in (("loss", "loss"), ("raw_grad_norm", "gradient_norm")):
        off, known = found[ours] - expected[theirs], measured[ours] - expected[theirs]
        assert np.abs(known).max() > 1e-4
        np.testing.assert_allclose(off, known, rtol=0, atol=0.2 * np.abs(known).max())


def test_stock_maxtext_spoils_the_scales_of_q_and_k_most(training: Training) -> None:
    off = largest(below(below(training["stock"], "end/"), "params/"), below(next_state(ENVY), "params/"))
    scales = {path: value for path, value in off.items() if path.endswith(("query_norm/scale", "key_norm/scale"))}
    assert len(scales) == 4
    assert 5e-3 < max(scales.values()) < 1e-2
    assert max(value for path, value in off.items() if path not in scales) < 2e-4


def test_parameters_alone_are_another_training(training: Training) -> None:
    found, start, expected = training["parameters"], expected_state(ENVY), next_state(ENVY)
    steps = axlearn(ENVY, "axlearn_next.npz")
    assert found["step"].tolist() == [0, 1, 2, 3, 4]
    assert abs(found["loss"][0] - steps["loss"][0]) < 2e-6
    assert np.abs(found["loss"] - steps["loss"]).max() > 1e-3
    moved = {path: expected[path] - start[path] for path in below(expected, "") if path.startswith("params/")}
    ours = {path: below(found, "end/")[path] - start[path] for path in moved}
    assert relative(ours, moved) == pytest.approx(0.98, rel=0.1)


def test_adam_pax_has_the_bias_corrected(training: Training) -> None:
    found, expected = training["pax"], next_state(ENVY)
    assert_loaded(found, ENVY, "adam_pax")
    assert_same_steps(found, axlearn(ENVY, "axlearn_next.npz"))
    np.testing.assert_allclose(found["logged_learning_rate"], found["learning_rate"], rtol=1e-6)
    end = below(found, "end/")
    assert max(largest(below(end, "params/"), below(expected, "params/")).values()) < 1e-6
    corrected = maxtext_state(axlearn(ENVY, "axlearn_state_25.npz"), optimizer="adam_pax")
    for moment in ("mu", "nu"):
        assert relative(moments_of(end, "opt_state")(moment), moments_of(corrected, "opt_state")(moment)) < 2e-6
    assert end["opt_state/count"] == corrected["opt_state/count"]
