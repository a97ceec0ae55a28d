"""What a training's own configuration says of its model, by the patterns of a mapping table.

AXLearn's launcher writes that configuration beside the checkpoints, see `checkpoints.trainer_config`: lines such as

    model.decoder.transformer.layer.self_attention.norm.eps: 1e-05

It knows what no tensor shows. Which lines hold the value of which key is data of the table (`trainer_config` of a
[config] rule), as is what else must be so in a model of the family ([trainer_config]). In a pattern, `*` stands for any
text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from converter.errors import MappingError
from converter.mapping.config import impossible, model_config, value_text
from converter.mapping.learner import TRAINER_CONFIG
from converter.mapping.match import Match
from converter.mapping.table import TRAINING, ConfigRule, ConfigValue
from converter.words import shorten

Line = bool | int | float | str | None
"""The value of a line. None is that of a setting that is not in use."""

MAX_SHOWN = 400
"""Characters of a line in a message."""

MAX_NUMBER = 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModel:
    """What the lines say.

    Attributes:
      values: key of MaxText's configuration to its value, of the keys that a user may set too.
      evidence: key to the line that says it.
      problems: key to why its lines cannot be true of the checkpoint.
      notes: what users have to know of lines about the training, one line each.
      unexpected: lines that no model of the family has.
    """

    values: Mapping[str, ConfigValue] = field(default_factory=dict)
    evidence: Mapping[str, str] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()

    @property
    def contradictions(self) -> tuple[str, ...]:
        """Everything that cannot be true of the checkpoint."""
        return (*self.problems.values(), *self.unexpected)


def read_model(match: Match, lines: Mapping[str, Line]) -> TrainedModel:
    """Reads the lines that the table of a checkpoint knows.

    Raises:
      MappingError: see `model_config`.
    """
    base = model_config(match)
    values: dict[str, ConfigValue] = {}
    evidence: dict[str, str] = {}
    problems: dict[str, str] = {}
    notes: list[str] = []
    for rule in match.table.config:
        found = _found(rule.trainer_config, lines)
        if not found:
            continue
        evidence[rule.key] = _shown(*next(iter(found.items())))
        read = {path: _value(rule, base.get(rule.key), value) for path, value in found.items()}
        problem = _problem(rule, match, found, read) or _contradiction(rule, match, base, read, evidence[rule.key])
        if problem and rule.set == TRAINING:
            notes.append(f"{TRAINER_CONFIG}: {problem}; maxtext.yml has no {rule.key} from it")
        elif problem:
            problems[rule.key] = problem
        elif rule.set:
            values[rule.key] = next(value for value in read.values() if value is not None)
    unexpected, known = _unexpected(match, lines)
    return TrainedModel(
        values=values,
        evidence=evidence,
        problems=problems,
        notes=(*notes, *known),
        unexpected=tuple(unexpected),
    )


def line_matches(pattern: str, path: str) -> bool:
    """Whether a pattern matches the whole path of a line; takes time in proportion to the path."""
    first, *parts = pattern.split("*")
    if not parts:
        return path == pattern
    at = len(first)
    for part in parts[:-1]:
        found = path.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return path.startswith(first) and path.endswith(parts[-1]) and len(path) - len(parts[-1]) >= at


def _found(patterns: tuple[str, ...], lines: Mapping[str, Line]) -> Mapping[str, Line]:
    """The lines of the first pattern that has any, without those that are None."""
    for pattern in patterns:
        found = {path: value for path, value in lines.items() if value is not None and line_matches(pattern, path)}
        if found:
            return found
    return {}


def _value(rule: ConfigRule, due: Any, value: Line) -> ConfigValue | None:
    """What a line's value is for the key; None where it is not of the kind that the key has."""
    if rule.words:
        return rule.words.get(value) if isinstance(value, str) else None
    if isinstance(due, bool) or isinstance(value, bool) or isinstance(due, str):
        return value if type(value) is type(due) else None
    if not isinstance(value, int | float) or abs(value) >= MAX_NUMBER:
        return None
    if type(due) is int:
        return int(value) if value == int(value) else None
    return float(value)


def _problem(rule: ConfigRule, match: Match, found: Mapping[str, Line], read: Mapping[str, ConfigValue | None]) -> str:
    """Why lines have no single value that a model can have; empty where they have."""
    wrong = [_shown(path, found[path]) for path, value in read.items() if value is None]
    if wrong:
        return f"{wrong[0]}, expected {_expected(rule, match)}"
    first, *others = read
    other = next((path for path in others if read[path] != read[first]), None)
    if other is not None:
        lines = f"{_shown(first, found[first])} and {_shown(other, found[other])}"
        return f"{lines}, but MaxText has one {rule.key} for all"
    line = impossible(rule, match, {rule.key: read[first]})
    return f"{_shown(first, found[first])}, but {line}" if line else ""


def _contradiction(
    rule: ConfigRule, match: Match, base: Mapping[str, Any], read: Mapping[str, ConfigValue | None], line: str
) -> str:
    """Why the value cannot be true of this checkpoint; empty where it can."""
    value = next(iter(read.values()))
    if rule.set or rule.key not in base or value == base[rule.key]:
        return ""
    due = f"{rule.key}={value_text(base[rule.key])}"
    if rule.size:
        return f"{line}, but the checkpoint's tensors have {due}"
    return f"{line}, but mapping '{match.table.name}' describes models with {due} only"


def _unexpected(match: Match, lines: Mapping[str, Line]) -> tuple[list[str], list[str]]:
    """Lines that no model of the family has, and those that users have to know about, one text each."""
    wrong: list[str] = []
    notes: dict[str, str] = {}
    for expected in match.table.expected:
        for path, value in _found((expected.pattern,), lines).items():
            if any(value == due and isinstance(value, bool) == isinstance(due, bool) for due in expected.values):
                continue
            if expected.note:
                notes.setdefault(expected.pattern, f"{TRAINER_CONFIG}: {_shown(path, value)}: {expected.note}")
                continue
            due = " or ".join(map(repr, expected.values))
            describes = f"mapping '{match.table.name}' describes models with {due} only"
            wrong.append(f"{_shown(path, value)}, but {describes}")
    return wrong, list(notes.values())


def _expected(rule: ConfigRule, match: Match) -> str:
    if rule.words:
        return " or ".join(map(repr, shorten(list(rule.words), 4)))
    due = rule.constant if rule.constant is not None else model_config(match)[rule.key]
    kinds = {bool: "true or false", int: "a whole number", float: "a number"}
    return kinds.get(type(due), "a text")


def _shown(path: str, value: Line) -> str:
    """A line, for messages; it is somebody else's text."""
    text = "".join(character if character.isprintable() else "?" for character in f"{path} is {value!r}")
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def misfit(problems: Sequence[str]) -> MappingError:
    """The error for lines that cannot be true of the checkpoint."""
    advice = f"if this {TRAINER_CONFIG} is that of another training, move it away; --set KEY=VALUE counts more than it"
    return MappingError(f"{TRAINER_CONFIG}: {problems[0]}", [*shorten(list(problems[1:])), advice])
