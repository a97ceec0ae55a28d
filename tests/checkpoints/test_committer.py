"""The process in which Orbax commits: its answers, its end with its parent, and what it leaves alone."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from converter.checkpoints.commit import Commit, StagedLeaf, decode
from tests.conftest import AXLEARN, Cli
from tests.helpers.compare import assert_same_leaves
from tests.helpers.restorer import Restorer

LEAF = StagedLeaf("params/params/a/kernel", "params.params.a.kernel", "/somewhere/é", (2, 3), "float32")
COMMIT = Commit("/out", "files", (LEAF,), {"scan_layers": True})

CLI = """
import os, sys
from converter.checkpoints import committer
{hook}
from converter.cli.app import main
main(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def cli(in_process: Cli) -> Cli:
    """Commands run in this process: what counts here is what they do to files, and what they say."""
    return in_process


def converting(target: Path, hook: str, *options: str) -> subprocess.Popen[str]:
    """A conversion in a process of its own, with a change made to it first."""
    arguments = ["convert", "-q", str(AXLEARN / "envy-test"), str(target), *options]
    command = [sys.executable, "-c", CLI.format(hook=hook), *arguments]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_a_commit_travels_as_json() -> None:
    assert decode(json.loads(json.dumps(asdict(COMMIT)))) == COMMIT


def test_the_result_says_what_both_processes_took(tmp_path: Path, process: Cli) -> None:
    done = process("convert", "--json", AXLEARN / "envy-test", tmp_path / "out")
    assert done.code == 0, done.err
    # A Python with jax and Orbax, and one with numpy.
    assert done.document["peak_memory"] > 150 << 20


START = """
import subprocess
def start():
    program = {program!r}
    return subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
committer._start = start
# What happens to the process is met by the commit, not by a look while the leaves are staged.
import converter.conversion.stream
converter.conversion.stream.WATCH_SECONDS = 60
"""
REAL = "from converter.checkpoints.commit_process import main; main()"
NO_ORBAX = "import sys; sys.modules['orbax'] = None; " + REAL
HUNGRY = f"""
import converter.checkpoints.orbax_commit
def commit(work):
    raise MemoryError
converter.checkpoints.orbax_commit.commit = commit
{REAL}
"""
BROKEN = f"""
import converter.checkpoints.orbax_commit
def commit(work):
    raise KeyError("a fault of ours")
converter.checkpoints.orbax_commit.commit = commit
{REAL}
"""

ENDS = {
    "killed at its start": ("import os; os.kill(os.getpid(), 9)", 137, r"killed by signal 9 \(probably out of m"),
    "killed in the commit": (
        "import os, sys; sys.stdin.buffer.read(); os.kill(os.getpid(), 9)", 137,
        r"killed by signal 9 \(probably out of memory\)",
    ),
    "crashed in the commit": (
        "import os, sys; sys.stdin.buffer.read(); os.kill(os.getpid(), 11)", 139, r"killed by signal 11 \(SIGSEGV\)",
    ),
    "no memory in the commit": (HUNGRY, 137, "ran out of memory"),
    "no Orbax": (NO_ORBAX, 1, "cannot load Orbax: ModuleNotFoundError: .*; repair this Python's packages"),
    "ended": ("raise SystemExit(3)", 1, "internal error.* gave no answer and ended with code 3"),
    "garbage": ("print('hello')", 1, "internal error.* answered b'hello.n' and ended with code 0"),
    "other JSON": ("print('[1]')", 1, "internal error.* answered b'.1..n'"),
    "an unknown outcome": ("print('{\"outcome\": \"?\"}')", 1, "internal error.* answered"),
    "a fault in the commit": (BROKEN, 1, "internal error.* failed: KeyError: 'a fault of ours'"),
}  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
def test_a_process_that_fails_is_named_and_the_work_is_resumed(
    end: str, tmp_path: Path, cli: Cli, newest_orbax: Restorer, converted: Any
) -> None:
    program, code, expected = ENDS[end]
    target = tmp_path / "out"
    process = converting(target, START.format(program=program))
    out, err = process.communicate(timeout=600)
    assert process.returncode == code, err
    assert out == ""
    assert re.search(expected, err), err
    assert err.endswith("run the same command again to resume\n")
    assert len(err.splitlines()) == 1
    assert sorted(os.listdir(tmp_path)) == ["out.ax2mt-wip", "out.ax2mt-wip.json"]
    done = cli("convert", "--json", AXLEARN / "envy-test", target)
    assert done.code == 0, done.err
    assert done.document["resumed"]
    assert done.document["work"]["kept"] > 0
    assert os.listdir(tmp_path) == ["out"]
    assert_same_leaves(newest_orbax.restore(target), newest_orbax.restore(converted("envy-test")))


def test_a_fault_in_the_commit_shows_where_on_request(tmp_path: Path) -> None:
    process = converting(tmp_path / "out", START.format(program=BROKEN), "-v")
    _, err = process.communicate(timeout=600)
    assert process.returncode == 1
    assert "in commit" in err
    assert "KeyError: 'a fault of ours'" in err


STALLED = """
import time
converter.conversion.stream.WATCH_SECONDS = 0.05
opened, ended = [], []
real_open, real_check = converter.conversion.stream._TaskWork.open, committer.Committer.check
def stall(work, stage):
    real_open(work, stage)
    opened.append(work)
    while not ended:
        time.sleep(0.01)
def check(self):
    try:
        if opened:
            real_check(self)
    except BaseException:
        ended.append(1)
        raise
converter.conversion.stream._TaskWork.open, committer.Committer.check = stall, check
"""


def test_a_process_that_dies_ends_the_staging_at_once(tmp_path: Path) -> None:
    """The leaves would never be done: only the look at the process ends this run."""
    hook = START.format(program="import os; os.kill(os.getpid(), 9)") + STALLED
    process = converting(tmp_path / "out", hook)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 137, err
    assert "killed by signal 9" in err
    assert (tmp_path / "out.ax2mt-wip" / "leaves").is_dir()


OURS = {
    "out of memory": (
        "raise MemoryError('a block of 3 GiB')",
        137,
        "ax2mt: out of memory (a block of 3 GiB); ",
    ),
    "internal": (
        "raise KeyError('ours')",
        1,
        "ax2mt: internal error, please report it (KeyError: 'ours';",
    ),
}


@pytest.mark.parametrize("kind", OURS)
@pytest.mark.parametrize(
    ("operation", "pattern"),
    [("missing", "/leaves/"), ("flush", ""), ("publish", "")],
    ids=["staged", "committed", "last"],
)
def test_our_own_fault_leaves_the_work_too(
    kind: str, operation: str, pattern: str, tmp_path: Path, cli: Cli, newest_orbax: Restorer, converted: Any
) -> None:
    what, code, expected = OURS[kind]
    hook = f"""
import converter.conversion.run
from converter.storage import STORAGES
from tests.helpers.faulty_storage import FaultyStorage
storage = STORAGES[""] = FaultyStorage()
def fail(_):
    {what}
storage.before({operation!r}, {pattern!r}, fail)
"""
    target = tmp_path / "out"
    target.mkdir()
    process = converting(target, hook)
    _, err = process.communicate(timeout=600)
    assert process.returncode == code, err
    assert err.startswith(expected)
    assert err.endswith("; run the same command again to resume\n")
    assert len(err.splitlines()) == 1
    assert os.listdir(target) == []
    done = cli("convert", "--json", AXLEARN / "envy-test", target)
    assert done.code == 0, done.err
    assert done.document["work"]["kept"] > 0
    assert_same_leaves(newest_orbax.restore(target), newest_orbax.restore(converted("envy-test")))


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs Linux's /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_it_ends_with_its_parent(number: signal.Signals, tmp_path: Path) -> None:
    # The conversion waits for us where it would begin to write.
    hook = "import converter.conversion.run, time\nconverter.conversion.run.run = lambda *_, **__: time.sleep(60)"
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
