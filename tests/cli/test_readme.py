"""README shows what is printed."""

import re
import shutil
from pathlib import Path

from tests.conftest import AXLEARN, Cli

README = (Path(__file__).parents[2] / "README.md").read_text()
FIGURES = re.compile(r"\d[\d.,]*( (B|KiB|MiB|s)\b)?")
"""Sizes and times depend on the machine and on the length of its paths."""


def shown(command: str) -> list[str]:
    """The lines that README shows below a command."""
    return README.split(f"$ ax2mt {command}\n")[1].split("```")[0].splitlines()


def test_the_output_of_convert(cli: Cli, tmp_path: Path) -> None:
    source = "tests/data/axlearn/micro-hybrid-qkpair"
    shutil.copytree(AXLEARN / "micro-hybrid-qkpair", tmp_path / source)
    done = cli("convert", source, "build/demo", "--untie", cwd=tmp_path)
    assert done.code == 0, done.err
    printed = [line.rstrip() for line in done.out.replace(f"{tmp_path}/", "").splitlines()]
    wanted = shown(f"convert {source} build/demo --untie")
    assert [FIGURES.sub("N", line) for line in printed] == [FIGURES.sub("N", line) for line in wanted]
    # Counts are the same everywhere.
    for start in ("parameters", "difference", "leaves"):
        assert [line for line in printed if line.startswith(start)] == [
            line for line in wanted if line.startswith(start)
        ]
