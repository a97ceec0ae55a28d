"""The comparison of leaves, flags and published files, on small plain data."""

import dataclasses

import pytest

from converter.conformance.answers import AXLearnAnswer, ModelAnswer
from converter.conformance.compare import (
    compare_leaves,
    compare_published,
    compare_with_axlearn,
    compare_with_maxtext,
    flag_text,
    same_flag,
    widened,
)
from converter.conformance.result import Installed, Leaf
from converter.conformance.subjects import Subject, published_subject
from converter.mapping import load_bundled


def leaf(*shape: int, dtype: str = "float32") -> Leaf:
    return Leaf(shape=shape, dtype=dtype)


@pytest.mark.parametrize(
    ("expected", "found", "status"),
    [
        (leaf(2, 3), leaf(2, 3), "equal"),
        (leaf(2, 3), leaf(3, 2), "shape"),
        (leaf(2, 3), leaf(2, 3, dtype="bfloat16"), "dtype"),
        (leaf(2, 3), leaf(6, dtype="bfloat16"), "shape"),
        (leaf(2, dtype="bfloat16"), leaf(2), "equal"),
        (leaf(2, dtype="bfloat16"), leaf(2, dtype="float16"), "dtype"),
        (leaf(2, dtype="float16"), leaf(2, dtype="bfloat16"), "dtype"),
        (leaf(2), None, "missing"),
        (None, leaf(2), "extra"),
    ],
)
def test_status_of_a_leaf(expected: Leaf | None, found: Leaf | None, status: str) -> None:
    sides = [{"a/b": side} if side is not None else {} for side in (expected, found)]
    (compared,) = compare_leaves(*sides)
    assert (compared.path, compared.status, compared.expected, compared.found) == ("a/b", status, expected, found)
    assert widened([compared]) == (status == "equal" and expected != found)


def test_what_only_the_framework_has_comes_last() -> None:
    compared = compare_leaves({"z": leaf(1), "a": leaf(1)}, {"new": leaf(1), "a": leaf(1), "z": leaf(1)})
    assert [one.path for one in compared] == ["z", "a", "new"]


@pytest.mark.parametrize(
    ("found", "expected", "same"),
    [
        (None, "none", True), ("none", "none", True), (0.0, "none", False), (None, 0, False),
        (1e-05, 1e-05, True), ("5e5", 500000, True), (1, 1.0, True), (True, 1, False), (False, False, True),
        (["silu", "linear"], ["silu", "linear"], True), (["silu"], ["silu", "linear"], False), ("", "", True),
    ],
)  # fmt: skip
def test_same_flag(found: object, expected: object, same: bool) -> None:
    assert same_flag(found, expected) == same  # pyright: ignore


def test_flag_text() -> None:
    assert [flag_text(value) for value in (None, True, 1e-05, ["a", "b"])] == ["none", "true", "1e-05", "[a, b]"]


def subject(name: str = "envy-test") -> Subject:
    return published_subject(load_bundled(), name, options=(), settings=())


def perfect(model: Subject, layout: str) -> ModelAnswer:
    """The answer of a MaxText that is as the table says."""
    values = {**model.table.conformance.defaults, **model.configuration(layout).keys}
    return ModelAnswer(leaves=model.target_leaves(layout), values=values)


@pytest.mark.parametrize("layout", ["scanned", "unscanned"])
def test_a_perfect_maxtext(layout: str) -> None:
    compared = compare_with_maxtext(subject(), layout, perfect(subject(), layout))
    assert (compared.differences, compared.problem, compared.mapping) == (0, "", "envy")
    assert len(compared.leaves) == {"scanned": 25, "unscanned": 48}[layout]
    kinds = {flag.kind for flag in compared.flags}
    assert kinds == {"written", "default"}


def test_exactly_what_was_changed_is_reported() -> None:
    model, answer = subject(), perfect(subject(), "scanned")
    gate, query = (
        "decoder/layers/layers_1/MoeBlock_0/gate/kernel",
        "decoder/layers/layers_0/self_attention/query/kernel",
    )
    leaves = {**answer.leaves, "decoder/layers/layers_1/MoeBlock_0/router/kernel": answer.leaves[gate]}
    del leaves[gate]
    leaves[query] = dataclasses.replace(leaves[query], shape=(8, 2, 2, 4))
    values = {**answer.values, "rope_type": "yarn", "num_experts_per_tok": 1}
    del values["enable_dropout"]
    compared = compare_with_maxtext(model, "scanned", dataclasses.replace(answer, leaves=leaves, values=values))
    assert [(one.path.rpartition("layers_")[2], one.status) for one in compared.different_leaves] == [
        ("0/self_attention/query/kernel", "shape"),
        ("1/MoeBlock_0/gate/kernel", "missing"),
        ("1/MoeBlock_0/router/kernel", "extra"),
    ]
    assert {(one.key, one.status, one.kind, one.found) for one in compared.different_flags} == {
        ("enable_dropout", "unknown", "written", ""),
        ("num_experts_per_tok", "other", "written", "1"),
        ("rope_type", "other", "default", "yarn"),
    }
    assert all(one.consequence for one in compared.different_flags)
    assert compared.differences == 6


def test_keys_that_maxtext_does_not_know() -> None:
    answer = perfect(subject(), "scanned")
    values = {key: value for key, value in answer.values.items() if key != "use_qk_norm"}
    answer = dataclasses.replace(answer, unknown=("use_qk_norm",), values=values)
    compared = compare_with_maxtext(subject(), "scanned", answer)
    assert [(one.key, one.status, one.expected) for one in compared.different_flags] == [
        ("use_qk_norm", "unknown", "true")
    ]


def test_a_model_that_maxtext_cannot_make_is_one_difference() -> None:
    answer = ModelAnswer(leaves={}, values={}, problem="ValueError: no such decoder")
    compared = compare_with_maxtext(subject(), "scanned", answer)
    assert (compared.differences, compared.problem, compared.leaves) == (1, "ValueError: no such decoder", ())


def test_published_files() -> None:
    model = subject("envy-switch-base")
    values = {**model.configuration("scanned").keys, "num_experts_per_tok": 1, "load_balance_loss_weight": 0.01}
    compared = compare_published(model, values)
    assert compared.present
    assert [(one.key, one.expected, one.found) for one in compared.differences] == [
        ("num_experts_per_tok", "2", "1"),
        ("load_balance_loss_weight", "0.0", "0.01"),
    ]
    assert "two (Top2Gating)" in compared.differences[0].consequence
    assert compare_published(model, None) == dataclasses.replace(compared, present=False, differences=())


def test_every_key_of_every_bundled_table_has_a_consequence() -> None:
    for table in load_bundled():
        keys = {rule.key for rule in table.config} | set(table.conformance.defaults)
        assert keys == set(table.conformance.consequences), table.name
        assert table.conformance.maxtext, table.name
        assert table.conformance.axlearn, table.name


def test_axlearn_says_what_no_tensor_shows() -> None:
    model = subject("fuji-7B-v2")
    leaves = {**model.source_leaves(), "model/decoder/x/quantized_dot_general/input_scale": leaf(1)}
    answer = AXLearnAnswer(python="3", version="", peak_memory=1, leaves=leaves, lines="")
    theta = "model.decoder.transformer.layer.self_attention.attention.input_linear.rope_pos_emb_layer.theta"
    assert compare_with_axlearn(model, answer, {theta: 1e4}).differences == 0
    compared = compare_with_axlearn(model, answer, {theta: 5e5, "model.decoder.dim": 4097})
    assert [(one.key, one.status, one.kind) for one in compared.different_flags] == [
        ("rope_max_timescale", "other", "axlearn"),
        ("base_emb_dim", "other", "axlearn"),
    ]
    assert compared.different_leaves == ()  # scales of fp8 products are left behind


@pytest.mark.parametrize(
    ("version", "checked", "new"),
    [("0.2.5", ("0.2.5",), ()), ("0.2.6", ("0.2.5",), ("envy",)), ("", ("34aed43 (2026-07-08)",), ("envy",)),
     ("34aed43", ("34aed43 (2026-07-08)",), ())],
)  # fmt: skip
def test_versions_that_a_table_was_checked_with(version: str, checked: tuple[str, ...], new: tuple[str, ...]) -> None:
    one = Installed(framework="MaxText", interpreter="p", python="3", version=version, checked={"envy": checked})
    assert one.new_for == new
