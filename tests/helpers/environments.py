"""Makes the virtual environments in which tests look at our output with other people's programs.

    python tests/helpers/environments.py

* `.venv-maxtext`: the real MaxText on Python 3.12. Where no Python 3.12 works, the tests that need it are skipped,
  loudly; with CI=true that is a failure.
* `.venv-orbax`: the oldest Orbax that our checkpoints must restore in, on the interpreter that runs this script.
* `.venv-beam`: Apache Beam, whose pins differ from those of other packages that tests use, on the same interpreter.

An environment that is ready is left alone, so that a second run starts at once: its `ready` file holds the hash of its
requirements. A `.venv-maxtext` that is a link to an environment with the right MaxText is used as it is.
"""

import glob
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MAXTEXT = ROOT / ".venv-maxtext"
ORBAX = ROOT / ".venv-orbax"
MAXTEXT_REQUIREMENTS = ROOT / "tests" / "requirements-maxtext.txt"
BEAM = ROOT / ".venv-beam"
BEAM_REQUIREMENTS = ROOT / "tests" / "requirements-beam.txt"
ORBAX_REQUIREMENTS = ROOT / "tests" / "requirements-orbax.txt"
MAXTEXT_PYTHON = (3, 12)

MAXTEXT_VARIABLES = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_backend_optimization_level=0"}
"""For processes with MaxText: optimizing the code of models as small as ours takes longer than it gains."""

NO_PYTHON = "no working Python 3.12 was found; install one (or put it on the path) to test with the real MaxText"


class SetupError(Exception):
    """An environment cannot be made; the message says why in one line."""


def in_ci() -> bool:
    """Whether a missing environment is a failure."""
    return os.environ.get("CI", "").lower() in ("1", "true", "yes")


def interpreter(environment: Path) -> str:
    """The environment's Python."""
    return str(environment / "bin" / "python")


def digest(requirements: Path) -> str:
    """What the marker of an environment made from these requirements holds."""
    return hashlib.sha256(requirements.read_bytes()).hexdigest()


def is_ready(environment: Path, requirements: Path) -> bool:
    """Whether an environment was made completely, from exactly these requirements."""
    try:
        return (environment / "ready").read_text() == digest(requirements)
    except OSError:
        return False


def maxtext_is_ready() -> bool:
    """Whether `.venv-maxtext` is ready, or links to an environment that has the wanted MaxText."""
    if is_ready(MAXTEXT, MAXTEXT_REQUIREMENTS):
        return True
    if not MAXTEXT.is_symlink():
        return False
    found = _ask(interpreter(MAXTEXT), "import importlib.metadata as m; print(m.version('maxtext'))")
    return f"maxtext=={found}" in MAXTEXT_REQUIREMENTS.read_text().split()


def find_python(version: tuple[int, int]) -> str | None:
    """The first interpreter of a version that really runs.

    A name on the path proves nothing: pyenv's shims are there for every installed version and fail unless it is
    selected. So each candidate is run and asked for its version.
    """
    for candidate in _candidates("{}.{}".format(*version)):
        if _ask(candidate, "import venv, ensurepip, sys; print(*sys.version_info[:2])") == "{} {}".format(*version):
            return candidate
    return None


def _candidates(name: str) -> Iterator[str]:
    if sys.version_info[:2] == tuple(map(int, name.split("."))):
        yield sys.executable
    on_path = shutil.which(f"python{name}")
    if on_path:
        yield on_path
    roots = [os.environ.get("PYENV_ROOT", ""), os.path.expanduser("~/.pyenv")]
    for root in filter(None, roots):
        yield from sorted(glob.glob(f"{root}/versions/{name}*/bin/python"), reverse=True)
    for place in ("/usr/local", "/usr", "/opt", "/opt/*"):
        yield from sorted(glob.glob(f"{place}/bin/python{name}"))


def _ask(python: str, code: str) -> str:
    """What a line of code prints in an interpreter; empty where that does not work."""
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=600, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def make(environment: Path, python: str, requirements: Path, options: Sequence[str] = ()) -> None:
    """Makes an environment from scratch.

    Raises:
      SetupError: venv or pip fail; their own output is on stderr.
    """
    if environment.is_symlink():
        raise SetupError(f"{environment.name} is a link to something that is not the wanted environment; remove it")
    shutil.rmtree(environment, ignore_errors=True)
    print(f"making {environment.name} with {python} from {requirements.name}; this takes a minute or two", flush=True)
    install = [interpreter(environment), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *options]
    for command in ([python, "-m", "venv", str(environment)], [*install, "-r", str(requirements)]):
        if subprocess.run(command, check=False).returncode:
            raise SetupError(f"{environment.name} cannot be made: {' '.join(command)} failed")
    (environment / "ready").write_text(digest(requirements))


def main() -> int:
    """Makes what is missing; returns the exit code."""
    try:
        if not is_ready(ORBAX, ORBAX_REQUIREMENTS):
            make(ORBAX, sys.executable, ORBAX_REQUIREMENTS)
        if not is_ready(BEAM, BEAM_REQUIREMENTS):
            make(BEAM, sys.executable, BEAM_REQUIREMENTS)
        if not maxtext_is_ready():
            python = find_python(MAXTEXT_PYTHON)
            if python is None:
                print(f"{'ERROR' if in_ci() else 'SKIPPING the MaxText tests'}: {NO_PYTHON}", file=sys.stderr)
                return 1 if in_ci() else 0
            make(MAXTEXT, python, MAXTEXT_REQUIREMENTS, ["--no-deps"])
    except SetupError as error:
        print(f"ERROR: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
