"""MaxText's side of a conversion: the model configuration that goes with the weights, and how to start a run.

Facts about MaxText 0.2.5. Any yml is taken as first argument; `base_config: base.yml` in it is found among MaxText's
own configurations (configs/pyconfig.py), and with `model_name: default` every key of a published model yml can be
written out, so that no `override_model_config` is needed.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

from converter.errors import MappingError, UsageError
from converter.mapping import ConfigRule
from converter.matching import Match

CONFIG_NAME = "maxtext.yml"
ITEMS = "0/items"


def leaf_key(path: str) -> str:
    """The name of a leaf on disk: the tree path joined by dots."""
    return path.replace("/", ".")


def model_config(match: Match) -> dict[str, Any]:
    """The configuration that the weights need, from the table's rules and the solved sizes.

    Raises:
      MappingError: layers differ in something that MaxText configures once for all layers.
    """
    return {rule.key: _value(rule, match) for rule in match.table.config}


def override_config(config: Mapping[str, Any], settings: list[str]) -> dict[str, Any]:
    """Applies a user's `KEY=VALUE` settings.

    Raises:
      UsageError: a setting is not of this form, or its key is not in the configuration.
    """
    import yaml

    result = dict(config)
    for setting in settings:
        key, mark, text = setting.partition("=")
        if not mark or key not in config:
            known = ", ".join(config)
            raise UsageError(f"--set {setting}: expected KEY=VALUE with one of the keys {known}")
        if not re.fullmatch(r"[\w.+\-]{1,64}", text):
            raise UsageError(f"--set {setting}: expected a plain number, word or true/false as value")
        try:
            value = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError):
            value = None
        if isinstance(config[key], float) or type(config[key]) is int:
            value = _number(text, type(config[key]))
            if value is None:
                raise UsageError(f"--set {setting}: expected a number, as in {key}={config[key]}")
        elif type(value) is not type(config[key]):
            raise UsageError(f"--set {setting}: expected a value like {config[key]!r}")
        result[key] = value
    return result


def _number(text: str, kind: type[int] | type[float]) -> int | float | None:
    """A finite number of that kind, or None: 1.5 is no whole number, and there is no size of infinity."""
    try:
        if kind is int and re.fullmatch(r"[+-]?\d+", text):
            return int(text)  # a float would round what is beyond 2^53
        value = float(text)
        return (kind(value) if kind is float or value.is_integer() else None) if math.isfinite(value) else None
    except ValueError:
        return None


def config_yaml(config: Mapping[str, Any], origin: str) -> str:
    """The text of a model yml that MaxText takes as its configuration argument as it stands.

    Args:
      config: the model's keys.
      origin: one line that says where the weights came from.
    """
    import yaml

    body = {"base_config": "base.yml", "model_name": "default", **config}
    lines = [
        f"# MaxText configuration of the checkpoint beside this file ({ITEMS}).",
        f"# {''.join(c if c.isprintable() else '?' for c in origin)}",
        "# Dimensions were solved from the tensors; the other keys are what these weights need.",
    ]
    text = yaml.dump(body, Dumper=_block_dumper(), sort_keys=False, default_flow_style=False, allow_unicode=True)
    return "\n".join(lines) + "\n" + text


def _block_dumper() -> Any:
    """Writes a key a line, and lists on one line."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def one_line(self, data: list[Any]) -> Any:
            return self.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True)

    Dumper.add_representer(list, Dumper.one_line)
    return Dumper


def train_command(destination: str) -> str:
    """The command line to go on from the converted weights."""
    import shlex

    return (
        f"python3 -m maxtext.trainers.pre_train.train {shlex.quote(f'{destination}/{CONFIG_NAME}')} \\\n"
        f"    load_parameters_path={shlex.quote(f'{destination}/{ITEMS}')} \\\n"
        "    run_name=RUN base_output_directory=OUTPUT dataset_path=DATA"
    )


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
