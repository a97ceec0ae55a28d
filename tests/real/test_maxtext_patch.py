"""The patches in the real MaxText: AXLearn's logits and updates, and what is refused."""

import json
import os
import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converter.conversion.run import Request, convert
from converter.planning.options import Options
from converter.work import Silent
from tests.conftest import AXLEARN
from tests.helpers import environments
from tests.helpers.arrays import read_npz
from tests.helpers.conversion import make_options

pytestmark = [pytest.mark.maxtext, pytest.mark.timeout(1800)]

HELPER = environments.ROOT / "tests" / "helpers" / "maxtext_patched.py"

# What the helper gives to the patch and to the optimizer.
SCALES = {"a/x/kernel": 0.5, "a/y/kernel": 0.5, "b": 0.25, "norm/scale": 1.0}
SCHEDULE = (0.2, 0.6, 1.0, 0.9, 0.7)
PEAK, DECAY = 1e-2, 1e-4
LEAVES = {
    f"params/decoder/layers/{path}": 0.5
    for path in ("*/self_attention/*/kernel", "layers_0/mlp/*/kernel", "*/MoeBlock_0/wi_0", "*/MoeBlock_0/wi_1",
                 "*/MoeBlock_0/wo")
}  # fmt: skip


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A conversion with tied logits whose configuration lists all three patches."""
    out = tmp_path_factory.mktemp("patches") / "tied"
    convert(Request(str(AXLEARN / "micro-hybrid"), str(out), Options()), Silent())
    patches = [{"name": "norm_after_rope", "decoder_block": "envy"}, {"name": "unrounded_tied_logits"},
               {"name": "scaled_updates", "leaves": LEAVES}]  # fmt: skip
    config = out / "maxtext.yml"
    rest = [line for line in config.read_text().splitlines() if not line.startswith("# patch:")]
    config.write_text("\n".join([*(f"# patch: {json.dumps(patch)}" for patch in patches), *rest, ""]))
    return out


@pytest.fixture(scope="module")
def work(maxtext_python: str, tied: Path) -> Path:
    """Where the one process with the real MaxText left what it found."""
    interleaved = tied.parent / "interleaved"
    convert(Request(str(AXLEARN / "micro-hybrid"), str(interleaved), make_options(rope="interleaved")), Silent())
    np.save(tied.parent / "ids.npy", read_npz(AXLEARN / "micro-hybrid" / "logits.npz")["input_ids"])
    done = subprocess.run(
        [maxtext_python, str(HELPER), str(environments.ROOT), str(tied.parent), str(tied), str(interleaved)],
        capture_output=True, text=True, cwd=tied.parent, check=False,
        env={**os.environ, **environments.MAXTEXT_VARIABLES},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return tied.parent


@pytest.fixture(scope="module")
def findings(work: Path) -> Mapping[str, Any]:
    return json.loads((work / "findings.json").read_text())


@pytest.mark.parametrize("checkpoint", ["tied", "interleaved"])
def test_tied_logits_are_those_of_axlearn(checkpoint: str, work: Path) -> None:
    expected = read_npz(AXLEARN / "micro-hybrid" / "logits.npz")["logits"]
    with np.load(work / f"{checkpoint}.npz") as found:
        assert set(found.files) == {"load_params_from_path", "from_pretrained"}
        for loader in found.files:
            np.testing.assert_allclose(found[loader], expected, rtol=0, atol=1e-5)


def test_updates_are_those_of_axlearn(work: Path) -> None:
    # AXLearn (34aed43): clip by 1 / (norm + 1e-8), Adam with .9 and .95, and
    # p -= schedule * (peak * scale * adam + decay * p).
    with np.load(work / "updates.npz") as file:
        found = {name: file[name].astype(np.float64) for name in file.files}
    parameters = {name: found[f"0/{name}"] for name in SCALES}
    mu, nu = ({name: np.zeros_like(value) for name, value in parameters.items()} for _ in range(2))
    for step, schedule in enumerate(SCHEDULE, 1):
        gradients = {name: found[f"gradient {step}/{name}"] for name in SCALES}
        norm = np.sqrt(sum((value**2).sum() for value in gradients.values()))
        assert (norm > 1) == bool(step % 2)
        for name, value in parameters.items():
            gradient = gradients[name] * min(1, 1 / (norm + 1e-8))
            mu[name] = 0.9 * mu[name] + 0.1 * gradient
            nu[name] = 0.95 * nu[name] + 0.05 * gradient**2
            adam = mu[name] / (1 - 0.9**step) / (np.sqrt(nu[name] / (1 - 0.95**step)) + 1e-8)
            parameters[name] = value - schedule * (PEAK * SCALES[name] * adam + DECAY * value)
            np.testing.assert_allclose(found[f"{step}/{name}"], parameters[name], rtol=0, atol=1e-6)


def test_the_state_is_that_of_adamw(findings: Mapping[str, Any]) -> None:
    stock = findings["states stock"]
    assert set(stock) == {"plain", "mask", "spikes", "frozen"}
    assert len(set(stock.values())) == 4
    assert findings["states patched"] == stock


def test_the_scales_in_every_branch(findings: Mapping[str, Any]) -> None:
    for branch, stock in findings["first stock"].items():
        assert (np.array(stock) == 0).sum() == (2 if branch == "frozen" else 0)
        np.testing.assert_allclose(findings["first patched"][branch], np.array(stock) * [*SCALES.values()], rtol=1e-6)


def test_the_order_changes_in_the_blocks_that_are_named(findings: Mapping[str, Any]) -> None:
    blocks = ("qwen2", "qwen3", "qwen3_moe")
    assert findings["orders stock"] == {block: ["norm", "norm", "rope", "rope"] for block in blocks}
    assert findings["orders patched"] == {block: ["rope", "rope", "norm", "norm"] for block in blocks}
    assert "llama2 has no q/k norm that can move" in findings["llama2"]


def test_changed_code_is_refused_and_nothing_is_patched(findings: Mapping[str, Any]) -> None:
    changed = findings["changed"]
    assert "norm_after_rope: the q/k norm is expected once" in changed["norm_after_rope"]
    assert "unrounded_tied_logits: the product with a bfloat16 table is expected" in changed["unrounded_tied_logits"]
    assert "scaled_updates: the call of optax.adamw is expected once" in changed["scaled_updates"]
    assert changed["all"] == changed["scaled_updates"]
    assert changed["untouched"]


def test_what_does_not_fit_is_refused(findings: Mapping[str, Any]) -> None:
    assert [("already patched" in message) for message in findings["again"]] == [True, True]
    for kind, message in findings["types"].items():
        assert f"found opt_type={kind}" in message
    assert "no parameter of MaxText's matches params/b; one of its 2 parameters is a/x/kernel" in findings["missing"]
    assert findings["variables"] == ["", ""]  # as MaxText's own trainer passes them


def test_nothing_else_of_ours_is_imported(findings: Mapping[str, Any]) -> None:
    assert {name.split(".")[1] for name in findings["imported"]} == {"maxtext_patch"}


TRAINING = (
    "run_name=R base_output_directory=OUT dataset_type=synthetic tokenizer_path=unused tokenizer_type=huggingface "
    "skip_jax_distributed_system=True hardware=cpu enable_checkpointing=False steps=2 dtype=float32 "
    "per_device_batch_size=1 max_target_length=16 megablox=False sparse_matmul=False"
)


def test_all_three_in_a_training_run(maxtext_python: str, tied: Path) -> None:
    trains = subprocess.run([maxtext_python, "-c", "import ml_collections"], capture_output=True, check=False)
    if trains.returncode and not environments.in_ci():
        pytest.skip("the linked .venv-maxtext has no ml-collections, which training needs")
    done = subprocess.run(
        [maxtext_python, "-m", "converter.maxtext_patch", "maxtext.trainers.pre_train.train", str(tied / "maxtext.yml"),
         f"load_parameters_path={tied}/0/items", *shlex.split(TRAINING)],
        capture_output=True, text=True, cwd=tied.parent, check=False,
        env={**environments.MAXTEXT_VARIABLES, "PATH": "/usr/bin:/bin", "HOME": str(tied.parent),
             "PYTHONPATH": str(environments.ROOT), "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.findall(r"completed step: (\d+)", done.stdout + done.stderr) == ["0", "1"]
    said = [line for line in done.stderr.splitlines() if line.startswith("maxtext_patch: ")]
    assert [line.split(": ")[1] for line in said] == [
        "MaxText 0.2.5", "norm_after_rope", "unrounded_tied_logits", "scaled_updates",
    ]  # fmt: skip
