"""What a result was measured on."""

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

PACKAGES = ("axlearn2maxtext", "jax", "numpy", "orbax-checkpoint", "tensorstore", "zstandard")


def describe(directory: Path) -> dict[str, Any]:
    """Versions, processor, memory and the file system of a directory."""
    cpu = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), ""
    )
    memory = next((int(line.split()[1]) * 1024 for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    kind = subprocess.run(["stat", "-f", "-c", "%T", str(directory)], capture_output=True, text=True, check=False)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "commit": commit.stdout.strip(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "cpu": cpu or platform.processor(),
        "cores": os.cpu_count(),
        "memory_bytes": memory,
        "file_system": kind.stdout.strip(),
    }


def describe_line(machine: dict[str, Any]) -> str:
    """One sentence of `describe`, for a report."""
    packages = ", ".join(f"{name} {number}" for name, number in machine["packages"].items())
    return (
        f"Commit {machine['commit']}; Python {machine['python']}, {packages}; {machine['cpu']}, "
        f"{machine['cores']} cores, "
        f"{machine['memory_bytes'] / 2**30:.0f} GiB memory, {machine['file_system']}."
    )


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
