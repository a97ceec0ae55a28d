"""What a training's own configuration says of the model: read as data, and compared with the tensors and the table."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from converter.checkpoints.trainer_config import parse_trainer_config
from converter.errors import MappingError, UsageError
from converter.mapping import (
    Configuration,
    Match,
    choose_table,
    configure,
    find_mapping,
    line_matches,
    load_bundled,
    match_table,
    read_model,
)
from converter.mapping.file import parse_mapping
from converter.mapping.table import Expected
from tests.conftest import AXLEARN, DATA, Cli
from tests.helpers.families import read_tensors

FUJI = "micro-fuji-mha"
ATTENTION = "model.decoder.transformer.layer.self_attention.attention"
THETA = f"{ATTENTION}.input_linear.rope_pos_emb_layer.theta"
EPS = "model.decoder.output_norm.eps"
GATING = "model.decoder.transformer.layer.feed_forward.gating"


def text_of(name: str) -> str:
    return (AXLEARN / name / "trainer_config").read_text()


def matched(name: str) -> Match:
    return choose_table(load_bundled(), {path: values.shape for path, values in read_tensors(name).items()})


def made(name: str, *settings: str, changed: tuple[str, str] | None = None, **options: Any) -> Configuration:
    """The configuration of a golden, with a line of its file changed."""
    text = text_of(name)
    if changed is not None:
        old, new = changed
        assert f"{old}\n" in text
        text = text.replace(f"{old}\n", f"{new}\n")
    lines = parse_trainer_config(text.encode()).lines
    return configure(matched(name), settings, lines=lines, **options)


@pytest.mark.parametrize(
    ("name", "theta", "epsilon", "experts"),
    [
        ("micro-fuji-gqa", 500000, 1e-5, None),
        (FUJI, 10000, 1e-5, None),
        ("micro-honeycrisp", 500000, 1e-5, None),
        ("micro-gala", 10000, 1e-5, None),
        ("micro-qwen", 1000000, 1e-6, 3),
    ],
)
def test_what_no_tensor_shows_is_read(name: str, theta: int, epsilon: float, experts: int | None) -> None:
    found = made(name)
    read = {"rope_max_timescale": theta, "normalization_layer_epsilon": epsilon, "dtype": "float32"}
    read |= {} if experts is None else {"num_experts_per_tok": experts}
    assert found.read == read
    assert {key: found.keys[key] for key in read} == read
    assert type(found.keys["rope_max_timescale"]) is int
    assert {found.origins[key] for key in read} == {"trainer_config"}
    assert found.origins["base_num_kv_heads"] == "solved from the tensors"
    assert not found.assumed
    assert not found.settings


def test_without_it_nothing_is_read() -> None:
    found = configure(matched(FUJI))
    assert not found.read
    assert list(found.assumed) == ["rope_max_timescale"]
    assert "dtype" not in found.keys
    assert found.origins.keys() >= found.keys.keys()


def test_the_dtype_of_the_training() -> None:
    assert made(FUJI, changed=("max_step: 100000", "train_dtype: 'jax.numpy.bfloat16'")).keys["dtype"] == "bfloat16"
    found = made(FUJI, changed=("max_step: 100000", "train_dtype: 'jax.numpy.float8_e4m3'"))
    assert "dtype" not in found.keys
    assert found.notes[0] == (
        "trainer_config: train_dtype is 'jax.numpy.float8_e4m3', expected 'jax.numpy.bfloat16' or 'jax.numpy.float32'; "
        "maxtext.yml has no dtype from it"
    )
    assert configure(matched(FUJI), ["dtype=float32"]).keys["dtype"] == "float32"
    with pytest.raises(UsageError, match="dtype=int8: expected one of bfloat16, float32"):
        configure(matched(FUJI), ["dtype=int8"])


WRONG = {
    "other values": ((f"{EPS}: 1e-05", f"{EPS}: 1e-06"), f"{EPS} is 1e-06 and model.decoder.transformer.layer"),
    "no number": ((f"{THETA}: 10000.0", f"{THETA}: 'ten'"), f"{THETA} is 'ten', expected a whole number"),
    "no whole number": ((f"{THETA}: 10000.0", f"{THETA}: 0.5"), f"{THETA} is 0.5, expected a whole number"),
    "beyond any": ((f"{THETA}: 10000.0", f"{THETA}: 1e300"), f"{THETA} is 1e+300, expected a whole number"),
    "a truth": ((f"{THETA}: 10000.0", f"{THETA}: True"), f"{THETA} is True, expected a whole number"),
    "out of bounds": ((f"{THETA}: 10000.0", f"{THETA}: -1"), "rope_max_timescale=-1: expected a number above 0"),
    "code": ((f"{THETA}: 10000.0", f"{THETA}: exit()"), f"{THETA} is '<exit()>', expected a whole number"),
    "other tensors": (
        ("model.decoder.dim: 40", "model.decoder.dim: 64"),
        "model.decoder.dim is 64, but the checkpoint's tensors have base_emb_dim=40",
    ),
    "another family": (
        ("model.decoder.transformer.layer.feed_forward.activation[0]: 'nn.silu'",
         "model.decoder.transformer.layer.feed_forward.activation[0]: 'nn.gelu'"),
        "activation[0] is 'nn.gelu', but mapping 'fuji' describes models with 'nn.silu' only",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_true_names_both(name: str) -> None:
    changed, message = WRONG[name]
    with pytest.raises(MappingError) as caught:
        made(FUJI, changed=changed)
    assert caught.value.message.startswith("trainer_config: ")
    assert message in caught.value.message
    assert "move it away" in caught.value.details[-1]


def test_a_set_value_counts_more() -> None:
    wrong = (f"{THETA}: 10000.0", f"{THETA}: 'ten'")
    for changed, shown in ((None, "10000.0"), (wrong, "'ten'")):
        found = made(FUJI, "rope_max_timescale=7", changed=changed)
        assert (found.keys["rope_max_timescale"], found.origins["rope_max_timescale"]) == (7, "--set")
        assert f"--set rope_max_timescale=7 replaces what trainer_config says: {THETA} is {shown}" in found.notes
    assert not made(FUJI, "rope_max_timescale=10000").notes[1:]
    assert made(FUJI, recorded={"rope_max_timescale": 7, "dtype": "int8"}).keys["rope_max_timescale"] == 7


def test_experts_by_the_class_of_the_gating() -> None:
    envy = match_table(find_mapping("envy"), {
        path: values.shape for path, values in read_tensors("micro-hybrid").items()
    })  # fmt: skip
    text = (DATA / "trainer_config" / "micro-hybrid-unrolled").read_text()
    assert configure(envy, lines=parse_trainer_config(text.encode()).lines).read["num_experts_per_tok"] == 2
    note = configure(envy, lines=parse_trainer_config(text.encode()).lines).notes[0]
    assert "train_capacity_factor is " in note
    assert "AXLearn leaves out tokens of experts that are over this capacity" in note
    other = text.replace("mixture_of_experts.Top2Gating", "mixture_of_experts.TopKGating")
    with pytest.raises(MappingError, match=r"gating\.klass is 'axlearn.*TopKGating', expected 'axlearn.*Top2Gating'"):
        configure(envy, lines=parse_trainer_config(other.encode()).lines)
    with pytest.raises(MappingError, match=r"per_token is 9, but num_experts_per_tok=9: expected at most 5"):
        made("micro-qwen", changed=(f"{GATING}.num_experts_per_token: 3", f"{GATING}.num_experts_per_token: 9"))


def test_it_decides_between_tables_that_fit() -> None:
    fuji = find_mapping("fuji")
    twin = replace(
        fuji, name="twin", expected=(Expected("model.decoder.*norm.klass", ("axlearn.common.layers.LayerNorm",)),)
    )
    shapes = {path: values.shape for path, values in read_tensors(FUJI).items()}
    lines = parse_trainer_config(text_of(FUJI).encode()).lines
    found = choose_table([twin, fuji], shapes, lines=lines)
    assert found.table is fuji
    assert "the mappings twin, fuji fit the tensors; trainer_config decided for fuji: " in found.notes[-1]
    assert "but mapping 'twin' describes models with 'axlearn.common.layers.LayerNorm' only" in found.notes[-1]
    for others in ([fuji, replace(fuji, name="same")], [twin, replace(twin, name="same")]):
        with pytest.raises(MappingError, match="2 mappings fit the checkpoint"):
            choose_table(others, shapes, lines=lines)


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("a.b", "a.b", True), ("a.b", "a.bc", False), ("a*b", "a.x.b", True), ("a*b", "ab", True), ("a*b", "a", False),
        ("a*a", "a", False), ("*.b", "x.b", True), ("a.*", "b.a.", False), ("a*b*c", "a.b.b.c", True),
        ("a*bb*b", "abb", False), ("*a[0]", "x.a[0]", True),
    ],
)  # fmt: skip
def test_patterns(pattern: str, path: str, fits: bool) -> None:
    assert line_matches(pattern, path) == fits


@given(st.data())
def test_any_values_are_read_or_reported(data: st.DataObject) -> None:
    lines = dict(parse_trainer_config(text_of(FUJI).encode()).lines)
    values = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=9))
    for path in data.draw(st.lists(st.sampled_from(sorted(lines)), max_size=3)):
        lines[path] = data.draw(values)
    said = read_model(matched_fuji, lines)
    assert all(type(said.values[key]) in (int, float, str) for key in said.values)
    try:
        configure(matched_fuji, lines=lines)
    except MappingError:
        assert said.contradictions


matched_fuji = matched(FUJI)


FAULTS = {
    'dtype = { trainer_config = "x", words = { a = "b" } }': "a key with trainer_config alone needs set",
    'dtype = { trainer_config = "x" }': "must be a value or one rule of",
    'dtype = { set = "training", trainer_config = "x", words = { a = "b", c = 1 } }': "values of the kind that the key",
    'x = { value = 1, words = { a = 1 } }': "words needs trainer_config",
    'x = { value = 1, trainer_config = [2] }': "must be a text or a list of texts",
    'x = { layout = "scanned", trainer_config = "x" }': "trainer_config goes with value or size",
    'x = 1\n[trainer_config]\n"a" = []': "must be a value, a list of values or",
}  # fmt: skip


@pytest.mark.parametrize("text", FAULTS)
def test_faults_of_a_table(text: str) -> None:
    plain = (DATA / "mappings" / "plain.toml").read_text()
    with pytest.raises(MappingError) as caught:
        parse_mapping(plain.replace("[config]\n", f"[config]\n{text.partition(chr(10))[0]}\n")
                      + text.partition(chr(10))[2], "plain.toml")  # fmt: skip
    assert any(FAULTS[text] in line for line in caught.value.details)


def test_every_command_uses_it(in_process: Cli, tmp_path: Path) -> None:
    """convert writes what it says, and what was converted stays right when the file is gone."""
    source = tmp_path / "source"
    shutil.copytree(AXLEARN / "micro-qwen", source)
    done = in_process("convert", source, tmp_path / "out")
    assert done.code == 0, done.err
    text = (tmp_path / "out" / "maxtext.yml").read_text()
    assert "num_experts_per_tok: 3  # trainer_config\n" in text
    assert yaml.safe_load(text)["dtype"] == "float32"
    assert in_process("verify", source, tmp_path / "out").code == 0
    assert in_process("params", source, "--json").document["experts_per_token"] == 3
    (source / "trainer_config").unlink()
    verified = in_process("verify", source, tmp_path / "out")
    assert verified.code == 0, verified.out
