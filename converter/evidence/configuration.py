"""The keys of maxtext.yml: what the weights need, where that is known from, and what the file has."""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from converter.checkpoints import CONFIG_NAME, Target, load_config, recorded_settings, same_value, whole_config
from converter.errors import VerificationError
from converter.mapping import BY_USER, TRAINER_CONFIG, Configuration
from converter.storage import storage_of

ABSENT = object()
"""Stands for the value of a key that is not there."""

ORIGINS = {BY_USER: "set by the user (--set)", TRAINER_CONFIG: "read from the training's trainer_config"}
"""Origins that maxtext.yml has a single word for, in the words of a report."""

OWN_FILE, NOT_OURS = "makes the file one of its own", "not written by convert"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """A key of MaxText's configuration.

    Attributes:
      name: the key.
      value: what the weights need, or the training; of a key that `convert` does not write, the file's value.
      origin: where the value is known from.
      problem: what is different in maxtext.yml; empty where it has the value.
    """

    name: str
    value: Any
    origin: str
    problem: str = ""


def config_keys(target: Target, configuration: Configuration, chosen: Collection[str] | None) -> tuple[ConfigKey, ...]:
    """The keys with their origins, in the order of maxtext.yml, and after them those that only the file has.

    Args:
      target: the checkpoint.
      configuration: the source's, with what is recorded as set.
      chosen: the keys that the user set; None where that is not known. All others that are recorded as set were read
        from the training's configuration.
    """
    recorded = recorded_settings(target.custom)
    origins = {**dict.fromkeys(whole_config({}), OWN_FILE), **configuration.origins}
    if chosen is not None:
        origins |= {key: TRAINER_CONFIG for key in recorded if key in origins and key not in chosen}
    found = _found(target)
    keys = [
        ConfigKey(
            name=key,
            value=value,
            origin=ORIGINS.get(origins.get(key, ""), origins.get(key, "")),
            problem="" if found is None else _problem(found.get(key, ABSENT), value),
        )
        for key, value in whole_config(configuration.keys).items()
    ]
    known = {key.name for key in keys}
    others = [(str(key), value) for key, value in (found or {}).items() if key not in known]
    return (*keys, *(ConfigKey(name=key, value=value, origin=NOT_OURS) for key, value in others))


def _problem(found: Any, value: Any) -> str:
    if found is ABSENT:
        return "missing in the file"
    return "" if same_value(found, value) else f"the file has {found}"


def _found(target: Target) -> Mapping[str, Any] | None:
    """What maxtext.yml has; None where it is not there or cannot be read, which the verification says."""
    file = os.path.join(target.root, CONFIG_NAME)
    if not storage_of(file).exists(file):
        return None
    try:
        return load_config(file, VerificationError, label=CONFIG_NAME)
    except VerificationError:
        return None
