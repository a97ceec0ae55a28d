"""Ctrl-C and SIGTERM, as an exception and as a fact."""

import signal


class Interrupts:
    """Raises `KeyboardInterrupt` at Ctrl-C and at SIGTERM: a job scheduler's SIGTERM is a clean stop as well.

    Attributes:
      seen: whether there was one. Libraries turn the exception into others, such as that of a failed import.
    """

    def __init__(self) -> None:
        self.seen = False
        signal.signal(signal.SIGTERM, self._stop)
        # It is ignored in what a shell without job control runs in the background: a Ctrl-C there is for others.
        if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
            signal.signal(signal.SIGINT, self._stop)

    def _stop(self, *_: object) -> None:
        self.seen = True
        raise KeyboardInterrupt
