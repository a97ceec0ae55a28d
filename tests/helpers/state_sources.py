"""AXLearn checkpoints with a training state, of any chain and any names, and what MaxText's state should be."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tests.helpers.axlearn_checkpoint import SMALL, envy_tensors, expected_leaves, write_checkpoint

PLAIN_CHAIN = "learner/optimizer/1/0"
COUNTS = ("learner/optimizer/1/2/count", "learner/optimizer/1/4/count")


def trained_tensors(
    *, base: str = PLAIN_CHAIN, counts: tuple[str, ...] = COUNTS, step: int = 100, dtype: str = "float32"
) -> dict[str, np.ndarray]:
    """Random parameters, first and second moments, and counts that agree with the step."""
    tensors = envy_tensors(SMALL, dtype=dtype)
    parameters = dict(tensors)
    for seed, name in enumerate(("mu", "nu"), 1):
        for path, values in envy_tensors(SMALL, dtype=dtype, seed=seed).items():
            tensors[f"{base}/{name}/{path.removeprefix('model/')}"] = np.abs(values) if name == "nu" else values
    assert len(tensors) == 3 * len(parameters)
    return {**tensors, **{path: np.array(step, np.int32) for path in (f"{base}/count", *counts)}}


def moment(tensors: Mapping[str, np.ndarray], name: str, base: str = PLAIN_CHAIN) -> dict[str, np.ndarray]:
    """A moment under the paths of the parameters."""
    prefix = f"{base}/{name}/"
    return {f"model/{path.removeprefix(prefix)}": v for path, v in tensors.items() if path.startswith(prefix)}


def expected_state(
    tensors: Mapping[str, np.ndarray], *, base: str = PLAIN_CHAIN, step: int = 100
) -> dict[str, np.ndarray]:
    """MaxText's whole state of `adamw`, by plain numpy."""
    leaves = expected_leaves({path: values for path, values in tensors.items() if path.startswith("model/")})
    for name in ("mu", "nu"):
        moved = expected_leaves(moment(tensors, name, base))
        leaves |= {f"opt_state/0/{name}/{path.removeprefix('params/')}": values for path, values in moved.items()}
    counts = {"step": step, "opt_state/0/count": step, "opt_state/2/count": step + 1}
    return leaves | {path: np.array(value, np.int32) for path, value in counts.items()}


def write_trained(directory: Path, tensors: Mapping[str, np.ndarray], *, step: int = 100) -> Path:
    """Writes a committed step; see `axlearn_checkpoint.write_checkpoint`."""
    return write_checkpoint(directory, tensors, step=step)
