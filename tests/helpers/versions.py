"""Runs the tests of the core on each Python, and with the lowest and the newest versions that pyproject.toml admits.

    python tests/helpers/versions.py [NAME ...]

NAME is a Python with a resolution, such as `3.11-lowest`; without one, all of them run: each Python with the newest
versions, the oldest with the lowest too. An environment holds what the core needs and nothing of the extras; the tests
of the extras follow in it once these are installed as well. Pythons that are neither on the machine nor to be had by uv
are skipped, loudly; with CI=true that is a failure.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import environments
import scratch

ROOT = environments.ROOT
PYTHONS = ("3.11", "3.12", "3.13")
NAMES = (f"{PYTHONS[0]}-lowest", *(f"{version}-newest" for version in PYTHONS))
RESOLUTIONS = {"lowest": "lowest-direct", "newest": "highest"}

TOOLS = ("hypothesis", "jsonschema", "psutil", "pytest", "pytest-timeout", "pytest-xdist")
"""What the tests of the core need beside it, out of the group `dev`."""

CORE = (
    "tests/storage/test_chunk_file.py", "tests/storage/test_publishing.py", "tests/storage/test_lock.py",
    "tests/axes/test_axis_map.py", "tests/axes/test_blocks.py", "tests/arrays", "tests/checkpoints",
    "tests/mapping/test_families.py", "tests/mapping/test_file.py", "tests/mapping/test_match.py",
    "tests/mapping/test_settings.py", "tests/planning/test_plan.py", "tests/planning/test_parameters.py",
    "tests/planning/test_source.py", "tests/planning/test_qk_norm.py", "tests/planning/test_dtypes.py",
    "tests/conversion/test_run.py", "tests/verification/test_run.py", "tests/verification/test_stored.py",
    "tests/verification/test_cast.py", "tests/forward/test_compare.py", "tests/report/test_layout.py",
    "tests/report/test_schemas.py", "tests/cli/test_app.py", "tests/cli/test_habits.py", "tests/cli/test_imports.py",
)  # fmt: skip
"""What depends on Python and on the packages: bytes on disk, arrays, tables, plans, conversions of the goldens with the
restore by Orbax, both proofs, the command line."""

CHOSEN = "not oldest_orbax and not every_flipped_bit"
"""Neither the restore by another environment's Orbax, nor what takes longest and depends on our code alone."""

EXTRAS = ("tests/storage/test_gcs.py",)
"""Tests of the extras that need no other store than the ones in `tests/helpers`."""

UV = str(Path(sys.executable).with_name("uv"))


def requirement(name: str) -> str:
    """A tool with the bounds that the group `dev` has for it."""
    group = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["dev"]
    return next(entry for entry in group if entry.startswith(f"{name}>"))


def run(*words: str) -> int:
    """Runs a program in the project's directory."""
    return subprocess.run(words, cwd=ROOT, check=False).returncode


def install(environment: Path, name: str, extras: Sequence[str]) -> bool:
    """Installs the project with some extras, in versions of that kind; returns whether that worked."""
    _, _, kind = name.partition("-")
    directory = ROOT / "build" / "versions"
    pinned = directory / f"{name}.txt"
    flags = [flag for extra in extras for flag in ("--extra", extra)]
    python = ["--python", environments.interpreter(environment)]
    resolved = run(
        UV, "pip", "compile", "--quiet", *python, "--resolution", RESOLUTIONS[kind], *flags, "pyproject.toml",
        "--output-file", str(pinned), "--no-annotate", "--upgrade",
    )  # fmt: skip
    if resolved:
        return False
    tools = [requirement(tool) for tool in TOOLS]
    pip = [UV, "pip", "install", "--quiet", *python]
    return not run(*pip, "--requirement", str(pinned), *tools) and not run(*pip, "--no-deps", "--editable", ".")


def test(environment: Path, tests: Sequence[str]) -> bool:
    """Runs tests; returns whether all passed."""
    python = environments.interpreter(environment)
    base = scratch.place(f"tests-{environment.name}")
    flags = ["-n", "2", "--dist", "loadfile", f"--basetemp={base}", "-k", CHOSEN]
    try:
        return not run(python, "-m", "pytest", *flags, *tests)
    finally:
        shutil.rmtree(base, ignore_errors=True)


def check(name: str) -> bool | None:
    """Makes an environment and tests in it; None where there is no such Python."""
    version = name.partition("-")[0]
    environment = ROOT / "build" / "versions" / name
    environment.parent.mkdir(parents=True, exist_ok=True)
    python = environments.find_python((int(version.split(".")[0]), int(version.split(".")[1]))) or version
    if run(UV, "venv", "--quiet", "--clear", "--python", python, str(environment)):
        return None
    print(f"== {name}: core", flush=True)
    if not install(environment, name, ()) or not test(environment, CORE):
        return False
    print(f"== {name}: extras", flush=True)
    return install(environment, name, ("gcs", "s3")) and test(environment, EXTRAS)


def main(names: Sequence[str]) -> int:
    """Tests each environment; returns the exit code."""
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        print(f"unknown: {', '.join(unknown)}; there are {', '.join(NAMES)}", file=sys.stderr)
        return 2
    words = {True: "passed", False: "FAILED", None: "SKIPPED: no such Python"}
    results = {name: check(name) for name in names or NAMES}
    for name, result in results.items():
        print(f"{name}: {words[result]}", flush=True)
    bad = [result for result in results.values() if result is False or (result is None and environments.in_ci())]
    return 1 if bad or not any(results.values()) else 0


if __name__ == "__main__":
    os.environ.pop("PYTHONPATH", None)
    sys.exit(main(sys.argv[1:]))
