"""The rules of a table's [config], and what it expects of a training's own configuration: [trainer_config]."""

import math
from collections.abc import Mapping
from typing import Any

from converter.mapping.table import MODEL, TRAINING, Case, ConfigRule, Expected
from converter.mapping.toml import Section


def read_config(section: Section) -> tuple[ConfigRule, ...]:
    """[config]: the keys of the model configuration."""
    return tuple(_config_rule(section, key) for key in list(section.values))


def _config_rule(section: Section, key: str) -> ConfigRule:
    value = section.values.pop(key)
    if not isinstance(value, dict):
        _check_constant(section, key, value)
        return ConfigRule(key, constant=value)
    unknown = [name for name, entry in value.items() if not _fits(entry, _CONFIG_FIELDS.get(name))]
    found = set(value) & _CONFIG_SOURCES
    read_only = not found and {"trainer_config", "words"} <= set(value)
    if unknown or (len(found) != 1 and found != {"has", "unless"} and not read_only):
        section.fail(f"{key} must be a value or one rule of size, has, unless, layout, value; found {value!r}", key)
    fields = {**value, **_lines(section, key, value)}
    if "value" in fields:
        _check_constant(section, key, fields["value"])
        fields["constant"] = fields.pop("value")
    if fields.get("set", MODEL) not in (MODEL, TRAINING) or (
        "set" in fields and "constant" not in fields and not read_only
    ):
        section.fail(f"{key}: set must be {MODEL!r} or {TRAINING!r}, and needs a value; found {value!r}", key)
    if read_only and "set" not in fields:
        section.fail(f"{key}: a key with trainer_config alone needs set; found {value!r}", key)
    bounded = set(fields) & {"above", "at_least", "at_most", "divides"}
    if bounded and not ("size" in fields or _fits(fields.get("constant"), (int, float))):
        section.fail(f"{key}: {', '.join(sorted(bounded))} need a number; found {value!r}", key)
    if ("cases" in fields or "why" in fields) and "constant" not in fields:
        section.fail(f"{key}: cases and why need a value; found {value!r}", key)
    if "option" in fields and ("constant" not in fields or "set" in fields or "cases" in fields):
        section.fail(f"{key}: option goes with a value, without set and cases; found {value!r}", key)
    if "otherwise" in fields and "size" not in fields:
        section.fail(f"{key}: otherwise needs a size; found {value!r}", key)
    cases = tuple(_case(section, key, case, fields["constant"]) for case in fields.pop("cases", ()))
    return ConfigRule(key, **fields, cases=cases)


def _lines(section: Section, key: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """`trainer_config` and `words`: the lines that a key is read from, and what their texts mean."""
    patterns, words = value.get("trainer_config", []), value.get("words", {})
    patterns = [patterns] if isinstance(patterns, str) else patterns
    if not all(isinstance(pattern, str) and pattern for pattern in patterns):
        section.fail(f"{key}: trainer_config must be a text or a list of texts, found {patterns!r}", key)
    if (patterns or words) and set(value) & {"has", "unless", "layout"}:
        section.fail(f"{key}: trainer_config goes with value or size, or with words alone; found {dict(value)!r}", key)
    kinds = {type(word) for word in words.values()} | ({type(value["value"])} if "value" in value else set())
    if len(kinds) > 1 or not kinds <= {bool, int, float, str, list} or (words and not patterns):
        section.fail(f"{key}: words needs trainer_config, and values of the kind that the key has", key)
    return {"trainer_config": tuple(patterns), "words": words}


def read_expected(section: Section) -> tuple[Expected, ...]:
    """[trainer_config]: patterns of lines with the values that these may have."""
    return tuple(_expected(section, pattern) for pattern in list(section.values))


def _expected(section: Section, pattern: str) -> Expected:
    """A value, a list of values, or `{ value = ..., note = "..." }`."""
    entry = section.values.pop(pattern)
    fields = entry if isinstance(entry, dict) else {"value": entry}
    value, note = fields.get("value"), fields.get("note", "")
    values: tuple[Any, ...] = tuple(value) if isinstance(value, list) else (value,)
    right = bool(values) and all(isinstance(one, bool | int | float | str) for one in values)
    if not right or not isinstance(note, str) or not set(fields) <= {"value", "note"}:
        section.fail(f"{pattern} must be a value, a list of values or {{ value, note }}, found {entry!r}", pattern)
    return Expected(pattern, values, note)


def _case(section: Section, key: str, case: object, like: object) -> Case:
    """`{ when = "kind", sizes = { axis = 4 }, value = 1, why = "..." }`."""
    fields = case if isinstance(case, dict) else {}
    sizes = fields.get("sizes", {})
    kinds = {"when": str, "sizes": dict, "value": (int, float) if _fits(like, (int, float)) else type(like), "why": str}
    right = all(_fits(entry, kinds.get(name)) for name, entry in fields.items()) and "value" in fields
    if not right or not fields.keys() & {"when", "sizes"} or not all(type(size) is int for size in sizes.values()):
        section.fail(
            f"{key}: a case must be {{ when = KIND or sizes = {{ AXIS = NUMBER }}, value = ..., why = TEXT }}, with a "
            f"value like {like!r}; found {case!r}",
            key,
        )
    return Case(**fields)


_CONFIG_SOURCES = frozenset({"size", "has", "unless", "layout", "value"})
"""Where a key's value comes from: one of these."""

_CONFIG_FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "size": str, "times": int, "times_blocks": bool, "has": str, "unless": str, "layout": str,
    "value": (bool, int, float, str, list), "set": str, "above": (int, float), "at_least": (int, float),
    "at_most": str, "divides": str, "note": str, "cases": list, "why": str, "otherwise": str,
    "trainer_config": (str, list), "words": dict, "option": str,
}  # fmt: skip


def _fits(value: object, kind: type | tuple[type, ...] | None) -> bool:
    """Whether a value of the file is of that kind; true and false are not numbers."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if isinstance(value, bool):
        return bool in kinds
    return kind is not None and isinstance(value, kind)


def _check_constant(section: Section, key: str, value: object) -> None:
    if not is_constant(value):
        section.fail(f"{key} must be a number, a text, true or false, or a list of texts", key)


def is_constant(value: object) -> bool:
    """Whether a value can stand in a configuration."""
    if isinstance(value, list):
        return all(isinstance(entry, str) for entry in value)
    if isinstance(value, int | float):
        return math.isfinite(value) if isinstance(value, float) else abs(value) < 2**63
    return isinstance(value, str)
