"""The patch `norm_after_rope`: MaxText's attention norms q and k after RoPE, as AXLearn does."""

import ast
import importlib
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from converter.maxtext_patch.source import (
    Change,
    PatchError,
    UsageError,
    find,
    function_body,
    other_code,
    read_code,
    statement,
)

MODULE = "maxtext.layers.attentions"

NORM_TEST = "(self.use_qk_norm and not is_llama4_decoder_block) or self.is_qwen3_hybrid"
NORM_BODY = """
query = self.query_norm(query)
if not use_shared_kv:
    key = self.key_norm(key)
"""
ROPE = """
if use_rope:
    query = self.apply_rotary_embedding(query, inputs_positions=inputs_positions, rope_kwargs=rope_kwargs)
    if not use_shared_kv:
        key = self.apply_rotary_embedding(key, inputs_positions=inputs_positions, rope_kwargs=rope_kwargs)
"""

BLOCKS = ("ENVY",)
"""The decoder blocks that change where none is named, as MaxText's DecoderBlockType calls them."""

NORMED_BLOCKS = (
    "ENVY", "QWEN2", "QWEN3", "QWEN3_MOE", "QWEN3_CUSTOM_MOE", "QWEN3_NEXT", "QWEN3_5", "OLMO3", "GEMMA3", "GEMMA4",
)  # fmt: skip
"""The decoder blocks of MaxText 0.2.5 whose attention norms q and k in `Attention.__call__`, if `use_qk_norm` says so.

The others have no q/k norm (such as LLAMA2), norm after RoPE already (LLAMA4), norm shared keys elsewhere too
(GEMMA4_SMALL), or have an attention of their own (DEEPSEEK).
"""


@dataclass(frozen=True, kw_only=True)
class NormAfterRope:
    """Moves the q/k norms behind RoPE.

    Attributes:
      blocks: the decoder blocks that change, members of MaxText's DecoderBlockType.
    """

    name: ClassVar[str] = "norm_after_rope"
    blocks: tuple[str, ...] = BLOCKS

    def __str__(self) -> str:
        names = ", ".join(block.lower() for block in self.blocks)
        return f"norms q and k after RoPE (decoder block {names})"

    def unneeded(self, settings: Mapping[str, str]) -> str | None:
        """The setting with which there is nothing to patch.

        Raises:
          UsageError: the configuration runs another decoder block than the weights were made for.
        """
        block = settings.get("decoder_block")
        if block is not None and block.upper() not in self.blocks:
            named = ", ".join(self.blocks).lower()
            raise UsageError(f"decoder_block is {block}, but {self.name} is needed for {named}: leave one of them out")
        return "use_qk_norm=false" if settings.get("use_qk_norm") == "false" else None

    def prepare(self) -> Change:
        """Checks MaxText's attention; returns the change.

        Raises:
          PatchError: it has another structure, does not know a block, or was patched for others before.
        """
        code = read_code(MODULE, "Attention.__call__", "MaxText's attention")
        known = getattr(importlib.import_module(MODULE), "DecoderBlockType", None)
        unknown = [block for block in self.blocks if not hasattr(known, block)]
        if unknown:
            raise other_code(f"{MODULE} knows no decoder block {', '.join(unknown)}")
        without = [block.lower() for block in self.blocks if block not in NORMED_BLOCKS]
        if without:
            works = ", ".join(NORMED_BLOCKS).lower()
            raise PatchError(f"{', '.join(without)} has no q/k norm that can move; the patch works for {works}")
        if code.done is None:
            patch_source(code.tree, self.blocks)
            return code.replaced(frozenset(self.blocks))
        if code.done != frozenset(self.blocks):
            raise PatchError(f"already patched for {', '.join(sorted(code.done))}; apply the patch once")
        return lambda: None


def patch_source(tree: ast.Module, blocks: Sequence[str] = BLOCKS) -> None:
    """Moves the q/k norms behind RoPE for some decoder blocks in the source of MaxText's attention method.

    Args:
      tree: the method; changed in place.
      blocks: names of the decoder blocks.

    Raises:
      PatchError: the two places are not there exactly once each, or something between them changes q or k.
    """
    body, where = function_body(tree), "the attention's code"
    norm = find(body, _norm(NORM_TEST), "the q/k norm", where)
    rope = find(body, ROPE, "RoPE", where)
    if not norm < rope or {"query", "key"} & set().union(*map(_assigned, body[norm + 1 : rope])):
        raise other_code("something between the q/k norm and RoPE changes q or k")
    moved = f"self.config.decoder_block in ({', '.join(f'DecoderBlockType.{block}' for block in blocks)},)"
    after = statement(_norm(f"({NORM_TEST}) and ({moved})"), body[rope])
    body[norm] = statement(_norm(f"({NORM_TEST}) and not ({moved})"), body[norm])
    body.insert(rope + 1, after)


def _norm(test: str) -> str:
    return f"if {test}:\n{textwrap.indent(NORM_BODY.strip(), '    ')}"


def _assigned(node: ast.stmt) -> set[str]:
    return {name.id for name in ast.walk(node) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)}
