"""Path patterns of a table's rules: `*` for any text inside a part of the path, `**` for one part or more."""

from collections.abc import Callable, Sequence
from functools import lru_cache


def matches(pattern: str, path: str) -> bool:
    """Whether a path fits a pattern in which `*` stands for any text inside a part, and `**` for one part or more."""
    parts, literals = _read(pattern)
    if not (path.startswith(literals[0]) and all(literal in path for literal in literals)):
        return False  # So it is with nearly all paths of a checkpoint, which may have many thousands.
    return _glob(parts, path.split("/"), "**", lambda part, found: _glob(part, found, "*", str.__eq__))


@lru_cache(maxsize=1024)
def _read(pattern: str) -> tuple[Sequence[str], Sequence[str]]:
    """A pattern's parts, and the texts between its stars."""
    parts: list[str] = []
    for part in pattern.split("/"):
        parts += ["*", "**"] if part == "**" else [part]
    return parts, pattern.split("*")


def _glob(pattern: Sequence[str], items: Sequence[str], star: str, fits: Callable[[str, str], bool]) -> bool:
    """Matches with stars that stand for any number of items; a regular expression could take exponential time."""
    at = place = 0
    last_star, resume = -1, 0
    while place < len(items):
        if at < len(pattern) and pattern[at] == star:
            last_star, resume = at, place
            at += 1
        elif at < len(pattern) and fits(pattern[at], items[place]):
            at += 1
            place += 1
        elif last_star >= 0:
            resume += 1
            at, place = last_star + 1, resume
        else:
            return False
    return all(entry == star for entry in pattern[at:])
