"""The budget for bytes in flight under many threads, sizes as texts, and the measured peak."""

import contextlib
import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from converter.errors import UsageError
from converter.words import format_size, parse_size
from converter.work import ByteBudget

THREADS = 16


class Watch:
    """Counts what is held at a time, independently of the budget."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.held = self.most = self.together = self.most_together = 0

    @contextlib.contextmanager
    def hold(self, amount: int):
        with self.lock:
            self.held += amount
            self.together += 1
            self.most, self.most_together = max(self.most, self.held), max(self.most_together, self.together)
        try:
            yield
        finally:
            with self.lock:
                self.held -= amount
                self.together -= 1


@pytest.mark.parametrize("seed", range(4))
def test_many_threads_never_hold_more_than_the_limit(seed: int) -> None:
    budget, watch = ByteBudget(100), Watch()
    amounts = [random.Random(seed * THREADS + n).choices((0, 1, 9, 40, 70, 100), k=60) for n in range(THREADS)]
    start = threading.Barrier(THREADS)

    def work(mine: list[int]) -> int:
        start.wait()
        for number, amount in enumerate(mine):
            with contextlib.suppress(ZeroDivisionError), budget.hold(amount), watch.hold(amount):
                threading.Event().wait(0.0001)  # lets others in, so that they do hold something together
                if number % 7 == 0:
                    raise ZeroDivisionError  # what fails gives its bytes back as well
        return len(mine)

    with ThreadPoolExecutor(THREADS) as pool:
        assert sum(pool.map(work, amounts)) == 60 * THREADS
    assert watch.most_together > 1
    assert watch.most <= budget.peak <= 100
    with budget.hold(100):
        pass  # nothing was lost


def test_the_whole_budget_can_be_had_and_one_byte_more_is_refused_at_once() -> None:
    budget = ByteBudget(10)
    assert budget.peak == 0
    with budget.hold(10):
        assert budget.peak == 10
    with pytest.raises(ValueError, match=r"^11 bytes requested, the budget has 10$"), budget.hold(11):
        pytest.fail("this can never be had")
    with budget.hold(10):
        assert budget.peak == 10


class Asked(int):
    """An amount that tells when the budget first considers it: its thread is in the queue then."""

    considered: threading.Event

    def __radd__(self, other: int) -> int:
        self.considered.set()
        return other + int(self)


def test_small_requests_do_not_overtake_a_large_one() -> None:
    budget = ByteBudget(10)
    order: list[str] = []
    large = Asked(10)
    large.considered = threading.Event()

    def take(name: str, amount: int) -> None:
        with budget.hold(amount):
            order.append(name)

    with budget.hold(5):
        first = threading.Thread(target=take, args=("large", large))
        first.start()
        assert large.considered.wait(60)
        second = threading.Thread(target=take, args=("small", 1))
        second.start()
        second.join(0.1)  # it would get its byte now, if it could overtake
        assert order == []
    first.join(60)
    second.join(60)
    assert order == ["large", "small"]


SIZES = {
    "0": 0, "1": 1, "1000000": 1000000, "12B": 12, "1K": 1 << 10, "1k": 1 << 10, "1KiB": 1 << 10, "1KB": 1 << 10,
    " 512 MiB ": 512 << 20, "2G": 2 << 30, "1.5GiB": 3 << 29, "0.25K": 256, "3TiB": 3 << 40,
    "999999999999999": 10**15 - 1,
}  # fmt: skip


@pytest.mark.parametrize("text", SIZES)
def test_sizes(text: str) -> None:
    assert parse_size(text) == SIZES[text]


@pytest.mark.parametrize("text", ["", "G", "-1", "1P", "1 2", "1e9", "1,5G", "0x10", "1..5G", "1\u212a", "٣", "1" * 16])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_size(text)
    assert caught.value.message == f"invalid size {text!r}: expected a number with a unit, such as 512MiB"


SHOWN = {
    0: "0 B", 1023: "1023 B", 1024: "1.00 KiB", 10230: "9.99 KiB", 10239: "10.0 KiB", 1536 << 10: "1.50 MiB",
    (1 << 20) - 1: "1.00 MiB", (1 << 20) - 103: "1023.9 KiB", (1 << 30) - 1: "1.00 GiB", 23 << 30: "23.0 GiB",
    (1 << 40) - 1: "1.00 TiB", 3 << 50: "3072.00 TiB",
}  # fmt: skip


@pytest.mark.parametrize("count", SHOWN)
def test_sizes_for_people(count: int) -> None:
    assert format_size(count) == SHOWN[count]


@given(count=st.integers(0, 1 << 50))
def test_a_shown_size_is_near_and_can_be_given_back(count: int) -> None:
    assert abs(parse_size(format_size(count)) - count) <= 0.005 * count


def test_the_peak_is_the_processs_own_and_outlives_what_was_freed() -> None:
    script = (
        "from converter.work import peak_resident; before = peak_resident(); block = b'x' * (64 << 20); del block; "
        "print(before, peak_resident())"
    )
    ballast = b"x" * (256 << 20)  # ours is no part of theirs
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert len(ballast) > before > 4 << 20
    assert 60 << 20 <= after - before <= 80 << 20
