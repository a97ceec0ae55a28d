"""Conversions in a bucket that are killed, alone and two at once; `make torture` does a hundred of these."""

from collections.abc import Iterator

import pytest

from tests.torture.kill_gcs import Rounds


@pytest.fixture(scope="module")
def rounds() -> Iterator[Rounds]:
    """A store in a process of its own, which answers slowly and sometimes with 503."""
    made = Rounds(seed=7)
    yield made
    made.close()


@pytest.mark.parametrize("number", [0, 1], ids=["alone", "two at once"])
def test_a_killed_run_is_taken_up(number: int, rounds: Rounds) -> None:
    assert rounds.run(number) == []
