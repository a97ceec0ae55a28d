"""Reads what AXLearn's launcher writes beside the checkpoints: its lines, and from them the learner's constants.

    <trainer dir>/trainer_config
    <trainer dir>/checkpoints/step_00000100/

It is the configuration's debug string (axlearn/common/launch_trainer.py): lines `path: value`, the value as Python
writes it. Most values of None have no line. It is read as data: nothing in it is evaluated, and what is not
exactly as expected is reported, and not guessed.
"""

import ast
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from converter.storage import FILE, storage_of
from converter.words import first_names

if TYPE_CHECKING:
    from converter.mapping import TrainedLearner

MAX_BYTES = 4 << 20
MAX_LINES = 50_000
MAX_LINE = 10_000
"""A configuration of a large model has 300 lines, of at most 200 characters."""

MAX_PATH = 1000

MAX_NUMBERS = 5
"""Lines that a message names."""

MAX_RULES = 32
"""Pairs of scale_by_path; Envy has 8."""

Value = str | int | float | bool | None

_OPTIMIZERS = "axlearn.common.optimizers"
_LEARNER, _OPTIMIZER = "learner.", "learner.optimizer."
_CLIP, _ADAM = "args[0].", "args[1]."
_SCHEDULE = f"{_ADAM}update_schedule."
_SCALING = f"{_ADAM}adam_update_transformation."
_PER_PARAM = f"{_SCALING}per_param_scale."

_CONSTANTS: Mapping[str, str] = {
    "peak_learning_rate": f"{_ADAM}learning_rate",
    "weight_decay": f"{_ADAM}weight_decay",
    "warmup_steps": f"{_SCHEDULE}warmup_steps",
    "max_step": f"{_SCHEDULE}max_step",
    "alpha": f"{_SCHEDULE}alpha",
    "b1": f"{_ADAM}b1",
    "b2": f"{_ADAM}b2",
    "eps": f"{_ADAM}eps",
    "max_gradient_norm": f"{_CLIP}max_norm",
}
"""Constant to its line below `learner.optimizer`."""

_REQUIRED: Mapping[str, Value] = {
    "fn": f"{_OPTIMIZERS}.chain",
    f"{_CLIP}fn": f"{_OPTIMIZERS}.clip_by_global_norm",
    f"{_ADAM}fn": f"{_OPTIMIZERS}.adamw_decoupled_optimizer",
    f"{_SCHEDULE}fn": "axlearn.common.schedule.cosine_with_linear_warmup",
    f"{_SCHEDULE}peak_lr": 1.0,
    f"{_SCHEDULE}begin_value": 0.0,
}
"""Lines below `learner.optimizer` that the update rule needs, with their only value."""

_ALLOWED: Mapping[str, tuple[Value, ...]] = {
    f"{_CLIP}eps": (1e-8,),
    f"{_CLIP}drop_norm": (None,),
    f"{_ADAM}mu_dtype": (None, "jax.numpy.float32"),
    f"{_ADAM}weight_decay_per_param_scale": (None,),
    f"{_ADAM}adam_update_transformation": (None,),
    f"{_SCHEDULE}decay_begin_step": (None,),
}
"""Lines that may be there, with the values that leave the rule as it is."""

_SCALED: Mapping[str, Value] = {
    f"{_SCALING}fn": f"{_OPTIMIZERS}.scale_update_per_param",
    f"{_PER_PARAM}fn": f"{_OPTIMIZERS}.per_param_scale_by_path",
}
"""Lines that a scale of each parameter's update needs."""

_RULE = re.compile(re.escape(f"{_PER_PARAM}scale_by_path") + r"\[(\d{1,3})\]\[([01])\]")
_INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_REAL = re.compile(r"[+-]?(\d{1,40}\.?\d{0,40}|\.\d{1,40})([eE][+-]?\d{1,4})?", re.ASCII)
_Z_LOSS = "z_loss_scale"
_AUX_LOSS = "aux_loss_regex"
_DROPOUT = re.compile(r"model\..*dropout(_rate|\.rate)")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerConfig:
    """What a training's own configuration says.

    Attributes:
      learner: the constants of the learner, and what of the file is not understood.
      lines: path to value of every line.
    """

    learner: "TrainedLearner"
    lines: Mapping[str, Value] = field(default_factory=dict)


def read_trainer_config(step_directory: str) -> TrainerConfig | None:
    """Reads the configuration of a step's training.

    Args:
      step_directory: a step, below its trainer directory or that directory's `checkpoints`.

    Returns:
      What it says; None where no configuration is there.
    """
    from converter.mapping import TrainedLearner

    for place in _places(step_directory):
        storage = storage_of(place)
        try:
            if storage.stat(place).kind != FILE:  # to read a pipe would wait for a writer
                continue
            return parse_trainer_config(storage.read(place, MAX_BYTES + 1))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            return TrainerConfig(learner=TrainedLearner(problems=(f"{place} cannot be read: {error.strerror}",)))
    return None


def parse_trainer_config(data: bytes) -> TrainerConfig:
    """Reads the text of a `trainer_config`."""
    lines, problems = _lines(data)
    learner = _learner(lines, problems)
    return TrainerConfig(learner=learner, lines={path: _parse(text) for path, text in lines.items()})


def _learner(lines: Mapping[str, str], problems: list[str]) -> "TrainedLearner":
    """The learner's constants."""
    from converter.mapping import TRAINER_CONFIG, TrainedLearner

    reading = _Reading(lines, problems)
    reading.read()
    problems = [f"{TRAINER_CONFIG}: {problem}" for problem in reading.problems]
    return TrainedLearner(constants=reading.constants, scale_rules=reading.rules, default_scale=reading.default,
                          problems=tuple(problems))  # fmt: skip


def _places(step_directory: str) -> list[str]:
    """Where the file can be: beside `checkpoints`, or beside the step."""
    from converter.mapping import TRAINER_CONFIG

    places: list[str] = []
    for directory in dict.fromkeys((step_directory, storage_of(step_directory).resolve(step_directory))):
        parent = os.path.dirname(directory)
        if os.path.basename(parent) == "checkpoints":
            places.append(os.path.join(os.path.dirname(parent), TRAINER_CONFIG))
        places.append(os.path.join(parent, TRAINER_CONFIG))
    return list(dict.fromkeys(places))


def _lines(data: bytes) -> tuple[dict[str, str], list[str]]:
    """Path to value as it is written; lines that are not `path: value` are problems."""
    if len(data) > MAX_BYTES:
        return {}, [f"larger than {MAX_BYTES >> 20} MiB"]
    try:
        texts = data.decode("utf-8").split("\n")
    except UnicodeDecodeError:
        return {}, ["not UTF-8 text"]
    if len(texts) > MAX_LINES:
        return {}, [f"more than {MAX_LINES:,} lines"]
    lines: dict[str, str] = {}
    wrong: list[int] = []
    twice: list[int] = []
    for number, text in enumerate(texts, 1):
        line = text.rstrip("\r")
        path, mark, value = line.partition(": ")
        if not line.strip():
            continue
        if not mark or len(line) > MAX_LINE or not path.isprintable() or " " in path.partition("[")[0]:
            wrong.append(number)
        elif lines.setdefault(path, value) != value:
            twice.append(number)
            lines[path] = _CONFLICT
    faults = ((wrong, "expected `path: value`"), (twice, "another value for a path that an earlier line has"))
    problems = [f"line {first_names(numbers, MAX_NUMBERS)}: {what}" for numbers, what in faults if numbers]
    return lines, problems


_CONFLICT = "two values"
"""Stands for the value of a path with two; it is the text of no value."""


@dataclass
class _Reading:
    """The lines, and what they have said so far."""

    lines: Mapping[str, str]
    problems: list[str]
    constants: dict[str, int | float] = field(default_factory=dict)
    rules: tuple[tuple[str, float], ...] | None = None
    default: float = 1.0

    def read(self) -> None:
        """Reads the optimizer and the loss, each by itself."""
        surprise = self._surprise()
        if surprise:
            self.problems.append(f"{surprise}; the optimizer's constants were not taken from it")
        else:
            for name, line in _CONSTANTS.items():
                self._take(name, _OPTIMIZER + line)
            self._read_scales()
        self._read_loss()

    def _value(self, path: str) -> Value:
        return _parse(self.lines[path])

    def _surprise(self) -> str:
        """What is not the rule that the constants belong to; empty where all is."""
        if _parse(self.lines.get("learner.klass", "")) != "axlearn.common.learner.Learner":
            return f"learner.klass is {self._shown('learner.klass')}, expected a plain Learner"
        for line, due in (*_REQUIRED.items(), *(_SCALED.items() if self._is_scaled() else ())):
            path = _OPTIMIZER + line
            if path not in self.lines or not _same(self._value(path), due):
                return f"{path} is {self._shown(path)}, expected {due!r}"
        known = {*_REQUIRED, *_SCALED, *_CONSTANTS.values(), f"{_PER_PARAM}default_scale", f"{_PER_PARAM}description"}
        for path in self.lines:
            line = path.removeprefix(_OPTIMIZER)
            if line == path or line in known or (_RULE.fullmatch(line) and self._is_scaled()):
                continue
            if line not in _ALLOWED or not any(_same(self._value(path), due) for due in _ALLOWED[line]):
                return f"{_printable(path)} is {self._shown(path)}, which is not known"
        return ""

    def _is_scaled(self) -> bool:
        return any(path.startswith(_OPTIMIZER + _SCALING) for path in self.lines)

    def _take(self, name: str, path: str) -> None:
        """One constant, or why it is none."""
        from converter.mapping import BOUNDS

        if path not in self.lines:
            self.problems.append(f"{path} is missing")
            return
        value = self._value(path)
        if BOUNDS[name].admit(value) and isinstance(value, int | float):
            self.constants[name] = value
        else:
            self.problems.append(f"{_printable(path)} is {self._shown(path)}, expected {BOUNDS[name].what}")

    def _read_scales(self) -> None:
        """The factors on Adam's update, or why they are not known."""
        from converter.mapping import BOUNDS

        if not self._is_scaled():
            self.rules = ()
            return
        found: dict[int, dict[int, Value]] = {}
        for path in self.lines:
            match = _RULE.fullmatch(path.removeprefix(_OPTIMIZER))
            if match:
                found.setdefault(int(match[1]), {})[int(match[2])] = self._value(path)
        rules: list[tuple[str, float]] = []
        default = _parse(self.lines.get(f"{_OPTIMIZER}{_PER_PARAM}default_scale", "1.0"))
        bounds = BOUNDS["update_scale"]
        whole = sorted(found) == list(range(len(found))) and len(found) <= MAX_RULES
        for _, pair in sorted(found.items()):
            pattern, scale = pair.get(0), pair.get(1)
            if isinstance(pattern, str) and isinstance(scale, int | float) and bounds.admit(scale):
                rules.append((pattern, float(scale)))
        if not whole or len(rules) < len(found) or not isinstance(default, int | float) or not bounds.admit(default):
            self.problems.append(
                f"{_OPTIMIZER}{_PER_PARAM}: expected up to {MAX_RULES} pairs of a pattern and a scale, and a default"
            )
            return
        self.rules, self.default = tuple(rules), float(default)

    def _read_loss(self) -> None:
        """The z-loss, and what MaxText cannot add."""
        paths = [path for path in self.lines if path.startswith("model.") and path.endswith(f".{_Z_LOSS}")]
        values = {path: self._value(path) for path in paths}
        losses = {value for value in values.values() if value is not None}
        if _parse(self.lines.get("model.klass", "")) != "axlearn.common.causal_lm.Model":
            self.problems.append(f"model.klass is {self._shown('model.klass')}; its loss is not known")
        elif len(losses) > 1:
            self.problems.append(f"several values of {_Z_LOSS}")
        elif losses:
            self._take(_Z_LOSS, next(path for path, value in values.items() if value is not None))
        else:
            self.constants[_Z_LOSS] = 0.0
        for path in self.lines:
            if path.endswith(f".{_AUX_LOSS}") and self._value(path) is not None:
                self.problems.append(
                    f"{_printable(path)} is {self._shown(path)}: the training may have added auxiliary losses, which "
                    "MaxText computes in another way"
                )
            if len(path) <= MAX_PATH and _DROPOUT.fullmatch(path) and self._value(path) not in (None, 0):
                self.problems.append(
                    f"{_printable(path)} is {self._shown(path)}; maxtext.yml has enable_dropout: false"
                )

    def _shown(self, path: str) -> str:
        return _printable(self.lines[path])[:100] if path in self.lines else "missing"


def _same(found: Value, due: Value) -> bool:
    """Whether two values are equal, where 1 is 1.0 and no number is True."""
    return found == due and isinstance(found, bool) == isinstance(due, bool)


def _parse(text: str) -> Value:
    """A value as Python writes it: None, a truth value, a number or a text; other values stay as they are written."""
    constants = {"None": None, "True": True, "False": False}
    if text in constants:
        return constants[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _REAL.fullmatch(text):
        value = float(text)
        return value if math.isfinite(value) else text
    if len(text) >= 2 and text[0] in "'\"" and text[-1] == text[0]:
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return f"<{text}>"
        return value if isinstance(value, str) else f"<{text}>"
    return f"<{text}>"


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)
