"""JSON Schemas of the documents that docs/json.md describes: required fields and their types."""

from typing import Any

_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0}
_MAYBE_TEXT = {"type": ["string", "null"]}
_SHAPE = {"type": "array", "items": _COUNT}
_TEXTS = {"type": "array", "items": _TEXT}


def _object(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def _list(**fields: Any) -> dict[str, Any]:
    return {"type": "array", "items": _object(**fields)}


_VERSION = {"const": 1}
_MAPPING = {"name": _TEXT, "title": _TEXT, "path": _TEXT, "digest": _TEXT, "rows": _COUNT, "models": _TEXTS}

SCHEMAS: dict[str, dict[str, Any]] = {
    "error": _object(
        schema_version=_VERSION, error=_object(kind=_TEXT, exit_code=_COUNT, message=_TEXT, details=_TEXTS)
    ),
    "verify": _object(
        schema_version=_VERSION, ok={"type": "boolean"}, method={"enum": ["source", "digests"]}, source=_TEXT,
        step={"type": ["integer", "null"]}, destination=_TEXT, leaves=_COUNT, elements=_COUNT, bytes=_COUNT,
        sample={"type": ["number", "null"]},
        findings=_list(
            check=_TEXT, place=_TEXT, message=_TEXT, elements={"type": ["integer", "null"]},
            first_index={"type": ["array", "null"], "items": _COUNT}, expected=_MAYBE_TEXT, found=_MAYBE_TEXT,
            diagnosis=_MAYBE_TEXT,
        ),
        notes=_TEXTS, cast={"type": ["object", "null"]}, seconds={"type": "number"}, peak_memory=_COUNT,
    ),
    "inspect": _object(
        schema_version=_VERSION, path=_TEXT, kind=_TEXT, title=_TEXT, facts={"type": "object"},
        leaves=_list(path=_TEXT, dtype=_TEXT, shape=_SHAPE, chunks=_SHAPE, problem=_MAYBE_TEXT), missing=_TEXTS,
    ),
    "params": _object(
        schema_version=_VERSION, title=_TEXT, destination=_MAYBE_TEXT, mapping=_TEXT, equivalent={"type": "boolean"},
        totals=_object(axlearn=_COUNT, maxtext=_COUNT, added=_COUNT, difference={"type": "integer"}, experts=_COUNT,
                       active_per_token=_COUNT),
        experts=_COUNT, experts_per_token=_COUNT, rows={"type": "array", "items": {"type": "object"}},
        extra=_list(path=_TEXT, shape=_SHAPE),
    ),
    "mappings list": _object(schema_version=_VERSION, mappings=_list(**_MAPPING)),
}  # fmt: skip
"""Name of a command to the schema of its document; `error` is any command's."""
