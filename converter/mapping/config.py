from typing import Any

from converter.errors import MappingError
from converter.mapping.match import Match
from converter.mapping.table import ConfigRule


def model_config(match: Match) -> dict[str, Any]:
    """The configuration that the weights need, from the table's rules and the solved sizes.

    Raises:
      MappingError: layers differ in something that MaxText configures once for all layers.
    """
    return {rule.key: _value(rule, match) for rule in match.table.config}


def value_origin(rule: ConfigRule, match: Match) -> str:
    """Where the value of a key comes from, in the words of maxtext.yml, and the table's note."""
    origin = f"mapping '{match.table.name}'"
    if rule.size or rule.has:
        origin = "solved from the tensors"
    elif rule.unless or rule.layout:
        origin = "as the leaves are written"
    return f"{origin}: {rule.note}" if rule.note else origin


def _value(rule: ConfigRule, match: Match) -> Any:
    if rule.size:
        if rule.size not in match.sizes:
            raise MappingError(
                f"mapping '{match.table.name}': config {rule.key} needs the axis {rule.size}, unused here"
            )
        return match.sizes[rule.size] * rule.times * (match.blocks if rule.times_blocks else 1)
    if rule.has:
        return _has(rule, match)
    if rule.unless:
        return rule.unless not in match.options
    if rule.layout:
        return rule.layout == match.target_layout
    return rule.constant


def _has(rule: ConfigRule, match: Match) -> bool:
    others = {kind for choice in match.table.choices if rule.has in choice.markers for kind in choice.markers}
    mixed = (others & match.kinds) - {rule.has}
    if rule.has in match.kinds and mixed:
        raise MappingError(
            f"some layers are {rule.has}, others {', '.join(sorted(mixed))}; MaxText has one {rule.key} for all layers"
        )
    return rule.has in match.kinds
