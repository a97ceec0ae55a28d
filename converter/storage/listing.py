"""A listing of many pages, divided: each page depends on the one before it, but only within a part of the names."""

import bisect
import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from converter.storage.base import Blob

WAYS = 4
"""Parts that the rest of a listing is divided into after each page: after three full pages 16 requests are in flight,
and a listing that ends with its first page costs no other request."""

Names = tuple[str, str]
"""A range of names: from the first on, which may be listed again; before the second, where there is one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """What one request lists.

    Attributes:
      blobs: in the order of their names; prefixes that a shallow listing shows come in between or behind them.
      more: whether names of the range come after them.
    """

    blobs: Sequence[Blob]
    more: bool


def list_divided(
    first_page: Callable[[str, str], Page], cuts: Sequence[str], pool: Callable[[], ThreadPoolExecutor]
) -> Iterator[Blob]:
    """All objects, in any order; some may come twice.

    Args:
      first_page: lists the first page of a range of names.
      cuts: names, in order, before which a listing may be divided; no object has one of them.
      pool: makes threads for more than one request.
    """
    page = first_page("", "")
    yield from page.blobs
    if not page.more:
        return
    with pool() as threads:
        under_way: dict[Future[Page], Names] = {}

        def follow(page: Page, stop: str) -> None:
            for names in _divide(page.blobs[-1].name, stop, cuts):
                under_way[threads.submit(first_page, *names)] = names

        follow(page, "")
        while under_way:
            done: Any
            done, _ = wait(under_way, return_when=FIRST_COMPLETED)
            for future in done:
                _, stop = under_way.pop(future)
                page = future.result()
                yield from page.blobs
                if page.more:
                    follow(page, stop)


def _divide(last: str, stop: str, cuts: Sequence[str]) -> Iterator[Names]:
    """Ranges of about as many cuts each, from behind the last name that is known on."""
    low = bisect.bisect_right(cuts, last)
    high = bisect.bisect_left(cuts, stop) if stop else len(cuts)
    count = max(high - low, 0)
    chosen = dict.fromkeys(cuts[low + count * way // WAYS] for way in range(1, WAYS)) if count else {}
    yield from itertools.pairwise((last, *chosen, stop))
