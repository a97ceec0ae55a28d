"""The real MaxText loads what we write, with our maxtext.yml, and computes AXLearn's logits."""

import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import AXLEARN, MAXTEXT

SCRIPT = Path(__file__).parent / "helpers" / "maxtext_logits.py"
LOADERS = ("load_params_from_path", "from_pretrained")
CASES = {
    "pairs-untied": ("micro-hybrid-qkpair", {"untie": True}),
    "pairs-tied": ("micro-hybrid-qkpair", {"store": "ocdbt"}),
    "unequal-untied": ("micro-hybrid", {"untie": True, "store": "ocdbt"}),
    "unequal-tied": ("micro-hybrid", {"store": "zarr2"}),
    "sharded-untied": ("micro-hybrid-sharded", {"untie": True}),
    "prenorm-untied": ("envy-test", {"untie": True}),
}

# All of them need one expensive process; with xdist they stay together on one worker.
pytestmark = [pytest.mark.maxtext, pytest.mark.xdist_group("maxtext")]

Logits = Mapping[str, Mapping[str, np.ndarray]]


@pytest.fixture(scope="module")
def logits(maxtext_python: str, converted: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Logits:
    """For each case the logits that MaxText computes after each of its two loaders."""
    folder = tmp_path_factory.mktemp("logits")
    arguments: list[str] = []
    for case, (name, options) in CASES.items():
        np.save(folder / f"{case}.npy", axlearn(name, "input_ids").astype(np.int32))
        arguments += [str(converted(name, **options)), str(folder / f"{case}.npy"), str(folder / f"{case}.npz")]
    # -P: nothing of the project's directory can be imported.
    done = subprocess.run([maxtext_python, "-P", str(SCRIPT), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    result = {}
    for case in CASES:
        with np.load(folder / f"{case}.npz") as file:
            result[case] = {loader: file[loader] for loader in LOADERS}
    return result


def axlearn(name: str, what: str = "logits") -> np.ndarray:
    """AXLearn's own logits, or what it computed them from."""
    with np.load(AXLEARN / name / "logits.npz") as file:
        return file[what]


def difference(found: np.ndarray, expected: np.ndarray) -> float:
    assert found.shape == expected.shape
    assert np.isfinite(found).all()
    return float(np.abs(found - expected).max())


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("case", ["pairs-untied", "sharded-untied"])
def test_exact_where_the_pairs_are_equal(case: str, loader: str, logits: Logits) -> None:
    expected = axlearn(CASES[case][0])
    assert expected.std() > 0.5
    assert difference(logits[case][loader], expected) < 1e-5


@pytest.mark.parametrize("loader", LOADERS)
def test_tied_logits_are_rounded(loader: str, logits: Logits) -> None:
    found = difference(logits["pairs-tied"][loader], axlearn("micro-hybrid-qkpair"))
    assert 1e-5 < found < 2e-2


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("kind", ["tied", "untied"])
def test_what_we_say_about_unequal_pairs_is_true(kind: str, loader: str, logits: Logits) -> None:
    # Stock MaxText is not exact here, by exactly as much as was measured when MaxText ran its own checkpoint.
    measured = json.loads((MAXTEXT / "micro-hybrid" / "meta.json").read_text())["compare_to_axlearn"]
    stock = measured[f"scanned/{kind}/stock"]["maxabs"]
    found = difference(logits[f"unequal-{kind}"][loader], axlearn("micro-hybrid"))
    assert found == pytest.approx(stock, rel=0.01)
    with np.load(MAXTEXT / "micro-hybrid" / "logits.npz") as file:
        assert difference(logits[f"unequal-{kind}"][loader], file[f"maxtext_stock_{kind}"]) < 1e-4


@pytest.mark.parametrize("loader", LOADERS)
def test_prenorm_with_unequal_pairs(loader: str, logits: Logits) -> None:
    with np.load(MAXTEXT / "envy-test" / "logits.npz") as file:
        assert difference(logits["prenorm-untied"][loader], file["maxtext_stock_untied"]) < 1e-4
