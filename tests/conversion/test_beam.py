"""`ax2mt beam` with the real Apache Beam, on its own direct runner: worker processes, and errors that end the job."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from converter import status, verify
from tests.conftest import AXLEARN, Cli, Completed
from tests.helpers import environments

SOURCE = AXLEARN / "micro-hybrid-sharded"
PROCESSES = ("--runner=DirectRunner", "--direct_running_mode=multi_processing", "--direct_num_workers=2")


@pytest.fixture(scope="session")
def beam_python() -> str:
    """The interpreter with Apache Beam."""
    if not environments.is_ready(environments.BEAM, environments.BEAM_REQUIREMENTS):
        why = "no .venv-beam: run `make test`, or python tests/helpers/environments.py"
        pytest.fail(why) if environments.in_ci() else pytest.skip(why)
    return environments.interpreter(environments.BEAM)


def run(python: str, *arguments: object) -> Completed:
    done = subprocess.run(
        [python, "-m", "converter", "beam", *map(str, arguments)], capture_output=True, text=True, check=False,
        timeout=600, cwd=environments.ROOT, env={**os.environ, "PYTHONPATH": str(environments.ROOT)},
    )  # fmt: skip
    return Completed(done.returncode, done.stdout, done.stderr)


def test_a_pipeline_converts(beam_python: str, tmp_path: Path) -> None:
    target = tmp_path / "out"
    done = run(beam_python, SOURCE, target, "--shares", 5, "--json", "--", *PROCESSES)
    assert done.code == 0, done.err
    assert done.document["shares"] == 5
    assert verify(SOURCE, target).ok
    assert verify(target).ok
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_a_fault_of_the_source_ends_the_job(beam_python: str, tmp_path: Path) -> None:
    shutil.copytree(SOURCE, tmp_path / "source")
    victim = next(path for path in sorted((tmp_path / "source").rglob("gda/model/**/0.0*")) if path.is_file())
    victim.write_bytes(victim.read_bytes()[:-3])
    target = tmp_path / "out"
    done = run(beam_python, tmp_path / "source", target, "--shares", 3, "--json", "--", "--runner=DirectRunner")
    assert done.code == 3, done.err
    error = json.loads(done.out)["error"]
    assert (error["kind"], victim.name in error["message"]) == ("source", True)
    assert status(target).state == "begun"


BROKEN_BEFORE_WORKERS_PLAN = """
import pathlib, sys
from converter.cli.app import run
from converter.conversion import pipeline
from converter.conversion.pipeline import prepare

index, attempts = next(pathlib.Path(sys.argv[2]).rglob("index")), []

def prepared(request):
    attempts.append(request)
    if len(attempts) == 2:
        index.write_text("damaged")
    return prepare(request)

pipeline.prepare = prepared
code = run(sys.argv[1:])
print(len(attempts), file=sys.stderr)
sys.exit(code)
"""


def test_a_fault_of_the_source_while_workers_plan_ends_the_job(beam_python: str, tmp_path: Path) -> None:
    """The plan of the launcher was good; the first worker that fails says so, and no other tries."""
    source, target = tmp_path / "source", tmp_path / "out"
    shutil.copytree(SOURCE, source)
    command = ["beam", source, target, "--shares", 3, "--json", "--", "--runner=DirectRunner"]
    done = subprocess.run(
        [beam_python, "-c", BROKEN_BEFORE_WORKERS_PLAN, *map(str, command)], capture_output=True, text=True,
        check=False, timeout=600, cwd=environments.ROOT, env={**os.environ, "PYTHONPATH": str(environments.ROOT)},
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    error = json.loads(done.stdout)["error"]
    assert (error["kind"], "index" in error["message"]) == ("source", True)
    assert done.stderr.splitlines()[-1] == "2"
    assert status(target).state == "begun"


def test_beam_is_an_extra(cli: Cli, tmp_path: Path) -> None:
    done = cli("beam", SOURCE, tmp_path / "out", "--", "--runner=DirectRunner")
    assert (done.code, "pip install 'axlearn2maxtext[beam]'" in done.err) == (2, True)
    assert list(tmp_path.iterdir()) == []
