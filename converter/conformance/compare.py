"""Leaf by leaf and flag by flag: what a mapping table expects beside what a framework says, both as plain data."""

from collections.abc import Collection, Mapping
from typing import Any

from converter.checkpoints import same_value, whole_config
from converter.conformance.answers import AXLearnAnswer, FlagValue, ModelAnswer
from converter.conformance.result import (
    FlagComparison,
    Leaf,
    LeafComparison,
    LeafStatus,
    ModelComparison,
    PublishedComparison,
)
from converter.conformance.subjects import Subject
from converter.mapping import Line, MappingTable, matches, read_model

EXACT_IN = {"bfloat16": ("float32", "float64"), "float16": ("float32", "float64"), "float32": ("float64",)}
"""Dtype of stored leaves to those in which every value of theirs is exact, so that loading changes none."""

NOTHING = "none"
"""How a table, and MaxText's command line, write null."""


def compare_leaves(expected: Mapping[str, Leaf], found: Mapping[str, Leaf]) -> tuple[LeafComparison, ...]:
    """Compares the leaves of a model, in the order of the table; what only the framework has comes last."""
    paths = [*expected, *(path for path in found if path not in expected)]
    return tuple(
        LeafComparison(
            path=path,
            status=_leaf_status(expected.get(path), found.get(path)),
            expected=expected.get(path),
            found=found.get(path),
        )
        for path in paths
    )


def _leaf_status(expected: Leaf | None, found: Leaf | None) -> LeafStatus:
    if expected is None:
        return "extra"
    if found is None:
        return "missing"
    if expected.shape != found.shape:
        return "shape"
    same = expected.dtype == found.dtype or found.dtype in EXACT_IN.get(expected.dtype, ())
    return "equal" if same else "dtype"


def compare_with_maxtext(subject: Subject, layout: str, answer: ModelAnswer) -> ModelComparison:
    """Compares a model in a layout with what MaxText makes of its maxtext.yml."""
    leaves = compare_leaves(subject.target_leaves(layout), answer.leaves) if not answer.problem else ()
    return ModelComparison(
        framework="MaxText",
        model=subject.name,
        mapping=subject.table.name,
        layout=layout,
        leaves=leaves,
        flags=_maxtext_flags(subject, layout, answer),
        problem=answer.problem,
    )


def _maxtext_flags(subject: Subject, layout: str, answer: ModelAnswer) -> tuple[FlagComparison, ...]:
    """The keys of maxtext.yml, and the defaults that the weights rely on; of a failed model what is known."""
    rules, keys = subject.table.conformance, subject.configuration(layout).keys
    flags = [
        FlagComparison(
            key=key,
            status="unknown",
            kind="written",
            expected=flag_text(keys[key]),
            found="",
            consequence=rules.consequences.get(key, ""),
        )
        for key in answer.unknown
    ]
    if not answer.values:
        return tuple(flags)
    known = {key: value for key, value in keys.items() if key not in answer.unknown}
    flags += [_flag(key, value, answer.values, "written", subject.table) for key, value in known.items()]
    defaults = {key: value for key, value in rules.defaults.items() if key not in keys}
    flags += [_flag(key, value, answer.values, "default", subject.table) for key, value in defaults.items()]
    return tuple(flags)


def _flag(key: str, expected: Any, values: Mapping[str, FlagValue], kind: Any, table: MappingTable) -> FlagComparison:
    found = values.get(key)
    status = "unknown" if key not in values else "equal" if same_flag(found, expected) else "other"
    return FlagComparison(
        key=key,
        status=status,
        kind=kind,
        expected=flag_text(expected),
        found=flag_text(found) if key in values else "",
        consequence=table.conformance.consequences.get(key, "") if status != "equal" else "",
    )


def compare_published(subject: Subject, values: Mapping[str, FlagValue] | None) -> PublishedComparison:
    """Compares a model file that MaxText publishes with the keys of the table's [config]."""
    differences: list[FlagComparison] = []
    if values is not None:
        keys = subject.configuration(next(iter(subject.matches))).keys
        compared = [rule.key for rule in subject.table.config if rule.key in keys]
        flags = [_flag(key, keys[key], values, "written", subject.table) for key in compared]
        differences = [flag for flag in flags if flag.status != "equal"]
    return PublishedComparison(
        model=subject.name, name=subject.published, present=values is not None, differences=tuple(differences)
    )


def compare_with_axlearn(subject: Subject, answer: AXLearnAnswer, lines: Mapping[str, Line]) -> ModelComparison:
    """Compares a model with the parameters of an AXLearn configuration, and with what that configuration says."""
    table = subject.table
    found = {path: leaf for path, leaf in answer.leaves.items() if not _is_dropped(path, table)}
    return ModelComparison(
        framework="AXLearn",
        model=subject.name,
        mapping=table.name,
        leaves=compare_leaves(subject.source_leaves(), found),
        flags=_axlearn_flags(subject, lines),
    )


def _is_dropped(path: str, table: MappingTable) -> bool:
    """Whether the table leaves such a tensor behind."""
    return any(matches(drop.pattern, path) for drop in table.drops)


def _axlearn_flags(subject: Subject, lines: Mapping[str, Line]) -> tuple[FlagComparison, ...]:
    """What AXLearn's configuration says of the keys of maxtext.yml, and lines that no model of the family has."""
    layout = next(iter(subject.matches))
    said, keys = read_model(subject.matches[layout], lines), subject.configuration(layout).keys
    flags = [_flag(key, keys[key], said.values, "axlearn", subject.table) for key in keys if key in said.values]
    flags += [
        FlagComparison(
            key=key,
            status="other",
            kind="axlearn",
            expected=flag_text(keys.get(key)),
            found=problem,
            consequence=subject.table.conformance.consequences.get(key, ""),
        )
        for key, problem in said.problems.items()
    ]
    flags += [
        FlagComparison(key=line.partition(" is ")[0], status="other", kind="axlearn", expected="", found=line)
        for line in said.unexpected
    ]
    return tuple(flags)


def widened(leaves: Collection[LeafComparison]) -> int:
    """How many equal leaves are loaded in another dtype, in which every value is exact."""
    return sum(
        leaf.status == "equal" and leaf.expected is not None and leaf.found is not None
        and leaf.expected.dtype != leaf.found.dtype
        for leaf in leaves
    )  # fmt: skip


def asked_config(subject: Subject, layout: str) -> dict[str, Any]:
    """The keys of maxtext.yml, for the request."""
    return whole_config(subject.configuration(layout).keys)


def asked_keys(tables: Collection[MappingTable]) -> list[str]:
    """The flags whose effective values are compared beside those that a configuration sets."""
    keys = [key for table in tables for key in (*(rule.key for rule in table.config), *table.conformance.defaults)]
    return list(dict.fromkeys(keys))


def same_flag(found: FlagValue, expected: Any) -> bool:
    """Whether MaxText takes both for the same value; a table writes null as a word, as MaxText's command line does."""
    if expected == NOTHING or found is None:
        return found in (None, NOTHING) and expected in (None, NOTHING)
    return same_value(found, expected)


def flag_text(value: Any) -> str:
    """A value as a yml has it."""
    if value is None:
        return NOTHING
    if isinstance(value, list):
        return f"[{', '.join(map(flag_text, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)
