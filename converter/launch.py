"""Makes a process ours before anything else is imported: descriptors, import path, environment, Ctrl-C.

Used by the command line and, in part, by the process that commits. It imports nothing that is not loaded when Python
starts: until the import path is in order, a `queue.py` of the user's would be taken for Python's own.
"""

import os
import sys
from collections.abc import Sequence

HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""The directory that holds this package."""

INTERRUPTED = 130
"""Exit code after Ctrl-C."""


def main() -> None:
    """Runs the command line and exits with the documented code."""
    open_standard_descriptors()
    _use_utf8()
    sys.path[:] = import_path(sys.path)
    _exit_at_interrupt()
    from converter.environment import prepare

    prepare()
    from converter.cli import main as run

    run()


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


def _use_utf8() -> None:
    """Starts Python again in its UTF-8 mode where paths would be decoded in another encoding.

    TensorStore and Orbax write UTF-8: in a latin-1 locale they would find and make other files than the user named.
    """
    if sys.getfilesystemencoding() == "utf-8" or sys.flags.utf8_mode or not sys.executable:
        return
    if sys.stdout is not None:
        os.environ["PYTHONIOENCODING"] = sys.stdout.encoding
    os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


def import_path(entries: Sequence[str]) -> list[str]:
    """The import path on which nothing can stand before Python's own modules and the installed packages.

    First Python's library, then site directories and the place of this package, in their order; then what PYTHONPATH
    and the program's own directory add. The current directory is left out, unless this package lies there.

    Args:
      entries: the import path as it is.
    """
    variable = "" if sys.flags.ignore_environment else os.environ.get("PYTHONPATH", "")
    given = {_real(entry) for entry in [*entries[: not sys.flags.safe_path], *variable.split(os.pathsep)]}
    site = sys.modules.get("site")
    installed = [*site.getsitepackages(), site.getusersitepackages()] if site else []
    trusted = set(map(_real, [HOME, *installed]))
    library = os.path.dirname(os.path.realpath(os.__file__))
    current = _real("")
    ranked: list[tuple[int, str]] = []
    for entry in entries:
        place = _real(entry)
        if place in (library, os.path.join(library, "lib-dynload")):
            ranked.append((0, entry))
        elif place in trusted or (entry and place not in given):
            ranked.append((1, entry))
        elif entry and place != current:
            ranked.append((2, entry))
    return [entry for _, entry in sorted(ranked, key=lambda pair: pair[0])]


def _real(entry: str) -> str:
    try:
        return os.path.realpath(entry or os.curdir)
    except OSError:
        # The current directory was removed.
        return entry


def _exit_at_interrupt() -> None:
    """Makes Ctrl-C end the process silently, until `cli` takes it over; where it is ignored, it stays so."""
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
