"""The proof in function: logits of either checkpoint, their difference and its causes."""

from converter.forward.comparison import (
    DIFFERENT_VERDICT,
    EQUAL,
    EQUAL_VERDICT,
    NOT_FINITE_VERDICT,
    LogitsComparison,
    compare,
    open_pair,
)
from converter.forward.finite import NonFinite
from converter.forward.metrics import Difference
from converter.forward.run import LogitsResult, Model, choose_tokens, logits, open_model
from converter.forward.tokens import Tokens

__all__ = [
    "DIFFERENT_VERDICT",
    "EQUAL",
    "EQUAL_VERDICT",
    "NOT_FINITE_VERDICT",
    "Difference",
    "LogitsComparison",
    "LogitsResult",
    "Model",
    "NonFinite",
    "Tokens",
    "choose_tokens",
    "compare",
    "logits",
    "open_model",
    "open_pair",
]
