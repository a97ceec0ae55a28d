"""The answers of `framework_probe/probe.py`, validated: they come from another process and other people's code."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from converter.conformance.result import Leaf

MAX_LEAVES = 200_000
MAX_DIMS = 32
MAX_TEXT = 10_000
MAX_LINES = 8 << 20
"""Characters of a configuration as text; the largest have 50 thousand."""

FlagValue = bool | int | float | str | list[Any] | None


class AnswerError(Exception):
    """An answer is not of the form that the script writes; the message says where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAnswer:
    """What MaxText makes of one configuration.

    Attributes:
      leaves: path below the parameters' prefix to the leaf.
      values: key to the effective value.
      unknown: keys of the configuration that MaxText does not know.
      problem: why there are no leaves; empty where the model was made.
    """

    leaves: Mapping[str, Leaf]
    values: Mapping[str, FlagValue]
    unknown: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxTextAnswer:
    """The answer about MaxText.

    Attributes:
      python: version of the interpreter.
      version: of MaxText.
      peak_memory: the process's largest resident set, in bytes.
      models: name to what MaxText makes of it.
      published: name of a model file to its effective values; None where there is no such file.
    """

    python: str
    version: str
    peak_memory: int
    models: Mapping[str, ModelAnswer]
    published: Mapping[str, Mapping[str, FlagValue] | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AXLearnAnswer:
    """The answer about AXLearn.

    Attributes:
      python: version of the interpreter.
      version: of AXLearn; empty for a source tree.
      peak_memory: the process's largest resident set, in bytes.
      leaves: path to the parameter.
      lines: the configuration, as AXLearn's launcher writes it to `trainer_config`.
    """

    python: str
    version: str
    peak_memory: int
    leaves: Mapping[str, Leaf]
    lines: str


def read_maxtext(answer: Any) -> MaxTextAnswer:
    """Validates the answer about MaxText.

    Raises:
      AnswerError: it has another form.
    """
    top = _object(answer, "the answer")
    published = _object(top.get("published"), "published")
    return MaxTextAnswer(
        python=_text(top.get("python"), "python"),
        version=_text(top.get("version"), "version"),
        peak_memory=_count(top.get("peak_memory"), "peak_memory"),
        models={name: _model(model, f"models.{name}") for name, model in _object(top.get("models"), "models").items()},
        published={
            name: None if values is None else _values(values, f"published.{name}") for name, values in published.items()
        },
    )


def read_axlearn(answer: Any) -> AXLearnAnswer:
    """Validates the answer about AXLearn.

    Raises:
      AnswerError: it has another form.
    """
    top = _object(answer, "the answer")
    return AXLearnAnswer(
        python=_text(top.get("python"), "python"),
        version=_text(top.get("version"), "version"),
        peak_memory=_count(top.get("peak_memory"), "peak_memory"),
        leaves=_leaves(top.get("leaves"), "leaves"),
        lines=_text(top.get("lines"), "lines", MAX_LINES),
    )


def _model(value: Any, where: str) -> ModelAnswer:
    model = _object(value, where)
    return ModelAnswer(
        leaves=_leaves(model.get("leaves"), f"{where}.leaves"),
        values=_values(model.get("values"), f"{where}.values"),
        unknown=tuple(_text(key, f"{where}.unknown") for key in _list(model.get("unknown"), f"{where}.unknown")),
        problem=_text(model.get("problem"), f"{where}.problem"),
    )


def _leaves(value: Any, where: str) -> dict[str, Leaf]:
    result: dict[str, Leaf] = {}
    for entry in _list(value, where, MAX_LEAVES):
        leaf = _object(entry, where)
        path = _text(leaf.get("path"), f"{where}: path")
        if path in result:
            raise AnswerError(f"{where}: {path} is there twice")
        shape = _list(leaf.get("shape"), f"{where}: {path}: shape", MAX_DIMS)
        for size in shape:
            _count(size, f"{where}: {path}: shape")
        axes = _list(leaf.get("axes"), f"{where}: {path}: axes", MAX_DIMS)
        result[path] = Leaf(
            shape=tuple(shape),
            dtype=_text(leaf.get("dtype"), f"{where}: {path}: dtype"),
            axes=tuple(_text(axis, f"{where}: {path}: axes") for axis in axes),
        )
    return result


def _values(value: Any, where: str) -> dict[str, FlagValue]:
    values = _object(value, where)
    for key, one in values.items():
        if not (one is None or isinstance(one, bool | int | float | str | list)):
            raise AnswerError(f"{where}.{key}: expected a plain value, found {type(one).__name__}")
    return values


def _count(value: Any, where: str) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise AnswerError(f"{where}: expected a number of at least 0, found {str(value)[:100]}")
    return value


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise AnswerError(f"{where}: expected an object, found {type(value).__name__}")
    return value


def _list(value: Any, where: str, most: int = MAX_TEXT) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise AnswerError(f"{where}: expected a list of at most {most} entries")
    return value


def _text(value: Any, where: str, most: int = MAX_TEXT) -> str:
    if not isinstance(value, str) or len(value) > most:
        raise AnswerError(f"{where}: expected a text of at most {most} characters")
    return value
