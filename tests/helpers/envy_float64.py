"""AXLearn's Envy in float64, written down anew: what a float32 computation is held against.

RoPE's angles are rounded to float32, as both code bases do.
"""

from collections.abc import Callable

import numpy as np

from converter.forward.weights import Weights

Observer = Callable[[str, np.ndarray], None]


def reference_logits(weights: Weights, ids: np.ndarray, observe: Observer = lambda *_: None) -> np.ndarray:
    """Logits [sequences, positions, V] of ids [sequences, positions].

    Args:
      weights: an AXLearn checkpoint.
      ids: token ids.
      observe: called with the name, as in a golden's `intermediates.npz`, and the value of each intermediate.
    """
    table = weights.top["embedding"].read().astype(np.float64)
    x = table[ids]
    observe("embedding", x)
    for number, layer in enumerate(weights.layers):

        def tell(name: str, value: np.ndarray, number: int = number) -> None:
            observe(f"layer{number}/{name}", value)

        tensors = {name: view.read().astype(np.float64) for name, view in layer.items()}
        h = _norm(x, tensors["attention_norm"])
        tell("attn_norm", h)
        attended = _attention(h, tensors, tell)
        tell("attn_out", attended)
        x = x + attended
        tell("attn_residual", x)
        h = _norm(x, tensors["ffn_norm"])
        y = _experts(h, tensors) if "gate" in tensors else _dense(h, tensors["wi_0"], tensors["wi_1"], tensors["wo"])
        x = x + (_norm(y, tensors["post_ffn_norm"]) if "post_ffn_norm" in tensors else y)
        tell("out", x)
    return _norm(x, weights.top["final_norm"].read()) @ table.T


def _attention(h: np.ndarray, t: dict[str, np.ndarray], tell: Observer) -> np.ndarray:
    length, size = h.shape[1], t["query_scale"].shape[0]
    q = _rope(np.einsum("bsd,dnh->bsnh", h, t["query"]))
    k = _rope(np.einsum("bsd,dnh->bsnh", h, t["key"]))
    v = np.einsum("bsd,dnh->bsnh", h, t["value"])
    tell("q_post_rope", q)
    tell("k_post_rope", k)
    tell("v", v)
    q, k = _norm(q, t["query_scale"]) * size**-0.5, _norm(k, t["key_scale"])
    share = q.shape[2] // k.shape[2]
    scores = np.einsum("bqnh,bsnh->bnqs", q, np.repeat(k, share, axis=2))
    scores[..., np.triu(np.ones((length, length), bool), 1)] = -np.inf
    attended = np.einsum("bnqs,bsnh->bqnh", _softmax(scores), np.repeat(v, share, axis=2))
    return np.einsum("bqnh,nhd->bqd", attended, t["out"])


def _experts(h: np.ndarray, t: dict[str, np.ndarray]) -> np.ndarray:
    rows = h.reshape(-1, h.shape[-1])
    result = np.zeros_like(rows)
    for row, shares in enumerate(_softmax(rows @ t["gate"])):
        best = np.argsort(-shares)[:2]
        for expert in best:
            matrices = (t[f"expert_{name}"][expert] for name in ("wi_0", "wi_1", "wo"))
            result[row] += shares[expert] / (shares[best].sum() + 1e-9) * _dense(rows[row], *matrices)
    return result.reshape(h.shape)


def _dense(h: np.ndarray, wi_0: np.ndarray, wi_1: np.ndarray, wo: np.ndarray) -> np.ndarray:
    gate = h @ wi_0
    return (gate / (1 + np.exp(-gate)) * (h @ wi_1)) @ wo


def _rope(x: np.ndarray) -> np.ndarray:
    length, size = x.shape[1], x.shape[-1]
    base = np.float32(5e5) ** (2 * np.arange(size // 2, dtype=np.float32) / np.float32(size))
    angles = (np.arange(length, dtype=np.float32)[:, None] / base).astype(np.float64)[:, None]
    result = np.empty_like(x)
    result[..., 0::2] = x[..., 0::2] * np.cos(angles) - x[..., 1::2] * np.sin(angles)
    result[..., 1::2] = x[..., 1::2] * np.cos(angles) + x[..., 0::2] * np.sin(angles)
    return result


def _norm(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + 1e-5) * scale


def _softmax(x: np.ndarray) -> np.ndarray:
    shifted = np.exp(x - x.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)
