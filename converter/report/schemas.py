"""JSON Schemas of the documents that docs/json.md describes: required fields and their types."""

from typing import Any

_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0}
_NUMBER = {"type": "number"}
_MAYBE_TEXT = {"type": ["string", "null"]}
_SHAPE = {"type": "array", "items": _COUNT}
_TEXTS = {"type": "array", "items": _TEXT}


def _object(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def _list(**fields: Any) -> dict[str, Any]:
    return {"type": "array", "items": _object(**fields)}


_VERSION = {"const": 1}
_MAPPING = {"name": _TEXT, "title": _TEXT, "path": _TEXT, "digest": _TEXT, "rows": _COUNT, "models": _TEXTS}
_ARRAYS = _list(path=_TEXT, shape=_SHAPE, dtype=_TEXT, chunks=_SHAPE, bytes=_COUNT)
_PLAN: dict[str, Any] = {
    "schema_version": _VERSION,
    "source": _TEXT,
    "step": {"type": ["integer", "null"]},
    "mapping": _TEXT,
    "mapping_digest": _TEXT,
    "options": _object(
        untie={"type": "boolean"}, max_memory=_COUNT, store={"enum": ["files", "ocdbt", "zarr2"]},
        rewrite={"type": "boolean"}, link={"type": "boolean"}, qk_norm={"enum": ["plain", "fit"]},
    ),
    "totals": _object(
        source_parameters=_COUNT, target_parameters=_COUNT, added_parameters=_COUNT, difference={"type": "integer"},
        leaves=_COUNT, read_bytes=_COUNT, write_bytes=_COUNT, stored_bytes=_COUNT, memory=_COUNT,
    ),
    "sizes": {"type": "object", "additionalProperties": _COUNT},
    "tasks": _list(
        axes=_TEXT, route={"enum": ["pass", "link", "rewrite"]}, reason=_TEXT, group=_TEXT, note=_TEXT,
        added={"type": "boolean"}, units=_COUNT, memory=_COUNT, stored_bytes=_COUNT, sources=_ARRAYS, leaves=_ARRAYS,
    ),
    "dropped": _list(reason=_TEXT, tensors=_COUNT, elements=_COUNT, unknown_shapes=_COUNT, paths=_TEXTS),
    "ignored_entries": _TEXTS,
    "notes": _TEXTS,
    "config": {"type": "object"},
    "settings": {"type": "object"},
    "jobs": _COUNT,
}  # fmt: skip
_CAST = _object(dtype=_TEXT, max_absolute_error=_NUMBER, max_relative_error=_NUMBER, overflows=_COUNT)
_ROWS = _list(
    group=_TEXT, axlearn=_list(path=_TEXT, shape=_SHAPE),
    maxtext=_list(path=_TEXT, shape=_SHAPE, found={"oneOf": [{"type": "null"}, _SHAPE]}),
    relation=_TEXT, axes=_TEXT, note=_TEXT, axlearn_parameters=_COUNT, maxtext_parameters=_COUNT,
    added={"type": "boolean"}, expert={"type": "boolean"}, fits={"type": "boolean"},
)  # fmt: skip
_MISMATCH = {"type": ["number", "string"]}

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
        notes=_TEXTS, cast={"oneOf": [{"type": "null"}, _CAST]}, seconds={"type": "number"}, peak_memory=_COUNT,
    ),
    "inspect": _object(
        schema_version=_VERSION, path=_TEXT, kind=_TEXT, title=_TEXT, facts={"type": "object"},
        leaves=_list(path=_TEXT, dtype=_TEXT, shape=_SHAPE, chunks=_SHAPE, problem=_MAYBE_TEXT), missing=_TEXTS,
    ),
    "params": _object(
        schema_version=_VERSION, title=_TEXT, destination=_MAYBE_TEXT, mapping=_TEXT, equivalent={"type": "boolean"},
        totals=_object(axlearn=_COUNT, maxtext=_COUNT, added=_COUNT, difference={"type": "integer"}, experts=_COUNT,
                       active_per_token=_COUNT),
        experts=_COUNT, experts_per_token=_COUNT, rows=_ROWS,
        extra=_list(path=_TEXT, shape=_SHAPE), notes=_TEXTS,
    ),
    "plan": _object(**_PLAN),
    "convert": _object(
        **_PLAN, destination=_TEXT, seconds={"type": "number"}, peak_memory=_COUNT, written_bytes=_COUNT,
        resumed={"type": "boolean"},
        work=_object(decoded=_COUNT, encoded=_COUNT, passed=_COUNT, kept=_COUNT, peak_in_flight=_COUNT),
        fidelity=_object(
            exact_attention={"type": "boolean"}, exact_logits={"type": "boolean"}, qk_norm={"enum": ["plain", "fit"]},
            qk_norm_pairs=_list(layer=_COUNT, product=_MISMATCH, query=_MISMATCH, key=_MISMATCH),
        ),
        command=_TEXT, stock_command=_TEXT,
    ),
    "mappings show": _object(
        schema_version=_VERSION, **_MAPPING,
        tensors=_list(
            axlearn=_TEXTS, maxtext=_TEXTS, axes=_TEXT, group=_MAYBE_TEXT, note=_MAYBE_TEXT,
            when=_MAYBE_TEXT, option=_MAYBE_TEXT,
        ),
        drops=_list(axlearn=_TEXT, reason=_TEXT, note=_MAYBE_TEXT),
    ),
    "mappings check": _object(schema_version=_VERSION, valid={"const": True}, **_MAPPING),
    "mappings list": _object(schema_version=_VERSION, mappings=_list(**_MAPPING)),
}  # fmt: skip
"""Name of a command to the schema of its document; `error` is any command's."""
