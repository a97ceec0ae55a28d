"""Starts the command line: the process is made ours before anything else is imported.

It imports nothing that is not loaded when Python starts: until the import path is in order, a `queue.py` of the user's
would be taken for Python's own.
"""

import os
import sys

from converter.own_process import INTERRUPTED, import_path, open_standard_descriptors


def main() -> None:
    """Runs the command line and exits with the documented code."""
    open_standard_descriptors()
    _use_utf8()
    sys.path[:] = import_path(sys.path)
    _exit_at_interrupt()
    from converter.environment import prepare

    prepare()
    from converter.cli.app import main as run

    run()


def _use_utf8() -> None:
    """Starts Python again in its UTF-8 mode where paths would be decoded in another encoding.

    TensorStore and Orbax write UTF-8: in a latin-1 locale they would find and make other files than the user named.
    """
    if sys.getfilesystemencoding() == "utf-8" or sys.flags.utf8_mode or not sys.executable:
        return
    if sys.stdout is not None:
        os.environ["PYTHONIOENCODING"] = sys.stdout.encoding
    os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


def _exit_at_interrupt() -> None:
    """Makes Ctrl-C end the process silently, until `cli` takes it over; where it is ignored, it stays so."""
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
