"""How far a conversion is, in a few lines. Holds no decisions."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from converter.words import first_names, format_size

if TYPE_CHECKING:
    from converter.conversion import BeamResult, Status
    from converter.planning import Share

MAX_SHARES = 16
"""Shares that are named."""

HEADLINES = {
    "nothing": "no conversion was begun here, and there is no checkpoint",
    "begun": "begun, not finished",
    "finished": "a checkpoint is in its place, and no conversion is under way",
}


def print_status(status: "Status", console: Console) -> None:
    """The state; where a conversion was begun, what is done of it and what finishes it."""
    console.print(f"{status.destination}: {HEADLINES[status.state]}", soft_wrap=True)
    for name, text in _lines(status):
        console.print(f"{name:<12} {text}", soft_wrap=True)


def print_pipeline(result: "BeamResult", console: Console) -> None:
    """That the checkpoint is there, and what to do with it."""
    done = f"converted in {result.shares} shares" if result.shares else "was converted already"
    console.print(f"{result.destination}: {done}, in {result.seconds:.1f} s.", soft_wrap=True)
    console.print("To continue in MaxText:")
    console.print(result.command, soft_wrap=True)


def _lines(status: "Status") -> list[tuple[str, str]]:
    lines: list[tuple[str, str]] = []
    if status.source:
        step = status.step if status.step is not None else "unknown"
        lines.append(("source", f"{status.source} (step {step})"))
    if status.leaves:
        lines.append(("leaves", f"{status.leaves}, {format_size(status.total_bytes)} of weights"))
    if status.state == "begun":
        ago = "" if status.idle_seconds is None else f", the last of it written {status.idle_seconds:.0f} s ago"
        lines.append(("in place", f"{format_size(status.stored_bytes)} as stored{ago}"))
    if status.done:
        lines.append(("shares done", named([one.share for one in status.done]) + _part(status)))
    if status.awaited:
        lines.append(("awaited", named(status.awaited)))
    elif status.is_whole:
        lines.append(("awaited", "only the commit"))
    if status.command:
        lines.append(("finish with", status.command))
    return lines


def _part(status: "Status") -> str:
    if not status.total_bytes:
        return ""
    return f" ({format_size(status.done_bytes)} of {format_size(status.total_bytes)})"


def named(shares: "Sequence[Share]") -> str:
    """Shares by their names, the first of many."""
    return first_names(shares, MAX_SHARES)
