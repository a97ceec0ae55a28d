"""Times `ax2mt verify` against reading the same files: `python -m benchmarks.verify`.

`verify SRC DST` and `verify DST` are compared with a script that reads every file of both sides, or of DST. With
`--decode` both decode every chunk, and are compared with a script that reads and decodes both sides once.
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median

from benchmarks.machine import describe
from benchmarks.measure import Measurement, measure, warm
from benchmarks.source import CACHE, random_source
from converter.words import parse_size

RATIOS = {"verify SRC DST": 2.5, "verify DST": 2.0}
"""Wall time that a command may take, of reading the same files."""

DECODE_RATIO = 1.5
"""The same with `--decode`, of reading and decoding both sides once."""

ALLOWANCE = 350 << 20
"""Bytes that verification may take; with `--decode` those beside the budget for blocks in flight."""


def main() -> None:
    """Converts once, then runs all in interleaved rounds; exit 1 where verify fails, or is over time or memory."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.verify", description=__doc__)
    parser.add_argument("--size", default="2GiB", help="size of the source, about")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--max-memory", default="1GiB")
    parser.add_argument("--decode", action="store_true", help="decode every chunk, and compare with decoding")
    options, flags = parser.parse_known_args()  # Unknown flags go to `ax2mt convert`.
    size, budget = parse_size(options.size), parse_size(options.max_memory)
    source = random_source(CACHE / f"random-{size}", size)
    output = CACHE / "verify-output"
    shutil.rmtree(output, ignore_errors=True)
    program = str(Path(sys.executable).with_name("ax2mt"))
    subprocess.run([program, "convert", "-q", str(source), str(output), *flags], check=True, stdout=subprocess.DEVNULL)
    for directory in (source, output):
        warm(directory)
    own = ["-q", "--json", "--max-memory", options.max_memory, *(["--decode"] if options.decode else [])]
    verify = {
        "verify SRC DST": [program, "verify", str(source), str(output), *own],
        "verify DST": [program, "verify", str(output), *own],
    }
    read = _readers(source, output, decode=options.decode)
    runs = interleaved({**verify, **read}, options.rounds)
    shutil.rmtree(output)
    baselines = dict(zip(verify, read, strict=True))
    limits = dict.fromkeys(verify, DECODE_RATIO) if options.decode else RATIOS
    document = {
        "machine": describe(CACHE),
        "size": size,
        "flags": flags,
        "max_memory": options.max_memory,
        "decode": options.decode,
        "runs": {name: [_figures(run) for run in taken] for name, taken in runs.items()},
        **_verdict(runs, baselines, limits, ALLOWANCE + (budget if options.decode else 0)),
    }
    (CACHE / "verify.json").write_text(json.dumps(document, indent=2) + "\n")
    if not document["holds"]:
        raise SystemExit(1)


def _readers(source: Path, output: Path, *, decode: bool) -> dict[str, list[str]]:
    """For both forms of verify the script that does no more than read the same."""
    script = [sys.executable, "-m", "benchmarks.read_both" if decode else "benchmarks.read_files"]
    sides = [str(source / "gda"), str(output / "0" / "items")]
    return {"read SRC and DST": [*script, *sides], "read DST": [*script, sides[1]]}


def _verdict(
    runs: dict[str, list[Measurement]], baselines: dict[str, str], limits: dict[str, float], allowed: int
) -> dict[str, object]:
    """Prints the medians; returns the ratios, the peak and whether they are within the limits."""
    seconds = {name: median(run.seconds for run in taken) for name, taken in runs.items()}
    for name, taken in runs.items():
        cpu, most = median(run.cpu_seconds for run in taken), max(run.peak_bytes for run in taken)
        print(f"{name}: {seconds[name]:.2f} s, {cpu:.2f} s of processor, {most >> 20} MiB")
    ratios = {name: seconds[name] / seconds[baseline] for name, baseline in baselines.items()}
    peak = max(run.peak_bytes for name in baselines for run in runs[name])
    for name, ratio in ratios.items():
        print(f"{name} takes {ratio:.2f} times {baselines[name]} (at most {limits[name]})")
    print(f"peak {peak >> 20} MiB (at most {allowed >> 20} MiB)")
    holds = peak <= allowed and all(ratio <= limits[name] for name, ratio in ratios.items())
    return {"ratios": ratios, "peak_bytes": peak, "holds": holds}


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
