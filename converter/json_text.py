"""JSON documents as text, in which every number is one that JSON has."""

import json
import math
from typing import Any


def json_text(document: Any) -> str:
    """A document as indented JSON; numbers that are not finite are the strings "nan", "inf" and "-inf"."""
    return json.dumps(json_values(document), indent=2, allow_nan=False)


def json_values(value: Any) -> Any:
    """A document with its numbers that are not finite replaced by strings."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(float(value))
    if isinstance(value, dict):
        return {name: json_values(item) for name, item in value.items()}
    return [json_values(item) for item in value] if isinstance(value, (list, tuple)) else value
