"""Verifies in both ways: by chunks as they are stored, and with everything decoded. They must show the same."""

from pathlib import Path

from converter.verification.digests import verify_digests
from converter.verification.result import Verification
from converter.verification.run import verify
from converter.work import Silent


def both_ways(source: str | Path, checkpoint: Path, **options) -> Verification:
    """The stored bytes show what decoding everything shows."""
    result = verify(str(source), str(checkpoint), Silent(), **options)
    decoded = verify(str(source), str(checkpoint), Silent(), decode=True, **options)
    assert decoded.stored_leaves == 0
    assert (result.findings, result.notes, result.elements) == (decoded.findings, decoded.notes, decoded.elements)
    return result


def against_digests(checkpoint: Path) -> Verification:
    result, decoded = (verify_digests(str(checkpoint), Silent(), decode=decode) for decode in (False, True))
    assert (result.findings, result.notes, result.elements) == (decoded.findings, decoded.notes, decoded.elements)
    return result
