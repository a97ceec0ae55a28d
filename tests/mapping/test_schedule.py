"""The law of the schedule: MaxText's flags give AXLearn's learning rate for every update, whatever the constants."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from converter.mapping.learner import Constant, Learner
from converter.mapping.schedule import LATER, SAME, make_schedule, schedule_count
from converter.mapping.training import training_flags


def axlearn(n: np.ndarray, warmup: int, end: int, alpha: float) -> np.ndarray:
    """AXLearn's cosine_with_linear_warmup at update number n, counted from 1."""
    cosine = alpha + (1 - alpha) * (1 + np.cos(np.pi * (n - warmup) / (end - warmup))) / 2
    return np.where(n <= warmup, n / max(warmup, 1), cosine)


def maxtext(count: np.ndarray, length: int, fraction: float, alpha: float) -> np.ndarray:
    """create_learning_rate_schedule of MaxText 0.2.5 for a peak of 1, with steps no longer than the schedule."""
    warmup = int(length * fraction)
    rising = np.clip(count, 0, warmup) / max(warmup, 1)
    half = 0.5 * (np.cos(np.pi * (count - warmup) / (length - warmup - 1)) + 1)
    return np.where(count < warmup, rising, half + alpha * (1 - half))


def learner(warmup: int, end: int, alpha: float = 0.005) -> Learner:
    told = {"warmup_steps": warmup, "max_step": end, "alpha": alpha}
    constants: dict[str, Any] = {name: Constant(value=value, origin="test") for name, value in told.items()}
    return Learner(**constants)


def largest_error(warmup: int, end: int, step: int, alpha: float = 0.005) -> float:
    """Over all updates that are left."""
    schedule = make_schedule(learner(warmup, end), step)
    assert schedule is not None
    updates = np.arange(step + 1, end + 1)
    counts = schedule_count(learner(warmup, end), step) + np.arange(len(updates))
    found = maxtext(counts, schedule.length, schedule.warmup_fraction, alpha)
    return float(np.abs(found - axlearn(updates, warmup, end, alpha)).max(initial=0))


@pytest.mark.parametrize(("warmup", "end"), [(5000, 250000), (2000, 3000), (10, 60), (40, 160), (2000, 5_000_000)])
def test_published_schedules(warmup: int, end: int) -> None:
    for step in {0, 1, warmup - 2, warmup - 1, warmup, warmup + 1, (warmup + end) // 2, end - 1}:
        assert largest_error(warmup, end, step) < 1e-12


@given(data=st.data(), warmup=st.integers(0, 300), left=st.integers(1, 300), alpha=st.floats(0, 1))
def test_every_update_has_axlearns_learning_rate(data: st.DataObject, warmup: int, left: int, alpha: float) -> None:
    end = warmup + left
    step = data.draw(st.integers(0, end))
    assert largest_error(warmup, end, step, alpha) < 1e-12


@given(warmup=st.integers(0, 2**29), left=st.integers(1, 2**29))
def test_the_fraction_survives_int(warmup: int, left: int) -> None:
    for step in (0, warmup + left):
        schedule = make_schedule(learner(warmup, warmup + left), step)
        assert schedule is not None
        due = warmup - 1 if schedule.form == SAME else warmup
        assert int(schedule.length * schedule.warmup_fraction) == due
        assert 0 <= schedule.warmup_fraction <= 1


@pytest.mark.parametrize(
    ("warmup", "end", "alpha", "found"),
    [
        (10, 60, 0.005, [0.8858303427696228, 0.8651618957519531, 0.843062162399292, 0.8196184635162354]),
        (40, 160, 0.1, [0.5250000357627869, 0.550000011920929, 0.574999988079071, 0.6000000238418579]),
    ],
)
def test_what_axlearn_itself_logged(warmup: int, end: int, alpha: float, found: list[float]) -> None:
    """The schedule_scale of steps 21 to 24 of two trainings by the real AXLearn, in float32."""
    schedule = make_schedule(learner(warmup, end), 20)
    assert schedule is not None
    counts = schedule_count(learner(warmup, end), 20) + np.arange(4)
    np.testing.assert_allclose(maxtext(counts, schedule.length, schedule.warmup_fraction, alpha), found, rtol=2e-7)


def test_a_run_without_optimizer_state_goes_through_the_whole_schedule() -> None:
    # Its count starts at 0: an update of nothing, then AXLearn's schedule from its first update on.
    schedule = make_schedule(learner(40, 160), None)
    assert schedule is not None
    assert schedule.form == LATER
    updates = np.arange(1, 161)
    found = maxtext(updates, schedule.length, schedule.warmup_fraction, 0.1)
    np.testing.assert_allclose(found, axlearn(updates, 40, 160, 0.1), rtol=0, atol=1e-12)


def test_the_form_and_its_count() -> None:
    forms = {step: make_schedule(learner(10, 60), step) for step in (0, 8, 9, 20)}
    assert {step: schedule and schedule.form for step, schedule in forms.items()} == {
        0: LATER,
        8: LATER,
        9: SAME,
        20: SAME,
    }
    assert [schedule_count(learner(10, 60), step) for step in (0, 8, 9, 20)] == [1, 9, 9, 20]
    assert schedule_count(learner(0, 60), 20) == 21  # without a warm-up, none can be a step shorter
    assert schedule_count(Learner(), 20) == 21


def test_a_schedule_that_is_not_known() -> None:
    assert make_schedule(Learner(max_step=Constant(value=9, origin="test")), 3) is None
    assert training_flags(Learner(), 3).comments == ()


def test_one_step_beside_is_seen() -> None:
    """That the law can fail: the schedule with a count that is one off."""
    schedule = make_schedule(learner(40, 160), 20)
    assert schedule is not None
    updates = np.arange(21, 161)
    found = maxtext(updates - 1, schedule.length, schedule.warmup_fraction, 0.1)
    assert np.abs(found - axlearn(updates, 40, 160, 0.1)).max() > 1e-3
    assert math.isclose(found[0], 0.5)
