"""The patch `unrounded_tied_logits`: MaxText computes tied logits without rounding the table to bfloat16."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from converter.maxtext_patch.source import Change, find, function_body, read_code, statement

MODULE = "maxtext.layers.embeddings"

PRODUCT = """
return jnp.dot(
    query,
    jnp.asarray(embedding_table, {dtype}).T,
    preferred_element_type=attend_dtype,
    out_sharding=out_sharding,
)
"""


@dataclass(frozen=True, kw_only=True)
class UnroundedTiedLogits:
    """Multiplies with the table in the dtype of the activations; in bfloat16 nothing changes."""

    name: ClassVar[str] = "unrounded_tied_logits"

    def __str__(self) -> str:
        return "computes tied logits in the dtype of the activations (the table is not rounded to bfloat16)"

    def unneeded(self, settings: Mapping[str, str]) -> str | None:
        """The setting with which there is nothing to patch."""
        return "logits_via_embedding=false" if settings.get("logits_via_embedding") == "false" else None

    def prepare(self) -> Change:
        """Checks MaxText's product with the table; returns the change.

        Raises:
          PatchError: it has another structure.
        """
        code = read_code(MODULE, "attend_on_embedding", "MaxText's product for tied logits")
        if code.done is not None:
            return lambda: None
        patch_source(code.tree)
        return code.replaced(True)


def patch_source(tree: ast.Module) -> None:
    """Takes the table in the dtype of the query, in the source of MaxText's `attend_on_embedding`.

    Args:
      tree: the function; changed in place.

    Raises:
      PatchError: the product with a rounded table is not there exactly once.
    """
    body = function_body(tree)
    place = find(body, PRODUCT.format(dtype="jnp.bfloat16"), "the product with a bfloat16 table", "attend_on_embedding")
    body[place] = statement(PRODUCT.format(dtype="query.dtype"), body[place])
