"""How a plan is divided among processes: every unit once, evenly, and alike in every process."""

import math
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from converter.axes import groups, target_box
from converter.checkpoints import OPTIMIZERS
from converter.errors import UsageError
from converter.planning import Load, Options, Share, Task, divide, make_plan, open_source, portion_of
from converter.planning.share import FINENESS, plan_loads
from tests.conftest import AXLEARN
from tests.helpers.axlearn_checkpoint import PUBLISHED, envy_shapes, write_array, write_index, write_metadata

LOADS = st.lists(
    st.builds(
        lambda units, size, decoded: Load(units=units, bytes=units * size, decoded=decoded),
        st.integers(0, 300),
        st.integers(1, 10**9),
        st.booleans(),
    ),
    max_size=12,
)


@settings(max_examples=30)
@given(LOADS, st.integers(1, 40))
def test_every_unit_is_in_one_share(loads: list[Load], count: int) -> None:
    portions = divide(loads, count)
    assert [portion.share for portion in portions] == [Share(index, count) for index in range(count)]
    for number, load in enumerate(loads):
        dealt = sorted(unit for portion in portions for one in portion.units.get(number, ()) for unit in one)
        assert dealt == list(range(load.units))
    assert sum(portion.bytes for portion in portions) == sum(load.bytes for load in loads)
    assert {portion.total_bytes for portion in portions} == {sum(load.bytes for load in loads)}


@settings(max_examples=30)
@given(LOADS, st.integers(1, 40))
def test_no_share_exceeds_the_mean_by_more_than_one_run(loads: list[Load], count: int) -> None:
    portions = divide(loads, count)
    total = sum(load.bytes for load in loads)
    largest_unit = max((load.bytes // load.units for load in loads if load.units), default=0)
    run = max(total // (count * FINENESS), largest_unit)
    assert max(portion.bytes for portion in portions) <= total / count + run


def test_what_is_decoded_is_dealt_out_evenly_too() -> None:
    portions = divide([Load(units=40, bytes=4000, decoded=False), Load(units=8, bytes=800, decoded=True)], 4)
    assert [portion.count(1) for portion in portions] == [2] * 4
    assert [portion.count(0) for portion in portions] == [10] * 4


def test_an_example_by_hand() -> None:
    # Largest first: 7 to the first, 5 to the second, 4 to the second, 2 to the first.
    loads = [Load(units=1, bytes=4), Load(units=1, bytes=7), Load(units=1, bytes=2), Load(units=1, bytes=5)]
    first, second = divide(loads, 2)
    assert (dict(first.units), first.bytes) == ({1: (range(1),), 2: (range(1),)}, 9)
    assert (dict(second.units), second.bytes) == ({0: (range(1),), 3: (range(1),)}, 9)


def test_units_that_are_cut_otherwise_are_another_division() -> None:
    """Though they are as many, unit by unit they are others."""
    wide, tall = (
        [Load(units=4, bytes=64, decoded=True, cut=cut)] for cut in ((("a", 2), ("b", 8)), (("a", 8), ("b", 2)))
    )
    assert divide(wide, 2)[0].division != divide(tall, 2)[0].division
    assert divide(wide, 2)[0].division == divide(wide, 2)[1].division


def test_a_portion_chooses_among_units_in_order() -> None:
    for portion in divide([Load(units=10, bytes=10)], 3):
        wanted = [unit for one in portion.units[0] for unit in one]
        assert list(portion.chosen(0, range(10))) == wanted
        assert list(portion.chosen(1, range(10))) == []


def test_another_division_has_another_digest() -> None:
    loads = [Load(units=10, bytes=100), Load(units=4, bytes=100, decoded=True)]
    one = divide(loads, 2)[0].division
    assert {portion.division for portion in divide(loads, 2)} == {one}
    assert divide(loads, 3)[0].division != one
    assert divide([loads[0], Load(units=5, bytes=100, decoded=True)], 2)[0].division != one


def test_units_of_a_plan() -> None:
    source = open_source(str(AXLEARN / "micro-hybrid-sharded"))
    plan = make_plan(source, Options())
    portions = [portion_of(plan, Share(index, 4)) for index in range(4)]
    for number, task in enumerate(plan.tasks):
        assert sum(portion.count(number) for portion in portions) == task.units


def unit_bytes(task: Task) -> list[int]:
    """Decoded bytes of each unit of a task."""
    if task.blocking is None:
        (array,) = task.sources
        return [array.clipped_bytes(index) for index in array.chunk_indices()]
    boxes = (
        [target_box(task.axis_map, group, number) for number in range(len(task.leaves))]
        for group in groups(task.axis_map, task.blocking)
    )
    size = task.leaves[0].item_size
    return [sum(math.prod(high - low for low, high in box) for box in each) * size for each in boxes]


def test_the_largest_model_over_256_processes(tmp_path: Path) -> None:
    """Switch-XXL with moments, its experts in chunks of 113 MB: dealt out in seconds, the largest share 1.05 means.

    Bytes of units are counted one by one, not as the means that the division works with.
    """
    experts = ("wi_0_weight", "wi_1_weight", "wo_weight")
    model = envy_shapes(PUBLISHED["envy-switch-xxl"])
    learner = "learner/optimizer/1/0"
    shapes = model | {
        f"{learner}/{moment}/{path.removeprefix('model/')}": shape
        for moment in ("mu", "nu")
        for path, shape in model.items()
    }
    chunks = {
        path: (1, shape[1] // 16, -(-shape[2] // 24), shape[3])
        for path, shape in shapes.items()
        if path.endswith(experts)
    }
    step = write_metadata(tmp_path / "step_00000100", shapes, chunks=chunks)
    count = f"{learner}/count"
    write_array(step / "gda" / count, np.array(100, np.int32), ())
    write_index(step, {path: ("float32", shape) for path, shape in shapes.items()} | {count: ("int32", ())})
    source = open_source(str(step), metadata_only=True, optimizer=OPTIMIZERS["adamw"], force=True)
    plan = make_plan(source, Options(state=True, force=True))
    started = time.process_time()
    portions = divide(plan_loads(plan), 256)
    seconds = time.process_time() - started
    assert sum(task.units for task in plan.tasks) > 40_000
    units = [unit_bytes(task) for task in plan.tasks]
    sizes = [
        sum(each[unit] for number, each in enumerate(units) for one in portion.units.get(number, ()) for unit in one)
        for portion in portions
    ]
    assert max(sizes) <= 1.05 * sum(sizes) / len(sizes)
    assert seconds < 10


@pytest.mark.parametrize(("text", "share"), [("0/1", Share(0, 1)), ("3/4", Share(3, 4)), ("007/64", Share(7, 64))])
def test_shares_are_read(text: str, share: Share) -> None:
    assert Share.parse(text) == share


@pytest.mark.parametrize("text", ["", "4", "/4", "1/", "4/4", "-1/4", "0/0", "1.0/2", "0/99999999", "one/two", "0/4 "])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--process"):
        Share.parse(text)
