"""Which patches a checkpoint needs, as the comments in its `maxtext.yml` say.

    # patch: {"name": "norm_after_rope", "decoder_block": "envy"}
    # patch: {"name": "unrounded_tied_logits"}
    # patch: {"name": "scaled_updates", "leaves": {"params/decoder/layers/*/mlp/wo/kernel": 0.5}}

or `# patch: none`. A file without such a line was written by an older version, or by hand: it needs `norm_after_rope`
if its decoder block norms q and k. A file that names another as its `base_config` needs what that one needs, unless it
has lines of its own.
"""

import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from converter.maxtext_patch.logits import UnroundedTiedLogits
from converter.maxtext_patch.norms import BLOCKS, NORMED_BLOCKS, NormAfterRope
from converter.maxtext_patch.source import PatchError, UsageError
from converter.maxtext_patch.updates import ScaledUpdates

Patch = NormAfterRope | UnroundedTiedLogits | ScaledUpdates

NAMES = tuple(kind.name for kind in (NormAfterRope, UnroundedTiedLogits, ScaledUpdates))

_LINE = re.compile(r"\s*#\s*patch\s*:(.*)", re.IGNORECASE)
_SETTING = re.compile(r"(\w+)\s*[:=]\s*[\"']?([\w.\-/]+)")


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a MaxText command needs.

    Attributes:
      patches: in the order of NAMES.
      settings: the keys of the configuration that are plain words, arguments included, in lower case.
      origin: where the patches are written; None if nowhere, so that they are those for older conversions.
    """

    patches: tuple[Patch, ...]
    settings: Mapping[str, str]
    origin: str | None


def read_needs(arguments: Sequence[str]) -> Needs:
    """What a MaxText command needs.

    Args:
      arguments: as MaxText gets them: the configuration, then `KEY=VALUE`.

    Raises:
      PatchError: the configuration cannot be read, or its lines are not what `convert` writes.
    """
    given = dict(_settings(argument for argument in arguments if re.match(r"\w+=", argument)))
    config = next(filter(is_config, arguments), None)
    try:
        files = list(_files(config)) if config else []
    except (OSError, UnicodeDecodeError) as error:
        if "decoder_block" not in given:
            why = getattr(error, "strerror", None) or error
            raise PatchError(f"{config}: cannot be read: {why}; name the block with decoder_block=NAME") from None
        files = []
    settings: dict[str, str] = {}
    for _, lines in reversed(files):
        settings |= _settings(lines)
    settings |= given
    for file, lines in files:
        patches = parse_lines(lines, file)
        if patches is not None:
            return Needs(patches=patches, settings=settings, origin=file)
    block = settings.get("decoder_block")
    blocks = (block.upper(),) if block else BLOCKS
    patches = (NormAfterRope(blocks=blocks),) if set(blocks) <= set(NORMED_BLOCKS) else ()
    return Needs(patches=patches, settings=settings, origin=None)


def is_config(argument: str) -> bool:
    """Whether an argument is a configuration's path."""
    return argument.endswith((".yml", ".yaml"))


def parse_lines(lines: Sequence[str], file: str) -> tuple[Patch, ...] | None:
    """The patches that a configuration lists; None if it has no line about them.

    Args:
      lines: of the file.
      file: its name, for messages.

    Raises:
      PatchError: a line is not one that `convert` writes.
    """
    found: dict[str, Patch] = {}
    none = stated = False
    for number, line in enumerate(lines, 1):
        content = _LINE.fullmatch(line)
        if not content:
            continue
        stated = True
        try:
            if content[1].strip() == "none":
                none = True
                continue
            patch = _parse(content[1])
        except (ValueError, RecursionError) as error:
            raise PatchError(f"{file}:{number}: {error}; copy the line from what `convert` wrote") from None
        if patch.name in found:
            raise PatchError(f"{file}:{number}: a second line for {patch.name}")
        found[patch.name] = patch
    if none and found:
        raise PatchError(f"{file}: `# patch: none` beside the patch {next(iter(found))}")
    return tuple(found[name] for name in NAMES if name in found) if stated else None


def chosen(needs: Needs, only: Sequence[str] | None, without: Sequence[str]) -> dict[str, str | None]:
    """For each needed patch why it is not applied, None if it is.

    Args:
      needs: what the command needs.
      only: names of the patches to apply; None for all.
      without: names of the patches to leave out.

    Raises:
      UsageError: the arguments contradict a patch, or `only` names one that is not needed.
    """
    absent = [name for name in only or () if name not in [patch.name for patch in needs.patches]]
    if absent:
        raise UsageError(f"--only {absent[0]}: {needs.origin or 'the configuration'} does not list this patch")
    result: dict[str, str | None] = {}
    for patch in needs.patches:
        if patch.name in without or (only is not None and patch.name not in only):
            result[patch.name] = f"left out by {'--without' if only is None else '--only'}: not exact without it"
        else:
            why = patch.unneeded(needs.settings)
            result[patch.name] = why and f"not needed with {why}"
    return result


def _files(config: str) -> Iterator[tuple[str, list[str]]]:
    """A configuration, and those that it builds upon, as far as they are not MaxText's own."""
    seen: set[str] = set()
    while config not in seen:
        seen.add(config)
        with open(config, encoding="utf-8") as file:
            lines = file.read().splitlines()
        yield config, lines
        base = [match[1] for line in lines if (match := re.match(r"base_config\s*:\s*[\"']?([^\"'#]+)", line))]
        beside = os.path.join(os.path.dirname(config), base[-1].strip()) if base else ""
        if not os.path.isfile(beside):
            return
        config = beside


def _settings(lines: Sequence[str] | Iterator[str]) -> dict[str, str]:
    return {match[1]: match[2].lower() for line in lines if (match := _SETTING.match(line))}


def _parse(text: str) -> Patch:
    """The patch that a line's JSON describes; ValueError if it describes none."""
    value = json.loads(text, object_pairs_hook=_unique)
    name = value.get("name") if isinstance(value, dict) else None
    if name not in NAMES:
        raise ValueError(f"unknown patch {name!r}, this version has {', '.join(NAMES)}")
    keys = {"norm_after_rope": "decoder_block", "scaled_updates": "leaves"}
    expected = {"name", keys[name]} if name in keys else {"name"}
    if set(value) != expected:
        raise ValueError(f"{name} has {', '.join(sorted(value))}, expected {', '.join(sorted(expected))}")
    if name == "unrounded_tied_logits":
        return UnroundedTiedLogits()
    if name == "norm_after_rope":
        block = value["decoder_block"]
        if not isinstance(block, str) or not re.fullmatch(r"\w+", block):
            raise ValueError(f"decoder_block is {block!r}, expected a name")
        return NormAfterRope(blocks=(block.upper(),))
    return ScaledUpdates(leaves=check_leaves(value["leaves"]))


def check_leaves(leaves: Any) -> dict[str, float]:
    """The scales of a patch.

    Raises:
      ValueError: they are not positive numbers by path.
    """
    if not isinstance(leaves, dict) or not leaves:
        raise ValueError("leaves is expected to be an object with scales by path")
    for path, scale in leaves.items():
        number = isinstance(scale, int | float) and not isinstance(scale, bool)
        if not number or not math.isfinite(scale) or scale <= 0:
            raise ValueError(f"the scale of {path} is {scale!r}, expected a positive number")
        if not path or "" in path.split("/"):
            raise ValueError(f"invalid path {path!r}")
    return dict(leaves)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a name stands twice in the line")
    return result
