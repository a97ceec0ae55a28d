"""MaxText's side of a conversion: the model configuration that goes with the weights, and names on disk.

Facts about MaxText 0.2.5. Any yml is taken as first argument; `base_config: base.yml` in it is found among MaxText's
own configurations (configs/pyconfig.py), and with `model_name: default` every key of a published model yml can be
written out, so that no `override_model_config` is needed.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any

from converter.checkpoints.names import items_path


def whole_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """All keys of the yml, with those that make it a file of its own."""
    return {"base_config": "base.yml", "model_name": "default", **config}


def config_yaml(config: Mapping[str, Any], origin: str, settings: Collection[str] = (), *, step: int = 0) -> str:
    """The text of a model yml that MaxText takes as its configuration argument as it stands.

    Args:
      config: the model's keys.
      origin: one line that says where the weights came from.
      settings: keys that the user set.
      step: the number of the step directory.
    """
    import yaml

    body = whole_config(config)
    lines = [
        f"# MaxText configuration of the checkpoint beside this file ({items_path(step)}).",
        f"# {''.join(c if c.isprintable() else '?' for c in origin)}",
        "# Dimensions were solved from the tensors; the other keys are what these weights need.",
        *([f"# Set with --set: {', '.join(settings)}."] if settings else []),
    ]
    text = yaml.dump(body, Dumper=_block_dumper(), sort_keys=False, default_flow_style=False, allow_unicode=True)
    return "\n".join(lines) + "\n" + text


def parse_config(data: bytes | str) -> Any:
    """What a yml holds, by MaxText's reading: OmegaConf's YAML has more ways to write a number than PyYAML's.

    Raises:
      ValueError: it is no YAML.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))
    try:
        return yaml.load(data, Loader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(str(error).splitlines()[0]) from None


def same_value(found: Any, expected: Any) -> bool:
    """Whether MaxText takes a value of a yml for the expected one: it reads 5e5 and "500000" as 500000."""
    if isinstance(found, str) and not isinstance(expected, str):
        try:
            found = parse_config(found)
        except ValueError:
            return False
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (found, expected))
    return found == expected and (numbers or type(found) is type(expected))


_FLOAT = re.compile(r"[-+]?(\d[\d_]*\.[\d_]*([eE][-+]?\d+)?|\d[\d_]*[eE][-+]?\d+|\.\d[\d_]*([eE][-+]?\d+)?)$", re.ASCII)
"""Numbers of YAML 1.2 such as 1e-05; the sign of the exponent and the point are optional."""


def _block_dumper() -> Any:
    """Writes a key a line, and lists on one line."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def one_line(self, data: list[Any]) -> Any:
            return self.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True)

    Dumper.add_representer(list, Dumper.one_line)
    return Dumper
