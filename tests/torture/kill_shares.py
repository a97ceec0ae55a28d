"""Kills processes that share a conversion, at random moments: `python -m tests.torture.kill_shares --count 50`.

The processes are forked from this one, which has imported all they need, so that most of a round is the work itself.
In each round three processes work on shares of one conversion, on a file system and in a bucket by turns; any of them
is killed or held up at any moment, and some are started again. Until the end no chunk may be missing at what looks like
a checkpoint. Then one process with `--process 0/1` ends the job, held-up processes wake, and the chunks must be those
of an undisturbed conversion bit for bit, with nothing left of the work area. Prints the seed.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import google.auth.transport.requests  # noqa: F401
import orbax.checkpoint  # noqa: F401 - the processes commit themselves then

import converter.checkpoints.orbax_commit
import converter.conversion
import converter.verification  # noqa: F401
from converter.cli.app import run
from tests.helpers.gcs import Fault, ProcessGcs

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "tests" / "data" / "axlearn" / "micro-hybrid-sharded"
PROCESSES = 3
FORMS = ("files", "ocdbt")
MARKER = "commit_success.txt"

Chunks = dict[str, bytes]


def main() -> int:
    """Runs the rounds; returns 1 if something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", help="a directory to work in")
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    rounds = Rounds(Path(options.work).absolute(), options.seed)
    try:
        faults = sum(rounds.run(number) for number in range(options.count))
    finally:
        rounds.gcs.close()
    print(f"{options.count} rounds, {rounds.kills} kills, {rounds.stops} held up, {faults} faults")
    return bool(faults)


class Forked:
    """A command of ours in a process that was forked from this one.

    Attributes:
      arguments: the command line.
      number: the process's.
    """

    def __init__(self, *arguments: str):
        self.arguments = arguments
        self._code: int | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - until the process ends
        self.number = os.fork()
        if self.number == 0:
            for stream in (1, 2):
                os.dup2(self._errors.fileno(), stream)
            code = 1
            try:
                code = run(list(arguments))
            finally:
                os._exit(code)

    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        if self._code is None:
            number, status = os.waitpid(self.number, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if number else None
        return self._code is None

    def wait(self) -> tuple[int, str]:
        """Its exit code, the signal as a negative number; and what it said."""
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.number, 0)[1])
        self._errors.seek(0)
        return self._code, self._errors.read().decode(errors="replace")


class Rounds:
    """Conversions that are killed.

    Attributes:
      kills: processes that were killed so far.
      stops: processes that were held up until all was done.
    """

    def __init__(self, work: Path, seed: int):
        self.random = random.Random(seed)
        self.kills = self.stops = 0
        self.work = work
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        self.gcs = ProcessGcs()
        os.environ.update(self.gcs.environment())
        self.gcs.make_bucket("bucket")
        self.gcs.upload_tree(SOURCE, "bucket", "run")
        started = time.monotonic()
        self.expected: dict[tuple[bool, str], Chunks] = {}
        for in_bucket in (False, True):
            for form in FORMS:
                assert not self._ended([self._start(in_bucket, f"expected-{form}", form, ())])
                self.expected[in_bucket, form] = self._chunks(in_bucket, f"expected-{form}")
        self.seconds = (time.monotonic() - started) / 4
        self.gcs.inject(Fault(kind="wait", seconds=0.003))
        self.gcs.inject(Fault(operation="objects.*", every=53, status=503))

    def run(self, number: int) -> int:
        """One round; returns how much was wrong."""
        in_bucket, form, name = bool(number % 2), self.random.choice(FORMS), f"out-{number}"
        wrong: list[str] = []
        held: list[Forked] = []
        for _ in range(self.random.randint(1, 2)):
            processes = [
                self._start(in_bucket, name, form, ("--process", f"{i}/{PROCESSES}")) for i in range(PROCESSES)
            ]
            self.random.shuffle(processes)
            for process in processes[: self.random.randint(1, PROCESSES)]:
                time.sleep(self.random.uniform(0.05, self.seconds) / PROCESSES)
                if not process.is_running():
                    continue
                if self.random.random() < 0.3:
                    os.kill(process.number, signal.SIGSTOP)
                    held.append(process)
                else:
                    os.kill(process.number, signal.SIGKILL)
                    self.kills += 1
            wrong += self._ended(process for process in processes if process not in held)
            wrong += self._looks_finished(in_bucket, form, name)
        last = self._start(in_bucket, name, form, ("--process", "0/1"))
        wrong += self._ended([last])
        before = self._chunks(in_bucket, name)
        self.stops += len(held)
        for process in held:
            os.kill(process.number, signal.SIGCONT)
        wrong += self._ended(held)
        if not before or not self._looks_like_one(in_bucket, name):
            wrong.append("no checkpoint at the end")
        wrong += self._looks_finished(in_bucket, form, name)
        wrong += [f"{one} was left" for one in self._left(in_bucket, name)]
        for line in wrong:
            print(f"round {number}, {'bucket' if in_bucket else 'files'}, {form}: {line}", flush=True)
        self._clear(in_bucket, name)
        return len(wrong)

    def _start(self, in_bucket: bool, name: str, form: str, options: Sequence[str]) -> "Forked":
        return Forked("convert", "-q", *self._pair(in_bucket, name), "--store", form, *options)

    def _pair(self, in_bucket: bool, name: str) -> tuple[str, str]:
        return ("gs://bucket/run", f"gs://bucket/{name}") if in_bucket else (str(SOURCE), str(self.work / name))

    def _ended(self, processes: "Iterable[Forked]") -> list[str]:
        """Waits for processes; what those said that were not killed and failed."""
        wrong: list[str] = []
        for process in processes:
            code, error = process.wait()
            if code not in (0, -signal.SIGKILL):
                wrong.append(f"{' '.join(process.arguments[-2:])} exited {code}: {error[-400:]}")
        return wrong

    def _looks_like_one(self, in_bucket: bool, name: str) -> bool:
        if in_bucket:
            return f"{name}/0/{MARKER}" in self.gcs.objects("bucket", f"{name}/")
        return (self.work / name / "0").exists()

    def _looks_finished(self, in_bucket: bool, form: str, name: str) -> list[str]:
        """What is wrong with a target that looks finished."""
        if not self._looks_like_one(in_bucket, name):
            return []
        if self._chunks(in_bucket, name) != self.expected[in_bucket, form]:
            return ["what looks like a checkpoint has other chunks"]
        code, said = Forked("verify", self._pair(in_bucket, name)[1]).wait()
        return [f"verify: {said[-2000:]}"] if code else []

    def _chunks(self, in_bucket: bool, name: str) -> Chunks:
        """The chunks of a checkpoint by their names."""
        if in_bucket:
            names = [one for one in self.gcs.objects("bucket", f"{name}/0/") if _is_chunk(one)]
            return {one.removeprefix(name): self.gcs.read("bucket", one) for one in names}
        root = self.work / name
        files = (path for path in root.rglob("*") if path.is_file() and _is_chunk(str(path.relative_to(root))))
        return {str(path.relative_to(root)): path.read_bytes() for path in files}

    def _left(self, in_bucket: bool, name: str) -> list[str]:
        if in_bucket:
            return list(self.gcs.objects("bucket", f"{name}.ax2mt"))
        return [path.name for path in self.work.iterdir() if path.name.startswith(f"{name}.ax2mt")]

    def _clear(self, in_bucket: bool, name: str) -> None:
        if in_bucket:
            for prefix in (f"{name}/", f"{name}.ax2mt"):
                for one in self.gcs.objects("bucket", prefix):
                    self.gcs.remove("bucket", one)
            return
        for path in self.work.iterdir():
            if path.name.startswith(f"{name}.ax2mt") or path.name == name:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _is_chunk(name: str) -> bool:
    return "/c/" in name or name.endswith("/c")


if __name__ == "__main__":
    sys.exit(main())
