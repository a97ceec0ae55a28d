"""What a user may set: parsed, held against the tensors, and taken for a fact about the source."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from converter.errors import MappingError, UsageError
from converter.mapping.bundled import table_path
from converter.mapping.file import find_mapping, load_mapping
from converter.mapping.match import Match, match_table
from converter.mapping.settings import configure, override_config, source_arithmetic
from tests.conftest import AXLEARN, Cli
from tests.helpers.axlearn_checkpoint import SMALL, dimensions, envy_shapes, envy_tensors, write_checkpoint
from tests.helpers.refusals import nothing_left

EQUAL_PAIRS = AXLEARN / "micro-hybrid-qkpair"

BASE = {
    "decoder_block": "envy",
    "mlp_activations": ["silu", "linear"],
    "head_dim": 128,
    "use_qk_norm": True,
    "normalization_layer_epsilon": 1e-05,
    "rope_max_timescale": 500000,
}

SETTINGS: dict[str, Any] = {
    "rope_max_timescale=10000": 10000,
    "rope_max_timescale=1e4": 10000,
    "rope_max_timescale=+7": 7,
    "rope_max_timescale=9007199254740993": 9007199254740993,
    "normalization_layer_epsilon=1e-6": 1e-6,
    "normalization_layer_epsilon=1": 1.0,
    "use_qk_norm=false": False,
    "decoder_block=llama2": "llama2",
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_settings(setting: str) -> None:
    key = setting.split("=")[0]
    changed = override_config(BASE, [f"{key}={BASE[key]}", setting])
    assert changed == {**BASE, key: SETTINGS[setting]}
    assert type(changed[key]) is type(BASE[key])
    assert list(changed) == list(BASE)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("head_dim=8.5", "expected a number, as in head_dim=128"),
        ("head_dim=true", "expected a number, as in head_dim=128"),
        ("normalization_layer_epsilon=nan", "expected a number, as in normalization_layer_epsilon=1e-05"),
        ("use_qk_norm=1", "expected a value like True"),
        ("decoder_block=7", "expected a value like 'envy'"),
        ("mlp_activations=silu", "expected a value like ['silu', 'linear']"),
        ("decoder_block=a: b", "expected a plain number, word or true/false as value"),
        ("head_dim", "expected KEY=VALUE with one of the keys " + ", ".join(BASE)),
        ("steps=3", "expected KEY=VALUE with one of the keys " + ", ".join(BASE)),
    ],
)
def test_settings_that_are_refused(setting: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        override_config(BASE, [setting])
    assert caught.value.message == f"--set {setting}: {message}"


@given(number=st.integers(-(2**70), 2**70), real=st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_are_taken_exactly(number: int, real: float) -> None:
    changed = override_config({"n": 1, "x": 1.0}, [f"n={number}", f"x={real!r}"])
    assert changed == {"n": number, "x": real}


def small(**changes: int) -> Match:
    return match_table(find_mapping("envy"), envy_shapes({**SMALL, **changes}))


def refusal(match: Match, *settings: str) -> str:
    with pytest.raises(UsageError) as caught:
        configure(match, settings)
    assert not caught.value.details
    return caught.value.message


CONTRADICTIONS = {
    "vocab_size=128": "contradicts the checkpoint's tensors, which have vocab_size=24; drop the option",
    "base_emb_dim=0": "contradicts the checkpoint's tensors, which have base_emb_dim=12; drop the option",
    "head_dim=7": "contradicts the checkpoint's tensors, which have head_dim=6; drop the option",
    "base_num_kv_heads=3": "contradicts the checkpoint's tensors, which have base_num_kv_heads=2; drop the option",
    "base_num_decoder_layers=-4": "contradicts the checkpoint's tensors, which have base_num_decoder_layers=4; drop "
    "the option",
    "num_experts=8": "contradicts the checkpoint's tensors, which have num_experts=4; drop the option",
    "use_post_ffw_norm=false": "contradicts the checkpoint's tensors, which need use_post_ffw_norm=true; drop the "
    "option",
    "logits_via_embedding=false": "contradicts the leaves that are written without --untie, which need "
    "logits_via_embedding=true",
    "scan_layers=false": "contradicts the layer layout that is written, which needs scan_layers=true; drop the option",
    "decoder_block=llama2": "mapping 'envy' describes models with decoder_block=envy only; drop the option",
    "use_qk_norm=false": "mapping 'envy' describes models with use_qk_norm=true only; drop the option",
    "interleave_moe_layer_step=1": "mapping 'envy' describes models with interleave_moe_layer_step=2 only; drop the "
    "option",
    "num_experts_per_tok=5": "expected at most 4, the checkpoint's experts",
    "num_experts_per_tok=0": "expected a number above 0",
    "rope_max_timescale=0": "expected a number above 0",
    "rope_max_timescale=-500000": "expected a number above 0",
    "normalization_layer_epsilon=0.0": "expected a number above 0",
    "normalization_layer_epsilon=-1e-05": "expected a number above 0",
    "load_balance_loss_weight=-0.5": "expected a number of at least 0",
}


@pytest.mark.parametrize("setting", CONTRADICTIONS)
def test_settings_that_contradict_the_checkpoint(setting: str) -> None:
    assert refusal(small(), setting) == f"--set {setting}: {CONTRADICTIONS[setting]}"


def test_a_setting_that_untie_decides() -> None:
    untied = match_table(find_mapping("envy"), envy_shapes(SMALL), options={"untie"})
    assert refusal(untied, "logits_via_embedding=true") == (
        "--set logits_via_embedding=true: contradicts the leaves that are written with --untie, which need "
        "logits_via_embedding=false"
    )


def test_several_contradictions_are_listed_together() -> None:
    with pytest.raises(UsageError) as caught:
        configure(small(), ["vocab_size=1", "rope_max_timescale=0", "scan_layers=false"])
    assert caught.value.message == "3 settings contradict the checkpoint"
    assert [line.split(":")[0] for line in caught.value.details] == [
        "--set vocab_size=1", "--set scan_layers=false", "--set rope_max_timescale=0"
    ]  # fmt: skip


def test_what_may_be_set_and_what_is_no_change() -> None:
    chosen = {
        "rope_max_timescale": 10**6, "normalization_layer_epsilon": 1e-6, "num_experts_per_tok": 4,
        "normalize_embedding_logits": True, "load_balance_loss_weight": 0.0, "enable_dropout": True,
        "tokenizer_type": "tiktoken",
    }  # fmt: skip
    made = configure(small(), [*(f"{key}={str(value).lower()}" for key, value in chosen.items()), "head_dim=6"])
    assert made.settings == {**chosen, "head_dim": 6}
    assert {key: made.keys[key] for key in chosen} == chosen
    arithmetic = source_arithmetic(find_mapping("envy"), made.keys)
    assert (arithmetic.rope_theta, arithmetic.norm_epsilon, arithmetic.experts_per_token) == (1e6, 1e-6, 4)


def test_recorded_settings_are_known_again_and_yield_to_new_ones() -> None:
    recorded = {"rope_max_timescale": 10**6, "num_experts_per_tok": 1, "vocab_size": 9, "x": 1, "enable_dropout": "no"}
    made = configure(small(), ["num_experts_per_tok=3"], recorded=recorded)
    assert made.settings == {"rope_max_timescale": 10**6, "num_experts_per_tok": 3}
    assert made.keys["vocab_size"] == 24


def test_models_that_are_impossible() -> None:
    with pytest.raises(MappingError) as caught:
        configure(small(experts=1))
    assert caught.value.message == (
        "mapping 'envy': num_experts_per_tok=2: expected at most 1, the checkpoint's experts"
    )
    assert caught.value.details == (
        "if the model has another num_experts_per_tok, give --set num_experts_per_tok=VALUE",
    )
    assert configure(small(experts=1), ["num_experts_per_tok=1"]).keys["num_experts_per_tok"] == 1
    with pytest.raises(MappingError, match="base_num_kv_heads=3: expected a divisor of 4, the checkpoint's heads"):
        configure(small(kv_heads=3))


def test_an_odd_head_dimension_has_no_pairs() -> None:
    with pytest.raises(MappingError, match="does not fit"):
        small(head_dim=5)


def test_a_table_without_arithmetic(cli: Cli, tmp_path: Path) -> None:
    text = Path(table_path("envy")).read_text()
    start, end = text.index("\n[arithmetic]"), text.index("\n[config]")
    table = tmp_path / "table.toml"
    table.write_text(text[:start] + text[end:])
    assert load_mapping(str(table)).arithmetic is None
    assert cli("convert", EQUAL_PAIRS, tmp_path / "out", "--mapping", table, "-q").code == 0
    for command in (["convert", EQUAL_PAIRS, tmp_path / "fit", "--qk-norm", "fit"], ["logits", EQUAL_PAIRS]):
        done = cli(*command, "--mapping", table)
        assert (done.code, "mapping 'envy' has no [arithmetic]" in done.err) == (4, True)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('rope_theta = "rope_max_timescale"', 'rope_theta = "rope_max_timescal"', "no number 'rope_max_timescal' in"),
        ('rope_theta = "rope_max_timescale"', 'rope_theta = "use_qk_norm"', "no number 'use_qk_norm' in [config]"),
        ("share_epsilon = 1e-09", "share_epsilon = true", "share_epsilon must be"),
        ('norm_epsilon = "normalization_layer_epsilon"', "", "[arithmetic] lacks 'norm_epsilon'"),
        ('value = 500000, set = "model"', 'value = 500000, set = "modl"', "set must be 'model' or 'training'"),
        ('size = "embed",', 'size = "embed", set = "model",', "set must be 'model' or 'training', and needs a value"),
        ('at_most = "experts"', 'at_most = "expert"', "unknown axis 'expert'; did you mean 'experts'?"),
        ('value = "huggingface", set = "training"', 'value = "huggingface", above = 0', "above need a number"),
        ("value = 500000", "value = [1]", "rope_max_timescale must be a number, a text"),
    ],
)
def test_faults_of_a_table(old: str, new: str, message: str, tmp_path: Path) -> None:
    text = Path(table_path("envy")).read_text()
    assert old in text
    (tmp_path / "table.toml").write_text(text.replace(old, new))
    with pytest.raises(MappingError) as caught:
        load_mapping(str(tmp_path / "table.toml"))
    assert message in str(caught.value)


@pytest.mark.parametrize("command", [["plan"], ["convert"]])
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--set", "vocab_size=128"], 2, "--set vocab_size=128: contradicts the checkpoint's tensors"),
        (["--set", "num_experts_per_tok=9"], 2, "expected at most 4, the checkpoint's experts"),
        (["--set", "stepps=3"], 2, "expected KEY=VALUE with one of the keys"),
        (["--set", "steps=3"], 2, "--set steps=3: steps follows from learner.max_step; set that instead"),
        (["--set", "learner.eps=0"], 2, "--set learner.eps=0: expected a number above 0, up to 1"),
        (["--qk-norm", "fitt"], 2, "'fitt' is not one of 'plain', 'fit'"),
        (["--jobs", "0"], 2, "--jobs"),
    ],
)
def test_plan_refuses_what_convert_refuses(
    command: list[str], arguments: list[str], code: int, message: str, cli: Cli, tmp_path: Path
) -> None:
    destination = [tmp_path / "out"] if command == ["convert"] else []
    done = cli(*command, EQUAL_PAIRS, *destination, *arguments)
    assert (done.code, message in done.err) == (code, True), done.err
    nothing_left(tmp_path)


def test_plan_shows_what_convert_writes(cli: Cli, tmp_path: Path) -> None:
    options = ["--set", "rope_max_timescale=1000000", "--qk-norm", "fit", "--jobs", "8", "--json"]
    planned = cli("plan", EQUAL_PAIRS, *options).document
    done = cli("convert", EQUAL_PAIRS, tmp_path / "out", *options).document
    assert planned["config"]["rope_max_timescale"] == 1000000
    assert planned["settings"] == {"rope_max_timescale": 1000000}
    assert planned["options"]["qk_norm"] == "fit"
    for field in ("config", "settings", "options", "totals", "jobs", "tasks"):
        assert planned[field] == done[field], field
    fewer = cli("plan", EQUAL_PAIRS, "--json").document
    assert planned["totals"]["memory"] > fewer["totals"]["memory"]


def test_one_expert_with_two_experts_a_token(cli: Cli, tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "step_00000100", envy_tensors(dimensions(12, 2, 4, 2, 6, 20, 10, 1, 24)))
    for command in (["plan", source], ["convert", source, tmp_path / "out"], ["logits", source]):
        done = cli(*command)
        assert done.code == 4, done.err
        assert "num_experts_per_tok=2: expected at most 1, the checkpoint's experts" in done.err
    nothing_left(tmp_path, "step_00000100")
