"""A mapping table against MaxText and AXLearn as they are installed: leaf by leaf and flag by flag, without weights."""

from converter.conformance.result import (
    Conformance,
    FlagComparison,
    Installed,
    Leaf,
    LeafComparison,
    ModelComparison,
    PublishedComparison,
)
from converter.conformance.run import ConformRequest, conform

__all__ = [
    "ConformRequest",
    "Conformance",
    "FlagComparison",
    "Installed",
    "Leaf",
    "LeafComparison",
    "ModelComparison",
    "PublishedComparison",
    "conform",
]
