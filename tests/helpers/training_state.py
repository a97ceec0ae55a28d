"""AXLearn's training state as MaxText's, by plain numpy: what a conversion with optimizer state has to write.

It shares no code with the converter, so that it can be held against it.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import tensorstore as ts

Arrays = dict[str, np.ndarray]


def pairs_to_halves(values: np.ndarray) -> np.ndarray:
    """RoPE's pairs on the last axis: AXLearn rotates elements 2i and 2i+1, MaxText elements i and i + H/2."""
    return np.concatenate([values[..., 0::2], values[..., 1::2]], axis=-1)


def layers_second(values: np.ndarray) -> np.ndarray:
    """The layers, AXLearn's axis 0, where MaxText's scan has them."""
    return np.swapaxes(values, 0, 1)


def _attention(kv_heads: int) -> dict[str, Callable[[np.ndarray], Arrays]]:
    def qkv(values: np.ndarray) -> Arrays:
        query, key, value = np.split(values, [values.shape[2] - 2 * kv_heads, values.shape[2] - kv_heads], axis=2)
        parts = {"query": pairs_to_halves(query), "key": pairs_to_halves(key), "value": value}
        return {f"self_attention/{name}/kernel": layers_second(part) for name, part in parts.items()}

    def scale(name: str) -> Callable[[np.ndarray], Arrays]:
        return lambda values: {f"self_attention/{name}/scale": layers_second(pairs_to_halves(values))}

    return {
        "self_attention/attention/i_proj/i_proj/qkv_proj/weight": qkv,
        # (layer, embed, head, head_dim) -> (head, layer, head_dim, embed)
        "self_attention/attention/o_proj/weight": lambda o: {"self_attention/out/kernel": o.transpose(2, 0, 3, 1)},
        "self_attention/attention/scale_query/norm/scale": scale("query_norm"),
        "self_attention/attention/scale_key/norm/scale": scale("key_norm"),
    }


LAYER = {
    "self_attention/norm/scale": "pre_self_attention_layer_norm/scale",
    "feed_forward/norm/scale": "post_self_attention_layer_norm/scale",
    "feed_forward/prenorm/scale": "post_self_attention_layer_norm/scale",
    "feed_forward/postnorm/scale": "post_ffw_norm/scale",
    "feed_forward/linear1_0/weight": "mlp/wi_0/kernel",
    "feed_forward/linear1_1/weight": "mlp/wi_1/kernel",
    "feed_forward/linear2/weight": "mlp/wo/kernel",
    "feed_forward/gate_weight": "MoeBlock_0/gate/kernel",
    "feed_forward/wi_0_weight": "MoeBlock_0/wi_0",
    "feed_forward/wi_1_weight": "MoeBlock_0/wi_1",
    "feed_forward/wo_weight": "MoeBlock_0/wo",
}
"""Tensors of a layer that only have their layers moved."""


def model_leaves(tensors: Mapping[str, np.ndarray], *, kv_heads: int) -> Arrays:
    """MaxText's leaves of one tree of AXLearn's model, parameters or moments alike, below `params/`.

    Args:
      tensors: an Envy or a Fuji, by path below `model/`, or below `mu/` or `nu/`.
      kv_heads: how many of qkv_proj's heads are keys.
    """
    moved = _attention(kv_heads)
    result: Arrays = {}
    for path, values in tensors.items():
        stack, _, rest = path.partition("decoder/transformer/repeat/layer/")
        if not rest:
            result |= {
                "decoder/emb/token_emb/weight": {"token_embedder/embedding": values},
                "decoder/lm_head/weight": {"decoder/logits_dense/kernel": values.T},
                "decoder/output_norm/scale": {"decoder/decoder_norm/scale": values},
            }[stack]
            continue
        block, _, tensor = rest.partition("/")
        place = f"decoder/layers/{block.replace('layer', 'layers_')}" if block.startswith("layer") else "decoder/layers"
        tensor = tensor if block.startswith("layer") else rest
        found = moved[tensor](values) if tensor in moved else {LAYER[tensor]: layers_second(values)}
        result |= {f"{place}/{leaf}": array for leaf, array in found.items()}
    return result


def maxtext_state(tensors: Mapping[str, np.ndarray], *, kv_heads: int = 2, optimizer: str = "adamw") -> Arrays:
    """The whole state as MaxText saves it, by "/"-joined path; numbers in a path are places of a list.

    The schedule's count is one more than the step: AXLearn counts updates from 1, optax from 0. MaxText's adam_pax has
    one count for both uses, which stays the step, and keeps its moments with the bias corrected: mu / (1 - b1^N),
    computed in float64.

    Args:
      tensors: the trainer's state as AXLearn's checkpoints name it.
      kv_heads: heads of the keys.
      optimizer: MaxText's `opt_type`, adamw or adam_pax.
    """
    adam = "learner/optimizer/1/0"

    def below(prefix: str) -> Arrays:
        inside = {path[len(prefix) :]: values for path, values in tensors.items() if path.startswith(prefix)}
        return model_leaves(inside, kv_heads=kv_heads)

    count = np.int32(tensors[f"{adam}/count"])
    state: Arrays = {f"params/params/{leaf}": values for leaf, values in below("model/").items()}
    state["step"] = np.array(count, np.int32)
    chain = optimizer == "adamw"
    place = "opt_state/0" if chain else "opt_state"
    state[f"{place}/count"] = np.array(count, np.int32)
    if chain:
        state["opt_state/2/count"] = np.array(count + 1, np.int32)
    for moment, decay in (("mu", 0.9), ("nu", 0.95)):
        for leaf, values in below(f"{adam}/{moment}/").items():
            corrected = values if chain else (values.astype(np.float64) / (1 - decay ** int(count))).astype(np.float32)
            state[f"{place}/{moment}/params/{leaf}"] = corrected
    return state


def read_axlearn(step: Path) -> Arrays:
    """Every tensor of an AXLearn step directory."""
    root = step / "gda"
    result: Arrays = {}
    for path in (found.parent for found in sorted(root.rglob(".zarray"))):
        spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{path}/"}}
        result[path.relative_to(root).as_posix()] = ts.open(spec, open=True).result().read().result()
    return result


def expected_state(golden: Path, *, optimizer: str = "adamw") -> Arrays:
    """What a conversion of a golden's step 20 with optimizer state has to hold, bit for bit."""
    return maxtext_state(read_axlearn(golden / "axlearn" / "checkpoints" / "step_00000020"), optimizer=optimizer)


def as_tree(state: Mapping[str, np.ndarray]) -> dict:
    """The nested tree of a state, with a list where paths have numbers, and None at places without leaves."""
    tree: dict = {}
    for path, values in state.items():
        *above, last = path.split("/")
        node = tree
        for key in above:
            node = node.setdefault(key, {})
        node[last] = values
    chain = tree["opt_state"]
    if all(key.isdigit() for key in chain):
        tree["opt_state"] = [chain.get(str(place)) for place in range(1 + max(map(int, chain)))]
    return tree


def write_state(target: Path, state: Mapping[str, np.ndarray]) -> Path:
    """Saves a state through Orbax as MaxText's trainer would; returns its `items`.

    The directory is the number of the last finished step index, one less than the count of finished steps.
    """
    import orbax.checkpoint as ocp

    step = target / str(int(state["step"]) - 1)
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler("items")) as checkpointer:
        checkpointer.save(step, ocp.args.Composite(items=ocp.args.PyTreeSave(as_tree(state))))
    return step / "items"
