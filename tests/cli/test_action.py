"""The steps of action.yml do what the action says: they run here as GitHub's runner would run them."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import AXLEARN, MAXTEXT

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"] if "name" in step}
SOURCE = AXLEARN / "micro-hybrid-qkpair"
GOLDEN = MAXTEXT / "micro-hybrid-qkpair" / "scanned-untied"


@dataclass(frozen=True)
class Ran:
    """A finished step: its exit code, its output, the job's summary and the files that it left."""

    code: int
    out: str
    summary: str
    files: dict[str, str]


def run_step(name: str, directory: Path, **inputs: object) -> Ran:
    """Runs a step with these inputs; what is not given has its default."""
    results, summary, program = directory / "results", directory / "summary", directory / "environment" / "bin"
    results.mkdir(parents=True, exist_ok=True)
    program.mkdir(parents=True, exist_ok=True)
    (program / "ax2mt").write_text(f'#!/bin/sh\nexec {sys.executable} -m converter "$@"\n')
    (program / "ax2mt").chmod(0o755)
    summary.touch()
    values = {name: entry.get("default", "") for name, entry in ACTION["inputs"].items()}
    values = {f"inputs.{name}": str(value) for name, value in {**values, **inputs}.items()}
    places = {"steps.places.outputs.environment": program.parent, "steps.places.outputs.results": results}
    known = {**values, **{name: str(place) for name, place in places.items()}}

    def expanded(text: str) -> str:
        return re.sub(r"\$\{\{ *([\w.-]+) *\}\}", lambda found: known[found[1]], text)

    step: dict[str, Any] = STEPS[name]
    variables = {key: expanded(value) for key, value in step["env"].items()}
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables, "GITHUB_STEP_SUMMARY": str(summary)},
        cwd=directory, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    files = {path.name: path.read_text() for path in results.iterdir()}
    return Ran(done.returncode, done.stdout + done.stderr, summary.read_text(), files)


def test_plan(tmp_path: Path) -> None:
    ran = run_step("Plan", tmp_path, source=SOURCE)
    assert ran.code == 0, ran.out
    assert ran.summary.startswith("## Parameters of ")
    assert "difference   0" in ran.out
    assert run_step("Plan", tmp_path, source=SOURCE, model="envy-switch-base").code == 4


@pytest.mark.parametrize(("source", "code"), [(SOURCE, 0), (AXLEARN / "micro-hybrid", 6)])
def test_verify(source: Path, code: int, tmp_path: Path) -> None:
    ran = run_step("Verify", tmp_path, source=source, destination=GOLDEN)
    assert ran.code == code, ran.out
    assert set(ran.files) == {"verify.xml", "verify.txt"}
    assert ran.summary.startswith("### ax2mt verify\n\n    ")
    assert ("    OK: 28 leaves" in ran.summary) == (code == 0)


def test_conform_asks_for_what_it_is_given(tmp_path: Path) -> None:
    ran = run_step("Compare with the installed MaxText", tmp_path, model="envy-test", maxtext=sys.executable)
    assert (ran.code, ran.summary, ran.files) == (2, "", {})
    assert "No module named 'maxtext'" in ran.out


def test_inputs_are_values_and_not_code(tmp_path: Path) -> None:
    hostile = f"x'; touch {tmp_path}/made; $(touch {tmp_path}/made) #"
    assert run_step("Plan", tmp_path, source=hostile).code == 3
    assert not (tmp_path / "made").exists()
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step.get("run", ""), "an input in a script would be run as code"
