"""The values a model computes and is configured with: the mapping table's, changed by what the user set.

This is the one place where both are made: the keys of MaxText's configuration, and the constants of the source's
arithmetic that no checkpoint holds.
"""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from converter.errors import MappingError, UsageError
from converter.mapping.config import matching_case, model_config
from converter.mapping.match import Match
from converter.mapping.table import MODEL, TRAINING, ConfigRule, MappingTable
from converter.words import option_flag

VALUE = re.compile(r"[\w.+\-]{1,64}")
"""What can stand behind `--set KEY=`."""


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """MaxText's model configuration for a checkpoint.

    Attributes:
      keys: every key of the table with its value.
      settings: those that the user set, with the same value.
      assumed: those whose value is only likely, because no tensor shows it, and what it was assumed from.
    """

    keys: Mapping[str, Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    assumed: Mapping[str, str] = field(default_factory=dict)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user has to know about assumed values, one line each."""
        return tuple(
            f"{key}={_text(self.keys[key])} is assumed, as no tensor shows it: {why}; another value: --set {key}=VALUE"
            for key, why in self.assumed.items()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """What the source's model computes with; see `mapping.ArithmeticRule` for each."""

    rope_theta: float
    norm_epsilon: float
    experts_per_token: int
    share_epsilon: float


def configure(
    match: Match, settings: Sequence[str] = (), *, recorded: Mapping[str, Any] | None = None
) -> Configuration:
    """The configuration of a checkpoint.

    Args:
      match: the table on the checkpoint's tensors.
      settings: the user's `KEY=VALUE` texts.
      recorded: keys that were set when the checkpoint was converted, see `recorded_settings`; those that the table
        does not let a user set are left out.

    Raises:
      UsageError: a setting has another form, contradicts the tensors, or makes an impossible model.
      MappingError: the table's own values make an impossible model of these tensors.
    """
    base = model_config(match)
    earlier = _known(match.table, recorded or {}, base)
    keys = override_config({**base, **earlier}, settings)
    named = {text.partition("=")[0] for text in settings}
    rules = match.table.config
    against = {rule.key: _contradiction(rule, match, base, keys[rule.key]) for rule in rules}
    wrong = [line for line in against.values() if line]
    possible = [rule for rule in rules if not against[rule.key]]
    impossible = [(rule, line) for rule in possible if (line := _impossible(rule, match, keys))]
    wrong += [f"--set {line}" for rule, line in impossible if rule.key in named]
    if wrong:
        more = f"{len(wrong)} settings contradict the checkpoint"
        raise UsageError(wrong[0] if len(wrong) == 1 else more, wrong if len(wrong) > 1 else ())
    if impossible:
        raise MappingError(
            f"mapping '{match.table.name}': {impossible[0][1]}",
            [line for _, line in impossible[1:]] + _way_out([rule for rule, _ in impossible]),
        )
    known = {*earlier, *named}
    return Configuration(
        keys=keys,
        settings={key: keys[key] for key in keys if key in known},
        assumed={rule.key: why for rule in rules if rule.key not in known and (why := _why(rule, match))},
    )


def converted_keys(table: MappingTable, recorded: Mapping[str, Any]) -> dict[str, Any]:
    """What a conversion writes whatever the tensors are: the table's constants, changed by recorded settings."""
    constants = {rule.key: rule.constant for rule in table.config if rule.constant is not None}
    return {**constants, **_known(table, recorded, constants)}


def source_arithmetic(table: MappingTable, keys: Mapping[str, Any]) -> Arithmetic:
    """The effective constants of the source's model.

    Args:
      table: the mapping table.
      keys: the effective configuration, see `configure`.

    Raises:
      MappingError: the table does not say what its model computes with.
    """
    if table.arithmetic is None:
        raise MappingError(
            f"mapping '{table.name}' has no [arithmetic]; logits and --qk-norm fit need the constants that it names"
        )
    values = {
        name: keys[value] if isinstance(value, str) else value for name, value in asdict(table.arithmetic).items()
    }
    return Arithmetic(
        rope_theta=float(values["rope_theta"]),
        norm_epsilon=float(values["norm_epsilon"]),
        experts_per_token=int(values["experts_per_token"]),
        share_epsilon=float(values["share_epsilon"]),
    )


def undecided_keys(table: MappingTable, known: Collection[str]) -> list[str]:
    """The configuration keys that depend on the source's tensors and are not known otherwise."""
    return [rule.key for rule in table.config if rule.cases and rule.key not in known]


def arithmetic_keys(table: MappingTable) -> list[str]:
    """The configuration keys that the source's arithmetic depends on."""
    rule = table.arithmetic
    return [value for value in asdict(rule).values() if isinstance(value, str)] if rule is not None else []


def training_keys(table: MappingTable) -> frozenset[str]:
    """The configuration keys that change nothing that the weights compute."""
    return frozenset(rule.key for rule in table.config if rule.set == TRAINING)


def override_config(config: Mapping[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """Applies a user's `KEY=VALUE` settings.

    Raises:
      UsageError: a setting is not of this form, or its key is not in the configuration.
    """
    result = dict(config)
    for setting in settings:
        key, mark, _ = setting.partition("=")
        if not mark or key not in config:
            known = ", ".join(config)
            raise UsageError(f"--set {setting}: expected KEY=VALUE with one of the keys {known}")
        result[key] = parse_setting(setting, config[key])
    return result


def parse_setting(setting: str, like: Any) -> Any:
    """The value of a `KEY=VALUE` setting.

    Args:
      setting: the whole text.
      like: a value of the kind that the key has.

    Raises:
      UsageError: the value is of another kind.
    """
    import yaml

    key, _, text = setting.partition("=")
    if not VALUE.fullmatch(text):
        raise UsageError(f"--set {setting}: expected a plain number, word or true/false as value")
    if isinstance(like, float) or type(like) is int:
        number = _number(text, type(like))
        if number is None:
            raise UsageError(f"--set {setting}: expected a number, as in {key}={like}")
        return number
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        value = None
    if type(value) is not type(like):
        raise UsageError(f"--set {setting}: expected a value like {like!r}")
    return value


def _number(text: str, kind: type[int] | type[float]) -> int | float | None:
    """A finite number of that kind, or None: 1.5 is no whole number, and there is no size of infinity."""
    try:
        if kind is int and re.fullmatch(r"[+-]?\d+", text):
            return int(text)  # a float would round what is beyond 2^53
        value = float(text)
        return (kind(value) if kind is float or value.is_integer() else None) if math.isfinite(value) else None
    except ValueError:
        return None


def _known(table: MappingTable, recorded: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """The recorded settings that the table lets a user set; a record is somebody else's file."""
    free = {rule.key for rule in table.config if rule.set}
    return {key: value for key, value in recorded.items() if key in free and type(value) is type(base[key])}


def _why(rule: ConfigRule, match: Match) -> str:
    """What a key's value is assumed from; empty where all models of the family have it."""
    case = matching_case(rule, match)
    return rule.why if case is None else case.why


def _contradiction(rule: ConfigRule, match: Match, base: Mapping[str, Any], value: Any) -> str:
    """Why a key cannot have a value that the user gave; empty where it can."""
    due = base[rule.key]
    if rule.set or value == due:
        return ""
    setting, needed = f"--set {rule.key}={_text(value)}", f"{rule.key}={_text(due)}"
    if rule.size:
        return f"{setting}: contradicts the checkpoint's tensors, which have {needed}; drop the option"
    if rule.has and not (rule.unless and rule.has in match.kinds):  # else it is the option that decides
        return f"{setting}: contradicts the checkpoint's tensors, which need {needed}; drop the option"
    if rule.unless:
        given = "with" if rule.unless in match.options else "without"
        leaves = f"the leaves that are written {given} {option_flag(rule.unless)}"
        return f"{setting}: contradicts {leaves}, which need {needed}"
    if rule.layout:
        return f"{setting}: contradicts the layer layout that is written, which needs {needed}; drop the option"
    return f"{setting}: mapping '{match.table.name}' describes models with {needed} only; drop the option"


def _impossible(rule: ConfigRule, match: Match, keys: Mapping[str, Any]) -> str:
    """Why no model can have a key's value; empty where it can."""
    value = keys[rule.key]
    given = f"{rule.key}={_text(value)}"
    if rule.above is not None and not value > rule.above:
        return f"{given}: expected a number above {_text(rule.above)}"
    if rule.at_least is not None and not value >= rule.at_least:
        return f"{given}: expected a number of at least {_text(rule.at_least)}"
    for axis in filter(None, (rule.at_most, rule.divides)):
        size = match.sizes.get(axis)
        if size is not None and axis == rule.at_most and value > size:
            return f"{given}: expected at most {size}, the checkpoint's {axis}"
        if size is not None and axis == rule.divides and size % value:
            return f"{given}: expected a divisor of {size}, the checkpoint's {axis}"
    return ""


def _way_out(rules: Sequence[ConfigRule]) -> list[str]:
    return [f"if the model has another {rule.key}, give --set {rule.key}=VALUE" for rule in rules if rule.set == MODEL]


def _text(value: Any) -> str:
    """A value as one writes it on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)
