"""The recipes of docs/hosts.md: valid, with options that exist, and run as far as one machine can."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import yaml

from converter import status, verify
from converter.planning import read_share
from tests.conftest import AXLEARN

PAGE = (Path(__file__).parents[2] / "docs" / "hosts.md").read_text()
SOURCE = AXLEARN / "micro-hybrid-sharded"


def block(kind: str) -> str:
    """The one example of its kind."""
    (found,) = re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    return found


def test_the_slurm_script(tmp_path: Path) -> None:
    """Two tasks of an array of two, with the variables that SLURM sets."""
    script = tmp_path / "convert.sh"
    script.write_text(block("sh"))
    assert re.findall(r"^#SBATCH (\S+)=", block("sh"), re.MULTILINE)[1] == "--array"
    program = tmp_path / "bin" / "ax2mt"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m converter "$@"\n')
    program.chmod(0o755)
    target = tmp_path / "out"
    for index in ("4", "3"):
        variables = {
            "PATH": f"{program.parent}:{os.environ['PATH']}", "SRC": str(SOURCE), "DST": str(target),
            "SLURM_CPUS_PER_TASK": "2", "SLURM_ARRAY_TASK_ID": index, "SLURM_ARRAY_TASK_COUNT": "2",
            "SLURM_ARRAY_TASK_MIN": "3", "SLURM_ARRAY_TASK_STEP": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "1",
        }  # fmt: skip
        done = subprocess.run(
            ["sh", script], env={**os.environ, **variables}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        if index == "4":
            assert [str(one.share) for one in status(target).done] == ["1/2"]
    assert verify(target).ok


def test_the_job_of_kubernetes() -> None:
    job = yaml.safe_load(block("yaml"))
    spec = job["spec"]
    assert (job["apiVersion"], job["kind"], spec["completionMode"]) == ("batch/v1", "Job", "Indexed")
    (container,) = spec["template"]["spec"]["containers"]
    command = container["command"]
    assert all(isinstance(word, str) for word in command)
    process = command[command.index("--process") + 1]
    count = spec["completions"]
    assert process == f"auto/{count}"
    shares = [read_share(process, {"JOB_COMPLETION_INDEX": str(index)}) for index in range(count)]
    assert [(share.index, share.count) for share in shares] == [(index, count) for index in range(count)]


def test_the_table_of_launchers() -> None:
    from converter.planning.launchers import LAUNCHERS

    rows = PAGE[PAGE.index("| launcher |") :].split("\n\n")[0]
    named = set(re.findall(r"`([A-Z][A-Z_]+)`", rows))
    used = {name for one in LAUNCHERS for name in (*one.variables, one.first, one.step) if name}
    assert named == used
