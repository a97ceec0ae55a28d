"""The state that our tests expect is the one that the real MaxText was continued from."""

from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from tests.conftest import DATA, Cli
from tests.helpers.training_state import expected_state, write_state

GOLDENS = {"micro-envy": 84, "micro-fuji": 39}


def restored(items: Path) -> dict[str, np.ndarray]:
    """What Orbax finds in a checkpoint, by "/"-joined path."""
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        found, _ = jax.tree_util.tree_flatten_with_path(checkpointer.restore(items))
    return {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(values) for path, values in found}


def assert_same_bits(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for path, values in expected.items():
        assert (found[path].shape, found[path].dtype) == (values.shape, values.dtype), path
        assert found[path].tobytes() == values.tobytes(), path


@pytest.mark.parametrize("name", GOLDENS)
def test_it_is_the_state_of_the_golden(name: str) -> None:
    expected = expected_state(DATA / "training" / name)
    assert len(expected) == GOLDENS[name]
    assert_same_bits(restored(DATA / "training" / name / "maxtext" / "19" / "items"), expected)


@pytest.mark.parametrize("optimizer", ["adamw", "adam_pax"])
def test_what_is_written_is_read(optimizer: str, tmp_path: Path) -> None:
    expected = expected_state(DATA / "training" / "micro-fuji", optimizer=optimizer)
    items = write_state(tmp_path, expected)
    assert items == tmp_path / "19" / "items"
    assert_same_bits(restored(items), expected)


def test_adam_pax_has_one_count_and_corrected_moments() -> None:
    golden = DATA / "training" / "micro-envy"
    plain, corrected = expected_state(golden), expected_state(golden, optimizer="adam_pax")
    assert corrected["opt_state/count"] == 20
    assert len(corrected) == len(plain) - 1
    leaf = "params/token_embedder/embedding"
    for moment, factor in (("mu", 1 / (1 - 0.9**20)), ("nu", 1 / (1 - 0.95**20))):
        ratio = corrected[f"opt_state/{moment}/{leaf}"] / plain[f"opt_state/0/{moment}/{leaf}"]
        np.testing.assert_allclose(ratio, factor, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "optimizer"), [("micro-envy", "adamw"), ("micro-envy", "adam_pax"), ("micro-fuji", "adamw")]
)
def test_convert_writes_it(name: str, optimizer: str, in_process: Cli, tmp_path: Path) -> None:
    golden = DATA / "training" / name
    done = in_process("convert", golden / "axlearn", tmp_path / "out", "--state", "--optimizer", optimizer)
    assert done.code == 0, done.err
    found, expected = restored(tmp_path / "out" / "19" / "items"), expected_state(golden, optimizer=optimizer)
    # The schedule's count belongs to the flags of the schedule; test_training.py proves the two together.
    schedule = "opt_state/2/count"
    assert found.get(schedule, 20) in (20, 21)
    assert_same_bits({**found, schedule: np.array(0)}, {**expected, schedule: np.array(0)})
