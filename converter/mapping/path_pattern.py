"""Regular expressions from a training's configuration, matched with parameter paths in linear time.

The patterns are somebody else's text, and Python's `re` takes exponential time for some. So only a small part of the
notation is read, and it is matched by following all ways at once: characters, `.`, `*`, `+`, `?`, `|`, groups, and
a backslash before punctuation. Time is the pattern's length times the path's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

MAX_PATTERN = 128
"""Characters; AXLearn's have about 50."""

MAX_DEPTH = 16
"""Groups inside groups."""

_SPECIAL = frozenset(".*+?|()[]{}^$\\")
_ANY = "any character"

_Ends = list[int]


class PatternError(ValueError):
    """A pattern with more than the notation above; the text says what."""


@dataclass(frozen=True, slots=True)
class PathPattern:
    """A compiled pattern.

    Attributes:
      text: as it was written.
    """

    text: str
    _program: Sequence["_State"] = field(repr=False, compare=False)

    @classmethod
    def compile(cls, text: str) -> "PathPattern":
        """Reads a pattern.

        Raises:
          PatternError: it is too long, or uses more than the notation that is known.
        """
        if len(text) > MAX_PATTERN:
            raise PatternError(f"a pattern of {len(text)} characters, expected at most {MAX_PATTERN}")
        return cls(text, _Parser(text).parse())

    def matches(self, path: str) -> bool:
        """Whether the whole path matches, as `re.fullmatch` says."""
        states = self._follow({0})
        for character in path:
            program = self._program
            states = self._follow({
                program[state].ways[0]
                for state in states
                if program[state].reads == character or (program[state].reads == _ANY and character != "\n")
            })  # fmt: skip
            if not states:
                return False
        return len(self._program) - 1 in states

    def _follow(self, states: set[int]) -> set[int]:
        """The states that are reached without reading a character."""
        seen, waiting = set(states), list(states)
        while waiting:
            state = self._program[waiting.pop()]
            new = [] if state.reads else [way for way in state.ways if way not in seen]
            seen.update(new)
            waiting += new
        return seen


@dataclass(slots=True)
class _State:
    """A step of the match: it reads a character and goes one way, or reads nothing and goes all of its ways."""

    reads: str = ""
    ways: list[int] = field(default_factory=list)


class _Parser:
    """Recursive descent; makes the states as it reads. The first state is number 0, the last one ends the match."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.states: list[_State] = []

    def parse(self) -> tuple[_State, ...]:
        start = self._state()
        first, last = self._choice(0)
        if self.at < len(self.text):
            raise PatternError(f"')' without '(' at character {self.at + 1}")
        self.states[start].ways.append(first)
        end = self._state()
        self.states[last].ways.append(end)
        return tuple(self.states)

    def _state(self, reads: str = "") -> int:
        self.states.append(_State(reads))
        return len(self.states) - 1

    def _choice(self, depth: int) -> tuple[int, int]:
        """Alternatives; returns their common first and last state."""
        if depth > MAX_DEPTH:
            raise PatternError(f"more than {MAX_DEPTH} groups inside each other")
        first, last = self._state(), self._state()
        while True:
            start, end = self._sequence(depth)
            self.states[first].ways.append(start)
            self.states[end].ways.append(last)
            if self._next() != "|":
                return first, last
            self.at += 1

    def _sequence(self, depth: int) -> tuple[int, int]:
        first = end = self._state()
        while self._next() not in ("", "|", ")"):
            start, last = self._repeated(depth)
            self.states[end].ways.append(start)
            end = last
        return first, end

    def _repeated(self, depth: int) -> tuple[int, int]:
        first, last = self._single(depth)
        mark = self._next()
        if mark not in ("*", "+", "?"):
            return first, last
        self.at += 1
        if self._next() in ("*", "+", "?"):
            raise PatternError(f"'{mark}{self._next()}' at character {self.at}")
        before, after = self._state(), self._state()
        self.states[before].ways.append(first)
        self.states[last].ways.append(after)
        if mark != "+":
            self.states[before].ways.append(after)
        if mark != "?":
            self.states[last].ways.append(before)
        return before, after

    def _single(self, depth: int) -> tuple[int, int]:
        character, place = self._next(), self.at + 1
        self.at += 1
        if character == "(":
            if self._next() == "?":
                raise PatternError(f"'(?' at character {place}")
            found = self._choice(depth + 1)
            if self._next() != ")":
                raise PatternError(f"'(' without ')' at character {place}")
            self.at += 1
            return found
        if character == "\\":
            character = self._next()
            self.at += 1
            if not character or character.isalnum() or not character.isascii():
                raise PatternError(f"'\\{character}' at character {place}")
        elif character in _SPECIAL and character != ".":
            raise PatternError(f"'{character}' at character {place}")
        elif character == ".":
            character = _ANY
        first, last = self._state(character), self._state()
        self.states[first].ways.append(last)
        return first, last

    def _next(self) -> str:
        return self.text[self.at : self.at + 1]
