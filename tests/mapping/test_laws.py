"""Laws of whole tables: every row leads back, nothing is lost, and a scale has the same bits on every route."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from converter.axes import AxisMap, blocking, tensor_shape
from converter.conversion.run import Request, convert
from converter.mapping import LAYER_AXIS, MappingTable, load_bundled, load_mapping
from converter.mapping.published import published_shapes
from converter.mapping.stacks import STACK_AXIS
from converter.mapping.table import PublishedModel
from converter.mapping.values import Scale
from converter.planning.options import Options
from converter.planning.plan import REWRITE_MEMORY
from converter.work import Silent
from tests.helpers.axlearn_checkpoint import numpy_dtype, write_checkpoint
from tests.mapping.test_plain_family import TABLE, H, expected, read_leaf, tensors

TABLES = [*load_bundled(), load_mapping(str(TABLE))]
by_table = pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)


def axes_of(table: MappingTable) -> list[str]:
    return sorted({LAYER_AXIS, *(name for row in table.rows for name in row.expression.names())})


def sizes_for(table: MappingTable) -> st.SearchStrategy[dict[str, int]]:
    return st.fixed_dictionaries({axis: st.integers(1, 3) for axis in axes_of(table)})


def numbered(shape: tuple[int, ...], start: int = 0) -> np.ndarray:
    """An array without equal elements."""
    return start + np.arange(np.prod(shape, dtype=int)).reshape(shape)


@by_table
@settings(max_examples=25)
@given(data=st.data())
def test_every_row_leads_back(table: MappingTable, data: st.DataObject) -> None:
    sizes = data.draw(sizes_for(table))
    places = [(s.axis or STACK_AXIS, t.axis or STACK_AXIS) for s in table.axlearn.layers for t in table.maxtext.layers]
    for row in table.rows:
        kept = [row.expression.in_source_order()] if row.unpermuted else []
        cases = itertools.product([row.expression, *kept], places if row.in_layer else [(None, None)])
        for own, (source_at, target_at) in cases:
            expression = own
            if row.in_layer:
                expression = own.with_axis(LAYER_AXIS, source_at=source_at, target_at=target_at)
            axis_map = AxisMap(expression, {name: sizes[name] for name in expression.names()})
            shapes = [tensor_shape(axes, sizes) for axes in expression.sources]
            sources = [numbered(shape, 1000 * number) for number, shape in enumerate(shapes)]
            targets = axis_map.forward(sources)
            assert sorted(np.concatenate([t.ravel() for t in targets])) == sorted(
                np.concatenate([s.ravel() for s in sources])
            )
            for found, wanted in zip(axis_map.inverse().forward(targets), sources, strict=True):
                np.testing.assert_array_equal(found, wanted, err_msg=str(expression))


@by_table
@settings(max_examples=25)
@given(data=st.data())
def test_a_model_of_any_size_leads_back(table: MappingTable, data: st.DataObject) -> None:
    """Of a whole model: sizes are found again, and every source tensor comes back from exactly one row."""
    sizes = data.draw(sizes_for(table))
    kinds = tuple(
        data.draw(st.sampled_from(sorted(choice.markers)))
        for choice in table.choices
        if not set(choice.markers) & set(table.axlearn.cycle)
    )
    sized = dataclasses.replace(table, models=(PublishedModel("any", kinds, sizes),))
    match, shapes = published_shapes(sized, "any")
    assert match.sizes.items() <= sizes.items()
    tensors = {path: numbered(shape) for path, shape in shapes.items()}
    back: dict[str, np.ndarray] = {}
    produced: list[str] = []
    for row in match.rows:
        axis_map = AxisMap(row.expression, {name: match.sizes[name] for name in row.expression.names()})
        targets = axis_map.forward([tensors[path] for path in row.sources])
        produced += row.targets
        for path, values in zip(row.sources, axis_map.inverse().forward(targets), strict=True):
            assert path not in back
            back[path] = values
    assert len(produced) == len(set(produced))
    assert back.keys() == tensors.keys()
    for path, values in tensors.items():
        np.testing.assert_array_equal(back[path], values, err_msg=path)


@given(st.integers(-8, 8), st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=8))
def test_a_power_of_two_leads_back_bit_for_bit(exponent: int, values: list[float]) -> None:
    rule = Scale(constant=2.0**exponent)
    array = np.array([value if abs(value) > 1e-30 else 0 for value in values], np.float32)
    np.testing.assert_array_equal(rule.inverse().apply(rule.apply(array, {}), {}), array)


@given(st.floats(0.01, 100), st.lists(st.floats(1, 1e6, width=32), min_size=1, max_size=8))
def test_any_scale_leads_back_to_the_last_bits(constant: float, values: list[float]) -> None:
    rule = Scale(constant=constant)
    array = np.array(values, np.float32)
    np.testing.assert_array_max_ulp(rule.inverse().apply(rule.apply(array, {}), {}), array, 2)


SCALES: dict[str, tuple[str, float]] = {
    "out": ('{ size = "pair", times = 2, power = -0.5 }', H**-0.5),
    "wo": ("0.1", 0.1),
    "final_norm": ("3.0", 3.0),
    "query": ("7.0", 7.0),
}
"""Role in the plain table's rows to the rule as it is written, and the factor that it is."""

SCALED_LEAVES = {
    "decoder/layers/self_attention/out/kernel": "out",
    "decoder/layers/mlp/wo/kernel": "wo",
    "decoder/decoder_norm/scale": "final_norm",
    **{f"decoder/layers/self_attention/{name}/kernel": "query" for name in ("query", "key", "value")},
}

ROUTES: dict[str, dict[str, Any]] = {
    "cheapest": {},
    "rewritten": {"rewrite": True},
    "zarr2": {"store": "zarr2"},
    "streamed": {"rewrite": True, "max_memory": REWRITE_MEMORY + 3000},
    "slabs": {"rewrite": True},
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("route", ROUTES)
def test_a_scale_has_the_same_bits_on_every_route(
    route: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if route == "slabs":
        monkeypatch.setattr(blocking, "SLAB", 200)
        monkeypatch.setattr(blocking, "GROUPED_BLOCK", 200)
    text = TABLE.read_text()
    for role, (rule, _) in SCALES.items():
        line = 'role = ["query", "key", "value"]\n' if role == "query" else f'role = "{role}"\n'
        assert line in text
        text = text.replace(line, f"{line}scale = {rule}\n")
    (tmp_path / "scaled.toml").write_text(text)
    values = {path: array.astype(numpy_dtype(dtype)) for path, array in tensors().items()}
    source = write_checkpoint(tmp_path / "step_00000100", values)
    request = Request(
        str(source), str(tmp_path / "out"), Options(**ROUTES[route]), mapping=str(tmp_path / "scaled.toml")
    )
    tasks = convert(request, Silent()).plan.tasks
    scaled = [task.blocking for task in tasks if isinstance(task.value, Scale)]
    assert all(scaled), "a chunk with other values cannot be passed through"
    assert any(cut.streamed for cut in scaled if cut) == (route == "streamed")
    assert any(cut.slab is not None and not cut.streamed for cut in scaled if cut) == (route == "slabs")
    for path, copied in expected(values).items():
        role = SCALED_LEAVES.get(path.removeprefix("params/params/"))
        wanted = copied if role is None else (copied.astype(np.float64) * SCALES[role][1]).astype(numpy_dtype(dtype))
        found = read_leaf(tmp_path / "out", path, ROUTES[route].get("store", "files"))
        np.testing.assert_array_equal(found, wanted, err_msg=path)
