"""An installation of ax2mt as a wheel makes it, and directories that try to take the place of what it imports."""

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]

SCRIPT = "import sys\nfrom ax2mt import main\nif __name__ == '__main__':\n    sys.exit(main())\n"
"""What pip writes as the program of the entry point `ax2mt:main`."""

HOSTILE = "import os, pathlib\npathlib.Path(__file__).with_suffix('.ran').touch()\nos._exit(99)\n"


def install(target: Path) -> Path:
    """Puts the files of the wheel into a directory, and the program into its `bin`."""
    shutil.copytree(ROOT / "converter", target / "converter", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "mappings", target / "converter" / "mappings", ignore=shutil.ignore_patterns("*.py*"))
    shutil.copy(ROOT / "ax2mt.py", target)
    (target / "bin").mkdir()
    (target / "bin" / "ax2mt").write_text(SCRIPT)
    return target


def hostile(place: Path, modules: str, packages: str = "") -> Path:
    """A directory of modules and packages that end the process that imports them, and leave a `.ran` file."""
    for name in modules.split():
        (place / f"{name}.py").write_text(HOSTILE)
    for name in packages.split():
        (place / name).mkdir()
        for file in ("__init__.py", "__main__.py", "cli.py", "launch.py"):
            (place / name / file).write_text(HOSTILE)
    return place


def ran(place: Path) -> list[str]:
    """What of a hostile directory was imported."""
    return [path.name for path in place.rglob("*.ran")]
