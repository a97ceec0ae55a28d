"""Runs in the MaxText environment: loads converted checkpoints with MaxText's own loaders and computes logits.

Each line on stdin is a request, a JSON list of a checkpoint (a path or URL), its maxtext.yml (a local file), a file of
input ids (.npy) and a file for the logits (.npz); a line "logits written" answers it. A list of a configuration and a
file for JSON asks for the parameters that MaxText makes of it; "shapes written" answers that one. Imports nothing of
ax2mt. To import MaxText takes longer than anything else here, so one process serves several checkpoints.
"""

import json
import os
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np

jax.config.update("jax_default_matmul_precision", "float32")

from flax import nnx
from maxtext.common import checkpointing
from maxtext.configs import pyconfig
from maxtext.utils import maxtext_utils, model_creation_utils


def logits(checkpoint: str, yml: str, ids_file: str, out_file: str) -> None:
    ids = np.load(ids_file)
    items = os.path.join(checkpoint, "0", "items")
    settings = {
        "run_name": "logits",
        "enable_checkpointing": False,
        "dtype": "float32",
        "weight_dtype": "float32",
        "per_device_batch_size": ids.shape[0],
        "max_target_length": ids.shape[1],
        "skip_jax_distributed_system": True,
        "megablox": False,
        "sparse_matmul": False,
    }
    config = pyconfig.initialize(["maxtext_logits", yml], load_parameters_path=items, **settings)
    mesh = jax.sharding.Mesh(maxtext_utils.create_device_mesh(config), config.mesh_axes)
    with mesh:
        state = nnx.state(without_memory(config, mesh), nnx.Param)
        sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), state)
        loaded = checkpointing.load_params_from_path(items, abstract, 96)
        model = model_creation_utils.from_pretrained(config, mesh=mesh)
        if isinstance(model, tuple):
            model = model[0]
        second = forward(model, ids)
        # Compiling takes longer than anything else: with the same parameters the logits are the same.
        first = second
        if not same(loaded, nnx.state(model, nnx.Param)):
            nnx.update(model, loaded)
            first = forward(model, ids)
    np.savez(out_file, load_params_from_path=first, from_pretrained=second)


def same(one, other) -> bool:
    """Whether two states have the same leaves, bit for bit."""
    ours, theirs = (jax.tree_util.tree_flatten_with_path(state.to_pure_dict())[0] for state in (one, other))
    return [path for path, _ in ours] == [path for path, _ in theirs] and all(
        np.asarray(a).dtype == np.asarray(b).dtype and np.asarray(a).tobytes() == np.asarray(b).tobytes()
        for (_, a), (_, b) in zip(ours, theirs, strict=True)
    )


def without_memory(config, mesh):
    """The model that MaxText makes of a configuration, its arrays shapes only."""
    return nnx.eval_shape(
        lambda: model_creation_utils.from_config(config, mesh=mesh, rngs=nnx.Rngs(params=0, dropout=1))
    )


def shapes(yml: str, out_file: str) -> None:
    """The path and shape of each parameter of a configuration, without memory for any."""
    config = pyconfig.initialize(
        ["maxtext_shapes", yml], run_name="shapes", enable_checkpointing=False, skip_jax_distributed_system=True
    )
    mesh = jax.sharding.Mesh(maxtext_utils.create_device_mesh(config), config.mesh_axes)
    with mesh:
        made = without_memory(config, mesh)
    leaves = jax.tree_util.tree_flatten_with_path(nnx.state(made, nnx.Param).to_pure_dict())[0]
    found = {"/".join(str(key.key) for key in path): list(leaf.shape) for path, leaf in leaves}
    with open(out_file, "w", encoding="utf-8") as file:
        json.dump(found, file)


def forward(model, ids: np.ndarray) -> np.ndarray:
    positions = np.broadcast_to(np.arange(ids.shape[1], dtype=np.int32), ids.shape)
    return np.asarray(
        model(ids, positions, decoder_segment_ids=np.ones_like(ids), enable_dropout=False), dtype=np.float32
    )


if __name__ == "__main__":
    for line in sys.stdin:
        request = json.loads(line)
        if len(request) == 2:
            shapes(*request)
            print("shapes written", flush=True)
        else:
            logits(*request)
            print("logits written", flush=True)
