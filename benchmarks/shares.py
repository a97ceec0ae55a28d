"""Processes that share a conversion against one that does it alone: `python -m benchmarks.shares`.

On the rewrite route, on one machine: one process with `--jobs 2`, two with `--jobs 1` each, four with `--jobs 1` each,
in interleaved rounds. The time counts from the start of the first process to the end of the last.
"""

import argparse
import os
import resource
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.machine import describe, describe_line
from benchmarks.measure import warm
from benchmarks.source import CACHE, random_source
from converter.words import parse_size

OUTPUT = CACHE / "shares"
ROWS = {
    "one process, --jobs 2": [["--jobs", "2"]],
    "two processes, --jobs 1": [["--jobs", "1", "--process", f"{index}/2"] for index in range(2)],
    "four processes, --jobs 1": [["--jobs", "1", "--process", f"{index}/4"] for index in range(4)],
}


def run(source: Path, commands: Sequence[Sequence[str]]) -> tuple[float, float]:
    """Wall and processor seconds of commands that are started together."""
    shutil.rmtree(OUTPUT, ignore_errors=True)
    os.sync()
    warm(source)
    program = str(Path(sys.executable).with_name("ax2mt"))
    before, started = _processor_seconds(), time.monotonic()
    processes = [
        subprocess.Popen([program, "convert", "-q", str(source), str(OUTPUT), "--rewrite", *options])
        for options in commands
    ]
    codes = [process.wait() for process in processes]
    if any(codes) or not (OUTPUT / "0").exists():
        raise SystemExit("a process failed, or nothing was committed")
    return time.monotonic() - started, _processor_seconds() - before


def _processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shares", description=__doc__)
    parser.add_argument("--size", default="4GiB", help="size of the source, about")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    size = parse_size(options.size)
    source = random_source(CACHE / f"source-{size}", size)
    seconds: dict[str, list[float]] = defaultdict(list)
    processor: dict[str, list[float]] = defaultdict(list)
    for number in range(options.rounds):
        for name, commands in ROWS.items():
            wall, busy = run(source, commands)
            seconds[name].append(wall)
            processor[name].append(busy)
            print(f"round {number + 1} {name}: {wall:.1f} s, processor {busy:.1f} s", file=sys.stderr, flush=True)
    shutil.rmtree(OUTPUT, ignore_errors=True)
    print(describe_line(describe(CACHE)))
    alone = next(iter(ROWS))
    print("| | time to one process | processor time to one process |\n| --- | --- | --- |")
    for name in ROWS:
        ratios = [median(taken[name]) / median(taken[alone]) for taken in (seconds, processor)]
        print(f"| {name} | {ratios[0]:.2f} | {ratios[1]:.2f} |")


if __name__ == "__main__":
    main()
