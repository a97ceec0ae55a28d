"""How a process starts: whose modules it imports, its descriptors, its first Ctrl-C."""

import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from converter import own_process
from converter.mapping.bundled import table_names, table_path
from tests.conftest import AXLEARN, Cli
from tests.helpers.installation import ROOT, hostile, install, ran

SOURCE = AXLEARN / "micro-hybrid-qkpair"
MODULES = "queue numpy typing yaml zstandard simplejson cloudpickle tensorflow jax_plugins secrets uuid"
PACKAGES = "converter mappings rich typer jax"

Run = Callable[..., subprocess.CompletedProcess[str]]


def run(*command: object, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True, text=True, check=False, cwd=cwd, env={**environment, **variables}, timeout=120,
    )  # fmt: skip


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("target"))


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    place = tmp_path / "trap"
    place.mkdir()
    return hostile(place, MODULES, PACKAGES)


@pytest.mark.parametrize(
    ("program", "way"), [("module", "current directory"), ("script", "PYTHONPATH"), ("module", "both")]
)
def test_nothing_takes_the_place_of_our_modules(
    program: str, way: str, installed: Path, trap: Path, tmp_path: Path
) -> None:
    command = [installed / "bin" / "ax2mt"] if program == "script" else ["-m", "ax2mt"]
    cwd = tmp_path if way == "PYTHONPATH" else trap
    path = os.pathsep.join(map(str, [installed] if way == "current directory" else [trap, installed, ""]))
    out = tmp_path / "out"
    for arguments in (["convert", SOURCE, out, "-q"], ["verify", SOURCE, out, "-q"], ["mappings", "show", "envy"]):
        done = run(*command, *arguments, cwd=cwd, PYTHONPATH=path)
        assert done.returncode == 0, done.stderr
    assert ran(trap) == []


def test_logits_import_nothing_of_the_current_directory(installed: Path, trap: Path) -> None:
    (trap / "tokens.jsonl").write_text("[1, 2, 3]")
    done = run("-m", "ax2mt", "logits", SOURCE, "--tokens", "tokens.jsonl", cwd=trap, PYTHONPATH=str(installed))
    assert done.returncode == 0, done.stderr
    assert ran(trap) == []


def test_python_m_converter_beside_files_of_other_names(tmp_path: Path) -> None:
    place = tmp_path / "checkpoint"
    place.mkdir()
    hostile(place, MODULES, "rich typer jax")
    done = run("-m", "converter", "convert", SOURCE, tmp_path / "out", "-q", cwd=place, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    assert ran(place) == []


def test_a_program_of_the_users_that_converts_beside_such_files(tmp_path: Path) -> None:
    # Such as a notebook: the import path begins with the current directory, and only the user's imports go by it.
    place = tmp_path / "checkpoint"
    place.mkdir()
    hostile(place, "cloudpickle simplejson tensorflow jax_plugins")
    program = (
        f"import sys; sys.path.append({str(ROOT)!r}); from converter.checkpoints.committer import Committer\n"
        "from converter.conversion.run import Request, convert; from converter.planning.options import Options\n"
        "from converter.work import Silent\n"
        f"with Committer() as committer: convert(Request({str(SOURCE)!r}, 'out', Options()), Silent(), committer)\n"
    )
    done = run("-c", program, cwd=place)
    assert done.returncode == 0, done.stderr
    assert (place / "out/0/items/_METADATA").is_file()
    assert ran(place) == []


def test_the_import_path_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["/added", "", str(ROOT)]))
    library = os.path.dirname(os.__file__)
    packages = os.path.dirname(os.path.dirname(importlib.metadata.distribution("numpy").locate_file("numpy/x")))  # pyright: ignore
    entries = ["/program", "/added", str(tmp_path), str(ROOT), "", library, f"{library}/lib-dynload", packages, "/more"]
    expected = [library, f"{library}/lib-dynload", str(ROOT), packages, "/more"]
    assert own_process.import_path(entries) == expected
    monkeypatch.setattr(own_process, "PACKAGES", (*own_process.PACKAGES, "nowhere"))
    assert own_process.import_path(entries) == [*expected, "/program", "/added"]


def test_the_tables_are_found_in_the_repository_and_in_an_installation(installed: Path, tmp_path: Path) -> None:
    assert "envy" in table_names()
    assert table_names() == tuple(sorted(path.stem for path in (ROOT / "mappings").glob("*.toml")))
    assert Path(table_path("envy")) == ROOT / "mappings" / "envy.toml"
    program = "from converter.mapping.bundled import table_path; print(table_path('envy'))"
    done = run("-c", program, cwd=tmp_path, PYTHONPATH=str(installed))
    assert Path(done.stdout.strip()) == installed / "converter" / "mappings" / "envy.toml"
    assert {path.stem for path in (installed / "converter" / "mappings").glob("*.toml")} == set(table_names())


def test_the_distribution_has_no_module_of_a_common_name_but_converter() -> None:
    distribution = importlib.metadata.distribution("axlearn2maxtext")
    assert set((distribution.read_text("top_level.txt") or "").split()) == {"ax2mt", "converter"}
    (script,) = distribution.entry_points.select(group="console_scripts")
    assert (script.name, script.value) == ("ax2mt", "ax2mt:main")


@pytest.mark.parametrize("module", ["typer", "typer.main", "converter.cli.verify", "numpy", "converter.cli.streams"])
def test_an_early_interruption_is_no_traceback(module: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    path = os.pathsep.join(map(str, [tmp_path, ROOT]))
    done = run("-m", "ax2mt", "plan", SOURCE, cwd=tmp_path, PYTHONPATH=path)
    assert done.returncode == 130, done.stderr
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) <= 1, done.stderr


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&-", "<&- >&- 2>&-"])
def test_closed_descriptors_are_never_those_of_the_files_written(closed: str, tmp_path: Path, in_process: Cli) -> None:
    out = tmp_path / "out"
    shell = f'exec "$@" {closed}'
    program = [sys.executable, "-m", "converter"]
    command = ["sh", "-c", shell, "sh", *program, "convert", str(SOURCE), str(out), "--rewrite"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert in_process("verify", SOURCE, out, "-q").code == 0


def test_a_removed_current_directory(tmp_path: Path) -> None:
    gone = tmp_path / "gone"

    def convert(target: object) -> subprocess.CompletedProcess[str]:
        gone.mkdir()
        command = ["sh", "-c", f'rmdir "{gone}" && exec "$@"', "sh", sys.executable, "-m", "converter", "convert", "-q"]
        return subprocess.run(
            [*command, str(SOURCE), str(target)],
            cwd=gone, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip

    assert convert(tmp_path / "out").returncode == 0
    refused = convert("out")
    assert refused.returncode == 2
    assert "the current directory was removed" in refused.stderr


def test_paths_are_utf8_in_a_locale_that_is_not(tmp_path: Path) -> None:
    variables = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": str(ROOT)}
    done = run("-m", "ax2mt", "convert", SOURCE, "größe", cwd=tmp_path, **variables)
    assert done.returncode == 0, done.stderr
    assert "gr\\xf6\\xdfe" in done.stdout
    assert (tmp_path / "größe/0/items/_METADATA").is_file()
