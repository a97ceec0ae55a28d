"""The keys of MaxText's configuration by the rules of a table, and what a model can have as their values."""

from collections.abc import Mapping
from typing import Any

from converter.errors import MappingError
from converter.mapping.match import Match
from converter.mapping.table import Case, ConfigRule


def model_config(match: Match) -> dict[str, Any]:
    """The configuration that the weights need, from the table's rules and the solved sizes.

    Raises:
      MappingError: layers differ in something that MaxText configures once for all layers.
    """
    rules = (rule for rule in match.table.config if not rule.option or rule.option in match.options)
    return {rule.key: _value(rule, match) for rule in rules if not rule.read_only}


def value_origin(rule: ConfigRule, match: Match) -> str:
    """Where the value of a key comes from, in the words of maxtext.yml, and the table's note."""
    origin = f"mapping '{match.table.name}'"
    if rule.size or rule.has:
        origin = "solved from the tensors"
    elif rule.unless or rule.layout or rule.option:
        origin = "as the leaves are written"
    return f"{origin}: {rule.note}" if rule.note else origin


def _value(rule: ConfigRule, match: Match) -> Any:
    if rule.size:
        axis = rule.size if rule.size in match.sizes or not rule.otherwise else rule.otherwise
        if axis not in match.sizes:
            raise MappingError(f"mapping '{match.table.name}': config {rule.key} needs the axis {axis}, unused here")
        return match.sizes[axis] * rule.times * (match.blocks if rule.times_blocks else 1)
    if rule.has or rule.unless:
        return (not rule.has or _has(rule, match)) and (not rule.unless or rule.unless not in match.options)
    if rule.layout:
        return rule.layout == match.target_layout
    case = matching_case(rule, match)
    return rule.constant if case is None else case.value


def matching_case(rule: ConfigRule, match: Match) -> Case | None:
    """The case of a rule that a checkpoint is; None where it has the rule's own value."""
    return next((case for case in rule.cases if _applies(case, match)), None)


def _applies(case: Case, match: Match) -> bool:
    sizes = all(match.sizes.get(axis) == size for axis, size in case.sizes.items())
    return sizes and (not case.when or case.when in match.kinds)


def _has(rule: ConfigRule, match: Match) -> bool:
    others = {kind for choice in match.table.choices if rule.has in choice.markers for kind in choice.markers}
    mixed = (others & match.kinds) - {rule.has}
    if rule.has in match.kinds and mixed:
        raise MappingError(
            f"some layers are {rule.has}, others {', '.join(sorted(mixed))}; MaxText has one {rule.key} for all layers"
        )
    return rule.has in match.kinds


def impossible(rule: ConfigRule, match: Match, keys: Mapping[str, Any]) -> str:
    """Why no model can have a key's value; empty where it can."""
    value = keys[rule.key]
    given = f"{rule.key}={value_text(value)}"
    if rule.read_only and value not in rule.words.values():
        return f"{given}: expected one of {', '.join(map(value_text, dict.fromkeys(rule.words.values())))}"
    if rule.above is not None and not value > rule.above:
        return f"{given}: expected a number above {value_text(rule.above)}"
    if rule.at_least is not None and not value >= rule.at_least:
        return f"{given}: expected a number of at least {value_text(rule.at_least)}"
    for axis in filter(None, (rule.at_most, rule.divides)):
        size = match.sizes.get(axis)
        if size is not None and axis == rule.at_most and value > size:
            return f"{given}: expected at most {size}, the checkpoint's {axis}"
        if size is not None and axis == rule.divides and size % value:
            return f"{given}: expected a divisor of {size}, the checkpoint's {axis}"
    return ""


def value_text(value: Any) -> str:
    """A value as one writes it on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)
