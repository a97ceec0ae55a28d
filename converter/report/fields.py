"""JSON documents described once: a document, its JSON Schema and its table in docs/json.md have the same fields."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The type of a JSON value.

    Attributes:
      name: for people.
      schema: as JSON Schema.
      convert: makes the JSON value from ours.
      inner: fields of the objects in it, if it holds any.
      mark: what stands between its name and those of these fields.
    """

    name: str
    schema: dict[str, Any]
    convert: Callable[[Any], Any] = lambda value: value
    inner: "tuple[Field, ...]" = ()
    mark: str = "."


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a JSON object.

    Attributes:
      name: in the document.
      kind: what its value is.
      meaning: for docs/json.md.
      source: where the value comes from: an attribute of the same name (the default) or of another one, dotted for an
        attribute's attribute, or a function.
    """

    name: str
    kind: Kind
    meaning: str
    source: str | Callable[[Any], Any] = ""

    def get(self, value: Any) -> Any:
        """The field's JSON value, made of the value that the document is about."""
        get = self.source if callable(self.source) else attrgetter(self.source or self.name)
        return self.kind.convert(get(value))

    def at(self, attribute: str) -> "Field":
        """The same field of a value that has this field's as an attribute."""
        get = self.source if callable(self.source) else attrgetter(self.source or self.name)
        return replace(self, source=lambda value: get(getattr(value, attribute)))


@dataclass(frozen=True, slots=True)
class Record:
    """A whole document: its name, and its fields behind `schema_version`."""

    name: str
    fields: tuple[Field, ...]

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the document."""
        made = _object_schema(self.fields)
        return {
            **made,
            "properties": {"schema_version": {"const": SCHEMA_VERSION}, **made["properties"]},
            "required": ["schema_version", *made["required"]],
        }

    def table(self) -> str:
        """The fields as a Markdown table."""
        lines = ["| field | type | meaning |", "|---|---|---|"]
        lines += [f"| `{name}` | {entry.kind.name} | {entry.meaning} |" for name, entry in _flat(self.fields)]
        return "\n".join(lines)


def document(kind: Record, value: Any) -> dict[str, Any]:
    """A JSON document about a value: its version, then its fields."""
    return {"schema_version": SCHEMA_VERSION, **_object(kind.fields, value)}


def _plain(value: Any) -> Any:
    """A value of YAML as JSON has it: dates and the like become texts."""
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


TEXT = Kind(name="text", schema={"type": "string"})
FLAG = Kind(name="true or false", schema={"type": "boolean"})
INTEGER = Kind(name="integer", schema={"type": "integer"})
COUNT = Kind(name="count", schema={"type": "integer", "minimum": 0})
NUMBER = Kind(name="number", schema={"anyOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}]})
"""Any float; `json_text` writes those that JSON does not have as these strings."""
SECONDS = Kind(name="seconds", schema={"type": "number", "minimum": 0}, convert=lambda value: round(value, 3))
ANY = Kind(name="any value", schema={}, convert=_plain)
ANY_OBJECT = Kind(name="object", schema={"type": "object"}, convert=dict)
COUNTS = Kind(name="object of counts", schema={"type": "object", "additionalProperties": COUNT.schema}, convert=dict)


def choice(*values: str) -> Kind:
    """One of some texts."""
    return Kind(name=", ".join(f'"{value}"' for value in values), schema={"enum": list(values)})


def optional(kind: Kind) -> Kind:
    """A value or null; an empty text becomes null."""
    return Kind(
        name=f"{kind.name} or null",
        schema={"anyOf": [kind.schema, {"type": "null"}]},
        convert=lambda value: None if value is None or value == "" else kind.convert(value),
        inner=kind.inner,
        mark=kind.mark,
    )


def items(kind: Kind) -> Kind:
    """A list."""
    return Kind(
        name=f"list of {kind.name}s" if not kind.inner else "list",
        schema={"type": "array", "items": kind.schema},
        convert=lambda values: [kind.convert(value) for value in values],
        inner=kind.inner,
        mark="[]" + kind.mark,
    )


def record(*fields: Field) -> Kind:
    """An object."""
    return Kind(
        name="object", schema=_object_schema(fields), convert=lambda value: _object(fields, value), inner=fields
    )


def embedded(kind: Record) -> Kind:
    """The object that another command prints, without its version; its fields are described there."""
    return Kind(name="object", schema=_object_schema(kind.fields), convert=lambda value: _object(kind.fields, value))


def group(name: str, meaning: str, *fields: Field, source: str | Callable[[Any], Any] = "") -> Field:
    """A field that holds an object."""
    return Field(name, record(*fields), meaning, source)


def objects(name: str, meaning: str, *fields: Field, source: str | Callable[[Any], Any] = "") -> Field:
    """A field that holds a list of objects."""
    return Field(name, items(record(*fields)), meaning, source)


SHAPE = Kind(name="shape", schema={"type": "array", "items": COUNT.schema}, convert=list)
TEXTS = items(TEXT)


def _object(fields: Sequence[Field], value: Any) -> dict[str, Any]:
    return {entry.name: entry.get(value) for entry in fields}


def _object_schema(fields: Sequence[Field]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {entry.name: entry.kind.schema for entry in fields},
        "required": [entry.name for entry in fields],
        "additionalProperties": False,
    }


def _flat(fields: Sequence[Field], before: str = "") -> Iterator[tuple[str, Field]]:
    """All fields with their dotted names, each object's own behind it."""
    for entry in fields:
        name = before + entry.name
        yield name, entry
        yield from _flat(entry.kind.inner, name + entry.kind.mark)
