"""Times every route against `cp -r` and a naive script, in interleaved rounds: `python -m benchmarks.run`."""

import argparse
import json
import os
import shutil
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe, describe_line
from benchmarks.measure import Measurement, evict, measure, warm
from benchmarks.orbax_source import orbax_source
from benchmarks.source import CACHE, random_source
from converter.words import parse_size

ROUTES: dict[str, list[str]] = {
    "default": [],
    "files": ["--store", "files"],
    "ocdbt": ["--store", "ocdbt"],
    "link": ["--link"],
    "zarr2": ["--store", "zarr2"],
    "rewrite": ["--rewrite"],
    "rewrite-ocdbt": ["--rewrite", "--store", "ocdbt"],
    "unscanned": ["--layout", "unscanned"],
    "unscanned-zstd": ["--layout", "unscanned", "--compress", "zstd"],
    "orbax": [],
}
ORBAX = frozenset({"orbax"})
"""Routes whose source is in the format of AXLearn's OrbaxCheckpointer, all chunks in one database."""

NAIVE_MEMORY = 4
"""The naive script's peak is three to four times its source: it is left out where that is more than there is."""

OUTPUT = CACHE / "output"


def command_of(name: str, source: Path) -> list[str]:
    """The command of a row, which ends with what it wrote on disk as `cp` must."""
    if name == "cp":
        command = ["cp", "-r", str(source), str(OUTPUT)]
    elif name == "naive":
        command = [sys.executable, "-m", "benchmarks.naive", str(source), str(OUTPUT)]
    else:
        program = str(Path(sys.executable).with_name("ax2mt"))
        command = [program, "convert", "-q", "--json", str(source), str(OUTPUT), *ROUTES[name]]
    return ["sh", "-c", '"$@" && sync', "sh", *command]


def naive_limit() -> int:
    """Bytes of the largest source that the naive script can load on this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // NAIVE_MEMORY


def run_rounds(
    source: Path, names: Sequence[str], rounds: int, *, cold: bool, database: Path | None = None
) -> dict[str, list[Measurement]]:
    """Runs every row once a round; a row that fails is not tried again, and its failure is its only measurement.

    Args:
      source: a step in AXLearn's native format.
      names: of the rows.
      rounds: how often.
      cold: take the source out of the page cache first.
      database: the same step as AXLearn's OrbaxCheckpointer writes it, for the rows of `ORBAX`.
    """
    runs: dict[str, list[Measurement]] = defaultdict(list)
    for number in range(rounds):
        for name in names:
            if runs[name] and runs[name][0].code:
                continue
            shutil.rmtree(OUTPUT, ignore_errors=True)
            os.sync()
            taken = database if database is not None and name in ORBAX else source
            evict(taken) if cold else warm(taken)
            result = measure(command_of(name, taken))
            runs[name].append(result)
            print(f"round {number + 1} {name}: exit {result.code}, {result.seconds:.2f} s", file=sys.stderr)
    shutil.rmtree(OUTPUT, ignore_errors=True)
    return runs


def summarise(runs: dict[str, list[Measurement]]) -> list[dict[str, Any]]:
    """One row a command: medians, and ratios to the `cp` and `naive` of the same rounds."""
    medians = {name: median(r.seconds for r in taken) for name, taken in runs.items() if not any(r.code for r in taken)}
    cpu_of_cp = median(r.cpu_seconds for r in runs["cp"]) if "cp" in medians else None
    rows: list[dict[str, Any]] = []
    for name, taken in runs.items():
        failure = next((r for r in taken if r.code), None)
        if failure is not None:
            state = "unavailable" if failure.code == 2 else "failed"
            reason = (failure.error + failure.output).strip()[-500:]
            rows.append({"name": name, "state": state, "code": failure.code, "reason": reason})
            continue
        seconds = medians[name]
        rows.append(
            {
                "name": name,
                "state": "measured",
                "rounds": len(taken),
                "seconds": seconds,
                "all_seconds": [r.seconds for r in taken],
                "cpu_seconds": median(r.cpu_seconds for r in taken),
                "cpu_to_cp": median(r.cpu_seconds for r in taken) / cpu_of_cp if cpu_of_cp else None,
                "peak_bytes": max(map(peak_of, taken)),
                "to_cp": seconds / medians["cp"] if "cp" in medians else None,
                "to_naive": seconds / medians["naive"] if "naive" in medians else None,
            }
        )
    return rows


def peak_of(result: Measurement) -> int:
    """The peak of the largest process; ax2mt tells how much both of its processes took together."""
    try:
        return json.loads(result.output)["peak_memory"]
    except ValueError:
        return result.peak_bytes


def add_growth(rows: list[dict[str, Any]], larger: list[dict[str, Any]]) -> None:
    """Adds to each row how its time and memory grow to those of the source of four times the size."""
    by_name = {row["name"]: row for row in larger}
    for row in rows:
        other = by_name.get(row["name"])
        if row["state"] == "measured" and other is not None and other["state"] == "measured":
            row["time_growth"] = other["seconds"] / row["seconds"]
            row["peak_growth"] = other["peak_bytes"] / row["peak_bytes"]


HEADINGS = ("command", "seconds", "to cp", "CPU to cp", "to naive", "peak MiB", "time 4x", "peak 4x")


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row as text; what was not measured is a dash."""
    if row["state"] != "measured":
        return (row["name"], f"{row['state']} (exit {row['code']})", *["-"] * (len(HEADINGS) - 2))
    keys = ("to_cp", "cpu_to_cp", "to_naive", "time_growth", "peak_growth")
    ratios = [_ratio(row.get(key)) for key in keys]
    peak = f"{row['peak_bytes'] / 2**20:.0f}"
    return (row["name"], f"{row['seconds']:.2f}", *ratios[:3], peak, *ratios[3:])


def markdown(document: dict[str, Any]) -> str:
    """The section for BENCHMARKS.md."""
    lines = [
        f"{document['rounds']} interleaved rounds, {'cold' if document['cold'] else 'warm'} page cache, medians, "
        "`sync` included.",
        "",
        describe_line(document["machine"]),
    ]
    for part in document["sources"]:
        lines += ["", f"{part['bytes'] / 2**30:.2f} GiB on disk:", ""]
        lines += ["| " + " | ".join(HEADINGS) + " |", "|" + " --- |" * len(HEADINGS)]
        lines += ["| " + " | ".join(cells(row)) + " |" for row in part["rows"]]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--size", default="4GiB", help="size of the source, about")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--routes", nargs="+", choices=[*ROUTES, "naive"], default=[*ROUTES, "naive"])
    parser.add_argument("--cold", action="store_true", help="take the source out of the page cache before each run")
    parser.add_argument("--growth", action="store_true", help="also run a source of four times the size")
    parser.add_argument("--markdown", metavar="FILE", help="also write the table as Markdown")
    parser.add_argument("--output", metavar="FILE", default=str(CACHE / "results.json"))
    options = parser.parse_args(arguments)
    size = parse_size(options.size)
    CACHE.mkdir(parents=True, exist_ok=True)

    def measured(total: int) -> dict[str, Any]:
        source = random_source(CACHE / f"random-{total}", total)
        names = ["cp", *(name for name in options.routes if name != "naive" or total <= naive_limit())]
        database = orbax_source(CACHE / f"orbax-{total}", source) if ORBAX & set(names) else None
        rows = summarise(run_rounds(source, names, options.rounds, cold=options.cold, database=database))
        return {"bytes": sum(path.stat().st_size for path in source.rglob("*") if path.is_file()), "rows": rows}

    sources = [measured(size)]
    if options.growth:
        sources.append(measured(4 * size))
        add_growth(sources[0]["rows"], sources[1]["rows"])
    document = {"machine": describe(CACHE), "rounds": options.rounds, "cold": options.cold, "sources": sources}
    Path(options.output).write_text(json.dumps(document, indent=2) + "\n")
    if options.markdown:
        Path(options.markdown).write_text(markdown(document))
    for part in sources:
        table = Table(*HEADINGS, title=f"{part['bytes'] / 2**30:.2f} GiB, {options.rounds} rounds")
        for row in part["rows"]:
            table.add_row(*cells(row))
        Console().print(table)


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    main()
