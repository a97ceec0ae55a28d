"""The training state: moments, counts and the step, against a state that was put together by hand for MaxText."""

import json
from pathlib import Path
from typing import Any

import pytest

from converter.choices import STORES
from tests.conftest import DATA
from tests.helpers.compare import assert_same_leaves
from tests.helpers.conversion import run
from tests.helpers.restorer import Restorer

GOLDEN = DATA / "training" / "micro-envy"
SOURCE = GOLDEN / "axlearn"
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
def test_equals_the_state_made_by_hand(route: dict[str, Any], tmp_path: Path, newest_orbax: Restorer) -> None:
    done = run(SOURCE, tmp_path / "out", state=True, **route)
    expected = newest_orbax.restore(GOLDEN / "maxtext", step=STEP, plain=False)
    assert len(expected) == 84
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
