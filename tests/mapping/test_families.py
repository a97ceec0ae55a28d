"""The bundled families: every leaf of their goldens, their published sizes, and which table a checkpoint belongs to."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from converter.conversion.run import Request, convert
from converter.errors import MappingError
from converter.mapping import choose_table, configure, find_published, load_bundled, published_shapes
from converter.work import Silent
from tests.conftest import AXLEARN, Cli
from tests.helpers.axlearn_checkpoint import write_checkpoint
from tests.helpers.compare import assert_same_leaves
from tests.helpers.conversion import make_options
from tests.helpers.families import FAMILIES, LAYER, QKV, expected_leaves, read_tensors, separate, split_heads
from tests.helpers.restorer import Restorer

Shapes = dict[str, tuple[int, ...]]


def converted(source: Path, target: Path, *, untie: bool = False) -> Path:
    convert(Request(str(source), str(target), make_options(untie=untie)), Silent())
    return target


def shapes_of(tensors: Mapping[str, np.ndarray]) -> Shapes:
    return {path: values.shape for path, values in tensors.items()}


@pytest.mark.parametrize("untie", [False, True], ids=["tied", "untied"])
@pytest.mark.parametrize("name", [*FAMILIES, "micro-honeycrisp"])
def test_every_leaf_of_a_golden(name: str, untie: bool, newest_orbax: Restorer, cli: Cli, tmp_path: Path) -> None:
    target = converted(AXLEARN / name, tmp_path / "out", untie=untie)
    assert_same_leaves(newest_orbax.restore(target), expected_leaves(read_tensors(name), untie=untie))
    verified = cli("verify", AXLEARN / name, target)
    assert verified.code == 0, verified.out + verified.err


def in_bfloat16(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {path: values.astype(ml_dtypes.bfloat16) for path, values in tensors.items()}


def with_fp8_state(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """As a configuration with fp8 products saves it: three scales and histories beside the kernel of a linear layer."""
    place = f"{LAYER}/feed_forward/linear2/quantized_dot_general"
    layers = len(tensors[f"{LAYER}/feed_forward/linear2/weight"])
    names = ("input", "kernel", "output_grad")
    scales = {f"{place}/{name}_scale": np.ones(layers, np.float32) for name in names}
    return {
        **tensors,
        **scales,
        **{f"{place}/{name}_amax_history": np.ones((layers, 16), np.float32) for name in names},
    }


def with_ema(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    ema = {path.replace("model/", "learner/ema/ema/", 1): values / 2 for path, values in tensors.items()}
    return {**tensors, **ema, "learner/ema/count": np.zeros((), np.int32)}


FORMS: dict[str, Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]] = {
    "bfloat16": in_bfloat16, "fp8 state": with_fp8_state, "EMA": with_ema, "q, k and v apart": separate,
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_a_checkpoint(form: str, newest_orbax: Restorer, tmp_path: Path) -> None:
    tensors = read_tensors("micro-fuji-gqa")
    source = write_checkpoint(tmp_path / "step_00000100", FORMS[form](tensors))
    wanted = expected_leaves(in_bfloat16(tensors) if form == "bfloat16" else tensors)
    assert_same_leaves(newest_orbax.restore(converted(source, tmp_path / "out")), wanted)


@pytest.mark.parametrize(
    ("name", "chunks"),
    [
        ("micro-fuji-gqa", (3, 24, 5, 8)),  # the cut goes through q: 6 + 2 + 2 heads in two shards of 5
        ("micro-fuji-mha", (3, 3, 20, 2, 8)),
    ],
)
def test_sharded_heads(name: str, chunks: tuple[int, ...], newest_orbax: Restorer, tmp_path: Path) -> None:
    tensors = read_tensors(name)
    source = write_checkpoint(tmp_path / "step_00000100", tensors, chunks={QKV: chunks})
    assert_same_leaves(newest_orbax.restore(converted(source, tmp_path / "out")), expected_leaves(tensors))


def test_untie_adds_nothing_to_a_model_with_an_output_projection(cli: Cli) -> None:
    done = cli("plan", AXLEARN / "micro-fuji-gqa", "--untie", "--json")
    totals = done.document["totals"]
    assert totals["target_parameters"] == totals["source_parameters"] == 62_544
    (note,) = [note for note in done.document["notes"] if "--untie" in note]
    assert note == "--untie changes nothing: it adds decoder/logits_dense/kernel to tied models only"


PUBLISHED = json.loads((AXLEARN / "param_tables_families.json").read_text())
"""Name to the shape of each parameter, as AXLearn's own configurations make them."""


def published_names() -> list[str]:
    return [model.name for table in load_bundled() if table.name != "envy" for model in table.models]


def test_every_published_size_is_there() -> None:
    assert sorted(PUBLISHED) == sorted(published_names())


@pytest.mark.parametrize("name", PUBLISHED)
def test_shapes_of_a_published_size(name: str) -> None:
    match, shapes = find_published(load_bundled(), name)
    assert {path: list(shape) for path, shape in shapes.items()} == PUBLISHED[name]["params"]
    assert sum(map(np.prod, shapes.values())) == PUBLISHED[name]["total"]
    # The table that makes the shapes is the one that is found for them.
    assert choose_table(load_bundled(), shapes).table.name == match.table.name


THETA = {
    "fuji-7B-v1": 1e4, "fuji-7B-v2": 1e4, "fuji-70B-v1": 1e4, "fuji-70B-v2": 1e4,
    "fuji-1B-v3": 5e5, "fuji-3B-v3-tiktoken": 5e5, "fuji-7B-v3": 5e5, "fuji-70B-v3": 5e5, "fuji-405B-v3": 5e5,
    "honeycrisp-3B": 5e5, "gala-7B": 1e4, "qwen3-30B-A3B": 1e6,
}  # fmt: skip


@pytest.mark.parametrize("name", THETA)
def test_base_of_rope(name: str) -> None:
    match, _ = find_published(load_bundled(), name)
    made = configure(match)
    assert made.keys["rope_max_timescale"] == THETA[name]
    # Only for Fuji is it an assumption; with --set it is none any more.
    assert list(made.assumed) == ["rope_max_timescale"] * (match.table.name == "fuji")
    assert not configure(match, ["rope_max_timescale=7"]).assumed


def test_an_assumption_is_said_with_its_reason(cli: Cli, tmp_path: Path) -> None:
    source = tmp_path / "copied without its configuration"
    shutil.copytree(AXLEARN / "micro-fuji-mha" / "checkpoints", source / "checkpoints")
    assumed = "rope_max_timescale=10000 is assumed, as no tensor shows it: "
    done = cli("plan", source)
    assert assumed in done.out
    assert "another value: --set rope_max_timescale=VALUE" in done.out
    assert "assumed" not in cli("plan", AXLEARN / "micro-fuji-mha").out
    assert "assumed" not in cli("plan", source, "--set", "rope_max_timescale=10000").out


@pytest.mark.parametrize("name", FAMILIES)
def test_the_table_of_a_golden(name: str) -> None:
    match = choose_table(load_bundled(), shapes_of(read_tensors(name)))
    assert match.table.name == FAMILIES[name].table
    assert ("tied" in match.kinds) == (FAMILIES[name].tied and name != "micro-gala")


def refusal(shapes: Shapes) -> MappingError:
    with pytest.raises(MappingError) as caught:
        choose_table(load_bundled(), shapes)
    assert caught.value.exit_code == 4
    return caught.value


def alibi(shapes: Shapes, *, hybrid: bool) -> Shapes:
    """Gala's tree without RoPE around the projection, with hybrid norms as published or as gala-sigmoid has it."""
    moved = {path.replace("i_proj/i_proj", "i_proj"): shape for path, shape in shapes.items()}
    if not hybrid:
        return moved
    names = {f"{LAYER}/{part}/norm/scale": (f"{LAYER}/{part}/prenorm/scale", f"{LAYER}/{part}/postnorm/scale")
             for part in ("self_attention", "feed_forward")}  # fmt: skip
    return {new: shape for path, shape in moved.items() for new in names.get(path, (path,))}


@pytest.mark.parametrize("hybrid", [True, False])
def test_alibi_is_refused_by_name(hybrid: bool) -> None:
    error = refusal(alibi(shapes_of(read_tensors("micro-gala")), hybrid=hybrid))
    assert error.message == (
        "Gala with ALiBi (gala-1B-hybridnorm-alibi, gala-7B-hybridnorm-alibi, gala-sigmoid): positions come from "
        "ALiBi, in gala-sigmoid the attention is a sigmoid, and MaxText has neither; it cannot be converted"
    )
    assert any(f"recognised by {LAYER}/self_attention/attention/i_proj/qkv_proj/weight" in x for x in error.details)


def test_pipelined_layers_are_refused_by_name() -> None:
    shapes = {
        path.replace("transformer/repeat/layer", "transformer/pipeline/layer/layer0"): shape
        for path, shape in shapes_of(read_tensors("micro-fuji-gqa")).items()
    }
    assert refusal(shapes).message.startswith("a decoder with pipelined layers (gspmd): ")


def test_learned_positions_are_refused_by_name() -> None:
    shapes = shapes_of(read_tensors("micro-fuji-gqa")) | {"model/decoder/emb/pos_emb/weight": (64, 48)}
    assert refusal(shapes).message.startswith("a decoder with learned position embeddings: ")


@pytest.mark.parametrize("name", FAMILIES)
def test_the_nearest_table_and_what_is_missing_or_extra(name: str) -> None:
    shapes = shapes_of(read_tensors(name))
    missing = f"{LAYER}/self_attention/norm/scale"
    del shapes[missing]
    shapes[f"{LAYER}/self_attention/sink/weight"] = (3, 5)
    details = refusal(shapes).details
    assert details[0].startswith(
        f"nearest: {FAMILIES[name].table}, which has rows for {len(shapes) - 1} of the tensors"
    )
    assert any(line.strip().startswith(f"missing in the checkpoint: {missing}") for line in details)
    assert any("no row for the checkpoint's" in line and "sink/weight" in line for line in details)
    assert details[-1].startswith("further away: ")


def test_one_kernel_more_than_a_projection_has() -> None:
    tensors = read_tensors("micro-fuji-gqa")
    both = {**separate(tensors), QKV: tensors[QKV]}
    assert any("one projection of q, k and v is expected" in line for line in refusal(shapes_of(both)).details)


def test_three_kernels_hold_what_one_held() -> None:
    """The oracle of `separate` is one itself: its parts laid side by side are the fused kernel."""
    tensors = read_tensors("micro-fuji-gqa")
    np.testing.assert_array_equal(np.concatenate(split_heads(tensors), axis=2), tensors[QKV])


def test_a_published_size_without_its_kinds_is_not_made() -> None:
    fuji = next(table for table in load_bundled() if table.name == "fuji")
    with pytest.raises(MappingError, match="no published model 'fuji-9B'"):
        published_shapes(fuji, "fuji-9B")
