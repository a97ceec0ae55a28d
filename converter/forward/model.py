"""A decoder's forward pass, in JAX on the CPU, float32, with weights that are read as they are needed.

One code computes what AXLearn computes and what MaxText computes; `Semantics` holds every point in which the two can
differ. Several variants run side by side on one reading of the weights, so that a difference can be traced to its cause
at the price of one pass. Every matrix is used block by block and never whole; of the experts only those are read
that some token was routed to. Facts: docs/exactness.md.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from converter.forward.finite import NonFinite, find_non_finite
from converter.forward.semantics import INTERLEAVED, Semantics
from converter.forward.tokens import Tokens
from converter.forward.views import View
from converter.forward.weights import Weights

Observer = Callable[[str, np.ndarray], None]
Sink = Callable[[int, np.ndarray], None]

SCORES = 32 << 20
"""Bytes of attention scores that exist at a time, in each of the few arrays that a softmax takes."""

ATTENTION = ("attention_norm", "query", "key", "value", "query_scale", "key_scale", "out")
"""Names of a layer's weights that its attention uses."""

FRAGMENTS = 1.25
"""Memory that was freed comes back in other sizes: what the process takes beyond the largest need, measured."""

LOGITS = 128 << 20
"""Bytes of logits that exist at a time."""


@dataclass(frozen=True)
class Variant:
    """One model to run.

    Attributes:
      semantics: what is computed.
      replaced: tensors of every layer that are taken from other weights, by name; for "what if" questions.
    """

    semantics: Semantics
    replaced: Mapping[str, Weights] | None = None

    def view(self, weights: Weights, layer: int, name: str) -> View:
        """The tensor that this variant uses."""
        chosen = (self.replaced or {}).get(name, weights)
        return chosen.layers[layer][name]


def run(
    weights: Weights,
    variants: Sequence[Variant],
    tokens: Tokens,
    sink: Sink,
    *,
    observe: Observer | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> NonFinite | None:
    """Computes logits of all tokens.

    Args:
      weights: the checkpoint.
      variants: what to compute; all on one reading of the weights.
      tokens: the sequences; each token sees itself and those before it in its sequence.
      sink: called with the number of a first token and logits [variants, tokens, V] from there on, in order.
      observe: called with a name and the first variant's intermediate values; q and k in AXLearn's or MaxText's order
        of the head dimension, as the checkpoint has them.
      progress: notified when a layer begins.

    Returns:
      Where NaN or infinity first appears in any variant; None where all values are finite.

    Raises:
      SourceError: a tensor cannot be read.
    """
    with jax.default_device(jax.devices("cpu")[0]), jax.default_matmul_precision("float32"):
        model = _Forward(weights, variants, tokens, observe or (lambda *_: None))
        model.embed()
        for layer in range(len(weights.layers)):
            progress(f"layer {layer + 1} of {len(weights.layers)}")
            model.layer(layer)
        progress("logits")
        model.logits(sink)
    return model.non_finite


def working_memory(weights: Weights, variants: Sequence[Variant], tokens: int) -> int:
    """Bytes that a run takes beyond the interpreter itself: activations, attention, logits, blocks in flight."""
    layer = weights.layers[0]
    _, heads, size = layer["query"].shape
    kv_heads = layer["key"].shape[1]
    rows = len(variants) * tokens
    # The residual, its norm, a result and a block's part of it; the rows gathered for experts and theirs.
    hidden = rows * weights.width * 4 * 8
    # q, k and v as projected; q and k turned; attended values and a part of them; the compiler's copies of k and v. A
    # softmax takes four arrays of scores.
    attention = rows * (4 * heads + 11 * kv_heads) * size * 4 + SCORES * 4
    # Gate, value, and their product or a block's part. Of a group of experts each may be chosen by all, rows filled up.
    dense, sparse = (
        max((each[name].shape[-1] for each in weights.layers if name in each), default=0)
        for name in ("wi_0", "expert_wi_0")
    )
    chosen = 1.25 * max(variant.semantics.top_k for variant in variants)
    ffn = rows * max(4 * dense, 3 * chosen * sparse) * 4
    needed = hidden + max(attention, ffn, LOGITS * 3) + weights.largest_block
    return int(needed * FRAGMENTS)


class _Forward:
    def __init__(self, weights: Weights, variants: Sequence[Variant], tokens: Tokens, observe: Observer):
        self.weights = weights
        self.variants = variants
        self.tokens = tokens
        self.observe = observe
        self.rows = len(tokens.ids)
        self.x = np.zeros((len(variants), self.rows, weights.width), np.float32)
        self.non_finite: NonFinite | None = None
        self._swapped = np.array([variant.semantics.gate == "wi_1" for variant in variants])
        """Variants whose two inner projections change places."""

    def embed(self) -> None:
        wanted, places = np.unique(self.tokens.ids, return_inverse=True)
        table = np.zeros((len(wanted), self.weights.width), np.float32)
        for block in self.weights.top["embedding"].blocks([int(token) for token in wanted]):
            at = np.searchsorted(wanted, block.rows)
            table[at, block.start[0] : block.start[0] + block.values.shape[1]] = block.values
        self.x[:] = table[places]
        self._look(self.x, "embedding", {"embedding": self.weights.top["embedding"]})
        self.observe("embedding", self.x[0])

    def layer(self, number: int) -> None:
        tensors = self.weights.layers[number]
        normed = self._norm(self.x, tensors["attention_norm"])
        self.observe(f"layer{number}/attn_norm", normed[0])
        attended = self._attention(number, normed)
        self.observe(f"layer{number}/attn_out", attended[0])
        self.x += attended
        attention = {name: tensors[name] for name in ATTENTION if name in tensors}
        self._look(self.x, f"layer {number}, attention", attention)
        self.observe(f"layer{number}/attn_residual", self.x[0])
        normed = self._norm(self.x, tensors["ffn_norm"])
        result = self._experts(number, normed) if "gate" in tensors else self._dense(number, normed)
        if "post_ffn_norm" in tensors:
            result = self._norm(result, tensors["post_ffn_norm"])
        self.x += result
        feed_forward = {name: view for name, view in tensors.items() if name not in ATTENTION}
        self._look(self.x, f"layer {number}, feed-forward", feed_forward)
        self.observe(f"layer{number}/out", self.x[0])

    def logits(self, sink: Sink) -> None:
        normed = self._norm(self.x, self.weights.top["final_norm"])
        count, vocabulary = len(self.variants), self.weights.vocabulary
        step = max(1, LOGITS // (4 * vocabulary * count))
        for start in range(0, self.rows, step):
            part = normed[:, start : start + step]
            values = self._unembed(part)
            self._look(values, "logits", self.weights.top)
            sink(start, values)

    def _look(self, values: np.ndarray, place: str, used: Mapping[str, View]) -> None:
        """Notes the first place with values that are not finite."""
        self.non_finite = self.non_finite or find_non_finite(values, place, used)

    def _unembed(self, x: np.ndarray) -> np.ndarray:
        result = np.zeros((*x.shape[:2], self.weights.vocabulary), np.float32)
        groups: dict[tuple[bool, bool], list[int]] = {}
        for number, variant in enumerate(self.variants):
            key = variant.semantics.tied, variant.semantics.tied and variant.semantics.round_table
            groups.setdefault(key, []).append(number)
        for tied in {tied for tied, _ in groups}:
            view = self.weights.top["embedding" if tied else "unembedding"]
            for block in view.blocks():
                rows = slice(block.rows[0], block.rows[-1] + 1)
                other = slice(block.start[0], block.start[0] + block.values.shape[1])
                matrix = block.values.T if tied else block.values
                inner, outer = (other, rows) if tied else (rows, other)
                for (is_tied, rounded), members in groups.items():
                    if is_tied == tied:
                        used = matrix.astype(ml_dtypes.bfloat16).astype(np.float32) if rounded else matrix
                        result[members, :, outer] += _dot(x[members, :, inner], used)
        for number, variant in enumerate(self.variants):
            if variant.semantics.tied and variant.semantics.normalize_logits:
                result[number] /= np.sqrt(np.float32(self.weights.width))
        return result

    def _attention(self, number: int, x: np.ndarray) -> np.ndarray:
        projected = [self._project(number, name, x) for name in ("query", "key", "value")]
        result = np.empty(projected[0].shape, np.float32)
        for index, variant in enumerate(self.variants):
            meaning = variant.semantics
            query, key, value = (array[index] for array in projected)
            query = self._position(index, number, "query", query, meaning.query_order)
            key = self._position(index, number, "key", key, meaning.key_order)
            if index == 0:
                self.observe(f"layer{number}/v", value)
            for start, stop in self.tokens.sequences:
                rows = slice(start, stop)
                _attend(query[rows], key[rows], value[rows], result[index, rows], meaning.score_power)
        return self._apply(result, self.weights.layers[number]["out"], inputs=2)

    def _project(self, number: int, name: str, x: np.ndarray) -> np.ndarray:
        own = self.weights.layers[number][name]
        result = self._apply(x, own)
        for index, variant in enumerate(self.variants):
            view = variant.view(self.weights, number, name)
            if view is not own:
                result[index] = self._apply(x[index], view)
        return result

    def _position(self, index: int, number: int, side: str, x: np.ndarray, order: str) -> np.ndarray:
        """RoPE and the q/k norm, if any, in a variant's sequence; the result has rotated pairs as halves."""
        variant = self.variants[index]
        meaning = variant.semantics
        scale = None
        if f"{side}_scale" in self.weights.layers[number]:
            scale = _halves(variant.view(self.weights, number, f"{side}_scale").read(), meaning.scale_order)
        x = _halves(x, order)
        if scale is not None and not meaning.norm_after_rope:
            x = np.asarray(_rms_norm(x, scale, meaning.epsilon))
        x = np.asarray(_rope(x, self.tokens.positions, meaning.theta, meaning.scaled_frequencies))
        if index == 0:
            self.observe(f"layer{number}/{side[0]}_post_rope", _stored_order(x, order))
        return np.asarray(_rms_norm(x, scale, meaning.epsilon)) if scale is not None and meaning.norm_after_rope else x

    def _dense(self, number: int, x: np.ndarray) -> np.ndarray:
        tensors = self.weights.layers[number]
        first, second = (self._apply(x, tensors[name]) for name in ("wi_0", "wi_1"))
        return self._apply(_gated(first, second, self._swapped), tensors["wo"])

    def _experts(self, number: int, x: np.ndarray) -> np.ndarray:
        tensors = self.weights.layers[number]
        flat = x.reshape(-1, x.shape[-1])
        chosen, shares = self._route(self._apply(x, tensors["gate"]))
        result = np.zeros_like(flat)
        names = "expert_wi_0", "expert_wi_1", "expert_wo"
        for group in max((tensors[name].row_groups for name in names), key=lambda groups: len(groups[0])):
            rows = {expert: np.nonzero(chosen == expert) for expert in group if np.any(chosen == expert)}
            if not rows:
                continue
            inputs = {expert: _padded(flat[at]) for expert, (at, _) in rows.items()}
            gate, value = (_apply_experts(inputs, tensors[name]) for name in names[:2])
            gated: dict[int, np.ndarray] = {}
            for expert, (at, _) in rows.items():
                swapped = np.zeros(len(inputs[expert]), bool)
                swapped[: len(at)] = self._swapped[at // self.rows]
                gated[expert] = _gated(gate.pop(expert), value.pop(expert), swapped)
            outputs = _apply_experts(gated, tensors[names[2]])
            for expert, (at, slot) in rows.items():
                result[at] += outputs[expert][: len(at)] * shares[at, slot, None]
        return result.reshape(x.shape)

    def _route(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The experts of each row [rows, most], -1 where a variant has fewer, and their shares."""
        most = max(variant.semantics.top_k for variant in self.variants)
        chosen = np.full((*scores.shape[:2], most), -1, np.int64)
        shares = np.zeros(chosen.shape, np.float32)
        for index, variant in enumerate(self.variants):
            meaning = variant.semantics
            weights, experts = _top_experts(scores[index], meaning.top_k, meaning.renormalise, meaning.share_epsilon)
            chosen[index, :, : meaning.top_k] = experts
            shares[index, :, : meaning.top_k] = weights
        return chosen.reshape(-1, most), shares.reshape(-1, most)

    def _norm(self, x: np.ndarray, view: View) -> np.ndarray:
        scale = view.read()
        return np.stack([np.asarray(_rms_norm(x[i], scale, v.semantics.epsilon)) for i, v in enumerate(self.variants)])

    def _apply(self, x: np.ndarray, view: View, *, inputs: int = 1) -> np.ndarray:
        """Multiplies the last axes of x with the first axes of a tensor."""
        outputs = view.shape[inputs:]
        lead = x.shape[: x.ndim - inputs]
        flat = x.reshape(-1, *view.shape[:inputs])
        result = np.zeros((len(flat), *outputs), np.float32)
        for block in view.blocks():
            starts = (block.rows[0], *block.start)
            box = [slice(at, at + length) for at, length in zip(starts, block.values.shape, strict=True)]
            size = np.prod([s.stop - s.start for s in box[:inputs]], dtype=int)
            part = flat[(slice(None), *box[:inputs])].reshape(len(flat), size)
            product = _dot(part, block.values.reshape(size, -1))
            result[(slice(None), *box[inputs:])] += product.reshape(len(flat), *block.values.shape[inputs:])
        return result.reshape(*lead, *outputs)


def _apply_experts(inputs: Mapping[int, np.ndarray], view: View) -> dict[int, np.ndarray]:
    """Multiplies each expert's rows with its matrix."""
    result = {expert: np.zeros((len(rows), view.shape[2]), np.float32) for expert, rows in inputs.items()}
    for block in view.blocks(sorted(inputs)):
        inner, outer = (slice(at, at + length) for at, length in zip(block.start, block.values.shape[1:], strict=True))
        for expert, matrix in zip(block.rows, block.values, strict=True):
            result[expert][:, outer] += _dot(inputs[expert][:, inner], matrix)
    return result


def _padded(rows: np.ndarray) -> np.ndarray:
    """Rows filled up with zeros, by a quarter at most: each size is compiled once, so there should be few."""
    step = max(8, 1 << max(0, len(rows).bit_length() - 3))
    length = -(-len(rows) // step) * step
    return np.concatenate([rows, np.zeros((length - len(rows), rows.shape[1]), np.float32)])


def _attend(query: np.ndarray, key: np.ndarray, value: np.ndarray, result: np.ndarray, power: float) -> None:
    """Causal attention of one sequence, some queries at a time: [S,N,H] and [S,K,H] to [S,N,H]. Scales by H^power."""
    length, heads, size = query.shape
    factor = size**power
    step = min(length, max(1, SCORES // (4 * heads * length)))
    for start in range(0, length, step):
        first = min(start, length - step)
        result[first : first + step] = _attend_some(query[first : first + step], key, value, first, factor)


def _halves(x: np.ndarray, order: str) -> np.ndarray:
    """Rotated pairs as halves of the last axis."""
    return np.concatenate([x[..., 0::2], x[..., 1::2]], axis=-1) if order == INTERLEAVED else x


def _stored_order(x: np.ndarray, order: str) -> np.ndarray:
    """Undoes `_halves`."""
    if order != INTERLEAVED:
        return x
    half = x.shape[-1] // 2
    return np.stack([x[..., :half], x[..., half:]], axis=-1).reshape(x.shape)


def _dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray(_matmul(a, b))


@jax.jit
def _matmul(a: Any, b: Any) -> Any:
    return jnp.matmul(a, b)


def _gated(first: np.ndarray, second: np.ndarray, swapped: np.ndarray) -> np.ndarray:
    """SiLU of the first times the second; the other way round for entries of the first axis that are swapped."""
    result = np.asarray(_gate(first, second))
    if swapped.any():
        result = result.copy()
        result[swapped] = _gate(second[swapped], first[swapped])
    return result


@jax.jit
def _gate(gate: Any, value: Any) -> Any:
    return jax.nn.silu(gate) * value


@jax.jit
def _rms_norm(x: Any, scale: Any, epsilon: Any) -> Any:
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + epsilon) * scale


@partial(jax.jit, static_argnames=("scaled",))
def _rope(x: Any, positions: Any, theta: Any, scaled: bool) -> Any:
    half = x.shape[-1] // 2
    exponents = 2 * jnp.arange(half, dtype=jnp.float32) / x.shape[-1]
    timescales = jnp.power(theta, exponents)
    if scaled:
        timescales = 1 / _scaled_frequencies(1 / timescales)
    angles = positions[:, None, None].astype(jnp.float32) / timescales
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _scaled_frequencies(frequencies: Any) -> Any:
    """Llama 3.1's: those with a wavelength above a context of 8192 divided by 8, those below a quarter of it kept."""
    turns = 8192 * frequencies / (2 * jnp.pi)
    kept = jnp.clip((turns - 1) / 3, 0, 1)
    return frequencies * (kept + (1 - kept) / 8)


@jax.jit
def _attend_some(query: Any, key: Any, value: Any, first: Any, factor: Any) -> Any:
    heads, kv_heads = query.shape[1], key.shape[1]
    query = query.reshape(query.shape[0], kv_heads, heads // kv_heads, -1) * factor
    scores = jnp.einsum("qkgh,skh->kgqs", query, key)
    visible = jnp.arange(key.shape[0])[None, :] <= first + jnp.arange(query.shape[0])[:, None]
    shares = jax.nn.softmax(jnp.where(visible, scores, -jnp.inf), axis=-1)
    return jnp.einsum("kgqs,skh->qkgh", shares, value).reshape(query.shape[0], heads, -1)


@partial(jax.jit, static_argnames=("count", "renormalise"))
def _top_experts(scores: Any, count: int, renormalise: bool, epsilon: Any) -> Any:
    shares, experts = jax.lax.top_k(jax.nn.softmax(scores, axis=-1), count)
    if renormalise:
        shares = shares / (jnp.sum(shares, axis=-1, keepdims=True) + epsilon)
    return shares, experts
