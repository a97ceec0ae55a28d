"""Runs of MaxText's train loop, and how far what they find is from AXLearn's."""

import json
import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.helpers.environments import MAXTEXT_VARIABLES

SCRIPT = Path(__file__).with_name("maxtext_training.py")
ROOT = SCRIPT.parents[2]

MACHINE = (
    "hardware=cpu", "skip_jax_distributed_system=true", "attention=dot_product", "sparse_matmul=false",
    "megablox=false", "per_device_batch_size=4", "max_target_length=32", "packing=false",
    "async_checkpointing=false", "save_checkpoint_on_completion=false", "checkpoint_period=10000",
    "enable_tensorboard=false", "enable_goodput_recording=false", "monitor_goodput=false",
)  # fmt: skip
"""What this machine and the batches need; nothing that the learner computes with."""

COMPILE_ONCE = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
"""The runs share what they compile, in a directory of their own: JAX keeps only what took a second otherwise."""

PLACEHOLDERS = {
    "dataset_type": "synthetic",
    "dataset_path": "",
    "tokenizer_path": "unused",
    "tokenizer_type": "huggingface",
}
"""What the placeholders of a command become; the data iterator is replaced in any case."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of MaxText's train loop.

    Attributes:
      name: names its files.
      command: as `convert` prints it.
      batches: .npz with the batches.
      without: patches to leave out.
      changes: KEY=VALUE in place of the command's; an empty value takes the key out of the command.
    """

    name: str
    command: str
    batches: Path
    without: Sequence[str] = ()
    changes: Mapping[str, str] | None = None


class TrainLoops:
    """A process with the real MaxText that does several runs, two at a time."""

    def __init__(self, python: str, folder: Path, runs: Sequence[Run]):
        self.folder = folder
        self.codes: dict[str, str] = {}
        requests = folder / "runs.json"
        requests.write_text(json.dumps([self._request(run) for run in runs]))
        self.log = (folder / "log").open("w+")
        # -P: nothing of the project's directory can be imported, unless a run asks for it.
        self.process = subprocess.Popen(
            [python, "-P", str(SCRIPT), str(requests)], stdout=subprocess.PIPE, stderr=self.log, text=True, cwd=folder,
            start_new_session=True, env={**os.environ, **MAXTEXT_VARIABLES, **COMPILE_ONCE},
        )  # fmt: skip

    def __getitem__(self, name: str) -> dict[str, np.ndarray]:
        """What a run found, when it has ended.

        Raises:
          AssertionError: it failed.
        """
        assert self.process.stdout
        while name not in self.codes and (line := self.process.stdout.readline()):
            ended, found, code = line.strip().partition(" ended: ")
            self.codes |= {ended: code} if found else {}
        log = self.folder / f"{name}.log" if name in self.codes else self.folder / "log"
        assert self.codes.get(name) == "0", f"run {name}: {log.read_text()[-4000:]}"
        with np.load(self.folder / f"{name}.npz") as file:
            return dict(file)

    def close(self) -> None:
        """Ends the process and its forks, with the runs that nobody asked for."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
        self.process.communicate()
        self.log.close()

    def _request(self, run: Run) -> dict[str, object]:
        _, *command = shlex.split(run.command.replace("\\\n", ""))
        place = 2 if command[1].startswith("maxtext.") else 3  # where the configuration stands
        settings = dict(word.split("=", 1) for word in [*command[place + 1 :], *MACHINE])
        settings |= {key: value for key, value in PLACEHOLDERS.items() if key in settings}
        settings |= {"run_name": run.name, "base_output_directory": str(self.folder / "runs")}
        settings |= {"jax_cache_dir": str(self.folder / "cache"), **(run.changes or {})}
        options = [f"--without={name}" for name in run.without]
        arguments = [f"{key}={value}" for key, value in settings.items() if value]
        return {
            "name": run.name,
            "command": [*command[:2], *options, *command[2 : place + 1], *arguments],
            "path": "" if place == 2 else str(ROOT),
            "batches": str(run.batches),
            "out": str(self.folder / f"{run.name}.npz"),
            "log": str(self.folder / f"{run.name}.log"),
        }


def below(state: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """The arrays below a path, by the rest of their paths."""
    return {path[len(prefix) :]: values for path, values in state.items() if path.startswith(prefix)}


def largest(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> dict[str, float]:
    """The largest absolute difference in each array; the same arrays have to be there."""
    assert found.keys() == expected.keys()
    return {path: float(np.abs(found[path].astype(float) - expected[path]).max()) for path in expected}


def relative(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> float:
    """The difference of two trees as one vector, over the length of the expected one."""
    assert found.keys() == expected.keys()
    norm = sum(float(np.square(values, dtype=float).sum()) for values in expected.values()) ** 0.5
    difference = sum(float(np.square(found[path].astype(float) - expected[path]).sum()) for path in expected) ** 0.5
    return difference / norm
