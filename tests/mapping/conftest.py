"""Commands run in the test's process: what counts here is what they find and say."""

import pytest

from tests.conftest import Cli


@pytest.fixture(scope="session")
def cli(in_process: Cli) -> Cli:
    return in_process
