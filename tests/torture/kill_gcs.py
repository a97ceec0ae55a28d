"""Kills conversions in a bucket at random moments, alone and two at once, while the store answers slowly and badly.

    python -m tests.torture.kill_gcs --count 100

After each kill there must be no marker without a whole checkpoint; the same command then ends the job, the leaves are
those of an undisturbed conversion bit for bit, and nothing of ours is left. Prints the seed, so that a failure can be
repeated.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.helpers.gcs import Fault, ProcessGcs

SOURCE = Path(__file__).parents[1] / "data" / "axlearn" / "micro-hybrid-sharded"
LATENCY = 0.005
ROOT = Path(__file__).parents[2]
MARKER = "commit_success.txt"


def main() -> int:
    """Runs the rounds; returns 1 if something was wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with_faults = Rounds(options.seed)
    try:
        faults: list[str] = []
        for number in range(options.count):
            faults += with_faults.run(number)
            if number % 10 == 9:
                print(f"{number + 1} rounds, {with_faults.kills} kills, {len(faults)} faults", flush=True)
    finally:
        with_faults.close()
    print(f"{options.count} rounds, {with_faults.kills} kills, {len(faults)} faults")
    return bool(faults)


class Rounds:
    """A store with a source, and conversions that are killed in it.

    Attributes:
      kills: processes that were killed so far.
    """

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.kills = 0
        self.gcs = ProcessGcs()
        self.gcs.make_bucket("bucket")
        self.gcs.upload_tree(SOURCE, "bucket", "run")
        started = time.monotonic()
        for form in ("files", "ocdbt"):
            self._start(form, f"expected-{form}").communicate()
        self.seconds = (time.monotonic() - started) / 2
        self.expected = {form: self._chunks(f"expected-{form}") for form in ("files", "ocdbt")}
        self.gcs.inject(Fault(kind="wait", seconds=LATENCY))
        self.gcs.inject(Fault(operation="objects.*", every=53, status=503))

    def close(self) -> None:
        """Ends the store."""
        self.gcs.close()

    def run(self, number: int) -> list[str]:
        """One round: kills, and a run that ends the job; returns what was wrong."""
        form, together = self.random.choice(("files", "ocdbt")), number % 2
        target = f"out-{number}"
        for _ in range(self.random.randint(1, 2)):
            processes = [self._start(form, target) for _ in range(1 + together)]
            for process in processes[: None if self.random.random() < 0.5 else 1]:
                time.sleep(self.random.uniform(0.3, self.seconds * 1.2) / len(processes))
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    self.kills += 1
            for process in processes:
                process.communicate()
            if wrong := self._looks_finished(form, target):
                return self._report(number, wrong)
        if not self._is_marked(target) or self._left(target):
            done = self._start(form, target)
            _, error = done.communicate()
            # A run that was killed when all was done but its own work area: the same command says that it is there.
            if done.returncode and not self._is_marked(target):
                return self._report(number, [f"the last run exited {done.returncode}: {error.decode()[-300:]}"])
        wrong = [] if self._is_marked(target) else ["no checkpoint at the end"]
        wrong += self._looks_finished(form, target)
        wrong += [f"{name} was left" for name in self._left(target)]
        for name in self.gcs.objects("bucket", f"{target}/"):
            self.gcs.remove("bucket", name)
        return self._report(number, wrong)

    def _report(self, number: int, wrong: list[str]) -> list[str]:
        for line in wrong:
            print(f"round {number}: {line}", flush=True)
        return wrong

    def _start(self, form: str, target: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "converter", "convert", "-q", "gs://bucket/run", f"gs://bucket/{target}"]
        return subprocess.Popen(
            [*command, "--store", form], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True, env={**os.environ, **self.gcs.environment()},
        )  # fmt: skip

    def _is_marked(self, target: str) -> bool:
        return f"{target}/0/{MARKER}" in self.gcs.objects("bucket", f"{target}/")

    def _looks_finished(self, form: str, target: str) -> list[str]:
        """What is wrong with a target that has its last marker."""
        if not self._is_marked(target):
            return []
        found = self._chunks(target)
        if found != self.expected[form]:
            return ["a marker stands at a checkpoint with other chunks"]
        done = subprocess.run(
            [sys.executable, "-m", "converter", "verify", "-q", f"gs://bucket/{target}"], cwd=ROOT,
            capture_output=True, check=False, env={**os.environ, **self.gcs.environment()},
        )  # fmt: skip
        return [f"verify: {done.stderr.decode()[-300:]}"] if done.returncode else []

    def _left(self, target: str) -> list[str]:
        return list(self.gcs.objects("bucket", f"{target}.ax2mt-wip"))

    def _chunks(self, target: str) -> dict[str, str]:
        """Sizes and checksums of all chunks and markers, and their contents' checksums."""
        return {
            name.removeprefix(target): one["size"] + one["metadata"].get("ax2mt-crc32c", "")
            for name, one in self.gcs.objects("bucket", f"{target}/0/").items()
            if "/c/" in name or name.endswith(("/c", MARKER))
        }


if __name__ == "__main__":
    sys.exit(main())
