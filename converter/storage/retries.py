"""Bounded retries of requests to a store, with backoff and jitter; `-v` shows them.

Which failures pass by themselves is the same for all stores: https://cloud.google.com/storage/docs/retry-strategy and
https://docs.aws.amazon.com/sdkref/latest/guide/feature-retry-behavior.html. A request that is sent again must do the
same again: reads, writes on a condition, deletions.
"""

import errno
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

Result = TypeVar("Result")

RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP statuses of failures that pass: time is out, too many requests, or the store's own fault."""

logger = logging.getLogger("converter.storage")
"""Gets a line for each retry, at level INFO."""

pause = time.sleep
"""Tests replace it."""


class Transient(Exception):
    """A request failed in a way that passes by itself; the message says how, without the name."""

    def __init__(self, message: str, wait: float | None = None):
        """Takes the message, and the seconds that the store asks to wait."""
        super().__init__(message)
        self.wait = wait


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """How often and how long.

    Attributes:
      attempts: requests in all.
      first: seconds before the first retry, at most; each further one may wait twice as long.
      longest: seconds of a wait that we choose.
      patience: seconds of a wait that the store asks for; a longer one is not waited for.
    """

    attempts: int = 7
    first: float = 0.5
    longest: float = 32
    patience: float = 120

    def wait(self, number: int) -> float:
        """Seconds before a retry; random, so that many requests that failed together do not come back together."""
        return random.uniform(0.5, 1) * min(self.first * 2 ** (number - 1), self.longest)


POLICY = Policy()


def retried(name: str, request: Callable[[], Result], policy: Policy = POLICY) -> Result:
    """Sends a request until it succeeds or fails for good.

    Args:
      name: the URL that it is about, for messages.
      request: raises `Transient` for a failure that passes; anything else ends the attempts.
      policy: how often and how long.

    Raises:
      OSError: it failed as often as `policy` allows; with the name in `filename`.
    """
    for number in range(1, policy.attempts + 1):
        try:
            return request()
        except Transient as failure:
            wait = policy.wait(number) if failure.wait is None else failure.wait
            if number == policy.attempts or wait > policy.patience:
                text = f"{failure} (after {number} attempt{'s' * (number > 1)})"
                raise OSError(errno.EIO, text, name) from None
            logger.info("%s: %s; retry %d of %d in %.1f s", name, failure, number, policy.attempts - 1, wait)
            pause(wait)
    raise AssertionError("a policy has at least one attempt")


def wait_of(header: str | None) -> float | None:
    """The seconds of a `Retry-After` header; None where there are none, or a date."""
    return float(header) if header and header.strip().isdigit() else None
