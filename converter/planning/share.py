"""Which part of a plan a process does: the units of work are divided by bytes, alike in every process that asks.

Units of work that are decoded are dealt out first and then those that are passed through, each kind largest first, to
whoever has the fewest bytes (the rule of longest processing time). So no process gets all of the slow work, and the
largest share exceeds the mean by one run of units at most.
"""

import hashlib
import heapq
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeVar

from converter.errors import UsageError
from converter.planning.plan import Plan

FINENESS = 64
"""Runs of a share, at least, where its units are small enough: its bytes are even to one part in as many."""

MAX_PROCESSES = 1 << 16

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Share:
    """One of the parts that some processes do.

    Attributes:
      index: its number, from 0.
      count: how many parts there are.
    """

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> "Share":
        """A share as it is written on the command line, such as `0/4`.

        Raises:
          UsageError: it is not written so, or there is no such part.
        """
        found = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
        if found is None:
            raise UsageError(f"--process {text}: expected I/N, such as 0/4, or auto")
        return cls.checked(int(found[1]), int(found[2]))

    @classmethod
    def checked(cls, index: int, count: int) -> "Share":
        """A share of numbers that somebody gave.

        Raises:
          UsageError: there is no such part.
        """
        if not 1 <= count <= MAX_PROCESSES:
            raise UsageError(f"--process {index}/{count}: expected 1 to {MAX_PROCESSES} processes")
        if not 0 <= index < count:
            raise UsageError(f"--process {index}/{count}: processes are numbered from 0 to {count - 1}")
        return cls(index, count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The units of one task.

    Attributes:
      units: how many there are; they count as equal.
      bytes: decoded bytes of all of them.
      decoded: whether they are decoded, which takes far longer than passing them through.
      cut: elements of a unit along each free axis; empty where units are chunks.
    """

    units: int
    bytes: int
    decoded: bool = False
    cut: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """What one process does.

    Attributes:
      share: which part this is.
      units: number of a task to the numbers of its units, in order; tasks without any are left out.
      bytes: decoded bytes of these units, about.
      total_bytes: those of all shares.
      division: a digest of how the work was divided: processes that divide it otherwise do not complete each other.
    """

    share: Share
    units: Mapping[int, tuple[range, ...]] = field(repr=False)
    bytes: int
    total_bytes: int
    division: str

    def count(self, task: int) -> int:
        """How many units of a task there are."""
        return sum(map(len, self.units.get(task, ())))

    @property
    def unit_count(self) -> int:
        """How many units there are of all tasks."""
        return sum(map(self.count, self.units))

    def chosen(self, task: int, items: Iterable[Item]) -> Iterator[Item]:
        """Those of a task's units, given in order, that belong to this portion."""
        wanted = chain.from_iterable(self.units.get(task, ()))
        after = next(wanted, None)
        for number, item in enumerate(items):
            if after is None:
                return
            if number == after:
                yield item
                after = next(wanted, None)


def portion_of(plan: Plan, share: Share) -> Portion:
    """The part of a plan that one process does."""
    return divide(plan_loads(plan), share.count)[share.index]


def plan_loads(plan: Plan) -> list[Load]:
    """What there is to divide of a plan, task by task."""
    return [
        Load(
            units=task.units,
            bytes=sum(leaf.bytes for leaf in task.leaves),
            decoded=task.blocking is not None,
            cut=tuple(sorted(task.blocking.group.items())) if task.blocking is not None else (),
        )
        for task in plan.tasks
    ]


def divide(loads: Sequence[Load], count: int) -> list[Portion]:
    """Divides units of work among processes.

    Args:
      loads: the units, task by task.
      count: how many processes there are.

    Returns:
      The part of each. Every unit is in exactly one of them.
    """
    total = sum(load.bytes for load in loads)
    grain = max(total // (count * FINENESS), 1)
    runs = [run for number, load in enumerate(loads) for run in _cut(number, load, grain)]
    runs.sort(key=lambda run: (not loads[run.task].decoded, -run.bytes, run.task, run.units.start))
    waiting = [(0, index) for index in range(count)]
    taken: list[dict[int, list[range]]] = [{} for _ in range(count)]
    held = [0] * count
    for run in runs:
        _, index = waiting[0]
        taken[index].setdefault(run.task, []).append(run.units)
        held[index] += run.bytes
        heapq.heapreplace(waiting, (held[index], index))
    described = repr((count, grain, [(load.units, load.bytes, load.decoded, load.cut) for load in loads]))
    division = hashlib.sha256(described.encode()).hexdigest()[:16]
    return [
        Portion(
            share=Share(index, count),
            units={task: _joined(taken[index][task]) for task in sorted(taken[index])},
            bytes=held[index],
            total_bytes=total,
            division=division,
        )
        for index in range(count)
    ]


@dataclass(frozen=True, slots=True)
class _Run:
    """Units of one task that stay together."""

    task: int
    units: range
    bytes: int


def _cut(task: int, load: Load, grain: int) -> Iterator[_Run]:
    """Runs of about as many bytes as the grain, and of one unit at least."""
    if not load.units:
        return
    size = max(load.bytes // load.units, 1)
    length = max(grain // size, 1)
    for start in range(0, load.units, length):
        units = range(start, min(start + length, load.units))
        yield _Run(task, units, len(units) * size)


def _joined(ranges: list[range]) -> tuple[range, ...]:
    """Ranges in order, neighbours as one."""
    joined: list[range] = []
    for one in sorted(ranges, key=lambda one: one.start):
        if joined and joined[-1].stop == one.start:
            joined[-1] = range(joined[-1].start, one.stop)
        else:
            joined.append(one)
    return tuple(joined)
