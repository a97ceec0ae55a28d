"""Commands run in the test's process; the frameworks are scripts that answer what a test wants."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Cli

Framework = Callable[..., str]


@pytest.fixture(scope="session")
def cli(in_process: Cli) -> Cli:
    return in_process


@pytest.fixture
def framework(tmp_path: Path) -> Framework:
    """Makes a `PYTHON` that gives an answer, whatever it is asked; a text is printed as it stands."""

    def make(answer: Any, code: int = 0) -> str:
        number = len(list(tmp_path.glob("python*")))
        script, file = tmp_path / f"python{number}", tmp_path / f"answer{number}"
        file.write_text(answer if isinstance(answer, str) else json.dumps(answer))
        script.write_text(
            f"#!{sys.executable}\nimport sys\nsys.stdin.read()\nprint('a message', file=sys.stderr)\n"
            f"sys.stdout.write(open({str(file)!r}).read())\nsys.exit({code})\n"
        )
        script.chmod(0o755)
        return str(script)

    return make
