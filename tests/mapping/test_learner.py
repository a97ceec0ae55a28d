"""Where the learner's constants come from, the flags that follow, and what is asked for."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from converter.checkpoints.trainer_config import parse_trainer_config
from converter.errors import MappingError, UsageError
from converter.mapping.bundled import table_path
from converter.mapping.file import find_mapping, load_bundled, load_mapping
from converter.mapping.learner import Learner, TrainedLearner
from converter.mapping.match import Match, match_table
from converter.mapping.patches import needed_patches
from converter.mapping.published import find_published, published_shapes
from converter.mapping.settings import Configuration, configure
from converter.mapping.training import FIXED, FLAGS
from tests.conftest import AXLEARN, DATA, Cli
from tests.helpers.axlearn_checkpoint import SMALL, envy_shapes

PUBLISHED: dict[str, tuple[float, float, int, int, float]] = {
    "envy-test": (1e-2, 3.16e-4, 2000, 3000, 1.0),
    "envy-switch-base": (1e-2, 1e-4, 5000, 250000, 0.5),
    "envy-switch-large": (1e-2, 1e-4, 5000, 250000, 0.375),
    "envy-switch-xxl": (1e-2, 1e-4, 5000, 250000, 0.09375),
}
"""Peak learning rate, weight decay, warm-up, end and update scale of AXLearn's own configurations."""

SCALED = {
    f"params/decoder/layers/*/{name}"
    for name in (
        "self_attention/query/kernel", "self_attention/key/kernel", "self_attention/value/kernel",
        "self_attention/out/kernel", "mlp/wi_0/kernel", "mlp/wi_1/kernel", "mlp/wo/kernel", "MoeBlock_0/wi_0",
        "MoeBlock_0/wi_1", "MoeBlock_0/wo",
    )
}  # fmt: skip
"""The leaves of mup: no embedding, norm, q/k scale or gate."""


def small(*, untie: bool = False) -> Match:
    return match_table(find_mapping("envy"), envy_shapes(SMALL), options={"untie"} if untie else ())


def flags(made: Configuration) -> dict[str, Any]:
    return {key: value for key, value in made.keys.items() if key in FLAGS}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes(name: str) -> None:
    peak, decay, warmup, end, scale = PUBLISHED[name]
    made = configure(published_shapes(find_mapping("envy"), name)[0], step=100)
    assert flags(made) == {
        **FIXED, "opt_type": "adamw",
        "learning_rate": peak, "adam_weight_decay": decay / peak, "adam_b1": 0.9, "adam_b2": 0.95,
        "adam_eps": 1e-8, "gradient_clipping_threshold": 1.0, "z_loss_multiplier": 1e-6,
        "learning_rate_final_fraction": 0.005, "steps": end, "learning_rate_schedule_steps": end + 1,
        "warmup_steps_fraction": (warmup + 0.5) / (end + 1),
    }  # fmt: skip
    assert (made.keys["load_balance_loss_weight"], made.keys["enable_dropout"]) == (0.0, False)
    assert made.learner.update_scales is not None
    assert made.learner.update_scales.value == (dict.fromkeys(SCALED, scale) if scale != 1 else {})
    assert made.origins["learning_rate"] == f"published value of {name}, not in the checkpoint"
    assert made.notes == ()


def test_the_form_follows_from_the_step() -> None:
    match = published_shapes(find_mapping("envy"), "envy-switch-base")[0]
    inside, past = configure(match, step=4998), configure(match, step=4999)
    assert (inside.keys["learning_rate_schedule_steps"], past.keys["learning_rate_schedule_steps"]) == (250001, 250000)
    assert past.keys["warmup_steps_fraction"] == 4999.5 / 250000
    assert any("Form A" in line for line in inside.comments)
    assert any("Form B" in line for line in past.comments)
    assert any("has reached" in line for line in configure(match, step=250000).comments)


@pytest.mark.parametrize("name", ["micro-envy", "micro-fuji"])
def test_the_flags_of_the_training_goldens(name: str) -> None:
    """The flags that the golden's own MaxText run used, which went on exactly as AXLearn did."""
    trained = parse_trainer_config((DATA / "trainer_config" / name).read_bytes()).learner
    step = {"micro-envy": 5, "micro-fuji": 20}[name]
    found = flags(configure(small(), trained=trained, step=step))
    due = {
        "micro-envy": ("61", "0.1721311475409836", "0.01", "0.005", "0.01", "1e-06"),
        "micro-fuji": ("161", "0.2515527950310559", "0.003", "0.1", "33.333333333333336", "0.0"),
    }[name]
    keys = ("learning_rate_schedule_steps", "warmup_steps_fraction", "learning_rate", "learning_rate_final_fraction",
            "adam_weight_decay", "z_loss_multiplier")  # fmt: skip
    assert [found[key] for key in keys] == pytest.approx([float(text) for text in due], rel=1e-15)


def test_a_size_that_nobody_published() -> None:
    made = configure(small(), step=7)
    asked = ["peak_learning_rate", "weight_decay", "warmup_steps", "max_step", "update_scale"]
    assert list(made.learner.missing) == [f"learner.{name}" for name in asked]
    assert made.keys["adam_b2"] == 0.95
    assert made.origins["adam_b2"] == "mapping 'envy', not in the checkpoint"
    assert "learning_rate" not in made.keys
    (note,) = made.notes
    assert all(f"--set learner.{name}=VALUE" in note for name in asked)
    assert "lacks learning_rate, adam_weight_decay, steps" in note
    given = configure(
        small(), [f"learner.{name}={value}" for name, value in zip(asked, (3e-3, 0.3, 4, 9, 0.5), strict=True)]
    )
    assert (given.learner.missing, given.notes) == ((), ())
    assert (given.keys["learning_rate"], given.keys["steps"], given.origins["learning_rate"]) == (3e-3, 9, "--set")
    assert math.isclose(given.keys["adam_weight_decay"], 100)
    assert given.learner.update_scales is not None
    assert given.learner.update_scales.value == dict.fromkeys(SCALED, 0.5)


def test_the_users_value_comes_first_then_the_trainings_own() -> None:
    match = published_shapes(find_mapping("envy"), "envy-switch-base")[0]
    trained = TrainedLearner(constants={"peak_learning_rate": 0.5, "weight_decay": 0.1}, scale_rules=())
    made = configure(match, ["learner.peak_learning_rate=0.25"], trained=trained, step=1)
    assert made.keys["learning_rate"] == 0.25
    assert made.origins["adam_weight_decay"] == (
        "weight_decay 0.1 / peak_learning_rate 0.25; weight_decay: trainer_config; peak_learning_rate: --set"
    )
    # What the training's configuration does not say is asked for: the published training may be another one.
    assert "adam_b1" not in made.keys
    assert "learner.b1" in made.learner.missing


def test_recorded_constants_are_known_again() -> None:
    recorded = {"learner.b1": 0.8, "learner.b2": "x", "learner.max_step": 2, "learner.warmup_steps": 5}
    made = configure(small(), recorded=recorded)
    assert made.keys["adam_b1"] == 0.8
    assert made.keys["adam_b2"] == 0.95
    assert "steps" not in made.keys  # the record makes no schedule


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["learner.peak=1"], "with one of the keys learner.peak_learning_rate,"),
        (["learner.b1"], "expected KEY=VALUE"),
        (["learner.b1=1"], "--set learner.b1=1: expected a number from 0 to below 1"),
        (["learner.b1=nan"], "expected a number from 0 to below 1"),
        (["learner.warmup_steps=1.5"], "expected a whole number from 0 to 2^30"),
        (["learner.eps=1 #"], "expected a number above 0, up to 1"),
        (
            ["learner.warmup_steps=9", "learner.max_step=9"],
            "the warm-up of 9 steps (--set) does not end before max_step 9",
        ),
        (["learning_rate=0.1"], "learning_rate follows from learner.peak_learning_rate; set that instead"),
        (["adam_b1=0.5"], "adam_b1 follows from learner.b1; set that instead"),
        (
            ["adam_weight_decay=1"],
            "follows from learner.weight_decay and learner.peak_learning_rate; set those instead",
        ),
        (["opt_type=sgd"], "opt_type is adamw in AXLearn's update rule; for another training, edit maxtext.yml"),
    ],
)
def test_settings_that_are_refused(settings: list[str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        configure(small(), settings)
    assert message in caught.value.message


def test_a_flag_with_its_own_value_is_no_change() -> None:
    made = configure(small(), ["adam_b1=0.9", "opt_type=adamw"])
    assert made.settings == {}


def test_a_table_without_scaled_rows_refuses_a_scale() -> None:
    text = Path(table_path("envy")).read_text().replace("update_scale = true\n", "")
    table = write(text)
    match = match_table(table, envy_shapes(SMALL))
    assert configure(match).learner.update_scales is not None
    with pytest.raises(UsageError, match="has no rows with update_scale"):
        configure(match, ["learner.update_scale=0.5"])


def write(text: str) -> Any:
    from converter.mapping.file import parse_mapping

    return parse_mapping(text, "table.toml")


def test_a_users_table_has_a_learner_and_flags_of_its_own() -> None:
    text = Path(table_path("envy")).read_text()
    text = text.replace("[learner]\n", "[learner]\npeak_learning_rate = 0.5\nweight_decay = 1\n")
    text = text.replace("[config]\n", '[config]\nweight_dtype = { value = "bfloat16", set = "training" }\n')
    made = configure(match_table(write(text), envy_shapes(SMALL)), ["weight_dtype=float16"])
    assert (made.keys["learning_rate"], made.keys["adam_weight_decay"]) == (0.5, 2.0)
    assert (made.keys["weight_dtype"], made.origins["weight_dtype"]) == ("float16", "--set")


def test_published_models_of_one_size_must_agree() -> None:
    text = Path(table_path("envy")).read_text()
    start = text.index('[[model]]\nname = "envy-test"')
    model = text[start : text.index("[[model]]", start + 5)]
    other = model.replace("envy-test", "envy-test-v2").replace("weight_decay = 3.16e-4", "weight_decay = 1e-4")
    table = write(text + "\n" + other)
    made = configure(match_table(table, published_shapes(find_mapping("envy"), "envy-test")[1]), step=1)
    assert made.learner.missing == ("learner.weight_decay",)
    assert made.origins["learning_rate"] == "published value of envy-test or envy-test-v2, not in the checkpoint"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("b2 = 0.95", "b3 = 0.95", "unknown constant 'b3' of the learner"),
        ("b2 = 0.95", "b2 = 1.5", "learner: b2 must be a number from 0 to below 1, found 1.5"),
        ("b2 = 0.95", "b2 = true", "learner: b2 must be a number from 0 to below 1, found True"),
        ("warmup_steps = 2000", "warmup_steps = 2000.0", "learner: warmup_steps must be a whole number"),
        ("update_scale = true", "update_scale = 1", "update_scale must be true or false"),
    ],
)
def test_faults_of_a_table(old: str, new: str, message: str, tmp_path: Path) -> None:
    text = Path(table_path("envy")).read_text()
    assert old in text
    (tmp_path / "table.toml").write_text(text.replace(old, new))
    with pytest.raises(MappingError) as caught:
        load_mapping(str(tmp_path / "table.toml"))
    assert message in str(caught.value)


def test_patches() -> None:
    made = configure(small(), ["learner.update_scale=0.5"])
    patches = needed_patches(made.keys, made.learner, norm_after_rope=True)
    assert patches == (
        {"name": "norm_after_rope", "decoder_block": "envy"},
        {"name": "unrounded_tied_logits"},
        {"name": "scaled_updates", "leaves": dict.fromkeys(SCALED, 0.5)},
    )
    untied = configure(small(untie=True), ["learner.update_scale=1"])
    assert needed_patches(untied.keys, untied.learner, norm_after_rope=False) == ()
    assert needed_patches(untied.keys, Learner(), norm_after_rope=False) == ()


def test_what_convert_writes_of_it(cli: Cli, tmp_path: Path) -> None:
    options = ["--untie", "--set", "learner.update_scale=0.5", "--set", "learner.peak_learning_rate=0.02"]
    done = cli("convert", AXLEARN / "micro-hybrid", tmp_path / "out", "--json", *options)
    text = (tmp_path / "out/maxtext.yml").read_text()
    patches = [json.loads(line.removeprefix("# patch: ")) for line in text.splitlines() if line.startswith("# patch: ")]
    assert [patch["name"] for patch in patches] == ["norm_after_rope", "scaled_updates"]
    assert json.loads((tmp_path / "out/ax2mt.json").read_text())["patches"] == patches
    assert "maxtext_patch" in done.document["command"]
    content = yaml.safe_load(text)
    assert content["learning_rate"] == 0.02
    assert "learning_rate: 0.02  # --set" in text
    assert "base_emb_dim: 32  # solved from the tensors" in text
    assert "\n# Not known of the training: give --set learner.weight_decay=VALUE" in text
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all("  # " in line for line in lines)
    # The settings are known to verify, and a changed flag is a note.
    assert cli("verify", AXLEARN / "micro-hybrid", tmp_path / "out", "--json").document["notes"] == []
    (tmp_path / "out/maxtext.yml").write_text(text.replace("learning_rate: 0.02", "learning_rate: 0.03"))
    for arguments in ([], [AXLEARN / "micro-hybrid"]):
        verified = cli("verify", *arguments, tmp_path / "out", "--json")
        assert verified.code == 0
        assert "maxtext.yml: learning_rate is 0.03" in verified.document["notes"][0]


@pytest.mark.parametrize("setting", ["learner.b1=0.5", "steps=9"])
def test_logits_refuse_constants_of_the_training(setting: str, in_process: Cli) -> None:
    done = in_process("logits", AXLEARN / "micro-hybrid", "--set", setting)
    assert done.code == 2
    assert f"--set {setting}: the constants of the training change no logits" in done.err


FAMILIES: dict[str, tuple[float, float, int, int | None, float, float, float]] = {
    "fuji-test-v3": (6e-4, 0.01, 2000, 3000, 0.1, 0.0, 1.0),
    "fuji-7B-v1": (3e-4, 0.1, 2000, None, 0.1, 0.0, 1.0),
    "fuji-70B-v1": (1.5e-4, 0.1, 2000, 367001, 0.1, 0.0, 1.0),
    "fuji-70B-v2": (1.5e-4, 0.1, 2000, 524288, 0.1, 0.0, 1.0),
    "fuji-8B-v3-tiktoken": (3e-4, 0.1, 2000, 983040, 0.1, 0.0, 1.0),
    "fuji-405B-v3": (1.5e-4, 0.1, 2000, 983040, 0.1, 0.0, 1.0),
    "gala-test": (6e-4, 0.01, 2000, 3000, 0.1, 0.0, 1.0),
    "gala-302M": (1e-2, 1e-4, 5000, 400000, 0.1, 0.0, 0.75),
    "gala-7B": (1e-2, 1e-4, 5000, 250000, 0.1, 0.0, 0.1875),
    "qwen3-30B-A3B": (1e-2, 1e-4, 5000, 250000, 0.005, 1e-6, 0.375),
}
"""Peak learning rate, weight decay, warm-up, end, alpha, z-loss and update scale of AXLearn's own configurations."""


@pytest.mark.parametrize("name", FAMILIES)
def test_published_learners_of_other_families(name: str) -> None:
    peak, decay, warmup, end, alpha, z_loss, scale = FAMILIES[name]
    match, _ = find_published(load_bundled(), name)
    learner = configure(match, step=100).learner
    names = ("peak_learning_rate", "weight_decay", "warmup_steps", "alpha", "z_loss_scale", "b1", "b2", "eps")
    assert learner.known(*names) == (peak, decay, warmup, alpha, z_loss, 0.9, 0.95, 1e-8)
    assert learner.known("max_step") == (end and (end,))
    assert learner.missing == (() if end else ("learner.max_step",))
    assert learner.update_scales is not None
    scaled = [
        leaf
        for row in match.rows
        for leaf in row.targets
        if not leaf.endswith(("/scale", "/embedding", "gate/kernel", "logits_dense/kernel"))
    ]
    assert learner.update_scales.value == ({leaf.partition("/")[2]: scale for leaf in scaled} if scale != 1 else {})


def test_an_optimizer_that_maxtext_does_not_have_is_named() -> None:
    match, _ = find_published(load_bundled(), "honeycrisp-3B")
    made = configure(match, step=100)
    assert "trains these models with AdaStar, and MaxText has no optimizer like it" in made.notes[0]
    assert made.origins["opt_type"] == "not AXLearn's AdaStar, which MaxText does not have"
    assert made.keys["z_loss_multiplier"] == 1e-6
    assert "learning_rate" not in made.keys
    trained = TrainedLearner(constants={"peak_learning_rate": 0.5}, scale_rules=())
    assert not configure(match, step=100, trained=trained).learner.optimizer
