"""The loop that runs units of work in threads: each once, several at a time, none after a failure."""

import threading
from collections.abc import Callable, Iterator

import pytest

from converter.verification.result import Finding, Verification
from converter.work import run_units

WAIT = 60
"""Seconds; no test waits that long unless it fails."""


@pytest.mark.parametrize("jobs", [1, 2, 7])
def test_every_unit_is_run_once_and_made_only_when_it_is_wanted(jobs: int) -> None:
    lock = threading.Lock()
    made: list[int] = []
    done: list[int] = []
    ahead: list[int] = []

    def units() -> Iterator[Callable[[], None]]:
        for number in range(200):
            with lock:
                made.append(number)
                ahead.append(len(made) - len(done))
            yield lambda number=number: finish(number)

    def finish(number: int) -> None:
        with lock:
            done.append(number)

    run_units(units(), jobs)
    assert made == list(range(200))
    assert sorted(done) == made
    assert max(ahead) <= jobs
    if jobs == 1:
        assert done == made


@pytest.mark.parametrize("jobs", [2, 5])
def test_units_run_side_by_side(jobs: int) -> None:
    together = threading.Barrier(jobs)
    run_units(iter([lambda: (together.wait(WAIT), None)[1]] * (3 * jobs)), jobs)


def test_more_jobs_than_units_and_no_units_at_all() -> None:
    done: list[int] = []
    run_units(iter([lambda: done.append(1)]), 5)
    run_units(iter([]), 5)
    assert done == [1]


class Stop(BaseException):
    """Not an Exception, like KeyboardInterrupt."""


@pytest.mark.parametrize("error", [ValueError("the third"), Stop()])
def test_nothing_is_begun_after_a_failure(error: BaseException) -> None:
    begun: list[int] = []

    def unit(number: int) -> None:
        begun.append(number)
        if number == 2:
            raise error

    with pytest.raises(type(error)) as caught:
        run_units((lambda number=number: unit(number) for number in range(100)), 1)
    assert caught.value is error
    assert begun == [0, 1, 2]


def test_what_is_under_way_is_ended_when_another_unit_fails() -> None:
    under_way, failed = threading.Event(), threading.Event()
    done: list[str] = []

    def slow() -> None:
        under_way.set()
        assert failed.wait(WAIT)
        done.append("slow")

    def failing() -> None:
        assert under_way.wait(WAIT)
        failed.set()
        raise ValueError("no")

    def units() -> Iterator[Callable[[], None]]:
        yield slow
        yield failing
        while failed.is_set():  # whoever asks again after the failure finds no end
            yield lambda: None

    with pytest.raises(ValueError, match="no"):
        run_units(units(), 2)
    assert done == ["slow"]


def test_a_failure_to_make_a_unit_is_told() -> None:
    def units() -> Iterator[Callable[[], None]]:
        yield lambda: None
        raise LookupError("no more of these")

    with pytest.raises(LookupError, match="no more of these"):
        run_units(units(), 3)


def test_a_verification_is_fine_without_findings_whatever_its_notes() -> None:
    fine = Verification("source", "", 1, "out", 1, 0, 4, 16, None, (), ("a note",), None, 0.1, 1)
    assert fine.ok
    wrong = Verification("source", "", 1, "out", 1, 0, 4, 16, None, (Finding("dtype", "w", "is"),), (), None, 0.1, 1)
    assert not wrong.ok
