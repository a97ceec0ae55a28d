"""The process in which Orbax commits: its answers, its end with its parent, and what it leaves alone."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from converter.committer import Commit, StagedLeaf, decode
from tests.conftest import AXLEARN

LEAF = StagedLeaf("params/params/a/kernel", "params.params.a.kernel", "/somewhere/é", (2, 3), "float32")
COMMIT = Commit("/out", "files", (LEAF,), {"scan_layers": True})

CLI = """
import os, sys
from converter import committer
{hook}
from converter.cli import main
main(sys.argv[1:])
"""


def converting(target: Path, hook: str) -> subprocess.Popen[str]:
    """A conversion in a process of its own, with a change made to it first."""
    command = [sys.executable, "-c", CLI.format(hook=hook), "convert", "-q", str(AXLEARN / "envy-test"), str(target)]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_a_commit_travels_as_json() -> None:
    assert decode(json.loads(json.dumps(asdict(COMMIT)))) == COMMIT


def test_the_result_says_what_both_processes_took(tmp_path: Path, cli: Any) -> None:
    done = cli("convert", "--json", AXLEARN / "envy-test", tmp_path / "out")
    assert done.code == 0, done.err
    # A Python with jax and Orbax, and one with numpy.
    assert done.document["peak_memory"] > 150 << 20


@pytest.mark.parametrize("command", ["raise SystemExit(3)", "import os; os.kill(os.getpid(), 9)", "print('hello')"])
def test_a_process_that_fails_is_our_own_fault_and_nothing_is_left(command: str, tmp_path: Path) -> None:
    hook = f"""
import subprocess
def start():
    return subprocess.Popen([sys.executable, "-c", {command!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
committer._start = start
"""
    process = converting(tmp_path / "out", hook)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 1, err
    assert out == ""
    assert "the process that commits the checkpoint ended with code" in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs Linux's /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_it_ends_with_its_parent(number: signal.Signals, tmp_path: Path) -> None:
    # The conversion waits for us where it would begin to write.
    hook = "import converter.convert, time\nconverter.convert.run = lambda *_, **__: time.sleep(60)"
    process = converting(tmp_path / "out", hook)
    while not (found := children(process.pid)) or not (tmp_path / "out.ax2mt-wip").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(number)
    _, err = process.communicate(timeout=600)
    assert process.returncode == (-9 if number == signal.SIGKILL else 130), err
    for _ in range(500):
        if not any(os.path.exists(f"/proc/{child}/exe") and _is_running(child) for child in found):
            return
        time.sleep(0.02)
    pytest.fail(f"process {found} lives on")


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
