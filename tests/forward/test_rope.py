"""Logits of weights whose rotated pairs are as AXLearn has them, and of the configuration that does not fit them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from converter.errors import UsageError
from converter.forward.model import _scaled_frequencies
from converter.forward.semantics import HALVES, INTERLEAVED
from tests.forward.test_families import causes, compared, computed, difference
from tests.helpers.families import FAMILIES

MISSING, APPLIED = "RoPE permutation missing on ", "RoPE permutation applied to "
SCALED = "RoPE's low frequencies scaled as in Llama 3.1"
EQUAL_PAIRS = "micro-hybrid-qkpair"


@pytest.mark.parametrize("name", [EQUAL_PAIRS, *FAMILIES])
def test_logits_are_those_of_axlearn(name: str, converted: Callable[..., Path], tmp_path: Path) -> None:
    family = FAMILIES.get(name)
    untie, fit = family is None or family.tied, family is not None and family.fit
    target = converted(name, untie=untie, qk_norm="fit" if fit else "plain", rope="interleaved")
    limit = 1e-5 if family is None else family.rounding
    assert difference(computed(target, name, tmp_path), name) < limit
    result = compared(name, target)
    assert (result.verdict, result.findings) == ("equal", ())
    assert result.destination.semantics.query_order == INTERLEAVED
    assert all(entry.exact for entry in result.mismatches)


def test_unequal_pairs_need_the_norm_after_rope(converted: Callable[..., Path], tmp_path: Path) -> None:
    name = "micro-honeycrisp"
    target = converted(name, untie=True, rope="interleaved")
    assert 0.3 < difference(computed(target, name, tmp_path), name) < 0.6
    assert difference(computed(target, name, tmp_path, norm_after_rope=True), name) < 1e-5


@pytest.mark.parametrize(
    ("name", "rope", "settings", "found"),
    [
        (EQUAL_PAIRS, "interleaved", ["rope_type=default"], [f"{MISSING}q, k and both scales"]),
        ("micro-fuji-gqa", "interleaved", ["rope_use_scale=true"], [SCALED]),
        (EQUAL_PAIRS, "permuted", ["rope_type=llama3.1", "rope_use_scale=false"], [f"{APPLIED}q, k and both scales"]),
        ("micro-fuji-gqa", "interleaved", ["rope_type=default"], [f"{MISSING}q and k"]),
        ("micro-fuji-gqa", "permuted", ["rope_type=llama3.1"], [f"{APPLIED}q and k", SCALED]),
    ],
)
def test_a_wrong_key_is_named(
    name: str, rope: str, settings: list[str], found: list[str], converted: Callable[..., Path]
) -> None:
    target = converted(name, untie=name == EQUAL_PAIRS, rope=rope)
    result = compared(name, target, tuple(settings))
    assert set(causes(result)) == set(found)
    advice = " ".join(step.advice for step in result.steps)
    if MISSING in found[0]:
        assert "set rope_type=llama3.1 and rope_use_scale=false in maxtext.yml, as `convert --rope inter" in advice
    if APPLIED in found[0]:
        assert "take rope_type and rope_use_scale out of maxtext.yml" in advice
    assert ("set rope_use_scale=false" in advice) == (SCALED in found)


def test_heads_are_recognised_in_either_order(converted: Callable[..., Path]) -> None:
    wrong = compared(EQUAL_PAIRS, converted(EQUAL_PAIRS, untie=True, rope="interleaved"), ("rope_type=default",))
    assert [line.split(":")[0] for line in wrong.findings] == ["query", "key"]
    assert all(f"pairs {INTERLEAVED}; expected" in line and line.endswith(HALVES) for line in wrong.findings)


def test_the_order_is_known_without_a_configuration(converted: Callable[..., Path], tmp_path: Path) -> None:
    made = converted(EQUAL_PAIRS, untie=True, rope="interleaved")
    (tmp_path / "0").symlink_to(made / "0")
    assert difference(computed(tmp_path / "0", EQUAL_PAIRS, tmp_path), EQUAL_PAIRS) < 1e-5


def test_another_rope_is_refused(converted: Callable[..., Path]) -> None:
    with pytest.raises(UsageError, match=r"rope_type is 'yarn'; logits are computed for default and llama3\.1 only"):
        compared(EQUAL_PAIRS, converted(EQUAL_PAIRS, untie=True), ("rope_type=yarn",))


def test_frequencies_of_llama() -> None:
    """As in MaxText's LLaMARotaryEmbedding, by wavelength: kept below 2048, divided by 8 above 8192."""
    waves = np.array([6.0, 2047.0, 4096.0, 8193.0, 1e6])
    smooth = (8192 / 4096 - 1) / 3
    factors = np.array([1, 1, (1 - smooth) / 8 + smooth, 1 / 8, 1 / 8])
    found = np.asarray(_scaled_frequencies((2 * np.pi / waves).astype(np.float32)))
    np.testing.assert_allclose(found, 2 * np.pi / waves * factors, rtol=1e-5)
