"""Runs a command and measures wall time, processor time and peak resident memory."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Measurement:
    """One run.

    Attributes:
      code: exit code.
      seconds: wall time.
      cpu_seconds: user and system time of the command and the children it waited for.
      peak_bytes: largest resident set of any one process among them.
      output: stdout.
      error: stderr.
    """

    code: int
    seconds: float
    cpu_seconds: float
    peak_bytes: int
    output: str
    error: str


# Linux lets a child inherit the peak of the process that forked it, so that a large parent would be measured instead of
# the command. This small launcher stands between the two.
_LAUNCHER = """
import json, os, subprocess, sys, time
started = time.perf_counter()
process = subprocess.Popen(sys.argv[2:])
_, status, usage = os.wait4(process.pid, 0)
seconds = time.perf_counter() - started
with open(sys.argv[1], "w") as file:
    json.dump([os.waitstatus_to_exitcode(status), seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss], file)
"""


def measure(command: Sequence[str]) -> Measurement:
    """Runs a command, program and arguments, to its end."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "usage.json"
        launcher = [sys.executable, "-S", "-c", _LAUNCHER, str(report), *command]
        done = subprocess.run(launcher, capture_output=True, text=True, check=False)
        if not report.is_file():
            return Measurement(127, 0.0, 0.0, 0, done.stdout, done.stderr)
        code, seconds, cpu, peak = json.loads(report.read_text())
    return Measurement(code, seconds, cpu, peak * 1024, done.stdout, done.stderr)


def warm(directory: Path) -> None:
    """Brings the files below a directory into the page cache; a host that wants its memory back may have taken them."""
    buffer = bytearray(1 << 20)
    for path in directory.rglob("*"):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass


def evict(directory: Path) -> None:
    """Takes the files below a directory out of the page cache; a file with unwritten pages is written first."""
    os.sync()
    for path in directory.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
