"""The fit of q/k norm scales: exact where it can be, closer where it cannot, and named where it was done."""

import json
from pathlib import Path

import numpy as np
import pytest

from converter.convert import Request, convert
from converter.logits_compare import compare, open_pair
from converter.plan import Options
from converter.progress import Silent
from converter.qk_norm import _projections, fit
from converter.tokens import built_in, read_tokens

DATA = Path(__file__).parent / "data" / "axlearn"


def measure(name: str, path: Path, mode: str, tokens_file: str | None):
    destination = str(path / mode)
    convert(Request(str(DATA / name), destination, Options(untie=True, qk_norm=mode), overwrite=True), Silent())
    models = open_pair(str(DATA / name), destination, step=None, mapping=None, settings=[], norm_after=False)
    size = models[0].weights.vocabulary
    tokens = read_tokens(tokens_file, size) if tokens_file else built_in(size)
    return compare(*models, tokens, budget=4 << 30, limits=[], explain=True, say=lambda _: None)


@pytest.mark.parametrize("name", ["micro-hybrid", "envy-test", "envy-test-bf16"])
@pytest.mark.parametrize("length", ["golden", "long"])
def test_fit_lowers_the_divergence(name, length, tmp_path):
    tokens = str(DATA / name / "logits.npz") if length == "golden" else None
    plain, fitted = (measure(name, tmp_path, mode, tokens) for mode in ("plain", "fit"))
    assert fitted.difference.kl_mean < 0.85 * plain.difference.kl_mean
    assert fitted.destination.weights.qk_norm == "fit"
    assert [step.name for step in fitted.steps] == ["q/k norm before RoPE"]
    assert fitted.explained


def test_fit_leaves_exact_scales_alone(tmp_path):
    assert measure("micro-hybrid-qkpair", tmp_path, "fit", None).verdict == "equal"


def test_the_checkpoint_says_how_its_scales_were_made(tmp_path):
    for mode in ("plain", "fit"):
        convert(Request(str(DATA / "envy-test"), str(tmp_path / mode), Options(qk_norm=mode)), Silent())
        content = json.loads((tmp_path / mode / "0" / "_CHECKPOINT_METADATA").read_text())
        assert content["custom_metadata"]["scan_layers"] is True
        assert content["custom_metadata"]["ax2mt"]["qk_norm"] == mode


def test_equal_products_are_split_exactly():
    query, key = np.array([2.0, 4.0, 1.5, 1.5], np.float32), np.array([6.0, 3.0, 0.3, 0.3], np.float32)
    fitted = fit(query, key, positions=64, theta=5e5)
    np.testing.assert_array_equal(fitted[0], [12, 12, 1.5, 1.5])
    np.testing.assert_array_equal(fitted[1], [1, 1, key[2], key[3]])


def test_signs_and_zeros_stay_finite():
    query, key = np.array([1.0, -1.0, 0.0, 0.0, -2.0, -1.0]), np.array([1.0, 1.0, 3.0, 0.0, 1.0, 1.0])
    fitted = fit(query, key, positions=64, theta=5e5)
    assert np.isfinite(fitted).all()
    assert (fitted[0][4:] * fitted[1][4:] < 0).all()


def test_projections_are_the_weighted_means_over_all_pairs_of_positions():
    across, along = _projections(4, 37, 5e5)
    m, n = np.tril_indices(37)
    weight = 1 / (m + 1.0) ** 2
    for pair, t in enumerate(5e5 ** (-np.arange(4) / 4)):
        cos, sin = np.cos((m - n) * t), np.sin((m - n) * t)
        w = (weight * np.cos((m + n) * t) * cos).sum() / (weight * cos**2).sum()
        u = (weight * np.sin((m + n) * t) * sin).sum() / (weight * sin**2).sum()
        np.testing.assert_allclose([across[pair], along[pair]], np.clip([w, u], -1, 1), rtol=1e-6)
