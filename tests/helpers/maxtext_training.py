"""Runs in the MaxText environment: MaxText's own train loop, started as users start it, over given batches.

    python -P maxtext_training.py RUNS.json

RUNS.json is a list of runs, each an object with

* `name`: for the line "NAME ended: EXIT CODE" that answers on stdout,
* `command`: what follows `python` in a shell: `-m MODULE ARGUMENT ...`,
* `path`: a directory to import modules from, such as that of this project; empty for none,
* `batches`: .npz with `input_ids` and `target_labels`, (step, batch, position); the loop ends where they end. Empty for
  the command's own data, and nothing in `out`,
* `out`: .npz for what is found; `log`: a file for everything that the run prints.

Only the data iterator is replaced, where there are batches. What the loop computes is read where it passes it on:
`step`, `loss`, `raw_grad_norm` (before clipping), `logged_learning_rate`, `learning_rate` (the schedule at the
optimizer's own count), and the whole state in MaxText's checkpoint layout, as loaded (`start/<leaf>`) and after the
last step (`end/<leaf>`).

To import MaxText takes longer than a small run, and a patch cannot be undone: MaxText is imported once, and each run is
a fork of this process, two at a time.
"""

import json
import os
import runpy
import sys
import traceback

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np
from maxtext.common import checkpointing, metric_logger, train_state_nnx
from maxtext.input_pipeline import input_pipeline_interface
from maxtext.utils import model_creation_utils, train_utils  # noqa: F401 (the trainer imports it again, at once)

AT_A_TIME = 2
SCALARS = {
    "loss": "learning/loss",
    "raw_grad_norm": "learning/raw_grad_norm",
    "logged_learning_rate": "learning/current_learning_rate",
}


class Recorder:
    """What one run of the loop passes on, kept as numpy arrays."""

    def __init__(self):
        self.steps: list[int] = []
        self.scalars: dict[str, list[float]] = {name: [] for name in SCALARS}
        self.states: dict[str, dict[str, np.ndarray]] = {}
        self.schedule = None

    def watch(self) -> None:
        """Wraps the functions that the loop calls with its state and metrics."""
        prepare, save = train_utils.prepare_before_run_start, checkpointing.maybe_save_checkpoint
        write = metric_logger.MetricLogger.buffer_and_write_metrics

        def prepare_and_keep(config, state, schedule, *rest):
            self.schedule, self.states["start"] = schedule, leaves(state)
            return prepare(config, state, schedule, *rest)

        def keep_and_save(manager, state, *rest):
            # The next step takes the state's memory: each one is copied, the last one stays.
            self.states["end"] = leaves(state)
            return save(manager, state, *rest)

        def write_and_keep(logger, metrics, step, *rest):
            write(logger, metrics, step, *rest)
            self.steps.append(step)
            for name, key in SCALARS.items():
                self.scalars[name].append(float(metrics["scalar"][key]))

        train_utils.prepare_before_run_start = prepare_and_keep
        checkpointing.maybe_save_checkpoint = keep_and_save
        metric_logger.MetricLogger.buffer_and_write_metrics = write_and_keep

    def found(self) -> dict[str, np.ndarray]:
        """The arrays of the output file."""
        start = self.states["start"]
        count = start.get("opt_state/2/count", start.get("opt_state/count"))
        rates = [float(self.schedule(count + done)) for done in range(len(self.steps))]
        result = {"step": np.array(self.steps), "learning_rate": np.array(rates)}
        result |= {name: np.array(values) for name, values in self.scalars.items()}
        return result | {f"{when}/{leaf}": a for when, state in self.states.items() for leaf, a in state.items()}


def leaves(state) -> dict[str, np.ndarray]:
    """The arrays of a train state, by their "/"-joined paths in MaxText's checkpoints."""
    tree = train_state_nnx.to_checkpoint_dict(state)
    tree.pop("nnx_aux", None)  # random number generators
    found, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): np.array(value) for path, value in found}


def batches_of(file: str):
    """Batches as MaxText's pipelines give them, without packing: every input is attended to, and id 0 is no target."""
    with np.load(file) as arrays:
        inputs, targets = arrays["input_ids"], arrays["target_labels"]
    for tokens, labels in zip(inputs, targets, strict=True):
        positions = np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape)
        yield {
            "inputs": tokens.astype(np.int32),
            "inputs_position": positions,
            "inputs_segmentation": np.ones_like(positions),
            "targets": labels.astype(np.int32),
            "targets_position": positions,
            "targets_segmentation": (labels != 0).astype(np.int32),
        }


def start(run: dict) -> int:
    """Runs a command as Python does; returns its exit code."""
    recorder = Recorder()
    if run["batches"]:
        recorder.watch()
        input_pipeline_interface.create_data_iterator = lambda *_: (batches_of(run["batches"]), None)
    if run["path"]:
        sys.path.insert(0, run["path"])
    option, module, *arguments = run["command"]
    assert option == "-m"
    sys.argv = [module, *arguments]
    code = None
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
    if run["batches"] and not code:
        np.savez(run["out"], **recorder.found())
    return code if isinstance(code, int) else int(code is not None)


def fork(run: dict) -> int:
    """Starts a run in a process of its own; returns its id."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        log = os.open(run["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = start(run)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main(file: str) -> None:
    with open(file, encoding="utf-8") as text:
        waiting = json.load(text)
    running: dict[int, str] = {}
    while waiting or running:
        while waiting and len(running) < AT_A_TIME:
            run = waiting.pop(0)
            running[fork(run)] = run["name"]
        child, status = os.wait()
        print(f"{running.pop(child)} ended: {os.waitstatus_to_exitcode(status)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
