"""The command lines to continue training in MaxText from a converted checkpoint, to be pasted into a shell.

Facts about MaxText 0.2.5. It takes `KEY=VALUE` arguments through OmegaConf.from_cli: each value is parsed as YAML, and
`${...}` in it is an interpolation. Without `dataset_type` it trains on random tokens and ignores every path of data;
without `tokenizer_path` it takes Llama 2's tokenizer. Neither is said on the way, so both are placeholders here:
`dataset_type` and `tokenizer_type` are enumerations, and MaxText refuses the placeholders as values.
"""

import re
import shlex

from converter.checkpoints.names import CONFIG_NAME, items_path

TRAINER = "maxtext.trainers.pre_train.train"
PATCH = "converter.maxtext_patch"

_PLAIN = re.compile(r"(gs:/)?/[\w./+\-]*", re.ASCII)
"""Values that YAML, OmegaConf and a shell read as they stand."""


COPY = "/COPY"
"""Stands for the path of a copy that MaxText can read."""

_UNREADABLE = "s3://"
"""Orbax 0.12 takes such a URL for a relative path: "Checkpoint path should be absolute"."""

_REMOTE = "gs://"
"""Orbax reads such a checkpoint; MaxText opens its configuration as a local file: "No such file: src/gs:/..."."""


def handoff_note(destination: str) -> str:
    """What to do first with a checkpoint that MaxText cannot read where it is, or not all of it; empty where it can."""
    if destination.startswith(_REMOTE):
        config = shlex.quote(f"{destination}/{CONFIG_NAME}")
        return f"MaxText reads its configuration from local files only:\ngcloud storage cp {config} {CONFIG_NAME}"
    if not destination.startswith(_UNREADABLE):
        return ""
    return (
        "Orbax and MaxText cannot read s3:// URLs. Copy the checkpoint to a local disk or to gs://, or mount the "
        f"bucket (docs/buckets.md), and write that path for {COPY} below:\n"
        f"aws s3 sync {shlex.quote(destination)} {COPY}"
    )


def train_command(destination: str, *, patched: bool = False, state_step: int | None = None) -> str:
    """The command line to train on from the converted weights.

    Args:
      destination: absolute path of the checkpoint.
      patched: run MaxText with `maxtext_patch`, for weights with which the stock one is not exact.
      state_step: the step directory of a whole training state; None for a checkpoint of parameters alone.
    """
    if destination.startswith(_UNREADABLE):
        destination = COPY
    config = CONFIG_NAME if destination.startswith(_REMOTE) else f"{destination}/{CONFIG_NAME}"
    start = f"python3 -m {PATCH} {TRAINER}" if patched else f"python3 -m {TRAINER}"
    key = "load_parameters_path" if state_step is None else "load_full_state_path"
    weights = f"{key}={cli_value(f'{destination}/{items_path(state_step or 0)}')}"
    return (
        f"{start} {shlex.quote(config)} \\\n"
        f"    {shlex.quote(weights)} \\\n"
        "    run_name=RUN base_output_directory=OUTPUT \\\n"
        "    dataset_type=DATASET_TYPE dataset_path=DATA tokenizer_path=TOKENIZER tokenizer_type=TOKENIZER_TYPE"
    )


def cli_value(text: str) -> str:
    """A value that MaxText reads back as this text; not quoted for a shell yet."""
    if _PLAIN.fullmatch(text):
        return text
    # OmegaConf: a backslash keeps ${ from being an interpolation, and each backslash before it counts.
    escaped = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)
    if escaped.isprintable():
        return "'" + escaped.replace("'", "''") + "'"
    # Only double quotes can hold characters that do not print.
    return '"' + "".join(_double_quoted(character) for character in escaped) + '"'


def _double_quoted(character: str) -> str:
    if character in '\\"':
        return "\\" + character
    code = ord(character)
    return character if character.isprintable() else f"\\x{code:02x}" if code < 256 else f"\\U{code:08x}"
