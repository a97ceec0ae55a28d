"""The proof in bits: reads a checkpoint back and compares it with its source or its digests."""

from converter.verification.digests import verify_digests
from converter.verification.result import Finding, Verification
from converter.verification.run import verify, verify_plan

__all__ = [
    "Finding",
    "Verification",
    "verify",
    "verify_digests",
    "verify_plan",
]
