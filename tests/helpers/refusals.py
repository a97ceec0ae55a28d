"""Runs the command line inside the test's process and checks that it refuses as it is documented."""

import os
from pathlib import Path

import pytest

from converter.cli import app as cli
from converter.conversion.destination import JOURNAL_SUFFIX, SUFFIX

DOCUMENTED = {0, 2, 3, 4, 5, 6, 7, 130}
"""Exit codes that a user may meet; 1 is a fault of the program."""


def refused(capsys: pytest.CaptureFixture[str], code: int, *arguments: object) -> str:
    """Runs a command that must fail.

    Args:
      capsys: what it writes is taken from here.
      code: the exit code that it must have.
      arguments: the command line.

    Returns:
      What it wrote on stderr: one line, and indented findings below it.
    """
    found = cli.run(["convert", "-q", *map(str, arguments)])
    captured = capsys.readouterr()
    assert found == code, captured.err
    assert captured.out == ""
    first, *details = captured.err.splitlines()
    assert first.startswith("ax2mt: ")
    assert all(line.startswith("  ") for line in details), captured.err
    assert "Traceback" not in captured.err
    assert "Error:" not in captured.err
    return captured.err


def nothing_left(directory: Path, *expected: str) -> None:
    """A directory holds what was there before, and no destination, work area or journal."""
    assert sorted(os.listdir(directory)) == sorted(expected)


def nothing_published(directory: Path, *expected: str) -> None:
    """A directory holds what was there before, and beside it at most the work area and journal of a stopped run."""
    names = [name for name in os.listdir(directory) if not name.endswith((SUFFIX, JOURNAL_SUFFIX))]
    assert sorted(names) == sorted(expected)
