"""All that is known of a converted checkpoint as one value: counts, bits, function, configuration, digests."""

from converter.evidence.configuration import ConfigKey
from converter.evidence.digests import FileDigest, LeafDigest, Receipt
from converter.evidence.evidence import CAUTION, FAILED, OPEN, PASSED, Command, Evidence, Request
from converter.evidence.gather import gather

__all__ = [
    "CAUTION",
    "FAILED",
    "OPEN",
    "PASSED",
    "Command",
    "ConfigKey",
    "Evidence",
    "FileDigest",
    "LeafDigest",
    "Receipt",
    "Request",
    "gather",
]
