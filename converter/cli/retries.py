"""Retries of requests to object stores, shown on stderr under --verbose."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

LOGGER = "converter.storage"


class Retries(logging.Handler):
    """Prints each message as a line of the command's progress."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f"ax2mt: {record.getMessage()}", file=sys.stderr, flush=True)


@contextmanager
def showing_retries() -> Iterator[None]:
    """Prints them while the block runs."""
    logger, handler = logging.getLogger(LOGGER), Retries()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
