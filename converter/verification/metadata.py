"""What surrounds the arrays of a checkpoint: commit markers, custom metadata, and the MaxText configuration."""

import dataclasses
import os
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from converter.checkpoints import (
    CONFIG_NAME,
    CUSTOM_METADATA,
    Target,
    is_recorded,
    load_config,
    same_value,
    whole_config,
)
from converter.errors import VerificationError
from converter.storage import storage_of
from converter.verification.result import Finding
from converter.words import option_flag

if TYPE_CHECKING:
    from converter.mapping import MappingTable


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
        text = f"custom_metadata.scan_layers is {_json(found)}, expected {expected}; MaxText relies on it"
        findings.append(Finding("scan_layers", CUSTOM_METADATA, text))
    return findings


def config_findings(
    target: Target, expected: Mapping[str, Any], table: "MappingTable", options: Collection[str] = ()
) -> tuple[list[Finding], list[str]]:
    """Compares maxtext.yml with the configuration that the weights need.

    Args:
      target: the checkpoint.
      expected: the effective configuration of the source, with what is recorded as set.
      table: the mapping table.
      options: those of the table that the checkpoint was made with.

    Returns:
      Findings, and notes about keys whose value is the user's choice. A checkpoint that another program wrote has no
      maxtext.yml; that is a note.
    """
    from converter.mapping import training_keys

    found, problem = _read_config(target.root)
    if found is None:
        missing = f"{CONFIG_NAME}: missing, so the model configuration was not checked"
        return ([_config_finding(problem)], []) if problem else ([], [missing])
    open_keys = training_keys(table)
    if not is_recorded(target.custom):  # what a user set then is not known
        open_keys |= {rule.key for rule in table.config if rule.set}
    whole = whole_config(expected)
    required = {key: value for key, value in whole.items() if key not in open_keys}
    choices = {key: value for key, value in whole.items() if key in open_keys}
    findings, notes = _compare(found, required, choices, "these weights need", "the mapping says")
    return [*findings, *_foreign_keys(found, table, options)], notes


def _foreign_keys(found: Mapping[str, Any], table: "MappingTable", options: Collection[str]) -> list[Finding]:
    """Keys that only weights converted with another option need."""
    return [
        _config_finding(
            f"{rule.key} is {_json(found[rule.key])}, which is for weights converted with {option_flag(rule.option)}; "
            "these were converted without it"
        )
        for rule in table.config
        if rule.option
        and rule.option not in options
        and rule.key in found
        and same_value(found[rule.key], rule.constant)
    ]


def edit_findings(root: str, written: Mapping[str, Any]) -> tuple[list[Finding], list[str]]:
    """Looks at what was changed in maxtext.yml since it was written.

    Args:
      root: the directory above the steps.
      written: the receipt's record of the keys: those of the model under "model", of training under "training".

    Returns:
      Findings for changed keys of the model; notes for all else: users may edit training keys.
    """
    from converter.mapping import MODEL, TRAINING

    found, problem = _read_config(root)
    if found is None:
        return [_config_finding(problem or "is missing")], []
    required, choices = (written.get(kind) for kind in (MODEL, TRAINING))
    findings, notes = _compare(
        found,
        required if isinstance(required, dict) else {},
        choices if isinstance(choices, dict) else {},
        "convert wrote",
        "convert wrote",
    )
    return findings, notes or ([] if findings else [f"{CONFIG_NAME}: edited since convert; same values"])


def _read_config(root: str) -> tuple[Mapping[str, Any] | None, str]:
    """The file's keys; or None and the problem, which is empty where the file does not exist."""
    file = os.path.join(root, CONFIG_NAME)
    if not storage_of(file).exists(file):
        return None, ""
    try:
        return load_config(file, VerificationError, label=CONFIG_NAME), ""
    except VerificationError as error:
        return None, error.message.removeprefix(f"{CONFIG_NAME}: ")


def _compare(
    found: Mapping[str, Any], required: Mapping[str, Any], choices: Mapping[str, Any], need: str, mild: str
) -> tuple[list[Finding], list[str]]:
    """Findings for required keys with another value, notes for choices with one and for keys of the user's own."""
    findings: list[Finding] = []
    notes: list[str] = []
    for key, value in {**required, **choices}.items():
        if key in found and same_value(found[key], value):
            continue
        text = f"{key} is {_json(found[key])}" if key in found else f"{key} is missing"
        if key in choices:
            notes.append(f"{CONFIG_NAME}: {text}, {mild} {_json(value)}")
        else:
            finding = _config_finding(f"{text}, {need} {_json(value)}")
            findings.append(dataclasses.replace(finding, expected=_json(value), found=_json(found.get(key))))
    own = sorted(str(key) for key in found if key not in required and key not in choices)
    if own:
        notes.append(f"{CONFIG_NAME}: has keys that convert does not write: {', '.join(own)}")
    return findings, notes


def _config_finding(text: str) -> Finding:
    return Finding("config", CONFIG_NAME, text)


def _place(line: str, target: Target) -> str:
    path = line.split(":")[0].split(" is missing")[0]
    return os.path.relpath(path, target.root) if os.path.isabs(path) else path


def _json(value: Any) -> str:
    import json

    return json.dumps(value, default=str)
