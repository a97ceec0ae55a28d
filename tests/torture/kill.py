"""Kills conversions at random moments and lets the same command go on: `python -m tests.torture.kill --count 200`.

Destinations are in turn not there, an empty directory, and a checkpoint that is replaced. After each kill the
destination and its surroundings are scanned for anything that looks finished; after the resume the result is read by a
plain Orbax restore and compared element by element with an uninterrupted conversion. No residue may be left, and a
directory that was there must have the rights that it had; an empty one must be the same.
"""

import argparse
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from converter.checkpoints.maxtext import is_maxtext_checkpoint
from converter.conversion.work_area import journal_path, stage_path

ROUTES = (
    (),
    ("--store", "ocdbt"),
    ("--store", "zarr2"),
    ("--link",),
    ("--rewrite",),
    ("--rewrite", "--store", "ocdbt"),
    ("--untie", "--max-memory", "32MiB"),
    ("--layout", "unscanned"),
    ("--layout", "unscanned", "--rope", "interleaved", "--store", "ocdbt"),
)

KINDS = ("checkpoint", "empty", "new")
"""What is at the destination before."""


def main() -> int:
    """Runs the kills; returns 1 where anything was lost or looked finished."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", help="an AXLearn step or trainer directory; some seconds of work are best")
    parser.add_argument("work", help="a directory to work in, on the source's file system")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    rng = random.Random(options.seed)
    work = Path(options.work).absolute()
    work.mkdir(parents=True, exist_ok=True)
    expected, seconds = {}, {}
    for route in ROUTES:
        target = work / "reference"
        shutil.rmtree(target, ignore_errors=True)
        started = time.monotonic()
        subprocess.run(command(options.source, target, route), check=True, capture_output=True)
        seconds[route] = time.monotonic() - started
        expected[route] = restore(target)
    killed = finished = kills = 0
    for number in range(options.count):
        route = ROUTES[number % len(ROUTES)]
        kind = KINDS[number % len(KINDS)] if number else "new"
        faults, times = one(options.source, work / "checkpoint", route, kind, seconds[route], rng)
        kills += times
        killed += times > 0
        finished += times == 0
        faults += differences(expected[route], work / "checkpoint")
        if faults:
            print(f"round {number}, {kind}, {' '.join(route) or 'default'}: " + "; ".join(faults))
            return 1
    print(f"{options.count} rounds, {kills} kills ({killed} rounds killed, {finished} ended first): nothing lost")
    return 0


def one(
    source: str, target: Path, route: tuple[str, ...], kind: str, seconds: float, rng: random.Random
) -> tuple[list[str], int]:
    """Kills one conversion up to three times, then lets it end; returns what was wrong and the number of kills."""
    shutil.rmtree(stage_path(str(target)), ignore_errors=True)
    Path(journal_path(str(target))).unlink(missing_ok=True)
    if kind != "checkpoint":
        shutil.rmtree(target, ignore_errors=True)
    else:
        route = (*route, "--overwrite")
    if kind == "empty":
        target.mkdir()
    if kind != "new":
        target.chmod(0o2750)
    before = target.stat() if target.exists() else None
    faults: list[str] = []
    kills, ended = 0, False
    for _ in range(rng.randint(1, 3)):
        process = subprocess.Popen(
            command(source, target, route), stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        try:
            process.communicate(timeout=rng.uniform(0.05, seconds * 1.1))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            kills += 1
            faults += looks_finished(target)
            continue
        ended = True
        break
    # A checkpoint that is there may be the old one still.
    if not is_whole(target) or residue(target) or (kind == "checkpoint" and not ended):
        done = subprocess.run(command(source, target, route), capture_output=True, text=True, check=False)
        if done.returncode:
            faults.append(f"the resumed run exited {done.returncode}: {done.stderr.strip()[-300:]}")
    faults += [f"{path} was left behind" for path in residue(target)]
    if before is not None and target.stat().st_mode != before.st_mode:
        faults.append("the directory has other rights")
    if kind == "empty" and before is not None and target.stat().st_ino != before.st_ino:
        faults.append("the directory is another one")
    return faults, kills


def residue(target: Path) -> list[str]:
    """What a run leaves beside its destination when it is stopped."""
    return [path for path in (stage_path(str(target)), journal_path(str(target))) if os.path.exists(path)]


def looks_finished(target: Path) -> list[str]:
    """What a killed run left that could be taken for a checkpoint, other than the finished one in its place."""
    if any(name.isdigit() for name in os.listdir(target)) if target.exists() else False:
        # The step is renamed last: where there is one, all must be whole.
        return [] if is_whole(target) else ["half a destination"]
    return []


def is_whole(target: Path) -> bool:
    """Whether a checkpoint stands at the destination, with its configuration and its receipt."""
    names = ("maxtext.yml", "ax2mt.json")
    return target.exists() and is_maxtext_checkpoint(str(target)) and all((target / n).exists() for n in names)


def differences(expected: dict[str, np.ndarray], target: Path) -> list[str]:
    """Leaves that are not equal bit for bit."""
    found = restore(target)
    wrong = [key for key in expected if key not in found or found[key].tobytes() != expected[key].tobytes()]
    return [f"{key} differs" for key in (*wrong, *(found.keys() - expected.keys()))]


def restore(target: Path) -> dict[str, np.ndarray]:
    """All leaves by a plain Orbax restore."""
    import jax
    import orbax.checkpoint as ocp

    tree = ocp.PyTreeCheckpointer().restore(str(target / "0" / "items"))
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def command(source: str, target: Path, route: tuple[str, ...]) -> list[str]:
    """The command line of one conversion."""
    return [sys.executable, "-m", "converter", "convert", "-q", source, str(target), *route]


if __name__ == "__main__":
    sys.exit(main())
