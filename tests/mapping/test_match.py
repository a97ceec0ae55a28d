"""A table meets a checkpoint: coverage both ways, nearest names, the choice among tables."""

import dataclasses

import pytest

from converter.errors import MappingError
from converter.mapping.choose import choose_table
from converter.mapping.file import find_mapping
from converter.mapping.match import match_table, matches
from converter.mapping.table import MappingTable
from converter.words import MAX_LISTED, shorten
from tests.helpers.axlearn_checkpoint import SMALL, STACK, envy_shapes, envy_tensors, expected_leaves


@pytest.fixture(scope="module")
def envy() -> MappingTable:
    return find_mapping("envy")


def problems(table: MappingTable, shapes: dict[str, tuple[int, ...]], **options) -> tuple[str, ...]:
    with pytest.raises(MappingError, match="mapping 'envy' does not fit the checkpoint") as caught:
        match_table(table, shapes, **options)
    return caught.value.details


@pytest.mark.parametrize("hybridnorm", [True, False])
@pytest.mark.parametrize("untie", [True, False])
def test_every_tensor_is_consumed_once_and_every_leaf_produced_once(
    hybridnorm: bool, untie: bool, envy: MappingTable
) -> None:
    shapes = envy_shapes(SMALL, hybridnorm=hybridnorm)
    match = match_table(envy, shapes, options={"untie"} if untie else ())
    own = [row for row in match.rows if not row.row.option]
    assert sorted(path for row in own for path in row.sources) == sorted(shapes)
    leaves = expected_leaves(envy_tensors(SMALL, hybridnorm=hybridnorm), untie=untie)
    assert sorted(path for row in match.rows for path in row.targets) == sorted(leaves)
    assert match.kinds == {"dense", "moe", "hybridnorm" if hybridnorm else "prenorm"}
    assert match.blocks == 2


def test_solved_sizes(envy: MappingTable) -> None:
    match = match_table(envy, envy_shapes(SMALL))
    assert dict(match.sizes) == {
        "embed": 12, "layers": 2, "heads": 4, "kv_heads": 2, "pair": 3, "mlp": 20, "moe_mlp": 10, "experts": 4,
        "vocab": 24,
    }  # fmt: skip


def test_dropped_tensors_and_why(envy: MappingTable) -> None:
    shapes = envy_shapes(SMALL) | {"prng_key": (4,), "learner/optimizer/1/0/count": (), "learner/optimizer/x/y": (3,)}
    match = match_table(envy, shapes)
    assert match.dropped == {
        "prng_key": "training random key",
        "learner/optimizer/1/0/count": "optimizer step counters",
        "learner/optimizer/x/y": "optimizer state",
    }
    assert match.notes == ()


LEFT_BEHIND = {
    "learner/optimizer/1/0/mu/decoder/output_norm/scale": "optimizer state",
    "learner/optimizer/inner_state/pps/decoder/output_norm/scale/gradient_square_ema": "optimizer state",
    "learner/optimizer/nonvalid_count": "optimizer state",
    "learner/optimizer/3/ema/decoder/output_norm/scale": "optimizer state",
    "learner/optimizer/1/4/count": "optimizer step counters",
    "learner/experts/optimizer/1/0/nu/decoder/output_norm/scale": "optimizer state",
    "learner/experts/optimizer/1/0/count": "optimizer step counters",
    "learner/ema/ema/decoder/output_norm/scale": "EMA of the parameters",
    "learner/ema/count": "EMA step counter",
    "prng_key": "training random key",
}
"""Where AXLearn's learners keep their state, a CompositeLearner's parts included."""


@pytest.mark.parametrize("path", LEFT_BEHIND)
def test_what_is_left_behind_is_named_for_what_it_is(path: str, envy: MappingTable) -> None:
    match = match_table(envy, {**envy_shapes(SMALL), path: (3,)})
    assert match.dropped == {path: LEFT_BEHIND[path]}
    assert bool(match.notes) == path.startswith("learner/ema/ema/")


@pytest.mark.parametrize(
    "path",
    [
        "learner/ema/scale", "learner/ema2/ema/decoder/output_norm/scale", "learner/lora/a", "learner/gradients/x",
        "learner/teacher/decoder/output_norm/scale", "prng_key/x", "teacher/decoder/output_norm/scale", "ema/x",
    ],
)  # fmt: skip
def test_what_no_rule_names_is_an_error(path: str, envy: MappingTable) -> None:
    expected = f"no rule for the checkpoint's {path}; a [[drop]] rule can leave it behind"
    assert problems(envy, {**envy_shapes(SMALL), path: (3,)}) == (expected,)


@pytest.mark.parametrize("path", ["model/decoder/emb/token_emb/lora_a", f"{STACK}/layer0/feed_forward/linear2/scale"])
def test_an_unknown_part_of_the_model_is_an_error(path: str, envy: MappingTable) -> None:
    (found,) = problems(envy, {**envy_shapes(SMALL), path: (3,)})
    assert found.startswith(f"no row for the checkpoint's {path}")


def test_missing_and_extra_tensors_are_listed_with_the_nearest_name(envy: MappingTable) -> None:
    shapes = envy_shapes(SMALL)
    old, new = f"{STACK}/layer1/feed_forward/wi_1_weight", f"{STACK}/layer1/feed_forward/wi_l_weight"
    shapes[new] = shapes.pop(old)
    shapes["model/elsewhere"] = (3,)
    found = problems(envy, shapes)
    assert f"missing in the checkpoint: {old} (nearest: {new})" in found
    assert f"no row for the checkpoint's {new} (nearest: {old})" in found
    assert "no row for the checkpoint's model/elsewhere" in found
    assert len(found) == 3


def test_no_layers_at_all(envy: MappingTable) -> None:
    shapes = {path: shape for path, shape in envy_shapes(SMALL).items() if STACK not in path}
    places = ("repeat/layer/layer{block}", "layer{repeat}/layer{block}")
    assert problems(envy, shapes)[0] == "no layers at " + " or ".join(f"model/decoder/transformer/{p}" for p in places)


def test_layers_in_another_order(envy: MappingTable) -> None:
    swap = {"layer0": "layer1", "layer1": "layer0"}
    shapes = {
        "/".join(swap.get(part, part) for part in path.split("/")): shape for path, shape in envy_shapes(SMALL).items()
    }
    found = problems(envy, shapes)
    assert f"{STACK}/layer0: expected to be dense, found hybridnorm, moe" in found


def test_a_third_layer_and_a_gap(envy: MappingTable) -> None:
    extra = {path.replace("layer0", "layer3"): s for path, s in envy_shapes(SMALL).items() if "layer0" in path}
    found = problems(envy, envy_shapes(SMALL) | extra)
    assert any("without [2]" in line for line in found)
    assert any("4 layers in a cycle, the table has 2" in line for line in found)


def test_both_kinds_of_norm(envy: MappingTable) -> None:
    shapes = envy_shapes(SMALL) | {f"{STACK}/layer0/feed_forward/norm/scale": (2, 12)}
    assert any("one feed-forward norm is expected" in line for line in problems(envy, shapes))


def test_sizes_that_contradict_name_both_tensors(envy: MappingTable) -> None:
    shapes = envy_shapes(SMALL)
    shapes[f"{STACK}/layer0/self_attention/norm/scale"] = (2, 13)
    (_, found) = problems(envy, shapes)
    assert found.startswith(f"{STACK}/layer0/self_attention/norm/scale [2, 13]: dimension 1 is 13")
    assert "embed = 12 from model/decoder/emb/token_emb/weight" in found


def test_options_and_layouts_that_the_table_lacks(envy: MappingTable) -> None:
    assert "the table has no rows for option 'tie'" in problems(envy, envy_shapes(SMALL), options={"tie"})
    found = problems(envy, envy_shapes(SMALL), target_layout="sideways")
    assert any("the table has no target layout 'sideways'" in line for line in found)


def test_choose_the_table_that_fits(envy: MappingTable) -> None:
    assert choose_table([envy], envy_shapes(SMALL)).table is envy


def test_no_table_fits(envy: MappingTable) -> None:
    with pytest.raises(MappingError) as caught:
        choose_table([envy], {"model/x": (1,)})
    assert caught.value.message.startswith("no mapping fits the checkpoint's 1 tensors (compared: envy)")
    nearest = "nearest: envy, which has rows for 0 of the tensors; mapping 'envy' does not fit the checkpoint"
    assert caught.value.details[0] == nearest
    assert caught.value.exit_code == 4


def test_two_tables_fit(envy: MappingTable) -> None:
    twin = dataclasses.replace(envy, name="twin")
    with pytest.raises(MappingError, match="2 mappings fit the checkpoint: envy, twin; name one with --mapping"):
        choose_table([envy, twin], envy_shapes(SMALL))


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("learner/**", "learner/a/b", True),
        ("learner/**", "learner", False),
        ("a/*/c", "a/b/c", True),
        ("a/*/c", "a/b/b/c", False),
        ("a.c", "abc", False),
        ("prng_key", "model/prng_key", False),
    ],
)
def test_patterns(pattern: str, path: str, expected: bool) -> None:
    assert matches(pattern, path) is expected


def test_long_lists_are_cut() -> None:
    lines = [str(number) for number in range(MAX_LISTED + 5)]
    assert shorten(lines)[-1] == "and 5 more"
    assert shorten(lines[:3]) == lines[:3]
