"""Listings of many pages: nothing is lost wherever they are divided, and pages are asked for at once."""

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from hypothesis import example, given
from hypothesis import strategies as st

from converter.storage import FILE, Blob
from converter.storage.listing import WAYS, Page, list_divided


def pages_of(names: list[str], size: int, *, repeats: bool = False) -> Callable[[str, str], Page]:
    """The first page of a range of names; with `repeats`, as in Cloud Storage, the first one may be listed again."""

    def first_page(start: str, stop: str) -> Page:
        found = [
            name
            for name in sorted(names)
            if (name > start or (repeats and name == start)) and (not stop or name < stop)
        ]
        return Page(blobs=[Blob(name=name, kind=FILE) for name in found[:size]], more=len(found) > size)

    return first_page


def threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(8)


some_names = st.sets(st.text("ab/ä", min_size=1, max_size=4).filter(lambda name: not name.endswith("/")), max_size=40)
directories = st.sets(st.text("ab/ä", max_size=3).map(lambda name: f"{name}/"), max_size=40)


@given(names=some_names, cuts=directories, size=st.integers(2, 7), repeats=st.booleans())
@example(names={"a/1", "a/2", "b/1", "b/2", "b/3"}, cuts={"a/", "b/"}, size=2, repeats=False)
def test_no_name_is_lost(names: set[str], cuts: set[str], size: int, repeats: bool) -> None:
    first_page = pages_of(sorted(names), size, repeats=repeats)
    found = [blob.name for blob in list_divided(first_page, sorted(cuts), threads)]
    assert set(found) == names
    assert repeats or len(found) == len(names)


def test_pages_are_asked_for_at_once() -> None:
    """After the first page the next ones wait for each other, which those that come one by one would do for ever."""
    names = [f"{part:02}/{chunk}" for part in range(64) for chunk in range(10)]
    first_page, meeting, number = pages_of(names, 50), threading.Barrier(WAYS), itertools.count()

    def meet(start: str, stop: str) -> Page:
        if 1 <= next(number) <= WAYS:
            meeting.wait(60)
        return first_page(start, stop)

    found = list(list_divided(meet, [f"{part:02}/" for part in range(64)], threads))
    assert len(found) == len(names)
    assert next(number) <= 2 * len(names) / 50


def test_one_page_takes_one_request() -> None:
    asked: list[tuple[str, str]] = []

    def first_page(start: str, stop: str) -> Page:
        asked.append((start, stop))
        return pages_of(["a", "b"], 5)(start, stop)

    assert len(list(list_divided(first_page, ["b"], threads))) == 2
    assert asked == [("", "")]
