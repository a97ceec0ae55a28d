"""Times `ax2mt verify SRC DST` against reading and decoding both sides once: `python -m benchmarks.verify`."""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median

from benchmarks.machine import describe
from benchmarks.measure import Measurement, measure
from benchmarks.source import CACHE, random_source
from converter.words import parse_size

RATIO = 1.5
"""Wall time that verify may take, of reading both sides once."""

ALLOWANCE = 350 << 20
"""Bytes that the interpreter and the libraries may take beside the budget."""


def main() -> None:
    """Converts once, then runs both in interleaved rounds; exit 1 where verify fails, or is over time or memory."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.verify", description=__doc__)
    parser.add_argument("--size", default="2GiB", help="size of the source, about")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--max-memory", default="1GiB")
    options, flags = parser.parse_known_args()  # Unknown flags go to `ax2mt convert`.
    size, limit = parse_size(options.size), parse_size(options.max_memory) + ALLOWANCE
    source = random_source(CACHE / f"random-{size}", size)
    output = CACHE / "verify-output"
    shutil.rmtree(output, ignore_errors=True)
    program = str(Path(sys.executable).with_name("ax2mt"))
    subprocess.run([program, "convert", "-q", str(source), str(output), *flags], check=True, stdout=subprocess.DEVNULL)
    read = [sys.executable, "-m", "benchmarks.read_both", str(source / "gda"), str(output / "0" / "items")]
    commands = {
        "verify": [program, "verify", "-q", "--json", str(source), str(output), "--max-memory", options.max_memory],
        "read": read,
        "read, allocator as in verify": [*read, "--reuse"],
    }
    runs = interleaved(commands, options.rounds)
    shutil.rmtree(output)
    seconds = {name: median(run.seconds for run in taken) for name, taken in runs.items()}
    ratio = seconds["verify"] / seconds["read"]
    peak = max(run.peak_bytes for run in runs["verify"])
    holds = ratio <= RATIO and peak <= limit
    for name, taken in runs.items():
        cpu, most = median(run.cpu_seconds for run in taken), max(run.peak_bytes for run in taken)
        to_verify = seconds["verify"] / seconds[name]
        print(f"{name}: {seconds[name]:.2f} s (verify {to_verify:.2f}), {cpu:.2f} s of processor, {most >> 20} MiB")
    print(f"verify to read {ratio:.2f} (at most {RATIO}), peak {peak >> 20} MiB (at most {limit >> 20} MiB)")
    document = {
        "machine": describe(CACHE),
        "size": size,
        "flags": flags,
        "max_memory": options.max_memory,
        "runs": {name: [_figures(run) for run in taken] for name, taken in runs.items()},
        "ratio": ratio,
        "peak_bytes": peak,
        "holds": holds,
    }
    (CACHE / "verify.json").write_text(json.dumps(document, indent=2) + "\n")
    if not holds:
        raise SystemExit(1)


def interleaved(commands: dict[str, list[str]], rounds: int) -> dict[str, list[Measurement]]:
    """Runs every command once a round; the first failure ends the program."""
    runs: dict[str, list[Measurement]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            run = measure(command)
            if run.code:
                raise SystemExit(f"{name}: exit {run.code}\n{(run.output + run.error).strip()[-2000:]}")
            runs[name].append(run)
    return runs


def _figures(run: Measurement) -> dict[str, float]:
    return {"seconds": run.seconds, "cpu_seconds": run.cpu_seconds, "peak_bytes": run.peak_bytes}


if __name__ == "__main__":
    main()
