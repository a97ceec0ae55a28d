"""Fixtures of the tests of stores."""

import pytest

from converter.storage import retries


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that retries would have waited; they do not."""
    waited: list[float] = []
    monkeypatch.setattr(retries, "pause", waited.append)
    return waited
