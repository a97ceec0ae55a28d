"""Conversions that a real SLURM starts: tasks of `srun`, and the script of docs/hosts.md as a job array."""

import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from converter import status, verify
from tests.cli.test_hosts import block
from tests.conftest import AXLEARN
from tests.helpers.environments import ROOT
from tests.helpers.slurm import Slurm, search_path, slurm

__all__ = ["slurm"]

NAME = "micro-hybrid-sharded"
SOURCE = AXLEARN / NAME


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A directory with `ax2mt`; as task `$BROKEN` of an array it dies at once."""
    program = tmp_path / "bin" / "ax2mt"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\n[ "${SLURM_ARRAY_TASK_ID-none}" = "${BROKEN-}" ] && kill -9 $$\n'
        f'PYTHONPATH={shlex.quote(str(ROOT))} exec {shlex.quote(sys.executable)} -m converter "$@"\n'
    )
    program.chmod(0o755)
    return program.parent


def variables(programs: Path) -> dict[str, str]:
    return {"PATH": f"{programs}:{search_path()}", "JAX_PLATFORMS": "cpu"}


def assert_whole(target: Path, converted: Callable[..., Path]) -> None:
    """The checkpoint is there, with the chunks that one process makes, and nothing else is left."""
    one, shared = converted(NAME) / "0" / "items", target / "0" / "items"
    names = [path.relative_to(one) for path in one.rglob("c/**/*") if path.is_file()]
    assert len(names) > 20
    assert [name for name in names if (one / name).read_bytes() != (shared / name).read_bytes()] == []
    assert verify(SOURCE, target).ok
    assert not list(target.parent.glob(f"{target.name}.ax2mt*"))


def test_srun(slurm: Slurm, programs: Path, converted: Callable[..., Path], tmp_path: Path) -> None:
    done = slurm.run(
        "srun", "-n", 4, "--label", "ax2mt", "convert", SOURCE, tmp_path / "out", "--process", "auto",
        **variables(programs),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    labelled = {line.partition(":")[0] for line in done.stdout.splitlines() if "-> " in line}
    assert labelled == {"0", "1", "2", "3"}
    assert_whole(tmp_path / "out", converted)


def test_the_script_as_a_job_array(
    slurm: Slurm,
    programs: Path,
    converted: Callable[..., Path],
    tmp_path: Path,
) -> None:
    """One task dies; the same submission again finishes what it left."""
    (tmp_path / "convert.sh").write_text(block("sh"))
    target = tmp_path / "out"
    submission = ("--array=0-1", f"--output={tmp_path}/%a", f"--export=ALL,SRC={SOURCE},DST={target}")
    script = tmp_path / "convert.sh"
    assert slurm.submit(*submission, script, **variables(programs), BROKEN="1") == ["0:0", "137:0"]
    assert [str(share) for share in status(target).awaited] == ["1/2"], (tmp_path / "0").read_text()
    codes = slurm.submit(*submission, script, **variables(programs))
    assert codes == ["0:0", "0:0"], [(tmp_path / str(index)).read_text()[-500:] for index in range(2)]
    assert_whole(target, converted)
