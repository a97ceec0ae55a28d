"""Installs the built distributions into clean environments and tries the program there.

    python -P tests/helpers/distributions.py DIRECTORY

DIRECTORY holds one wheel and one source distribution. Each must hold all of our modules and tables and nothing else of
ours, and convert and verify a checkpoint, started outside of the project.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "tests" / "data" / "axlearn" / "micro-hybrid-qkpair"
LISTED = "import converter, os; [print(os.path.join(d, f)) for d, _, fs in os.walk(converter.__path__[0]) for f in fs]"


def files_of_the_project() -> set[str]:
    """The modules, tables and files of the page, by their places in the installed package."""
    modules = {str(path.relative_to(ROOT / "converter")) for path in (ROOT / "converter").rglob("*.py")}
    page = {str(path.relative_to(ROOT / "converter")) for path in (ROOT / "converter/report/page_files").iterdir()}
    return modules | page | {"py.typed"} | {f"mappings/{path.name}" for path in (ROOT / "mappings").glob("*.toml")}


def version_of_the_project() -> str:
    """The version, from the one place where it is written."""
    found = re.search(r'__version__ = "(.+)"', (ROOT / "converter" / "version.py").read_text())
    assert found is not None
    return found[1]


def run(directory: Path, *words: object) -> str:
    """Runs a program outside of the project; returns what it prints."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, words)], capture_output=True, text=True, cwd=directory, env=variables, timeout=900, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def check(distribution: Path) -> None:
    """Installs a distribution and tries what it holds; ends the process where something is wrong."""
    directory = Path(tempfile.mkdtemp(prefix="ax2mt-"))
    try:
        environment = directory / "environment"
        run(directory, sys.executable, "-m", "venv", environment)
        python, program = environment / "bin" / "python", environment / "bin" / "ax2mt"
        run(directory, python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", distribution)
        version = run(directory, program, "--version").split()
        assert version == ["ax2mt", version_of_the_project()], version
        installed = run(directory, python, "-c", LISTED).splitlines()
        found = {path.partition("/site-packages/converter/")[2] for path in installed if "__pycache__" not in path}
        assert found == files_of_the_project(), sorted(found ^ files_of_the_project())
        tables = json.loads(run(directory, program, "mappings", "list", "--json"))["mappings"]
        assert len(tables) == len(list((ROOT / "mappings").glob("*.toml")))
        run(directory, program, "convert", SOURCE, "out", "--untie", "--quiet")
        assert json.loads(run(directory, program, "verify", SOURCE, "out", "--json"))["ok"]
    finally:
        shutil.rmtree(directory)
    print(f"{distribution.name}: installed, converts and verifies", flush=True)


if __name__ == "__main__":
    found = sorted(Path(sys.argv[1]).resolve().iterdir())
    assert {"".join(path.suffixes[-2:]) for path in found} >= {".tar.gz"}, found
    assert len(found) == 2, found
    for one in found:
        check(one)
