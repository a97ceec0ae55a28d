"""Patches for MaxText, made at run time without touching its files, with which it computes what AXLearn does.

    python -m converter.maxtext_patch maxtext.trainers.pre_train.train DST/maxtext.yml ...

runs a MaxText module with the patches that `DST/maxtext.yml` lists. From code, before a model is built,
`apply_needed("DST/maxtext.yml")` does the same; `apply`, `unround_tied_logits` and `scale_updates` make one patch each.
What each is for, and the change to MaxText that would replace it: docs/maxtext.md.

Made for MaxText 0.2.5. Other versions below 0.3 are taken if the code in question has the same structure; anything else
is refused. Needs nothing but MaxText.
"""

from collections.abc import Mapping, Sequence

from converter.maxtext_patch.logits import UnroundedTiedLogits
from converter.maxtext_patch.needs import Patch, check_leaves, chosen, read_needs
from converter.maxtext_patch.norms import BLOCKS, NormAfterRope
from converter.maxtext_patch.source import PatchError, maxtext_version
from converter.maxtext_patch.updates import ScaledUpdates

__all__ = [
    "BLOCKS",
    "PatchError",
    "apply",
    "apply_all",
    "apply_needed",
    "scale_updates",
    "unround_tied_logits",
]


def apply(blocks: Sequence[str] = BLOCKS) -> str:
    """Patches the installed MaxText to norm q and k after RoPE; once is enough, a second time does nothing.

    Args:
      blocks: names of the decoder blocks that change, members of MaxText's DecoderBlockType.

    Returns:
      The version of MaxText.

    Raises:
      PatchError: there is no MaxText, its version is out of range, its attention has another structure, or other
        blocks were patched before.
    """
    return apply_all([NormAfterRope(blocks=tuple(blocks))])


def unround_tied_logits() -> str:
    """Patches the installed MaxText to compute tied logits without rounding the table to bfloat16.

    Returns:
      The version of MaxText.

    Raises:
      PatchError: there is no MaxText, its version is out of range, or its product has another structure.
    """
    return apply_all([UnroundedTiedLogits()])


def scale_updates(leaves: Mapping[str, float]) -> str:
    """Patches the installed MaxText to scale the Adam updates of some parameters.

    Args:
      leaves: the scale of each parameter, by its path; `*` stands for one part of a path. A path that matches no
        parameter, and two that match the same, are refused when MaxText makes the optimizer's state.

    Returns:
      The version of MaxText.

    Raises:
      PatchError: there is no MaxText, its version is out of range, its optimizer has another structure, or other scales
        were patched before.
    """
    try:
        checked = check_leaves(dict(leaves))
    except ValueError as error:
        raise PatchError(f"scaled_updates: {error}") from None
    return apply_all([ScaledUpdates(leaves=checked)])


def apply_needed(config: str) -> str:
    """Patches the installed MaxText as the configuration beside a converted checkpoint says.

    Args:
      config: path of `maxtext.yml`.

    Returns:
      The version of MaxText.

    Raises:
      PatchError: the configuration cannot be read or contradicts itself, or MaxText is not what the patches are for.
    """
    needs = read_needs([config])
    left_out = chosen(needs, None, ())
    return apply_all([patch for patch in needs.patches if left_out[patch.name] is None])


def apply_all(patches: Sequence[Patch]) -> str:
    """Makes several patches, or none of them if one is refused; returns the version of MaxText."""
    version = maxtext_version()
    changes = []
    for patch in patches:
        try:
            changes.append(patch.prepare())
        except PatchError as error:
            raise PatchError(f"MaxText {version}: {patch.name}: {error}") from None
    for change in changes:
        change()
    return version
