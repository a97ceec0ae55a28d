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
from converter.mapping.config import impossible, matching_case, model_config, value_origin, value_text
from converter.mapping.constants import BOUNDS
from converter.mapping.learner import BY_USER, PREFIX, TRAINER_CONFIG, Learner, TrainedLearner, find_learner
from converter.mapping.match import Match
from converter.mapping.table import MODEL, TRAINING, ConfigRule, MappingTable, Number
from converter.mapping.toml import suggestion
from converter.mapping.trained import Line, TrainedModel, misfit, read_model
from converter.mapping.training import FLAGS, FOLLOWING, TrainingFlags, training_flags
from converter.words import option_flag

VALUE = re.compile(r"[\w.+\-]{1,64}")
"""What can stand behind `--set KEY=`."""


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """MaxText's configuration for a checkpoint: the model's keys, and the training flags.

    Attributes:
      keys: every key with its value.
      settings: what the user set: keys with the same value, and constants of the learner behind "learner.".
      read: keys that the training's own configuration has the value of.
      origins: key to where its value comes from.
      learner: that of the source's training.
      comments: what maxtext.yml has to say of the training flags, one line each.
      notes: what the user has to know of them, one line each.
      assumed: keys whose value is only likely, because no tensor shows it, and what it was assumed from.
    """

    keys: Mapping[str, Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    read: Mapping[str, Any] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    learner: Learner = field(default_factory=Learner)
    comments: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    assumed: Mapping[str, str] = field(default_factory=dict)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the user has to know about assumed values, one line each."""
        return tuple(
            f"{key}={value_text(self.keys[key])} is assumed, as no tensor shows it: {why}; another value: "
            f"--set {key}=VALUE"
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
    match: Match,
    settings: Sequence[str] = (),
    *,
    recorded: Mapping[str, Any] | None = None,
    trained: TrainedLearner | None = None,
    lines: Mapping[str, Line] | None = None,
    step: int | None = None,
    optimizer: str = "adamw",
) -> Configuration:
    """The configuration of a checkpoint.

    Args:
      match: the table on the checkpoint's tensors.
      settings: the user's `KEY=VALUE` texts.
      recorded: keys that were set when the checkpoint was converted, see `recorded_settings`; those that the table
        does not let a user set are left out.
      trained: what the training's own configuration says of its learner; None where there is none.
      lines: that configuration; what a user set counts more.
      step: the training step; None where it is not known.
      optimizer: MaxText's `opt_type`.

    Raises:
      UsageError: a setting has another form, contradicts the tensors, or makes an impossible model.
      MappingError: the table's own values, or the training's configuration, make an impossible model of these tensors.
    """
    said = read_model(match, lines or {})
    model = [text for text in settings if not is_of_training(text, match.table)]
    keys, chosen = _model_keys(match, model, recorded or {}, said)
    given = {**_known_constants(recorded or {}), **_given_constants(settings)}
    learner, problems = find_learner(match, given, trained, strict=bool(settings))
    flags = training_flags(learner, step, optimizer)
    _check_flags([text for text in settings if text not in model and not text.startswith(PREFIX)], flags)
    read = {key: value for key, value in said.values.items() if key not in chosen}
    origins = {rule.key: value_origin(rule, match) for rule in match.table.config if rule.key in keys}
    origins |= {**dict.fromkeys(read, TRAINER_CONFIG), **dict.fromkeys(chosen, BY_USER)}
    missing = _missing_note(learner, flags)
    return Configuration(
        keys={**keys, **{flag: value for flag, value in flags.values.items() if flag not in keys}},
        settings={**chosen, **{PREFIX + name: value for name, value in given.items()}},
        read=read,
        origins={**flags.origins, **origins},
        learner=learner,
        comments=(*flags.comments, *problems, *missing),
        notes=(*said.notes, *_overridden(model, keys, said), *problems, *missing),
        assumed={
            rule.key: why
            for rule in match.table.config
            if rule.key not in {*chosen, *read} and (why := _why(rule, match))
        },
    )


def _model_keys(
    match: Match, settings: Sequence[str], recorded: Mapping[str, Any], said: TrainedModel
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The table's keys with their values, and those of them that were set; raises as `configure`."""
    base = model_config(match)
    earlier = _known(match.table, recorded, base)
    examples = {rule.key: next(iter(rule.words.values())) for rule in match.table.config if rule.read_only}
    named = {text.partition("=")[0] for text in settings}
    known = {**base, **said.values, **earlier}
    keys = override_config(known | {key: value for key, value in examples.items() if key not in known}, settings)
    keys = {key: value for key, value in keys.items() if key in known or key in named}
    rules = [rule for rule in match.table.config if rule.key in keys]
    against = {rule.key: _contradiction(rule, match, base, keys[rule.key]) for rule in rules}
    wrong = [line for line in against.values() if line]
    possible = [rule for rule in rules if not against[rule.key]]
    absurd = [(rule, line) for rule in possible if (line := impossible(rule, match, keys))]
    wrong += [f"--set {line}" for rule, line in absurd if rule.key in named]
    if wrong:
        more = f"{len(wrong)} settings contradict the checkpoint"
        raise UsageError(wrong[0] if len(wrong) == 1 else more, wrong if len(wrong) > 1 else ())
    problems = [problem for key, problem in said.problems.items() if key not in {*earlier, *named}]
    if problems or said.unexpected:
        raise misfit((*problems, *said.unexpected))
    if absurd:
        raise MappingError(
            f"mapping '{match.table.name}': {absurd[0][1]}",
            [line for _, line in absurd[1:]] + _way_out([rule for rule, _ in absurd]),
        )
    return keys, {key: keys[key] for key in keys if key in {*earlier, *named}}


def _overridden(settings: Sequence[str], keys: Mapping[str, Any], said: TrainedModel) -> tuple[str, ...]:
    """Where the user's values replace others that the training's configuration has."""
    named = dict.fromkeys(text.partition("=")[0] for text in settings)
    return tuple(
        f"--set {key}={value_text(keys[key])} replaces what {TRAINER_CONFIG} says: {said.evidence[key]}"
        for key in named
        if key in said.problems or (key in said.values and said.values[key] != keys[key])
    )


def is_of_training(setting: str, table: MappingTable) -> bool:
    """Whether a setting is a constant of the learner, or a flag that follows from them."""
    key = setting.partition("=")[0]
    return setting.startswith(PREFIX) or (key in FLAGS and key not in {rule.key for rule in table.config})


def _given_constants(settings: Sequence[str]) -> dict[str, Number]:
    """The learner's constants that a user set.

    Raises:
      UsageError: there is no such constant, or it cannot have the value.
    """
    given: dict[str, Number] = {}
    for setting in settings:
        key, mark, text = setting.partition("=")
        if not key.startswith(PREFIX):
            continue
        name = key.removeprefix(PREFIX)
        if not mark or name not in BOUNDS:
            known = ", ".join(PREFIX + one for one in BOUNDS)
            raise UsageError(
                f"--set {setting}: expected KEY=VALUE with one of the keys {known}{suggestion(name, BOUNDS)}"
            )
        value = _number(text, BOUNDS[name].kind) if VALUE.fullmatch(text) else None
        if value is None or not BOUNDS[name].admit(value):
            raise UsageError(f"--set {setting}: expected {BOUNDS[name].what}")
        given[name] = value
    return given


def _known_constants(recorded: Mapping[str, Any]) -> dict[str, Number]:
    """The recorded constants of the learner; a record is somebody else's file."""
    return {
        name: recorded[PREFIX + name] for name, bounds in BOUNDS.items() if bounds.admit(recorded.get(PREFIX + name))
    }


def _check_flags(settings: Sequence[str], flags: TrainingFlags) -> None:
    """Refuses other values for flags that follow from the learner.

    Raises:
      UsageError: naming the constants to set.
    """
    for setting in settings:
        flag, mark, _ = setting.partition("=")
        constants = " and ".join(PREFIX + name for name in FOLLOWING.get(flag, ()))
        if not constants:
            advice = (
                f"is {value_text(flags.values[flag])} in AXLearn's update rule; for another training, edit maxtext.yml"
            )
        else:
            advice = f"follows from {constants}; set {'that' if ' and ' not in constants else 'those'} instead"
        if not mark or flag not in flags.values:
            raise UsageError(f"--set {setting}: {flag} {advice}")
        if parse_setting(setting, flags.values[flag]) != flags.values[flag]:
            raise UsageError(f"--set {setting}: {flag} {advice}")


def _missing_note(learner: Learner, flags: TrainingFlags) -> tuple[str, ...]:
    """What is not known of the training, and what to do about it; nothing where all is known."""
    if not learner.missing:
        return ()
    if learner.optimizer:
        return (
            f"AXLearn trains these models with {learner.optimizer}, and MaxText has no optimizer like it: MaxText "
            f"trains with its own AdamW. Its constants can be given with --set {'=VALUE --set '.join(learner.missing)}"
            "=VALUE.",
        )
    text = f"Not known of the training: give --set {'=VALUE --set '.join(learner.missing)}=VALUE."
    if flags.missing:
        text += f" Until then maxtext.yml lacks {', '.join(flags.missing)}, and MaxText trains with its own defaults."
    return (text,)


def converted_keys(table: MappingTable, recorded: Mapping[str, Any], options: Collection[str] = ()) -> dict[str, Any]:
    """What a conversion writes whatever the tensors are: the table's constants, changed by recorded settings.

    Args:
      table: the mapping table.
      recorded: what was set.
      options: those of the table that are on.
    """
    rules = (rule for rule in table.config if not rule.option or rule.option in options)
    constants = {rule.key: rule.constant for rule in rules if rule.constant is not None}
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
    return frozenset(rule.key for rule in table.config if rule.set == TRAINING) | (
        FLAGS - {rule.key for rule in table.config}
    )


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
    """A finite number of that kind, or None: 1.5 is not a whole number, and infinity is not a size."""
    try:
        if kind is int and re.fullmatch(r"[+-]?\d+", text):
            return int(text)  # a float would round what is beyond 2^53
        value = float(text)
        return (kind(value) if kind is float or value.is_integer() else None) if math.isfinite(value) else None
    except ValueError:
        return None


def _known(table: MappingTable, recorded: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """The recorded settings that the table lets a user set; a record is somebody else's file."""
    free = {rule.key: rule for rule in table.config if rule.set}
    return {
        key: value
        for key, value in recorded.items()
        if key in free and (value in free[key].words.values() if key not in base else type(value) is type(base[key]))
    }


def _why(rule: ConfigRule, match: Match) -> str:
    """What a key's value is assumed from; empty where all models of the family have it."""
    case = matching_case(rule, match)
    return rule.why if case is None else case.why


def _contradiction(rule: ConfigRule, match: Match, base: Mapping[str, Any], value: Any) -> str:
    """Why a key cannot have a value that the user gave; empty where it can."""
    if rule.set or value == base[rule.key]:
        return ""
    due = base[rule.key]
    setting, needed = f"--set {rule.key}={value_text(value)}", f"{rule.key}={value_text(due)}"
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


def _way_out(rules: Sequence[ConfigRule]) -> list[str]:
    return [f"if the model has another {rule.key}, give --set {rule.key}=VALUE" for rule in rules if rule.set == MODEL]
