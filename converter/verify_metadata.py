"""What surrounds the arrays of a checkpoint: commit markers, custom metadata, and the MaxText configuration."""

import os
from collections.abc import Mapping
from typing import Any

from converter.maxtext import CONFIG_NAME
from converter.maxtext_reader import Target
from converter.verification import Finding

FREE_KEYS = frozenset({
    "normalization_layer_epsilon", "rope_max_timescale", "num_experts_per_tok", "normalize_embedding_logits",
    "load_balance_loss_weight", "enable_dropout", "mlp_activations",
})  # fmt: skip
"""Keys that no tensor can contradict: another value is the user's choice (`convert --set`), and only noted."""

MAX_CONFIG_BYTES = 1 << 20


def metadata_findings(target: Target, scan_layers: bool | None) -> list[Finding]:
    """Commit markers and custom metadata.

    Args:
      target: the checkpoint.
      scan_layers: whether layers are scanned; None where that is not known.
    """
    findings = [
        Finding("markers" if "commit_success" in line else "metadata", _place(line, target), line)
        for line in target.problems
    ]
    found = target.custom.get("scan_layers")
    if target.custom and (not isinstance(found, bool) or (scan_layers is not None and found != scan_layers)):
        expected = "true or false" if scan_layers is None else str(scan_layers).lower()
        text = f"custom_metadata.scan_layers is {_json(found)}, expected {expected}; MaxText goes by it"
        findings.append(Finding("scan_layers", "_CHECKPOINT_METADATA", text))
    return findings


def config_findings(target: Target, expected: Mapping[str, Any]) -> tuple[list[Finding], list[str]]:
    """Holds maxtext.yml against the configuration that the weights need.

    Returns:
      Findings, and notes about keys whose value is the user's choice. A checkpoint that another program wrote has no
      maxtext.yml; that is a note.
    """
    import yaml

    path = os.path.join(target.root, CONFIG_NAME)
    try:
        with open(path, "rb") as file:
            found = yaml.safe_load(file.read(MAX_CONFIG_BYTES))
    except FileNotFoundError:
        return [], [f"{CONFIG_NAME}: not there, so the model configuration was not checked"]
    except OSError as error:
        return [Finding("config", CONFIG_NAME, f"cannot be read: {error.strerror}")], []
    except (yaml.YAMLError, UnicodeDecodeError, ValueError):
        return [Finding("config", CONFIG_NAME, "is no valid YAML")], []
    if not isinstance(found, dict):
        return [Finding("config", CONFIG_NAME, "is no list of keys and values")], []
    findings: list[Finding] = []
    notes: list[str] = []
    for key, value in {"base_config": "base.yml", "model_name": "default", **expected}.items():
        if key in found and type(found[key]) is type(value) and found[key] == value:
            continue
        text = f"{key} is {_json(found[key])}" if key in found else f"{key} is missing"
        text += f", these weights need {_json(value)}"
        if key in FREE_KEYS and key in found:
            notes.append(f"{CONFIG_NAME}: {text.replace('these weights need', 'the mapping says')}")
        else:
            findings.append(Finding("config", CONFIG_NAME, text, expected=_json(value), found=_json(found.get(key))))
    return findings, notes


def _place(line: str, target: Target) -> str:
    path = line.split(":")[0].split(" is missing")[0]
    return os.path.relpath(path, target.root) if os.path.isabs(path) else path


def _json(value: Any) -> str:
    import json

    return json.dumps(value, default=str)
