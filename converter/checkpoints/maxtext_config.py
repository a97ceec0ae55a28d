"""MaxText's side of a conversion: the model configuration that goes with the weights, and names on disk.

Facts about MaxText 0.2.5. Any yml is taken as first argument; `base_config: base.yml` in it is found among MaxText's
own configurations (configs/pyconfig.py), and with `model_name: default` every key of a published model yml can be
written out, so that no `override_model_config` is needed.
"""

import json
import re
import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from converter.checkpoints.names import items_path
from converter.errors import Ax2mtError
from converter.storage import read_small

MAX_CONFIG_BYTES = 1 << 20


def whole_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """All keys of the yml, with those that make it a file of its own."""
    return {"base_config": "base.yml", "model_name": "default", **config}


def config_yaml(
    config: Mapping[str, Any],
    origin: str,
    settings: Collection[str] = (),
    *,
    origins: Mapping[str, str] | None = None,
    comments: Sequence[str] = (),
    patches: Sequence[Mapping[str, Any]] = (),
    step: int = 0,
) -> str:
    """The text of a model yml that MaxText takes as its configuration argument as it stands.

    Args:
      config: the model's keys and the training flags.
      origin: one line that says where the weights came from.
      settings: what the user set.
      origins: key to where its value comes from.
      comments: what there is to say of the training flags.
      patches: the changes to MaxText that the checkpoint needs.
      step: the number of the step directory.
    """
    import yaml

    dumper = _block_dumper()
    known = {**dict.fromkeys(whole_config({}), "a file of its own"), **(origins or {})}
    lines = [
        *(f"# patch: {json.dumps(patch)}" for patch in patches),
        *([] if patches else ["# patch: none"]),
        f"# MaxText configuration of the checkpoint beside this file ({items_path(step)}).",
        *_comment(origin),
        *([f"# Set with --set: {', '.join(settings)}."] if settings else []),
        *(line for comment in comments for line in _comment(comment)),
    ]
    for key, value in whole_config(config).items():
        # Escaped, since PyYAML reads a line break of Unicode that it wrote as it stands as a space.
        text = yaml.dump({key: value}, Dumper=dumper, default_flow_style=False, width=float("inf")).rstrip("\n")
        comment = "".join(_comment(known[key], width=len(known[key]) + 1)) if key in known else ""
        # A value of several lines could end in a block whose last line takes a comment for text.
        lines += [f"{text}  {comment}"] if comment and "\n" not in text else [*filter(None, [comment]), text]
    return "\n".join(lines) + "\n"


def _comment(text: str, width: int = 116) -> list[str]:
    """A text as lines of a comment; whatever it holds, it stays one."""
    plain = "".join(character if character.isprintable() else "?" for character in text)
    return [f"# {line}" for line in textwrap.wrap(plain, width) or [""]]


def load_config(file: str, error: type[Ax2mtError], *, label: str = "") -> dict[str, Any]:
    """Reads the keys of a `maxtext.yml`, as `storage.read_small` does.

    Raises:
      Ax2mtError: as there; or it is not YAML, or holds no keys.
    """
    label = label or file
    try:
        found = parse_config(read_small(file, MAX_CONFIG_BYTES, error, label=label))
    except ValueError as problem:
        raise error(f"{label}: is not valid YAML: {problem}") from None
    if not isinstance(found, dict):
        raise error(f"{label}: is not a mapping of keys to values")
    return found


def parse_config(data: bytes | str) -> Any:
    """What a yml holds, by MaxText's reading: OmegaConf's YAML has more ways to write a number than PyYAML's.

    Raises:
      ValueError: it is not YAML.
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
