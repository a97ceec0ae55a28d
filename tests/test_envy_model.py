"""The forward pass against AXLearn's and MaxText's own logits, and against float64 on long sequences."""

from pathlib import Path

import numpy as np
import pytest

from converter import envy_model
from converter.axlearn_weights import axlearn_weights
from converter.envy_model import Variant, run
from converter.logits import open_weights
from converter.semantics import AXLEARN, Semantics, maxtext_semantics, read_config
from converter.source import open_source
from converter.tokens import Tokens, built_in
from converter.weights import Weights

DATA = Path(__file__).parent / "data"


def as_tokens(ids: np.ndarray) -> Tokens:
    count, length = ids.shape
    return Tokens(ids.reshape(-1), tuple((i * length, (i + 1) * length) for i in range(count)), "test")


def logits(weights: Weights, semantics: Semantics, tokens: Tokens, observe=None) -> np.ndarray:
    parts: list[np.ndarray] = []
    run(weights, [Variant(semantics)], tokens, lambda _, values: parts.append(values[0].copy()), observe=observe)
    return np.concatenate(parts)


@pytest.mark.parametrize(
    "name", ["micro-hybrid", "micro-hybrid-qkpair", "micro-hybrid-sharded", "envy-test", "envy-test-bf16"]
)
def test_axlearn_logits_and_intermediates(name):
    golden = np.load(DATA / "axlearn" / name / "logits.npz")
    weights, is_axlearn = open_weights(str(DATA / "axlearn" / name))
    assert is_axlearn
    seen: dict[str, np.ndarray] = {}
    found = logits(
        weights, AXLEARN, as_tokens(golden["input_ids"]), lambda key, value: seen.update({key: value.copy()})
    )
    np.testing.assert_allclose(found.reshape(golden["logits"].shape), golden["logits"], rtol=0, atol=1e-5)
    inside = np.load(DATA / "axlearn" / name / "intermediates.npz")
    assert set(inside.files) <= set(seen)
    for key in inside.files:
        atol = 1e-5 * max(1.0, np.abs(inside[key]).max())
        np.testing.assert_allclose(seen[key].reshape(inside[key].shape), inside[key], rtol=0, atol=atol, err_msg=key)


@pytest.mark.parametrize("name", ["micro-hybrid", "micro-hybrid-qkpair", "envy-test"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("after", [True, False])
def test_maxtext_logits(name, tied, after):
    golden = np.load(DATA / "maxtext" / name / "logits.npz")
    weights, is_axlearn = open_weights(str(DATA / "maxtext" / name / ("scanned" if tied else "scanned-untied")))
    assert not is_axlearn
    config = read_config(None, [], has_unembedding=not tied)
    semantics = maxtext_semantics(config, norm_after_rope=after, has_unembedding=not tied)
    found = logits(weights, semantics, as_tokens(golden["input_ids"]))
    wanted = golden[f"maxtext_{'norm_after_rope' if after else 'stock'}_{'tied' if tied else 'untied'}"]
    np.testing.assert_allclose(found.reshape(wanted.shape), wanted, rtol=0, atol=1e-5)


def test_long_sequence_against_float64():
    weights, _ = open_weights(str(DATA / "axlearn" / "micro-hybrid"))
    tokens = built_in(weights.vocabulary, 700)
    wanted = reference_logits(weights, tokens.ids)
    np.testing.assert_allclose(logits(weights, AXLEARN, tokens), wanted, rtol=0, atol=1e-5)


def test_pieces_do_not_change_the_result(monkeypatch):
    weights, _ = open_weights(str(DATA / "axlearn" / "micro-hybrid"))
    ids = built_in(weights.vocabulary, 70).ids
    tokens = Tokens(ids, ((0, 50), (50, 51), (51, 70)), "test")
    whole = logits(weights, AXLEARN, tokens)
    alone = [logits(weights, AXLEARN, as_tokens(ids[None, a:b])) for a, b in tokens.sequences]
    np.testing.assert_allclose(np.concatenate(alone), whole, rtol=0, atol=1e-5)
    monkeypatch.setattr(envy_model, "SCORES", 4 * 4 * 50 * 7)
    monkeypatch.setattr(envy_model, "LOGITS", 4 * 64 * 9)
    np.testing.assert_allclose(logits(weights, AXLEARN, tokens), whole, rtol=0, atol=1e-5)


def test_only_the_experts_of_the_tokens_are_read(monkeypatch):
    weights, _ = open_weights(str(DATA / "axlearn" / "micro-hybrid"))
    read: set[int] = set()
    genuine = envy_model._apply_experts

    def spy(inputs, view):
        read.update(inputs)
        return genuine(inputs, view)

    monkeypatch.setattr(envy_model, "_apply_experts", spy)
    shares = []
    monkeypatch.setattr(envy_model._Forward, "_route", keep_result(envy_model._Forward._route, shares))
    logits(weights, AXLEARN, as_tokens(np.array([[5]], np.int32)))
    assert read == {int(expert) for chosen, _ in shares for expert in chosen.reshape(-1)}
    assert all(chosen.shape == (1, 2) for chosen, _ in shares)


def keep_result(method, results):
    def wrapped(*arguments):
        results.append(method(*arguments))
        return results[-1]

    return wrapped


def reference_logits(weights: Weights, ids: np.ndarray) -> np.ndarray:
    """AXLearn's Envy in float64, written down anew; RoPE's angles are rounded to float32 as in both code bases."""

    def norm(x, scale):
        return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + 1e-5) * scale

    def silu(x):
        return x / (1 + np.exp(-x))

    def softmax(x):
        shifted = np.exp(x - x.max(-1, keepdims=True))
        return shifted / shifted.sum(-1, keepdims=True)

    table = weights.top["embedding"].read().astype(np.float64)
    x = table[ids]
    length = len(ids)
    for layer in weights.layers:
        t = {name: view.read().astype(np.float64) for name, view in layer.items()}
        size = t["query_scale"].shape[0]
        base = np.float32(5e5) ** (2 * np.arange(size // 2, dtype=np.float32) / np.float32(size))
        angles = (np.arange(length, dtype=np.float32)[:, None] / base).astype(np.float64)[:, None]

        def rope(v, angles=angles):
            out = np.empty_like(v)
            out[..., 0::2] = v[..., 0::2] * np.cos(angles) - v[..., 1::2] * np.sin(angles)
            out[..., 1::2] = v[..., 1::2] * np.cos(angles) + v[..., 0::2] * np.sin(angles)
            return out

        h = norm(x, t["attention_norm"])
        q = norm(rope(np.einsum("sd,dnh->snh", h, t["query"])), t["query_scale"]) * size**-0.5
        k = norm(rope(np.einsum("sd,dnh->snh", h, t["key"])), t["key_scale"])
        v = np.einsum("sd,dnh->snh", h, t["value"])
        share = q.shape[1] // k.shape[1]
        scores = np.einsum("qnh,snh->nqs", q, np.repeat(k, share, axis=1))
        scores[:, np.triu(np.ones((length, length), bool), 1)] = -np.inf
        attended = np.einsum("nqs,snh->qnh", softmax(scores), np.repeat(v, share, axis=1))
        x = x + np.einsum("qnh,nhd->qd", attended, t["out"])
        h = norm(x, t["ffn_norm"])
        if "gate" in t:
            p = softmax(h @ t["gate"])
            top = np.argsort(-p, axis=-1)[:, :2]
            y = np.zeros_like(x)
            for row in range(length):
                total = p[row, top[row]].sum() + 1e-9
                for e in top[row]:
                    inner = silu(h[row] @ t["expert_wi_0"][e]) * (h[row] @ t["expert_wi_1"][e])
                    y[row] += p[row, e] / total * (inner @ t["expert_wo"][e])
        else:
            y = (silu(h @ t["wi_0"]) * (h @ t["wi_1"])) @ t["wo"]
        x = x + (norm(y, t["post_ffn_norm"]) if "post_ffn_norm" in t else y)
    return norm(x, weights.top["final_norm"].read()) @ table.T


def test_other_families_are_refused():
    from converter.errors import MappingError

    source = open_source(str(DATA / "axlearn" / "micro-hybrid"), mapping=None)
    object.__setattr__(source.match.table, "name", "other")
    with pytest.raises(MappingError, match="Envy models only"):
        axlearn_weights(source)
