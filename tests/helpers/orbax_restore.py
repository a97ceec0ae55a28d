"""A process that restores checkpoints with Orbax alone. Imports nothing of ax2mt.

Reads JSON requests from stdin, one a line, `{"items": DIR, "out": FILE, "plain": BOOL}`, and answers each with a line:
`{"leaves": {path: [dtype, shape]}}` with the bytes of all leaves in FILE, one after the other, or `{"error": text}`.
`plain` restores with no arguments at all; otherwise each leaf is asked for as a numpy array, so that a checkpoint that
was saved from sharded arrays restores too.
"""

import json
import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np
import orbax.checkpoint as ocp


def restore(items: str, plain: bool) -> dict[str, np.ndarray]:
    checkpointer = ocp.PyTreeCheckpointer()
    if plain:
        tree = checkpointer.restore(items)
    else:
        metadata = checkpointer.metadata(items)
        structure = getattr(getattr(metadata, "item_metadata", metadata), "tree", metadata)
        arguments = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), structure)
        tree = checkpointer.restore(items, restore_args=arguments)
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {"/".join(map(name, path)): np.asarray(leaf) for path, leaf in leaves}


def name(key: object) -> str:
    """A key of a dictionary, or the place in a list."""
    return str(getattr(key, "key", getattr(key, "idx", None)))


def answer(request: dict) -> dict:
    try:
        leaves = restore(request["items"], request["plain"])
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    with open(request["out"], "wb") as file:
        for leaf in leaves.values():
            file.write(np.ascontiguousarray(leaf).tobytes())
    return {"leaves": {path: [str(leaf.dtype), list(leaf.shape)] for path, leaf in leaves.items()}}


def main() -> None:
    assert not any(name in sys.modules for name in ("converter", "mappings"))
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    replies.write(json.dumps({"version": ocp.__version__}) + "\n")
    replies.flush()
    for line in sys.stdin:
        reply = answer(json.loads(line))
        assert not any(name in sys.modules for name in ("converter", "mappings"))
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
