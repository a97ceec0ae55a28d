"""The learner's constants from AXLearn's own `trainer_config`, and what is reported instead of guessed."""

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from converter.checkpoints.trainer_config import MAX_BYTES, MAX_LINES, parse_trainer_config, read_trainer_config
from converter.mapping.constants import BOUNDS
from converter.mapping.file import find_mapping
from converter.mapping.learner import TrainedLearner, find_learner
from converter.mapping.match import match_table
from tests.conftest import DATA, Cli
from tests.helpers.axlearn_checkpoint import SMALL, STACK, dimensions, envy_shapes, envy_tensors, write_checkpoint

CONFIGS = DATA / "trainer_config"
ENVY = (CONFIGS / "micro-envy").read_text()
OPTIMIZER = "learner.optimizer."

MICRO_ENVY = {
    "peak_learning_rate": 0.01, "weight_decay": 0.0001, "warmup_steps": 10, "max_step": 60, "alpha": 0.005, "b1": 0.9,
    "b2": 0.95, "eps": 1e-08, "max_gradient_norm": 1, "z_loss_scale": 1e-06,
}  # fmt: skip
MICRO_FUJI = {
    "peak_learning_rate": 0.003, "weight_decay": 0.1, "warmup_steps": 40, "max_step": 160, "alpha": 0.1, "b1": 0.9,
    "b2": 0.95, "eps": 1e-08, "max_gradient_norm": 1, "z_loss_scale": 0.0,
}  # fmt: skip


def parse_learner(data: bytes) -> TrainedLearner:
    return parse_trainer_config(data).learner


def changed(old: str, new: str) -> TrainedLearner:
    assert old in ENVY
    return parse_learner(ENVY.replace(old, new).encode())


def test_the_constants_of_a_mixture_of_experts() -> None:
    found = parse_learner(ENVY.encode())
    assert (found.constants, found.problems, found.default_scale) == (MICRO_ENVY, (), 1.0)
    assert found.scale_rules is not None
    assert len(found.scale_rules) == 8
    assert found.scale_rules[7] == (".*feed_forward/wo_weight", 1.0)


def test_the_constants_of_a_dense_model() -> None:
    found = parse_learner((CONFIGS / "micro-fuji").read_bytes())
    assert (found.constants, found.scale_rules, found.problems) == (MICRO_FUJI, (), ())


@pytest.mark.parametrize(("name", "optimizer"), [
    ("micro-gspmd", "adafactor_optimizer"), ("micro-honeycrisp", "skip_and_clip_by_global_norm"),
    ("micro-fuji-gqa-fp8", "learner.optimizer.fn is missing"),
])  # fmt: skip
def test_other_optimizers_are_named(name: str, optimizer: str) -> None:
    found = parse_learner((CONFIGS / name).read_bytes())
    assert set(found.constants) == {"z_loss_scale"}
    assert found.scale_rules is None
    assert optimizer in found.problems[0]
    assert found.problems[0].endswith("the optimizer's constants were not taken from it")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (f"{OPTIMIZER}args[1].b2: 0.95", f"{OPTIMIZER}args[1].b2: nan", "args[1].b2 is nan, expected a number"),
        (f"{OPTIMIZER}args[1].b2: 0.95", f"{OPTIMIZER}args[1].b2: '0.95'", "args[1].b2 is '0.95', expected"),
        (f"{OPTIMIZER}args[1].b2: 0.95", f"{OPTIMIZER}args[1].b2: True", "args[1].b2 is True, expected"),
        (f"{OPTIMIZER}args[1].b2: 0.95", f"{OPTIMIZER}args[1].b2: 1e999", "args[1].b2 is 1e999, expected"),
        (f"{OPTIMIZER}args[1].b2: 0.95\n", "", "args[1].b2 is missing"),
        ("warmup_steps: 10", "warmup_steps: 10.5", "warmup_steps is 10.5, expected a whole number"),
        ("warmup_steps: 10", "warmup_steps: -1", "warmup_steps is -1, expected a whole number"),
        ("weight_decay: 0.0001", "weight_decay: None", "weight_decay is None, expected"),
        ("weight_decay: 0.0001", "weight_decay: [1]", "weight_decay is [1], expected"),
        ("weight_decay: 0.0001", "weight_decay: __import__('os')", "weight_decay is __import__('os'), expected"),
        ("z_loss_scale: 1e-06", "z_loss_scale: -1", "z_loss_scale is -1, expected"),
    ],
)
def test_a_wrong_value_costs_one_constant(old: str, new: str, message: str) -> None:
    found = changed(old, new)
    assert len(found.problems) == 1
    assert message in found.problems[0]
    assert len(found.constants) == len(MICRO_ENVY) - 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("schedule.cosine_with_linear_warmup'", "schedule.linear'", "expected 'axlearn.common.schedule.cosine"),
        ("update_schedule.peak_lr: 1.0", "update_schedule.peak_lr: 0.5", "peak_lr is 0.5, expected 1.0"),
        ("update_schedule.begin_value: 0.0", "update_schedule.begin_value: 0.1", "begin_value is 0.1, expected 0.0"),
        ("optimizers.adamw_decoupled_optimizer'", "optimizers.adamw_optimizer'", "expected 'axlearn.common.optim"),
        (f"{OPTIMIZER}fn:", f"{OPTIMIZER}args[2].fn: 'x'\n{OPTIMIZER}fn:", "args[2].fn is 'x', which is not known"),
        ("args[1].b1: 0.9", "args[1].b1: 0.9\nlearner.optimizer.args[1].mu_dtype: 'jax.numpy.bfloat16'", "mu_dtype is"),
        ("common.learner.Learner'", "common.learner.CompositeLearner'", "expected a plain Learner"),
        ("per_param_scale_by_path'", "per_param_scale_by_rule'", "expected 'axlearn.common.optimizers.per_"),
        ("args[0].eps: 1e-08", "args[0].eps: 1", "args[0].eps is 1, which is not known"),
    ],
)  # fmt: skip
def test_another_rule_gives_no_constants(old: str, new: str, message: str) -> None:
    found = changed(old, new)
    assert set(found.constants) == {"z_loss_scale"}
    assert found.scale_rules is None
    assert len(found.problems) == 1
    assert message in found.problems[0]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\xff\xfe", "not UTF-8 text"),
        (b"a" * (MAX_BYTES + 1), "larger than 4 MiB"),
        (b"\n" * (MAX_LINES + 1), "more than 50,000 lines"),
        (b"hello\n" + ENVY.encode() + b"\n{}", "line 1, 303: expected `path: value`"),
        (ENVY.encode() + b"\nmax_step: 61", "line 302: another value for a path that an earlier line has"),
        (b"", "learner.klass is missing"),
    ],
)
def test_files_that_are_something_else(data: bytes, message: str) -> None:
    assert message in parse_learner(data).problems[0]


def test_two_values_for_a_constant_are_no_value() -> None:
    found = parse_learner(f"{ENVY}\n{OPTIMIZER}args[1].b1: 0.8".encode())
    assert "b1" not in found.constants
    assert len(found.problems) == 2


def test_losses_that_maxtext_does_not_add_are_reported() -> None:
    found = changed(
        "'axlearn.common.causal_lm.AuxLossMetrics'",
        "'axlearn.common.causal_lm.AuxLossMetrics'\nmodel.metrics.metrics['aux'].aux_loss_regex: '.*/aux'",
    )
    assert "the training may have added auxiliary losses" in found.problems[0]
    assert "dropout" in changed("model.decoder.dropout_rate: 0.0", "model.decoder.dropout_rate: 0.1").problems[0]
    assert "its loss is not known" in changed("causal_lm.Model'", "causal_lm.Other'").problems[0]


lines = ENVY.splitlines()


@given(data=st.data())
def test_damaged_files_are_reported_or_read(data: st.DataObject) -> None:
    texts = list(lines)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(18, 60))
        texts[at] = data.draw(st.one_of(st.text(max_size=40), st.just(texts[at - 1]), st.sampled_from(lines))) + ""
    found = parse_learner("\n".join(texts).encode("utf-8", "surrogatepass"))
    assert all(BOUNDS[name].admit(value) for name, value in found.constants.items())
    assert found.problems or (set(found.constants) == set(MICRO_ENVY) and found.scale_rules is not None)
    find_learner(match_table(find_mapping("envy"), envy_shapes(SMALL)), {}, found)


@given(data=st.binary(max_size=300))
def test_any_bytes_are_reported(data: bytes) -> None:
    assert parse_learner(data).problems


def placed(tmp_path: Path, name: str) -> Path:
    """A trainer directory with a step, and the file in `name`."""
    (tmp_path / "trainer/checkpoints").mkdir(parents=True)
    shutil.copy(CONFIGS / "micro-envy", tmp_path / name)
    sizes = dimensions(32, 2, 4, 2, 8, 48, 48, 4, 64)  # what the file says
    return write_checkpoint(tmp_path / "trainer/checkpoints/step_00000100", envy_tensors(sizes))


@pytest.mark.parametrize("name", ["trainer/trainer_config", "trainer/checkpoints/trainer_config"])
def test_where_it_is_found(name: str, tmp_path: Path) -> None:
    step = placed(tmp_path, name)
    found = read_trainer_config(str(step))
    assert found is not None
    assert found.learner.constants == MICRO_ENVY
    (tmp_path / "link").symlink_to(step)
    assert read_trainer_config(str(tmp_path / "link")) == found


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    step = placed(tmp_path, "elsewhere")
    assert read_trainer_config(str(step)) is None
    os.mkfifo(tmp_path / "trainer/trainer_config")
    assert read_trainer_config(str(step)) is None


@pytest.mark.parametrize("path", ["trainer", "trainer/checkpoints", "trainer/checkpoints/step_00000100"])
def test_plan_finds_it_from_every_path(path: str, in_process: Cli, tmp_path: Path) -> None:
    placed(tmp_path, "trainer/trainer_config")
    done = in_process("plan", tmp_path / path, "--json")
    assert done.code == 0, done.err
    document = done.document
    assert (document["config"]["learning_rate"], document["config"]["steps"]) == (0.01, 60)
    (note,) = document["notes"]
    assert "train_capacity_factor is 4.0" in note


def scaled(*rules: tuple[str, float], default: float = 1.0) -> tuple[object, tuple[str, ...]]:
    trained = TrainedLearner(constants=MICRO_ENVY, scale_rules=rules, default_scale=default)
    learner, notes = find_learner(match_table(find_mapping("envy"), envy_shapes(SMALL)), {}, trained)
    return learner.update_scales and learner.update_scales.value, notes


def test_the_first_pattern_counts_and_matches_the_whole_path() -> None:
    rules = (".*attention/o_proj/weight", 0.5), (".*o_proj.*", 0.25), ("o_proj/weight", 0.1), (".*gate_weight", 2.0)
    assert scaled(*rules) == (
        {
            "params/decoder/layers/*/self_attention/out/kernel": 0.5,
            "params/decoder/layers/*/MoeBlock_0/gate/kernel": 2.0,
        },
        (),
    )


def test_layers_with_different_scales_are_named_one_by_one() -> None:
    stack = STACK.removeprefix("model/")
    scales, _ = scaled((f"{stack}/layer1/self_attention/attention/o_proj/weight", 0.5))
    assert scales == {"params/decoder/layers/layers_1/self_attention/out/kernel": 0.5}


def test_a_pattern_that_cannot_be_read_is_reported() -> None:
    assert scaled(("[a-z]*", 0.5)) == (
        None, ("trainer_config: a pattern of scale_by_path cannot be read: '[' at character 1",)
    )  # fmt: skip
