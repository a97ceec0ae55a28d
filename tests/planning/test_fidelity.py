"""How unequal q/k norm scales are inside the rotated pairs: exact figures, and that they belong to the right layer."""

import dataclasses
import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import converter
from converter.errors import MappingError
from converter.mapping import MappingTable, load_mapping
from converter.mapping.bundled import table_path
from converter.planning.fidelity import PairMismatch, Remedies, pair_mismatches, scale_mismatches
from converter.planning.source import open_source
from converter.report.plan import fidelity_lines
from tests.helpers.axlearn_checkpoint import STACK, envy_tensors, write_checkpoint

ENVY = Path(table_path("envy")).read_text()
QUERY = "{}/layer{}/self_attention/attention/scale_query/norm/scale"
KEY = "{}/layer{}/self_attention/attention/scale_key/norm/scale"


def measured(query: list[float], key: list[float]) -> tuple[float, float, float]:
    copied = np.array(query, np.float32), np.array(key, np.float32)
    found = scale_mismatches(7, *copied, *copied)
    assert found.layer == 7
    assert found.exact is (found.query == 0 and found.key == 0)
    return found.product, found.query, found.key


@pytest.mark.parametrize(
    ("query", "key", "due"),
    [
        ([2, 2, 5, 5], [3, 3, 1, 1], (0, 0, 0)),
        ([1, 3], [1, 1], (0.5, 0.5, 0)),
        ([1, 1, 1, 3, 1, 1], [1, 1, 1, 1, 9, 7], (0.5, 0.5, 0.125)),  # the worst pair of each counts
        ([1, 2, 5, 5], [2, 1, 5, 5], (0, 1 / 3, 1 / 3)),  # only the products are equal: not exact as copied
        ([0, 5], [1, 1], (1, 1, 0)),
        ([0, 0], [1, 2], (0, 0, 1 / 3)),
        ([1, -1], [1, 1], (math.inf, math.inf, 0)),
        ([-1, -3], [1, 1], (0.5, 0.5, 0)),
        ([0.0, -0.0], [1, 1], (0, 0, 0)),
        ([math.nan, 1], [1, 1], (math.inf, math.inf, 0)),
        ([math.inf, math.inf], [1, 1], (0, 0, 0)),
        ([math.inf, 1], [1, 1], (math.inf, math.inf, 0)),
    ],
)
def test_figures(query: list[float], key: list[float], due: tuple[float, float, float]) -> None:
    assert measured(query, key) == due


def test_pairs_are_neighbours_not_halves() -> None:
    assert measured([1, 1, 3, 3], [1, 1, 1, 1]) == (0, 0, 0)
    assert measured([1, 3, 1, 3], [1, 1, 1, 1]) == (0.5, 0.5, 0)


def test_products_are_not_rounded_to_the_scales_dtype() -> None:
    # 1.0078125 squared needs 15 bits; in bfloat16 it would be equal to 1.015625.
    query, key = (np.array([1.0078125, other], ml_dtypes.bfloat16) for other in (1.015625, 1.0))
    found = scale_mismatches(0, query, key, query, key)
    assert found.product == (1.0078125**2 - 1.015625) / (1.0078125**2 + 1.015625) > 0


scales = st.lists(st.floats(0.125, 8, width=32), min_size=4, max_size=4)


@given(query=scales, key=scales, exponent=st.integers(-4, 4))
def test_a_figure_depends_on_ratios_inside_pairs_only(query: list[float], key: list[float], exponent: int) -> None:
    due = measured(query, key)
    assert measured([value * 2.0**exponent for value in query], key) == due
    assert measured([query[n] for n in (3, 2, 1, 0)], [key[n] for n in (3, 2, 1, 0)]) == due
    assert measured(key, query) == (due[0], due[2], due[1])
    assert (due[1] == 0) == (query[0] == query[1] and query[2] == query[3])
    assert all(0 <= figure < 1 for figure in due)


def test_every_layer_gets_its_own_figure(tmp_path: Path) -> None:
    tensors = envy_tensors()
    for block in (0, 1):
        for name in (QUERY, KEY):
            tensors[name.format(STACK, block)] = np.ones((2, 6), np.float32)
    # The cycle of two layers comes twice: layer number = repeat * 2 + block.
    tensors[QUERY.format(STACK, 1)][0, 5] = 3
    tensors[KEY.format(STACK, 0)][1, 2] = 7
    source = open_source(str(write_checkpoint(tmp_path / "step_00000100", tensors)))
    assert pair_mismatches(source, {}) == (
        PairMismatch(0, 0, 0, 0, True),
        PairMismatch(1, 0.5, 0.5, 0, False),
        PairMismatch(2, 0.75, 0, 0.75, False),
        PairMismatch(3, 0, 0, 0, True),
    )


@pytest.fixture
def step(tmp_path: Path) -> str:
    return str(write_checkpoint(tmp_path / "step_00000100", envy_tensors()))


def with_table(step: str, tmp_path: Path, text: str) -> tuple[PairMismatch, ...]:
    assert text != ENVY
    (tmp_path / "table.toml").write_text(text)
    return pair_mismatches(open_source(step, mapping=str(tmp_path / "table.toml")), {})


def test_a_table_without_norms_says_nothing(step: str, tmp_path: Path) -> None:
    text = ENVY.replace('role = "query_scale"\n', "").replace('role = "key_scale"\n', "")
    assert with_table(step, tmp_path, text) == ()


def test_scales_that_are_none(step: str, tmp_path: Path) -> None:
    text = ENVY.replace('role = "key_scale"\n', "").replace('role = "attention_norm"', 'role = "key_scale"')
    with pytest.raises(MappingError) as caught:
        with_table(step, tmp_path, text)
    assert caught.value.message == (
        f"mapping 'envy': q and k scales must have one even length, found [2, 6] and [2, 12] at {STACK}/layer0"
    )


def changed_envy(tmp_path: Path, *changes: tuple[str, str]) -> MappingTable:
    text = Path(table_path("envy")).read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "table.toml").write_text(text)
    return load_mapping(str(tmp_path / "table.toml"))


def test_advice_names_the_options_of_the_table(tmp_path: Path) -> None:
    own_name = ('"untie"', '"copy"')
    no_fit = ('fit = "qk_norm"\n', "")
    assert Remedies.of(changed_envy(tmp_path)) == Remedies(untie="--untie", fit="--qk-norm fit")
    assert Remedies.of(changed_envy(tmp_path, own_name)) == Remedies(untie="--option copy", fit="--qk-norm fit")
    assert Remedies.of(changed_envy(tmp_path, no_fit)) == Remedies(untie="--untie")
    always_tied = ('{ unless = "untie" }', "true")
    assert Remedies.of(changed_envy(tmp_path, no_fit, always_tied)) == Remedies()


def test_lines_without_options_give_no_advice_that_fails() -> None:
    plan = dataclasses.replace(
        converter.plan(Path(__file__).parents[1] / "data" / "axlearn" / "micro-hybrid"), remedies=Remedies()
    )
    unequal = PairMismatch(layer=0, product=0.5, query=0.5, key=0.5, exact=False)
    separable = PairMismatch(layer=0, product=0.0, query=0.5, key=0.5, exact=False)
    for mismatch in (unequal, separable):
        text = "\n".join(fidelity_lines(plan, (mismatch,)))
        assert "NOT EXACT" in text
        assert "converter.maxtext_patch" in text
        assert "Tied logits" in text
        assert "--" not in text
