"""The proof in bits: reads a checkpoint back and compares it with its source or its digests.

What compares with a source is loaded when it is first used: a checkpoint by itself needs no mapping table.
"""

from typing import TYPE_CHECKING

from converter.verification.digests import verify_digests
from converter.verification.result import Finding, Verification

if TYPE_CHECKING:
    from converter.verification.run import verify, verify_plan

__all__ = [
    "Finding",
    "Verification",
    "verify",
    "verify_digests",
    "verify_plan",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from converter.verification import run

    return getattr(run, name)
