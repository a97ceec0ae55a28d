"""What a command loads: the start of Python's packages takes longer than most commands."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import AXLEARN

SOURCE = str(AXLEARN / "micro-hybrid")
ORBAX = frozenset({"jax", "orbax"})
ARRAYS = ORBAX | {"tensorstore"}
TABLES = frozenset({"converter.mapping", "converter.planning", "converter.verification.run"})
STORES = frozenset({"converter.storage.gcs", "converter.storage.s3"})


@pytest.mark.parametrize(
    ("command", "unwanted"),
    [
        (["--version"], ARRAYS | {"numpy", "rich"}),
        (["--help"], ARRAYS | {"numpy"}),
        (["convert", "--help"], ARRAYS | {"numpy"}),
        (["plan", SOURCE], ARRAYS),
        (["params", SOURCE, "DST"], ORBAX),
        (["verify", SOURCE, "DST"], ORBAX),
        (["verify", "DST"], ORBAX | TABLES),
        (["verify", "DST", "--json", "-q"], ORBAX | TABLES | {"rich"}),
    ],
    ids=lambda value: " ".join(Path(word).name for word in value) if isinstance(value, list) else "",
)
def test_heavy_packages_stay_unloaded(
    command: list[str], unwanted: frozenset[str], converted: Callable[..., Path]
) -> None:
    code = (
        "import sys, converter.cli.app\n"
        "code = converter.cli.app.run(sys.argv[1:])\n"
        "assert code == 0, code\n"
        "print(','.join(sys.modules), file=sys.stderr)\n"
    )
    words = [str(converted("micro-hybrid")) if word == "DST" else word for word in command]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    assert not (unwanted | STORES) & set(done.stderr.strip().splitlines()[-1].split(","))
