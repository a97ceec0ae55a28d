"""The fit of q/k norm scales: exact where it can be, closer where it cannot, and named where it was done."""

import json
from pathlib import Path

import numpy as np
import pytest

from converter.conversion.run import Request, convert
from converter.forward.comparison import compare, open_pair
from converter.forward.tokens import built_in, read_tokens
from converter.planning.qk_norm import _projections, fit
from converter.work import Silent
from tests.conftest import Cli
from tests.helpers.axlearn_checkpoint import STACK, envy_tensors, numpy_dtype, write_checkpoint
from tests.helpers.conversion import make_options

DATA = Path(__file__).parents[1] / "data" / "axlearn"


def measure(name: str, path: Path, mode: str, tokens_file: str | None):
    destination = str(path / mode)
    convert(Request(str(DATA / name), destination, make_options(untie=True, qk_norm=mode), overwrite=True), Silent())
    models = open_pair(str(DATA / name), destination, step=None, mapping=None, settings=[], norm_after=False)
    size = models[0].weights.vocabulary
    tokens = read_tokens(tokens_file, size) if tokens_file else built_in(size)
    return compare(*models, tokens, budget=4 << 30, limits=[], explain=True, progress=Silent())


@pytest.mark.parametrize("name", ["micro-hybrid", "envy-test", "envy-test-bf16"])
@pytest.mark.parametrize("length", ["golden", "long"])
def test_fit_lowers_the_divergence(name, length, tmp_path):
    tokens = str(DATA / name / "logits.npz") if length == "golden" else None
    plain, fitted = (measure(name, tmp_path, mode, tokens) for mode in ("plain", "fit"))
    assert fitted.difference.kl_mean < 0.85 * plain.difference.kl_mean
    assert fitted.destination.weights.fitted == {"query_scale", "key_scale"}
    assert [step.name for step in fitted.steps] == ["q/k norm before RoPE"]
    assert fitted.explained


def test_fit_leaves_exact_scales_alone(tmp_path):
    assert measure("micro-hybrid-qkpair", tmp_path, "fit", None).verdict == "equal"


def test_the_checkpoint_says_how_its_scales_were_made(tmp_path):
    for mode in ("plain", "fit"):
        convert(Request(str(DATA / "envy-test"), str(tmp_path / mode), make_options(qk_norm=mode)), Silent())
        content = json.loads((tmp_path / mode / "0" / "_CHECKPOINT_METADATA").read_text())
        assert content["custom_metadata"]["scan_layers"] is True
        assert content["custom_metadata"]["ax2mt"]["qk_norm"] == mode


def test_equal_products_are_split_exactly():
    query, key = np.array([2.0, 4.0, 1.5, 1.5], np.float32), np.array([6.0, 3.0, 0.3, 0.3], np.float32)
    fitted = fit(query, key, positions=64, theta=5e5)
    np.testing.assert_array_equal(fitted[0], [12, 12, 1.5, 1.5])
    np.testing.assert_array_equal(fitted[1], [1, 1, key[2], key[3]])


def equal_products(path: Path, dtype: str = "float32") -> Path:
    """A checkpoint whose q/k norm scales differ inside the pairs, their products only by rounding."""
    random = np.random.default_rng(7)
    tensors = envy_tensors(dtype=dtype)
    for layer in ("layer0", "layer1"):
        attention = f"{STACK}/{layer}/self_attention/attention"
        query = random.uniform(0.5, 2, tensors[f"{attention}/scale_query/norm/scale"].shape)
        product = np.repeat(random.uniform(0.5, 2, (*query.shape[:-1], query.shape[-1] // 2)), 2, axis=-1)
        kind = numpy_dtype(dtype)
        tensors[f"{attention}/scale_query/norm/scale"] = query.astype(kind)
        tensors[f"{attention}/scale_key/norm/scale"] = (product / query.astype(kind)).astype(kind)
    return write_checkpoint(path / "step_00000100", tensors)


def test_what_is_written_decides_whether_it_is_exact(cli: Cli, tmp_path: Path):
    source = equal_products(tmp_path)
    plain = cli("convert", source, tmp_path / "plain", "--untie", "--require-exact")
    assert plain.code == 7
    assert "of 4 of 4 layers differ inside rotated pairs; --qk-norm fit makes it exact" in plain.err
    assert not (tmp_path / "plain").exists()
    fitted = cli("convert", source, tmp_path / "fit", "--untie", "--require-exact", "--qk-norm", "fit", "--json")
    assert fitted.code == 0, fitted.err
    fidelity = fitted.document["fidelity"]
    assert (fidelity["exact_attention"], fidelity["exact_logits"]) == (True, True)
    assert all(pair["query"] > 1e-3 and 0 <= pair["product"] < 1e-6 for pair in fidelity["qk_norm_pairs"])
    compared = cli("verify", source, tmp_path / "fit", "--logits")
    assert compared.code == 0, compared.out
    assert "EQUAL: the same function" in compared.out
    assert "query*key" not in compared.out


def test_copied_scales_with_equal_products_are_not_exact(cli: Cli, tmp_path: Path):
    source = equal_products(tmp_path)
    done = cli("convert", source, tmp_path / "out", "--untie")
    assert done.code == 0, done.err
    assert "4 of 4 layers differ inside rotated pairs (the table above)" in done.out
    assert "--qk-norm fit makes stock MaxText exact" in done.out
    compared = cli("verify", source, tmp_path / "out", "--logits", "--json", "-q")
    assert compared.code == 6
    assert [cause["name"] for cause in compared.document["causes"]] == ["q/k norm before RoPE"]


@pytest.mark.parametrize(("name", "code"), [("micro-hybrid", 7), ("envy-test-bf16", 7), ("micro-hybrid-qkpair", 0)])
def test_a_fit_that_only_comes_closer_is_not_exact(name: str, code: int, cli: Cli, tmp_path: Path):
    done = cli("convert", DATA / name, tmp_path / "out", "--require-exact", "--qk-norm", "fit")
    assert done.code == code, done.err
    assert ("drop --require-exact" in done.err) == (code == 7)


def test_a_product_that_the_dtype_cannot_hold_is_not_exact(tmp_path: Path):
    source = equal_products(tmp_path, "bfloat16")
    result = convert(Request(str(source), str(tmp_path / "out"), make_options(qk_norm="fit")), Silent())
    assert not any(entry.exact for entry in result.mismatches)


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
