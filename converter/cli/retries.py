"""Retries of requests to object stores, shown on stderr under --verbose."""

import logging
import sys

LOGGER = "converter.storage"


class Retries(logging.Handler):
    """Prints each message as a line of the command's progress."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f"ax2mt: {record.getMessage()}", file=sys.stderr, flush=True)


def show_retries() -> None:
    """Prints them from now on."""
    logger = logging.getLogger(LOGGER)
    if not any(isinstance(handler, Retries) for handler in logger.handlers):
        logger.addHandler(Retries())
    logger.setLevel(logging.INFO)
