import re
from collections.abc import Sequence

from converter.errors import UsageError

MAX_LISTED = 20

SHORT_FLAGS = {"untie": "--untie", "qk_norm": "--qk-norm fit", "interleaved": "--rope interleaved"}
"""Options of mapping tables that the command line has a short form for."""


def option_words(name: str) -> list[str]:
    """The words of a command line that switch on the option of a mapping table."""
    return SHORT_FLAGS[name].split() if name in SHORT_FLAGS else ["--option", name]


def option_flag(name: str) -> str:
    """How the option of a mapping table is given on the command line."""
    return " ".join(option_words(name))


def shorten(lines: Sequence[str], most: int = MAX_LISTED) -> list[str]:
    """The first lines, and how many more there are."""
    return list(lines[:most]) + ([f"and {len(lines) - most} more"] if len(lines) > most else [])


def first_names(names: Sequence[object], most: int) -> str:
    """The first of several names in one line, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more


def printable(text: str) -> str:
    """The text with control characters escaped, so that paths and file contents cannot steer a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*([KMGT]?)(i?B)?", re.IGNORECASE | re.ASCII)


def parse_size(text: str) -> int:
    """Bytes from a text such as `512MiB`, `1GiB`, `2G` or `1000000`; units are powers of 1024.

    Raises:
      UsageError: the text is not a size.
    """
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise UsageError(f"invalid size {text!r}: expected a number with a unit, such as 512MiB")
    return int(float(match[1]) * (1 << (10 * "KMGT".find(match[2].upper()) + 10 if match[2] else 0)))


def format_size(count: int) -> str:
    """Bytes for people, in powers of 1024."""
    if count < 1024:
        return f"{count} B"
    value = float(count)
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        # What would be rounded to 1024.0 belongs to the next unit, and what to 10.00 has one decimal as 10.1 has.
        if value < 1023.95:
            return f"{value:.2f} {unit}" if value < 9.995 else f"{value:.1f} {unit}"
    return f"{value / 1024:.2f} TiB"


def budget_too_small(limit: int, why: str, needed: int) -> UsageError:
    """The error where a memory budget cannot hold one piece of work; the message names the smallest that can.

    Args:
      limit: bytes of the budget.
      why: what needs more.
      needed: bytes that are enough.
    """
    return UsageError(
        f"--max-memory {limit} bytes is too small: {why}; give --max-memory {-(-needed >> 20)}MiB or more"
    )
