"""The parts of a mapping table, each read from its section of the file."""

import dataclasses
import math
import re
from collections.abc import Mapping

from converter.axes import Expression, ExpressionError
from converter.dtypes import ITEM_SIZES
from converter.mapping.config_rows import is_constant
from converter.mapping.constants import BOUNDS
from converter.mapping.roles import RANKS, TOP
from converter.mapping.table import (
    LAYER_FIELD,
    WEIGHT_DTYPES,
    ArithmeticRule,
    Choice,
    ConformanceRules,
    DropRow,
    LayerLayout,
    Marker,
    Number,
    PublishedModel,
    RefuseRow,
    TensorRow,
    TreeLayout,
)
from converter.mapping.toml import Section, suggestion
from converter.mapping.values import FITS, Copy, Fit, Scale, ValueRule

MAX_EXPRESSION = 1000
"""Characters of an axis expression."""

_PATH_PART = re.compile(r"[\w{}\-]+")
"""Part of a target path. No dots: leaves are stored under their path joined by dots."""


def read_tree(section: Section) -> TreeLayout:
    """[axlearn] or [maxtext]: where parameters and layers live."""
    prefix = section.take("prefix", str, "the path under which the parameters live", "").strip("/")
    if section.name == "maxtext" and prefix:
        _target_path(section, prefix, "prefix")
    layers: list[LayerLayout] = []
    for name, value in section.take("layers", dict, "a table of layer layouts", {}).items():
        if not isinstance(value, dict) or not {"path"} <= set(value) <= {"path", "axis"}:
            section.fail(f"layers.{name} must be {{ path = ..., axis = ... }}", "layers")
        path, axis = value["path"], value.get("axis")
        if not isinstance(path, str) or not (axis is None or (type(axis) is int and 0 <= axis <= 8)):
            section.fail(f"layers.{name}: path must be a text and axis a number from 0 to 8", "layers")
        fields = set(re.findall(r"\{(\w*)\}", path))
        if axis is None and (fields not in ({"layer"}, {"repeat", "block"}) or path.count("{") != len(fields)):
            section.fail(
                f"layers.{name}: without an axis of layers, {{layer}} must be in {path!r}, or {{repeat}} and {{block}}",
                "layers",
            )
        if axis is not None and not fields <= {"block"}:
            section.fail(f"layers.{name}: unknown field in {path!r}; only {{block}} is allowed there", "layers")
        if section.name == "maxtext":
            _target_path(section, path.strip("/"), "layers")
        layers.append(LayerLayout(name, path.strip("/"), axis))
    cycle = section.take("cycle", list, "a list of kinds", [])
    return TreeLayout(prefix, tuple(layers), tuple(map(str, cycle)))


def read_choice(section: Section) -> Choice:
    """[[choice]]: the kinds of layer or of model, each with the parameter that shows it."""
    name = section.text("name")
    of = section.take("of", str, "'layer' or 'model'", "layer")
    if of not in ("layer", "model"):
        section.fail(f"of must be 'layer' or 'model', found {of!r}", "of")
    markers = {key: _marker(section, key) for key in list(section.values)}
    if not markers:
        section.fail(f"choice {name!r} has no kinds; expected one or more, each with the tensor that shows it")
    return Choice(name, markers, of == "model")


def _marker(section: Section, kind: str) -> Marker:
    """`"path"`, `{ tensor = "path", dims = 4 }` or `{ absent = "path" }`."""
    what = "a tensor's path, { tensor = ..., dims = ... } or { absent = ... }"
    value = section.take(kind, (str, dict), what)
    fields = {"tensor": value} if isinstance(value, str) else value
    tensor, dims = fields.get("absent", fields.get("tensor")), fields.get("dims")
    known = set(fields) in ({"tensor"}, {"tensor", "dims"}, {"absent"})
    if not known or not isinstance(tensor, str) or not (dims is None or (type(dims) is int and 0 <= dims <= 8)):
        section.fail(f"{kind} must be {what}, found {value!r}", kind)
    return Marker(tensor=tensor, dims=dims, absent="absent" in fields)


def read_tensor(section: Section) -> TensorRow:
    """[[tensor]]: a row of the table."""
    line = section.toml.line_of(section.name, section.index)
    axlearn, maxtext = section.texts("axlearn"), section.texts("maxtext")
    text = section.text("axes")
    optional = {key: section.text(key, required=False) for key in ("group", "note", "when", "option", "unpermuted")}
    for path in maxtext:
        _target_path(section, path.removeprefix(LAYER_FIELD + "/"), "maxtext")
    if len(text) > MAX_EXPRESSION:
        section.fail(f"axes of {maxtext[0]}: longer than {MAX_EXPRESSION} characters", "axes")
    try:
        expression = Expression.parse(text)
    except ExpressionError as error:
        caret = " " * error.position + "^"
        section.fail(f"axes of {maxtext[0]}: {error.reason}", "axes", [error.text, caret])
    for side, paths, tensors in (
        ("axlearn", axlearn, expression.sources),
        ("maxtext", maxtext, expression.targets),
    ):
        if len(paths) != len(tensors):
            section.fail(f"{side} names {len(paths)} tensors, its side of axes has {len(tensors)}", "axes", [text])
    if optional["unpermuted"] and expression.in_source_order() == expression:
        section.fail(f"unpermuted: the axes of {maxtext[0]} are in the source's order already", "unpermuted", [text])
    in_layer = {path.startswith(LAYER_FIELD + "/") for path in (*axlearn, *maxtext)}
    if len(in_layer) > 1 or any("{" in path.removeprefix(LAYER_FIELD) for path in (*axlearn, *maxtext)):
        section.fail("either all paths of a row start with {layer}/, or none; no other field can stand in them")
    roles = _roles(section, expression, in_layer=True in in_layer)
    value = _value_rule(section, set(expression.names()))
    dtypes = _dtypes(section)
    update_scale = section.take("update_scale", bool, "true or false", False)
    return TensorRow(
        axlearn, maxtext, expression, roles=roles, value=value, line=line, dtypes=dtypes, update_scale=update_scale,
        **optional,
    )  # fmt: skip


def _dtypes(section: Section) -> tuple[str, ...]:
    """The dtypes that a row's source tensors may have."""
    dtypes = section.texts("dtypes") if "dtypes" in section.values else WEIGHT_DTYPES
    unknown = [name for name in dtypes if name not in ITEM_SIZES]
    if unknown:
        section.fail(f"dtypes: unknown dtype {unknown[0]!r}; expected {', '.join(ITEM_SIZES)}", "dtypes")
    return dtypes


def _value_rule(section: Section, axes: set[str]) -> ValueRule:
    """`scale = 0.5`, `scale = { size = "pair", times = 2, power = -0.5 }` or `fit = "qk_norm"`."""
    if "scale" in section.values and "fit" in section.values:
        section.fail("a row has a scale or a fit, not both", "fit")
    if "fit" in section.values:
        name = section.text("fit")
        if name not in FITS:
            section.fail(f"unknown fit {name!r}; expected {' or '.join(sorted(FITS))}", "fit")
        return Fit(name=name)
    if "scale" not in section.values:
        return Copy()
    value = section.take("scale", (int, float, dict), "a number, or { size, times, power, constant }")
    fields = value if isinstance(value, dict) else {"constant": value}
    kinds = {"constant": (int, float), "size": (str,), "times": (int,), "power": (int, float)}
    wrong = [key for key, entry in fields.items() if type(entry) not in kinds.get(key, ())]
    if wrong or not fields:
        section.fail(f"scale must be a number or {{ size, times, power, constant }}, found {value!r}", "scale")
    scale = Scale(**fields)
    if scale.size and scale.size not in axes:
        section.fail(f"scale: unknown axis {scale.size!r}{suggestion(scale.size, axes)}", "scale")
    if not (math.isfinite(scale.constant) and scale.constant and math.isfinite(scale.power) and scale.times > 0):
        section.fail(f"scale must be finite and not zero, found {value!r}", "scale")
    return scale


def _roles(section: Section, expression: Expression, *, in_layer: bool) -> tuple[str, ...]:
    """The roles of a row's targets: one for each, or none at all."""
    if "role" not in section.values:
        return ()
    roles = section.texts("role")
    if len(roles) != len(expression.targets):
        section.fail(f"{len(roles)} roles for {len(expression.targets)} MaxText tensors; expected one for each", "role")
    for role, axes in zip(roles, expression.targets, strict=True):
        if role not in RANKS:
            section.fail(f"unknown role {role!r}{suggestion(role, RANKS)}", "role")
        if (role in TOP) == in_layer:
            place = "outside of the layers" if role in TOP else "in a layer"
            section.fail(f"role {role!r} belongs to a tensor {place}", "role")
        if len(axes) != RANKS[role]:
            section.fail(f"role {role!r} belongs to a tensor of {RANKS[role]} dimensions, axes has {len(axes)}", "role")
    return roles


def read_drop(section: Section) -> DropRow:
    """[[drop]]: what is left behind."""
    return DropRow(section.text("axlearn"), section.text("reason"), section.text("note", required=False))


def read_refusal(section: Section) -> RefuseRow:
    """[[refuse]]: what shows a model that MaxText cannot compute."""
    return RefuseRow(section.text("axlearn"), section.text("model"), section.text("reason"))


def read_model(section: Section) -> PublishedModel:
    """[[model]]: a published size."""
    sizes = section.take("sizes", dict, "a table of axis sizes")
    if not all(type(size) is int and size > 0 for size in sizes.values()):
        section.fail("sizes must be positive numbers", "sizes")
    kinds = section.take("kinds", list, "a list of kinds", [])
    learner = section.take("learner", dict, "a table of the learner's constants", {})
    _check_learner(section, learner, "learner")
    name, maxtext = section.text("name"), section.text("maxtext", required=False)
    return PublishedModel(name, tuple(map(str, kinds)), sizes, learner, maxtext)


def read_learner(section: Section) -> tuple[Mapping[str, Number], str]:
    """[learner]: constants of the learner that trained the family's models, and its optimizer if MaxText has none
    like it."""
    optimizer = section.text("optimizer", required=False)
    constants = {key: section.values.pop(key) for key in list(section.values)}
    _check_learner(section, constants)
    return constants, optimizer


def read_conformance(section: Section) -> ConformanceRules:
    """[conformance]: what is compared with the installed frameworks beside the tensors."""
    lists = {name: section.texts(name) for name in ("maxtext", "axlearn", "trainers") if name in section.values}
    defaults = section.take("defaults", dict, "a table of keys with their default", {})
    for key, value in defaults.items():
        if not is_constant(value):
            section.fail(f"defaults: {key} must be a number, a text, true or false, or a list of texts", key)
    consequences = section.take("consequences", dict, "a table of keys with a text each", {})
    for key, text in consequences.items():
        if not isinstance(text, str) or not text:
            section.fail(f"consequences: {key} must be a text, found {text!r}", key)
    return ConformanceRules(**lists, defaults=defaults, consequences=consequences)


def _check_learner(section: Section, constants: Mapping[str, object], key: str = "") -> None:
    for name, value in constants.items():
        if name not in BOUNDS:
            known = ", ".join(BOUNDS)
            section.fail(
                f"unknown constant {name!r} of the learner{suggestion(name, BOUNDS)}; there are {known}", key or name
            )
        if not BOUNDS[name].admit(value):
            section.fail(f"learner: {name} must be {BOUNDS[name].what}, found {value!r}", key or name)


def read_arithmetic(section: Section) -> ArithmeticRule:
    """[arithmetic]: what the source's model computes with, in numbers or by keys of [config]."""
    values: dict[str, float | str] = {}
    for field in dataclasses.fields(ArithmeticRule):
        if field.default is not dataclasses.MISSING and field.name not in section.values:
            continue
        value = section.take(field.name, (int, float, str), "a number, or the name of a [config] key")
        if isinstance(value, bool) or (not isinstance(value, str) and not is_constant(value)):
            section.fail(f"{field.name} must be a finite number, or the name of a [config] key", field.name)
        values[field.name] = value
    return ArithmeticRule(**values)


def _target_path(section: Section, path: str, key: str) -> None:
    """A target's path becomes a name on disk: nothing in it may lead elsewhere."""
    if not all(_PATH_PART.fullmatch(part) for part in path.split("/")):
        section.fail(
            f"{key}: {path[:200]!r} is not a path; expected words of letters, digits, _ and - joined by /", key
        )
