"""What makes a process ours: descriptors that are open, and an import path on which nobody stands before us.

Used by the command line and by the process that commits. It imports nothing that is not loaded when Python starts.
"""

import os
import sys
from collections.abc import Sequence

HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""The directory that holds this package."""

PACKAGES = ("jax", "numpy", "orbax", "rich", "tensorstore", "typer")
"""Packages that we need, one from each part of an installation."""

INTERRUPTED = 130
"""Exit code after Ctrl-C."""


def open_standard_descriptors() -> None:
    """Opens the standard descriptors that are closed, on /dev/null.

    The next file that is opened would get the number otherwise, and what a library logs would go into it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is this one. It must reach child processes as well.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def import_path(entries: Sequence[str]) -> list[str]:
    """The import path on which nothing can stand before Python's own modules and the installed packages.

    First Python's library, then the site directories and the place of this package, in their order. What PYTHONPATH and
    the program's own directory add comes last, and only where the packages that we need do not all lie before it:
    libraries also look for modules that are not installed. The current directory is left out, unless we lie there.

    Args:
      entries: the import path as it is.
    """
    variable = "" if sys.flags.ignore_environment else os.environ.get("PYTHONPATH", "")
    added = {_real(entry) for entry in [*entries[: not sys.flags.safe_path], *variable.split(os.pathsep)]}
    site = sys.modules.get("site")
    installed = [*site.getsitepackages(), site.getusersitepackages()] if site else []
    ours = set(map(_real, [HOME, *installed]))
    library = os.path.dirname(os.path.realpath(os.__file__))
    first, then, last = [], [], []
    for entry in entries:
        place = _real(entry)
        if place in (library, os.path.join(library, "lib-dynload")):
            first.append(entry)
        elif place in ours or (entry and place not in added):
            then.append(entry)
        elif place != _real(""):
            last.append(entry)
    complete = all(any(os.path.isdir(os.path.join(entry, name)) for entry in then) for name in PACKAGES)
    return first + then + ([] if complete else last)


def _real(entry: str) -> str:
    try:
        return os.path.realpath(entry or os.curdir)
    except OSError:
        # The current directory was removed.
        return entry
