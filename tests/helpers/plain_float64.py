"""A plain dense decoder in float64, from its tensors alone: pre-norm, grouped-query attention, no q/k norms, SiLU gate.

It shares no code with the converter. RoPE's angles are rounded to float32, as AXLearn and MaxText do.
"""

from collections.abc import Mapping, Sequence

import numpy as np

THETA, EPSILON = 500_000, 1e-5


def plain_logits(
    ids: np.ndarray,
    embedding: np.ndarray,
    layers: Sequence[Mapping[str, np.ndarray]],
    final_norm: np.ndarray,
    unembedding: np.ndarray | None = None,
) -> np.ndarray:
    """Logits [positions, V] of one sequence.

    Args:
      ids: token ids [positions].
      embedding: [V,D].
      layers: tensors by role, rotated pairs side by side: attention_norm, ffn_norm [D], query [D,N,H], key and value
        [D,K,H], out [D,N,H], wi_0 and wi_1 [D,F], wo [F,D].
      final_norm: [D].
      unembedding: [V,D]; None for tied logits.
    """
    x = embedding[ids].astype(np.float64)
    for layer in layers:
        t = {role: values.astype(np.float64) for role, values in layer.items()}
        x = x + _attention(_norm(x, t["attention_norm"]), t)
        h = _norm(x, t["ffn_norm"])
        gate = h @ t["wi_0"]
        x = x + (gate / (1 + np.exp(-gate)) * (h @ t["wi_1"])) @ t["wo"]
    return _norm(x, final_norm) @ (embedding if unembedding is None else unembedding).T.astype(np.float64)


def _attention(h: np.ndarray, t: Mapping[str, np.ndarray]) -> np.ndarray:
    q, k = (_rope(np.einsum("sd,dnh->snh", h, t[name])) for name in ("query", "key"))
    v = np.einsum("sd,dnh->snh", h, t["value"])
    group = q.shape[1] // k.shape[1]
    result = np.zeros(h.shape)
    for head in range(q.shape[1]):
        scores = q[:, head] @ k[:, head // group].T / np.sqrt(q.shape[-1])
        scores[np.triu_indices(len(h), 1)] = -np.inf
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        result += shares @ v[:, head // group] @ t["out"][:, head].T
    return result


def _rope(x: np.ndarray) -> np.ndarray:
    size = x.shape[-1]
    base = np.float32(THETA) ** (2 * np.arange(size // 2, dtype=np.float32) / np.float32(size))
    angles = (np.arange(len(x), dtype=np.float32)[:, None] / base).astype(np.float64)[:, None]
    turned = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angles)
    return np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)


def _norm(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + EPSILON) * scale
