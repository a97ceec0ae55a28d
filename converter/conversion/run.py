"""A whole conversion, from the user's two paths to a checkpoint in its place."""

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from converter import __version__
from converter.arrays import file_states
from converter.checkpoints import (
    CONFIG_NAME,
    Commit,
    Committer,
    Origin,
    StagedLeaf,
    check_order,
    config_yaml,
    is_committed,
    leaf_key,
    metadata_entry,
    stored_record,
    train_command,
    whole_config,
    write_receipt,
)
from converter.conversion.destination import check_destination, check_overlap, check_space, resolve_destination
from converter.conversion.publishing import flush, prepare, publish
from converter.conversion.stage import SOURCE_FILES, Stage, finish_published, tree_bytes
from converter.conversion.stream import Written, run
from converter.errors import DestinationError, InexactError, SourceError
from converter.location import locate
from converter.mapping import MODEL, TRAINING, MappingTable, configure, training_keys
from converter.planning import (
    JOBS,
    LINK,
    Options,
    PairMismatch,
    Plan,
    Source,
    fitted_scales,
    make_plan,
    open_source,
    pair_mismatches,
)
from converter.storage import write_error
from converter.work import Progress, peak_resident, reuse_freed_memory


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
      jobs: blocks in flight.
      overwrite: replace a checkpoint that is there.
      fresh: do not go on with an interrupted run.
      check: decode every chunk, also those that are passed through as they are.
      require_exact: refuse weights that stock MaxText cannot compute exactly with.
    """

    source: str
    destination: str
    options: Options
    _: KW_ONLY
    step: int | None = None
    mapping: str | None = None
    settings: Sequence[str] = ()
    jobs: int = JOBS
    overwrite: bool = False
    fresh: bool = False
    check: bool = False
    require_exact: bool = False


@dataclass(frozen=True)
class Result:
    """A finished conversion.

    Attributes:
      plan: what was done.
      destination: absolute path of the checkpoint.
      mismatches: the q/k norm pairs of every layer.
      written: what the engine did.
      resumed: whether it went on with an interrupted run.
      seconds: wall time.
      peak_memory: the largest resident sets of this process and of the one that commits, together, in bytes.
      written_bytes: size of all files of the checkpoint.
      command: the command line to go on in MaxText, patched where the stock one is not exact with plain scales.
      stock_command: the same without the patch.
      leftover: what could not be removed of the work area or of the replaced checkpoint in it; empty if all was.
    """

    plan: Plan
    destination: str
    mismatches: tuple[PairMismatch, ...]
    written: Written
    resumed: bool
    seconds: float
    peak_memory: int
    written_bytes: int
    command: str
    stock_command: str
    leftover: str

    @property
    def exact_attention(self) -> bool:
        """Whether stock MaxText computes AXLearn's attention from what was written."""
        return all(entry.exact for entry in self.mismatches)

    @property
    def exact_logits(self) -> bool:
        """Whether stock MaxText computes AXLearn's logits, up to the rounding of float32."""
        return self.exact_attention and not self.plan.tied


def convert(request: Request, progress: Progress, committer: Committer | None = None) -> Result:
    """Converts a checkpoint, or goes on with an interrupted conversion.

    Args:
      request: what is wanted.
      progress: told of what is done.
      committer: one that was started before; None for a new one.

    Raises:
      Ax2mtError: one of the errors of `errors`; then there is no destination, and what was there before is untouched.
        After any of them the work area stays for the next run, unless the source has changed.
    """
    started = time.monotonic()
    reuse_freed_memory()
    with committer or Committer() as ready:
        return _convert(request, progress, ready, started)


def _convert(request: Request, progress: Progress, committer: Committer, started: float) -> Result:
    destination = resolve_destination(request.destination)
    check_order(locate(request.source, SourceError), locate(request.destination, DestinationError))
    source = open_source(request.source, step=request.step, mapping=request.mapping, options=request.options.table)
    configuration = configure(source.match, request.settings)
    plan = make_plan(source, request.options, configuration, jobs=request.jobs)
    conversion = describe(source, plan)
    computed = fitted_scales(source, plan.config)
    mismatches = pair_mismatches(source, computed)
    if request.require_exact:
        check_exact(mismatches, fitted=bool(computed))
    if finish_published(destination, conversion):
        written, resumed, leftover = Written(), True, ""
    else:
        check_overlap(destination, request.source)
        destination = check_destination(destination, source.checkpoint.directory, overwrite=request.overwrite)
        written, resumed, leftover = _stage_and_publish(
            request, source, plan, destination, conversion, computed, progress, committer
        )
    return Result(
        plan=plan,
        destination=destination,
        mismatches=mismatches,
        written=written,
        resumed=resumed,
        seconds=time.monotonic() - started,
        peak_memory=peak_resident() + committer.peak_memory,
        written_bytes=tree_bytes(destination),
        command=train_command(destination, patched=needs_patch(mismatches, fitted=bool(computed))),
        stock_command=train_command(destination),
        leftover=leftover,
    )


def _stage_and_publish(
    request: Request,
    source: Source,
    plan: Plan,
    destination: str,
    conversion: Mapping[str, Any],
    computed: Mapping[str, np.ndarray],
    progress: Progress,
    committer: Committer,
) -> tuple[Written, bool, str]:
    """Does the work; the stage stays where the same command can go on later, and goes away otherwise."""
    stage = Stage(destination, plan.options.store, plan.leaves)
    try:
        stage.begin(conversion, fresh=request.fresh)
        check_space(destination, expected_bytes(plan) - stage.staged_bytes())
        prepare(destination, stage.root)
        text = config_yaml(plan.config, _origin(source), plan.settings)
        written = run(
            plan, stage, progress, jobs=plan.jobs, check=request.check, computed=computed, watch=committer.check
        )
        _finish(plan, stage, source.match.table, written, text, committer)
        if _has_changed(source, conversion):
            raise SourceError(f"{plan.source}: changed or was removed while it was read; nothing was kept")
        # Others may have put something there since we looked.
        check_destination(destination, source.checkpoint.directory, overwrite=request.overwrite)
        stage.mark_published()
        publish(stage.output, destination, stage.replaced)
    except BaseException as error:
        if stage.holds_work() and _is_of_use(error, source, conversion):
            if isinstance(error, SourceError):
                stage.mark_source_fault()
            stage.close()
        else:
            stage.remove()
        raise
    finally:
        progress.close()
    return written, stage.resumed, stage.remove()


def _is_of_use(error: BaseException, source: Source, conversion: Mapping[str, Any]) -> bool:
    """Whether another run can go on after an error: always, unless the source is not what it was.

    Who interrupts us does not wait until thousands of files are looked at: the next run sees what has changed.
    """
    if isinstance(error, DestinationError) or not isinstance(error, Exception):
        return True
    try:
        return not _has_changed(source, conversion)
    except Exception:
        return True  # that it cannot be read now does not mean that it has changed


def _has_changed(source: Source, conversion: Mapping[str, Any]) -> bool:
    """Whether the source changed, or was removed, since the start.

    Raises:
      SourceError: that cannot be told.
    """
    try:
        return file_digest(source) != conversion[SOURCE_FILES] or not is_committed(source.checkpoint.directory)
    except SourceError as error:
        if isinstance(error.__context__, FileNotFoundError | NotADirectoryError):
            return True
        raise


def describe(source: Source, plan: Plan) -> dict[str, Any]:
    """All that decides over the result, for the journal: another value of any of these is another conversion."""
    leaves = repr([(leaf.path, leaf.shape, leaf.chunks, leaf.encoding) for leaf in plan.leaves])
    return {
        "version": __version__,
        "source": os.path.realpath(source.checkpoint.directory),
        "step": plan.step,
        SOURCE_FILES: file_digest(source),
        "mapping": f"{plan.table} {plan.table_digest[:16]}",
        "store": plan.options.store,
        "route": "rewrite" if plan.options.rewrite else "link" if plan.options.link else "pass",
        **source.match.table.states(plan.options.table),
        "chunks of the leaves": hashlib.sha256(leaves.encode()).hexdigest()[:16],
        "maxtext.yml": json.loads(json.dumps(plan.config)),
        "set": json.loads(json.dumps(plan.settings)),
    }


def expected_bytes(plan: Plan) -> int:
    """Bytes that the checkpoint will take on disk; compression is assumed to do as well as in the source."""
    linked = {array.path for task in plan.tasks if task.route == LINK for array in task.sources}
    stored = sum(task.stored_bytes for task in plan.tasks if task.sources[0].path not in linked)
    return int(stored * 1.02)


def needs_patch(mismatches: Sequence[PairMismatch], *, fitted: bool) -> bool:
    """Whether MaxText is exact only with the patch; it wants AXLearn's own scales, not fitted ones."""
    return not fitted and any(not entry.exact for entry in mismatches)


def check_exact(mismatches: Sequence[PairMismatch], *, fitted: bool) -> None:
    """Refuses weights with which stock MaxText computes another function.

    Raises:
      InexactError: with a line for each layer concerned.
    """
    found = [entry for entry in mismatches if not entry.exact]
    if found:
        fit = not fitted and all(entry.separable for entry in found)
        advice = "--qk-norm fit makes it exact" if fit else "drop --require-exact to convert all the same"
        raise InexactError(
            f"stock MaxText is not exact with these weights: the q/k norm scales of {len(found)} of {len(mismatches)} "
            f"layers differ inside rotated pairs; {advice}",
            [f"layer {entry.layer}: pair mismatch {max(entry.product, entry.query, entry.key):.3g}" for entry in found],
        )


def file_digest(source: Source) -> str:
    """A hash of the source's metadata and of name, size and time of change of all its chunk files.

    Raises:
      SourceError: a directory is not there any more.
    """
    digest = hashlib.sha256()
    try:
        for name, array in sorted(source.arrays.items()):
            digest.update(repr((name, array.shape, array.chunks, array.dtype, array.compressor)).encode())
            digest.update(repr(sorted(file_states(array))).encode())
    except OSError as error:
        raise SourceError(f"{error.filename}: cannot be read any more: {error.strerror}") from None
    return digest.hexdigest()[:16]


def _finish(plan: Plan, stage: Stage, table: MappingTable, written: Written, config: str, committer: Committer) -> None:
    """Lets Orbax commit the staged leaves, adds the configuration, and makes all of it durable."""
    stage.check_whole(plan.leaves)
    records = {leaf_key(path): stored_record(chunks) for path, chunks in written.digests.items()}
    states = table.states(plan.options.table)
    entry = metadata_entry(records, fits={name: states[name] for name in table.fits}, settings=plan.settings)
    leaves = tuple(
        StagedLeaf(leaf.path, leaf_key(leaf.path), stage.leaf_directory(leaf), leaf.shape, leaf.dtype)
        for leaf in plan.leaves
    )
    scan_layers = bool(plan.config["scan_layers"])
    committer.commit(Commit(stage.output, plan.options.store, leaves, {"scan_layers": scan_layers, **entry}))
    try:
        with open(os.path.join(stage.output, CONFIG_NAME), "w", encoding="utf-8") as file:
            file.write(config)
        write_receipt(stage.output, _receipt_origin(plan, table))
        flush(stage.output)
    except OSError as error:
        raise write_error(os.fspath(error.filename or stage.output), error) from None


def _receipt_origin(plan: Plan, table: MappingTable) -> Origin:
    options = {
        **table.states(plan.options.table),
        "store": plan.options.store,
        "set": dict(plan.settings),
    }
    training = training_keys(table)
    whole = whole_config(plan.config)
    config = {
        MODEL: {key: value for key, value in whole.items() if key not in training},
        TRAINING: {key: value for key, value in whole.items() if key in training},
    }
    return Origin(f"ax2mt {__version__}", plan.source, plan.step, plan.table, plan.table_digest, options, config)


def _origin(source: Source) -> str:
    step = source.checkpoint.step
    name = source.match.table.name
    return f"Converted from AXLearn step {step if step is not None else 'unknown'} with mapping '{name}'."
