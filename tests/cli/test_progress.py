"""What the progress bar writes where there is no terminal: whole lines, now and then, with the right figures."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from converter.cli.progress import Bar


class Clock:
    """Stands where it is put."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


def written(capsys: pytest.CaptureFixture[str]) -> str:
    out, err = capsys.readouterr()
    assert out == ""
    return err


def test_what_a_store_moves_is_shown_apart(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    bar = Bar("converting")
    bar.start(4, 40 << 10)
    bar.moved(3, 7 << 10)
    clock.now += 10
    bar.advance(20 << 10)
    assert written(capsys) == (
        "converting: 0/4 leaves, 20.0 KiB of 40.0 KiB (3 objects, 7.00 KiB stored, moved by the store), "
        "2.00 KiB/s, 10 s left\n"
    )


def test_a_line_every_ten_seconds(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    bar = Bar("converting")
    clock.now += 100  # time before the start does not count
    bar.start(4, 40 << 10)
    clock.now += 9
    bar.advance(10 << 10)
    bar.leaf_done("params/a")
    assert written(capsys) == ""
    clock.now += 1
    bar.advance(10 << 10)
    assert written(capsys) == "converting: 1/4 leaves, 20.0 KiB of 40.0 KiB, 2.00 KiB/s, 10 s left\n"
    clock.now += 9
    bar.advance(5 << 10)
    assert written(capsys) == ""
    clock.now += 1
    bar.advance(5 << 10)
    assert written(capsys) == "converting: 1/4 leaves, 30.0 KiB of 40.0 KiB, 1.50 KiB/s, 7 s left\n"
    clock.now += 20
    bar.advance(10 << 10)
    for leaf in ("b", "c", "d"):
        bar.leaf_done(leaf)
    bar.close()
    assert written(capsys) == "converting: 1/4 leaves, 40.0 KiB of 40.0 KiB, 1.00 KiB/s, 0 s left\n"


def test_nothing_done_and_nothing_to_do(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    bar = Bar("verifying")
    bar.start(2, 0)
    clock.now += 10
    bar.advance(0)
    bar.close()
    assert written(capsys) == "verifying: 0/2 leaves, 0 B of 0 B, 0 B/s, 0 s left\n"


PATHS = [
    "params/params/decoder/layers/layers_0/self_attention/pre_self_attention_layer_norm/query_norm/scale",
    "params/[bold]a[/bold]/[red]",
    "params/:smile:/1234",
]


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("path", PATHS)
def test_finished_leaves_are_named_on_one_line_as_they_are(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    bar = Bar("converting", verbose=True)
    bar.start(1, 1)
    bar.leaf_done(path)
    bar.close()
    assert written(capsys) == f"converting: {path} done\n"


@pytest.mark.usefixtures("clock")
def test_counts_from_many_threads_add_up(capsys: pytest.CaptureFixture[str]) -> None:
    bar = Bar("converting", verbose=True)
    bar.start(400, 4000)

    def work(number: int) -> None:
        for _ in range(10):
            bar.advance(1)
        bar.leaf_done(f"leaf{number}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(400)))
    bar.close()
    assert (bar.done, bar.finished) == (4000, 400)
    assert sorted(written(capsys).splitlines()) == sorted(f"converting: leaf{number} done" for number in range(400))
