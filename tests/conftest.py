"""Fixtures: goldens, the real command line, conversions that several tests look at, and restores by Orbax alone."""

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# Before the libraries below start threads, which would stay with the mounts of the whole machine.
from tests.helpers import mounts

# isort: split
# Imported here, so that conversions in this process let Orbax commit in it: one process each would take twice as long.
import converter.checkpoints.orbax_commit  # noqa: F401
from converter.storage import STORAGES
from tests.helpers import environments
from tests.helpers.browser import NO_BROWSER
from tests.helpers.faulty_storage import FaultyStorage
from tests.helpers.restorer import Restorer
from tests.helpers.slurm import NO_SLURM

pytest_plugins = ["tests.helpers.stores"]

# A shell without job control lets what it starts in the background ignore SIGINT, and so would the processes of tests.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline: the machine that runs this may be busy. The same examples each time: a failure is never luck.
settings.register_profile("suite", deadline=None, derandomize=True)
settings.load_profile("suite")

DATA = Path(__file__).parent / "data"
AXLEARN = DATA / "axlearn"
MAXTEXT = DATA / "maxtext"


@dataclass(frozen=True)
class Completed:
    """A finished command: exit code, and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """stdout as the one JSON document that it must be."""
        return json.loads(self.out)


Cli = Callable[..., Completed]


@pytest.fixture(scope="session")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A current directory that is not the project's."""
    return tmp_path_factory.mktemp("cwd")


@pytest.fixture(scope="session")
def process(elsewhere: Path) -> Cli:
    """Runs the command line in a process of its own, away from the project's directory."""

    def run(*arguments: object, cwd: Path = elsewhere, **variables: str) -> Completed:
        done = subprocess.run(
            [sys.executable, "-m", "converter", *map(str, arguments)],
            capture_output=True, text=True, encoding="utf-8", cwd=cwd, check=False, timeout=600,
            env={**os.environ, "JAX_PLATFORMS": "cpu", **variables},
        )  # fmt: skip
        return Completed(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture(scope="session")
def in_process(elsewhere: Path) -> Cli:
    """Runs the command line in this process: for tests of what commands find and say, in a fifth of the time."""
    from converter.cli.app import run as run_command

    def run(*arguments: object, cwd: Path = elsewhere) -> Completed:
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), contextlib.chdir(cwd):
            code = run_command([*map(str, arguments)])
        return Completed(code, *(stream.buffer.getvalue().decode() for stream in (out, err)))  # pyright: ignore

    return run


@pytest.fixture(scope="session")
def cli(process: Cli) -> Cli:
    """The command line as users start it; the `conftest.py` of some packages gives `in_process` instead."""
    return process


@pytest.fixture(scope="session")
def golden() -> Callable[[str], Path]:
    """The trainer directory of a checkpoint that the real AXLearn wrote."""

    def find(name: str) -> Path:
        return AXLEARN / name

    return find


@pytest.fixture(scope="session")
def nearby(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """Copies a checkpoint once to the file system on which tests write, so that it can be linked to."""

    @cache
    def copy(source: Path) -> Path:
        return Path(shutil.copytree(source, tmp_path_factory.mktemp("nearby") / source.name))

    return copy


@pytest.fixture(scope="session")
def converted(tmp_path_factory: pytest.TempPathFactory, nearby: Callable[[Path], Path]) -> Callable[..., Path]:
    """Converts a golden once a session, with the given options and settings; shared, so it must not be changed."""
    from converter.conversion.run import Request, convert
    from converter.planning.options import Options
    from converter.work import Silent
    from tests.helpers.conversion import make_options

    done: dict[tuple[str, Options, tuple[str, ...]], Path] = {}

    def run(name: str, *, settings: tuple[str, ...] = (), **options: Any) -> Path:
        key = (name, make_options(**options), settings)
        if key not in done:
            target = tmp_path_factory.mktemp("converted") / "out"
            source = nearby(AXLEARN / name) if key[1].link else AXLEARN / name
            convert(Request(str(source), str(target), key[1], settings=settings), Silent())
            done[key] = target
        return done[key]

    return run


@pytest.fixture(scope="session")
def newest_orbax() -> Iterator[Restorer]:
    """The project's own Orbax, in a process that imports none of our code."""
    restorer = Restorer(sys.executable)
    yield restorer
    restorer.close()


@pytest.fixture(scope="session")
def oldest_orbax() -> Iterator[Restorer]:
    """Orbax 0.12.1, likewise."""
    if not environments.is_ready(environments.ORBAX, environments.ORBAX_REQUIREMENTS):
        pytest.fail("no .venv-orbax: run `make test`, or python tests/helpers/environments.py")
    restorer = Restorer(environments.interpreter(environments.ORBAX))
    yield restorer
    restorer.close()


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> FaultyStorage:
    """The local storage of this process from now on; it fails where it is told to."""
    storage = FaultyStorage()
    monkeypatch.setitem(STORAGES, "", storage)
    return storage


@pytest.fixture(params=["newest_orbax", "oldest_orbax"])
def any_orbax(request: pytest.FixtureRequest) -> Restorer:
    """Each supported Orbax in turn."""
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def maxtext_python() -> str:
    """The interpreter with the real MaxText; its absence fails with CI=true and is a skip elsewhere."""
    if environments.maxtext_is_ready():
        return environments.interpreter(environments.MAXTEXT)
    if environments.in_ci():
        pytest.fail(f"no .venv-maxtext: {environments.NO_PYTHON}")
    pytest.skip(f"no .venv-maxtext: {environments.NO_PYTHON}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says loudly what was not tested for want of a program, wherever the worker that skipped it ran."""
    skipped = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", [])]
    for lack in (NO_BROWSER, NO_SLURM):
        if any(lack in reason for reason in skipped):
            terminalreporter.write_line(f"WARNING: {lack}", yellow=True, bold=True)


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str, int], Path]]:
    """Mounts a new file system of a kind ("ext4", or "tmpfs" in memory) and size; skips where it may not."""
    mounts_made: list[Path] = []

    def mount(kind: str, size: int) -> Path:
        place = tmp_path / f"{kind}-{len(mounts_made)}"
        if not (mounts.memory(place, size) if kind == "tmpfs" else mounts.image(kind, place, size)):
            pytest.skip(f"mounting {kind} is not possible here")
        mounts_made.append(place)
        return place

    yield mount
    for place in mounts_made:
        mounts.remove(place)
