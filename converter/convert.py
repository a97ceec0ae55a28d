"""A whole conversion, from the user's two paths to a checkpoint in its place."""

import importlib
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from converter.destination import check_destination, check_space, flush, publish
from converter.errors import DestinationError, InexactError
from converter.fidelity import PairMismatch, pair_mismatches
from converter.maxtext import CONFIG_NAME, config_yaml, override_config, train_command
from converter.memory import peak_resident, reuse_freed_memory
from converter.plan import Options, Plan, make_plan
from converter.progress import Progress
from converter.qk_norm import fitted_scales
from converter.source import Source, open_source
from converter.stage import Stage

REPLACED = "replaced"


@dataclass(frozen=True)
class Request:
    """What `convert` was asked for.

    Attributes:
      source: a step or trainer directory.
      destination: where the checkpoint goes.
      options: what shapes the result.
      step: the wanted step; None for the latest.
      mapping: path of a user's own table, or None.
      settings: `KEY=VALUE` changes of the MaxText configuration.
      store: how leaves are stored.
      jobs: blocks in flight.
      overwrite: replace a checkpoint that is there.
      require_exact: refuse weights that stock MaxText cannot compute exactly with.
    """

    source: str
    destination: str
    options: Options
    step: int | None = None
    mapping: str | None = None
    settings: Sequence[str] = ()
    store: str = "files"
    jobs: int = 2
    overwrite: bool = False
    require_exact: bool = False


@dataclass(frozen=True)
class Result:
    """A finished conversion.

    Attributes:
      plan: what was done.
      destination: absolute path of the checkpoint.
      mismatches: the q/k norm pairs of every layer.
      seconds: wall time.
      peak_memory: the largest resident set of this process, in bytes.
      written_bytes: size of all files of the checkpoint.
      command: the command line to go on from.
    """

    plan: Plan
    destination: str
    mismatches: tuple[PairMismatch, ...]
    seconds: float
    peak_memory: int
    written_bytes: int
    command: str


def convert(request: Request, progress: Progress) -> Result:
    """Converts a checkpoint.

    Raises:
      Ax2mtError: one of the errors of `errors`; then there is no destination, and what was there before is untouched.
    """
    started = time.monotonic()
    reuse_freed_memory()
    source = open_source(
        request.source, step=request.step, mapping=request.mapping, options=request.options.mapping_options
    )
    plan = make_plan(source, request.options)
    config = override_config(plan.config, list(request.settings))
    destination = check_destination(request.destination, source.checkpoint.directory, overwrite=request.overwrite)
    check_space(destination, expected_bytes(plan))
    mismatches = pair_mismatches(source)
    if request.require_exact:
        check_exact(mismatches)
    stage = Stage(destination, request.store, plan.leaves)
    try:
        computed = fitted_scales(source) if request.options.qk_norm == "fit" else {}
        metadata = checkpoint_metadata(plan, bool(config["scan_layers"]))
        written = _work(plan, stage, request.jobs, progress, config_yaml(config, _origin(source)), metadata, computed)
        publish(stage.output, destination, os.path.join(stage.root, REPLACED))
    finally:
        progress.close()
        stage.remove()
    return Result(
        plan,
        destination,
        mismatches,
        time.monotonic() - started,
        peak_resident(),
        written,
        train_command(destination),
    )


def expected_bytes(plan: Plan) -> int:
    """Bytes that the checkpoint will take on disk; compression is assumed to do as well as in the source."""
    added = sum(leaf.bytes for task in plan.tasks if task.extra for leaf in task.leaves)
    return int((plan.totals.stored_bytes or plan.totals.write_bytes) * 1.02) + added


def check_exact(mismatches: Sequence[PairMismatch]) -> None:
    """Refuses weights with which stock MaxText computes another function.

    Raises:
      InexactError: with a line for each layer concerned.
    """
    found = [entry for entry in mismatches if not entry.exact]
    if found:
        raise InexactError(
            f"stock MaxText is not exact with these weights: the q/k norm scales of {len(found)} of {len(mismatches)} "
            "layers differ inside rotated pairs; drop --require-exact to convert all the same",
            [f"layer {entry.layer}: pair mismatch {max(entry.product, entry.query, entry.key):.3g}" for entry in found],
        )


def checkpoint_metadata(plan: Plan, scan_layers: bool) -> dict[str, Any]:
    """The custom metadata of the checkpoint's step: what MaxText reads there, and what we did that no shape shows."""
    return {"scan_layers": scan_layers, "ax2mt": {"qk_norm": plan.options.qk_norm}}


def _work(
    plan: Plan,
    stage: Stage,
    jobs: int,
    progress: Progress,
    config: str,
    metadata: Mapping[str, Any],
    computed: Mapping[str, np.ndarray],
) -> int:
    """Stages all leaves, lets Orbax commit them, and adds the configuration; returns the bytes on disk."""
    # jax and orbax take a second to import, and are not needed before the last leaf is written.
    loading = threading.Thread(target=importlib.import_module, args=("converter.orbax",), daemon=True)
    loading.start()
    from converter.stream import run

    run(plan, stage, progress, jobs=jobs, computed=computed)
    loading.join()
    from converter.orbax import commit

    commit(stage, plan.leaves, metadata)
    try:
        with open(os.path.join(stage.output, CONFIG_NAME), "w", encoding="utf-8") as file:
            file.write(config)
        flush(stage.output)
        return _tree_bytes(stage.output)
    except OSError as error:
        raise DestinationError(f"{error.filename or stage.output}: cannot be written: {error.strerror}") from None


def _tree_bytes(path: str) -> int:
    return sum(
        os.lstat(os.path.join(directory, name)).st_size for directory, _, files in os.walk(path) for name in files
    )


def _origin(source: Source) -> str:
    step = source.checkpoint.step
    name = source.match.table.name
    return f"Converted from AXLearn step {step if step is not None else 'unknown'} with mapping '{name}'."
