"""Runs in the MaxText environment: what the patches do to the real MaxText, all in one process.

    python maxtext_patched.py PROJECT WORK CHECKPOINT ...

PROJECT is the directory of this project. WORK holds `ids.npy` and gets `findings.json`, `updates.npz` and, for each
checkpoint, `NAME.npz` with its logits. Nothing is judged here.
"""

import importlib.util
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, sys.argv[1])

import jax
import maxtext_logits
import numpy as np
import optax
from flax import nnx
from maxtext.configs import pyconfig
from maxtext.layers import attentions, embeddings, normalizations
from maxtext.models import qwen2, qwen3
from maxtext.optimizers import optimizers
from maxtext.utils import maxtext_utils

from converter import maxtext_patch

BLOCKS = {
    "qwen2": qwen2.Qwen2DecoderLayer,
    "qwen3": qwen3.Qwen3DecoderLayer,
    "qwen3_moe": qwen3.Qwen3MoeDecoderLayer,
}

CHANGES = {
    "norm_after_rope": (attentions, "      key = self.key_norm(key)\n\n", "      key = self.key_norm(key) * 2\n\n"),
    "unrounded_tied_logits": (embeddings, "jnp.asarray(embedding_table, jnp.bfloat16)", "jnp.asarray(embedding_table)"),
    "scaled_updates": (optimizers, "        eps=config.adam_eps,\n", "        eps=2 * config.adam_eps,\n"),
}
"""A line of MaxText's that a patch relies upon, and another one."""

LEAVES = {"params/a/*/kernel": 0.5, "params/b": 0.25}
BRANCHES: dict[str, dict[str, Any]] = {
    "plain": {},
    "mask": {"adamw_mask": ["a/.*"]},
    "spikes": {"skip_step_on_spikes": True, "skip_step_interval": 4, "skip_step_scaling_factor": 6.0},
    "frozen": {"trainable_parameters_mask": ["a/.*"]},
}
"""The branches of MaxText's `get_optimizer` around AdamW."""

PEAK, DECAY = 1e-2, 1e-4
SCHEDULE = np.array([0.2, 0.6, 1.0, 0.9, 0.7], np.float32)


def optimizer_config(**changes: Any) -> Any:
    keys = {"opt_type": "adamw", "adam_b1": 0.9, "adam_b2": 0.95, "adam_eps": 1e-8, "adam_eps_root": 0.0,
            "adam_weight_decay": DECAY / PEAK, "mu_dtype": "float32"}  # fmt: skip
    return SimpleNamespace(**keys, **changes)


def refusal(call: Any, *arguments: Any) -> str:
    """What a call is refused with; empty if it is not."""
    try:
        call(*arguments)
    except maxtext_patch.PatchError as error:
        return str(error)
    return ""


def changed_modules(work: Path) -> dict[str, Any]:
    """What each patch says about a copy of its module with another line, and whether any function changed."""
    functions = [attentions.Attention.__call__, embeddings.attend_on_embedding, optimizers.get_optimizer]
    before = [function.__code__ for function in functions]
    found: dict[str, Any] = {}
    calls = {"norm_after_rope": maxtext_patch.apply, "unrounded_tied_logits": maxtext_patch.unround_tied_logits,
             "scaled_updates": lambda: maxtext_patch.scale_updates(LEAVES)}  # fmt: skip
    for name, (module, old, new) in CHANGES.items():
        source = Path(module.__file__).read_text()
        assert old in source
        copy = work / f"changed_{name}.py"
        copy.write_text(source.replace(old, new))
        spec = importlib.util.spec_from_file_location(module.__name__, copy)
        assert spec
        assert spec.loader
        changed = importlib.util.module_from_spec(spec)
        sys.modules[module.__name__] = changed
        try:
            spec.loader.exec_module(changed)
            found[name] = refusal(calls[name])
            if name == "scaled_updates":  # the last of all is refused: the others are not made either
                yml = work / "all.yml"
                yml.write_text('# patch: {"name": "norm_after_rope", "decoder_block": "envy"}\n'
                               '# patch: {"name": "unrounded_tied_logits"}\n'
                               '# patch: {"name": "scaled_updates", "leaves": {"params/b": 0.5}}\n')  # fmt: skip
                found["all"] = refusal(maxtext_patch.apply_needed, str(yml))
        finally:
            sys.modules[module.__name__] = module
    found["untouched"] = before == [function.__code__ for function in functions]
    return found


def block_orders(checkpoint: str) -> dict[str, list[str]]:
    """In which order the layers of other decoder blocks rotate and norm q and k."""
    order: list[str] = []
    rope, norm = attentions.Attention.apply_rotary_embedding, normalizations.RMSNorm.__call__

    def traced_rope(self, x, *arguments, **keywords):
        order.append("rope")
        return rope(self, x, *arguments, **keywords)

    def traced_norm(self, x, *arguments, **keywords):
        if x.shape[-1] == 8:  # head_dim; the width is another
            order.append("norm")
        return norm(self, x, *arguments, **keywords)

    attentions.Attention.apply_rotary_embedding, normalizations.RMSNorm.__call__ = traced_rope, traced_norm
    found: dict[str, list[str]] = {}
    try:
        for name, kind in BLOCKS.items():
            config = pyconfig.initialize(
                ["maxtext_patched", os.path.join(checkpoint, "maxtext.yml"), f"decoder_block={name}", "head_dim=8",
                 "use_qk_norm=true"],
                run_name="blocks", enable_checkpointing=False, dtype="float32", weight_dtype="float32",
                per_device_batch_size=1, max_target_length=4, skip_jax_distributed_system=True,
            )  # fmt: skip
            mesh = jax.sharding.Mesh(maxtext_utils.create_device_mesh(config), config.mesh_axes)
            x = jax.ShapeDtypeStruct((1, 4, config.emb_dim), np.float32)
            positions = jax.ShapeDtypeStruct((1, 4), np.int32)
            with mesh:
                layer = nnx.eval_shape(
                    lambda config=config, mesh=mesh, kind=kind: kind(
                        config=config, mesh=mesh, model_mode="train", quant=None, rngs=nnx.Rngs(0)
                    )
                )
                order.clear()
                nnx.eval_shape(lambda layer, x, p: layer(x, p, p, True, "train"), layer, x, positions)
            found[name] = list(order)
    finally:
        attentions.Attention.apply_rotary_embedding, normalizations.RMSNorm.__call__ = rope, norm
    return found


def states(params: Any) -> dict[str, str]:
    """The structure, shapes and dtypes of the optimizer's state for each branch."""
    return {
        name: str(jax.eval_shape(optimizers.get_optimizer(optimizer_config(**keys), schedule).init, params))
        for name, keys in BRANCHES.items()
    }


def first_updates(params: Any) -> dict[str, list[float]]:
    """For each branch the update of one element of each parameter after one step, without weight decay."""
    found: dict[str, list[float]] = {}
    for name, keys in BRANCHES.items():
        config = optimizer_config(**keys)
        config.adam_weight_decay = 0.0
        optimizer = optimizers.get_optimizer(config, schedule)
        change, _ = optimizer.update(jax.tree.map(jax.numpy.ones_like, params), optimizer.init(params), params)
        found[name] = [float(value.ravel()[0]) for value in jax.tree.leaves(change)]
    return found


def schedule(count: Any) -> Any:
    return PEAK * jax.numpy.asarray(SCHEDULE)[count]


def updates(params: dict[str, Any], out: Path) -> None:
    """Five steps on random gradients, some of them clipped, with the patched optimizer of MaxText."""
    random = np.random.default_rng(5)
    paths, structure = jax.tree_util.tree_flatten_with_path(params)
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in paths]
    saved: dict[str, np.ndarray] = {
        f"0/{name}": np.asarray(value) for name, (_, value) in zip(names, paths, strict=True)
    }
    optimizer = optimizers.get_optimizer(optimizer_config(), schedule)
    state = optimizer.init(params)
    for number in range(len(SCHEDULE)):
        values = [
            random.standard_normal(value.shape).astype(np.float32) * (0.01 if number % 2 else 3) for _, value in paths
        ]
        saved |= {f"gradient {number + 1}/{name}": value for name, value in zip(names, values, strict=True)}
        clipped = maxtext_utils.apply_gradient_clipping(jax.tree.unflatten(structure, values), None, 1.0)
        change, state = optimizer.update(clipped, state, params)
        params = optax.apply_updates(params, change)
        leaves = jax.tree.leaves(params)
        saved |= {f"{number + 1}/{name}": np.asarray(leaf) for name, leaf in zip(names, leaves, strict=True)}
    np.savez(out, **saved)


def main() -> None:
    work, checkpoints = Path(sys.argv[2]), sys.argv[3:]
    random = np.random.default_rng(3)
    params = {
        "a": {name: {"kernel": jax.numpy.asarray(random.standard_normal((3, 4)), np.float32)} for name in ("x", "y")},
        "b": jax.numpy.asarray(random.standard_normal(5), np.float32),
        "norm": {"scale": jax.numpy.ones(4, np.float32)},
    }
    found: dict[str, Any] = {"changed": changed_modules(work)}
    found["orders stock"], found["states stock"] = block_orders(checkpoints[0]), states(params)
    found["first stock"] = first_updates(params)
    found["llama2"] = refusal(maxtext_patch.apply, ["LLAMA2"])
    for _ in range(2):  # a second time does nothing
        maxtext_patch.apply(["ENVY", *(name.upper() for name in BLOCKS)])
        maxtext_patch.unround_tied_logits()
        maxtext_patch.scale_updates(LEAVES)
    found["again"] = [refusal(maxtext_patch.apply), refusal(maxtext_patch.scale_updates, {"b": 0.5})]
    found["orders patched"], found["states patched"] = block_orders(checkpoints[0]), states(params)
    found["first patched"] = first_updates(params)
    found["types"] = {
        kind: refusal(optimizers.get_optimizer, SimpleNamespace(opt_type=kind), schedule)
        for kind in ("sgd", "adam_pax", "muon")
    }
    optimizer = optimizers.get_optimizer(optimizer_config(), schedule)
    found["missing"] = refusal(optimizer.init, {"a": params["a"]})
    variables = nnx.state(nnx.Dict(a=nnx.Dict(x=nnx.Dict(kernel=nnx.Param(params["b"]))), b=nnx.Param(params["b"])))
    frozen = optimizers.get_optimizer(optimizer_config(**BRANCHES["frozen"]), schedule)
    found["variables"] = [refusal(optimizer.init, variables), refusal(frozen.init, variables)]
    updates(params, work / "updates.npz")
    for checkpoint in checkpoints:
        config, out = f"{checkpoint}/maxtext.yml", work / f"{Path(checkpoint).name}.npz"
        maxtext_logits.logits(checkpoint, config, str(work / "ids.npy"), str(out))
    found["imported"] = sorted(name for name in sys.modules if name.startswith("converter."))
    (work / "findings.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
