"""Which changes to MaxText a converted checkpoint needs to compute, and train, as AXLearn does.

Plain data: `maxtext.yml` carries it in comments and the receipt in its "patches", for the code that changes MaxText.
"""

from collections.abc import Mapping
from typing import Any

from converter.mapping.learner import Learner

Patch = Mapping[str, Any]

NORM_AFTER_ROPE, UNROUNDED_LOGITS, SCALED_UPDATES = "norm_after_rope", "unrounded_tied_logits", "scaled_updates"


def needed_patches(keys: Mapping[str, Any], learner: Learner, *, norm_after_rope: bool) -> tuple[Patch, ...]:
    """The patches that a checkpoint needs.

    Args:
      keys: MaxText's configuration.
      learner: that of the source's training.
      norm_after_rope: whether the q/k norm scales that are written have to be applied after RoPE.

    Returns:
      One dictionary each, with its "name": q and k normed after RoPE in a "decoder_block"; the tied table not rounded
      to bfloat16 for the logits; and Adam's updates of "leaves" multiplied by a factor each.
    """
    patches: list[Patch] = []
    if norm_after_rope:
        patches.append({"name": NORM_AFTER_ROPE, "decoder_block": keys["decoder_block"]})
    if keys.get("logits_via_embedding") is True:
        patches.append({"name": UNROUNDED_LOGITS})
    if learner.update_scales is not None and learner.update_scales.value:
        patches.append({"name": SCALED_UPDATES, "leaves": dict(learner.update_scales.value)})
    return tuple(patches)
