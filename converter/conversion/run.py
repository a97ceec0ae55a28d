"""A whole conversion, from the user's two paths to a checkpoint in its place."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from converter.checkpoints import (
    CONFIG_NAME,
    Commit,
    Committer,
    Origin,
    StagedLeaf,
    check_order,
    config_yaml,
    leaf_key,
    metadata_entry,
    train_command,
    whole_config,
    write_receipt,
)
from converter.conversion.conversion import Conversion, Request, make_conversion
from converter.conversion.destination import check_destination, check_overlap, check_space, resolve_destination
from converter.conversion.object_stage import ObjectStage, finish_published_objects
from converter.conversion.stage import Stage, Work, finish_published, tree_bytes
from converter.conversion.stream import Written, run
from converter.errors import DestinationError, SourceError
from converter.location import locate
from converter.mapping import MODEL, TRAINING, training_keys
from converter.planning import (
    PairMismatch,
    Plan,
    configure_source,
    estimate_traffic,
    make_plan,
    open_source,
    transfer_between,
)
from converter.storage import storage_of, write_error
from converter.version import __version__
from converter.work import Progress, peak_resident, reuse_freed_memory


@dataclass(frozen=True)
class Result:
    """A finished conversion.

    Attributes:
      plan: what was done.
      destination: absolute path of the checkpoint.
      mismatches: the q/k norm pairs of every layer.
      written: what the engine did.
      resumed: whether it resumed an interrupted run.
      seconds: wall time.
      peak_memory: the largest resident sets of this process and of the one that commits, together, in bytes.
      written_bytes: size of all files of the checkpoint.
      command: the command line to go on in MaxText, patched where the stock one is not exact with plain scales.
      stock_command: the same without the patch.
      patches: what the patch changes in MaxText, one dictionary each, as maxtext.yml and the receipt have it.
      leftover: what could not be removed of the work area or of the replaced checkpoint in it; empty if all was.
      removed_first: a checkpoint was replaced where nothing can be renamed: for a while there was none.
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
    patches: tuple[Mapping[str, Any], ...]
    leftover: str
    removed_first: bool = False

    @property
    def exact_attention(self) -> bool:
        """Whether stock MaxText computes AXLearn's attention from what was written."""
        return all(entry.exact for entry in self.mismatches)

    @property
    def exact_logits(self) -> bool:
        """Whether stock MaxText computes AXLearn's logits, up to the rounding of float32."""
        return self.exact_attention and not self.plan.tied


def convert(request: Request, progress: Progress, committer: Committer | None = None) -> Result:
    """Converts a checkpoint, or resumes an interrupted one.

    Args:
      request: what is wanted.
      progress: notified of finished work.
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
    """The stages, each once: source, match, plan, conversion, written."""
    destination = resolve_destination(request.destination)
    check_order(locate(request.source, SourceError), locate(request.destination, DestinationError))
    options = request.options
    options.check()
    source = open_source(
        request.source,
        step=request.step,
        mapping=request.mapping,
        options=options.table,
        tree=options.tree,
        optimizer=options.state_optimizer,
        force=options.force,
        layout=options.layout,
    )
    configuration = configure_source(source, request.settings)
    transfer = transfer_between(source.checkpoint.directory, destination)
    plan = make_plan(source, replace(options, transfer=transfer), configuration, jobs=request.jobs)
    plan = replace(plan, traffic=estimate_traffic(plan, source.checkpoint.directory, destination))
    conversion = make_conversion(request, source, plan, destination)
    if _is_finished(destination, conversion):
        written, resumed, leftover, removed_first = Written(), True, "", False
    else:
        check_overlap(destination, request.source)
        _check_destination(conversion)
        written, resumed, leftover, removed_first = _stage_and_publish(conversion, progress, committer)
    state_step = plan.step_directory if plan.state is not None else None
    return Result(
        plan=plan,
        destination=destination,
        mismatches=conversion.mismatches,
        written=written,
        resumed=resumed,
        seconds=time.monotonic() - started,
        peak_memory=peak_resident() + committer.peak_memory,
        written_bytes=tree_bytes(destination),
        command=train_command(destination, patched=bool(conversion.patches), state_step=state_step),
        stock_command=train_command(destination, state_step=state_step),
        patches=conversion.patches,
        leftover=leftover,
        removed_first=removed_first,
    )


def _stage_and_publish(
    conversion: Conversion, progress: Progress, committer: Committer
) -> tuple[Written, bool, str, bool]:
    """Does the work; the stage stays if the same command can resume later, and is removed otherwise."""
    plan, destination = conversion.plan, conversion.destination
    kind = Stage if storage_of(destination).renames else ObjectStage
    stage = kind(destination, plan.options.store, plan.leaves, plan.step_directory)
    try:
        stage.begin(conversion.journal, fresh=conversion.fresh, overwrite=conversion.overwrite)
        check_space(destination, conversion.expected_bytes - stage.staged_bytes())
        stage.prepare()
        written = run(conversion, stage, progress, watch=committer.check)
        _finish(conversion, stage, written, committer)
        if conversion.source_has_changed():
            raise SourceError(f"{plan.source}: changed or was removed while it was read; nothing was kept")
        # Others may have put something there since we looked.
        _check_destination(conversion)
        stage.publish()
    except BaseException as error:
        if stage.holds_work() and _is_of_use(error, conversion):
            if isinstance(error, SourceError):
                stage.mark_source_fault()
            stage.close()
        else:
            stage.remove()
        raise
    finally:
        progress.close()
    return written, stage.resumed, stage.remove(), stage.replaced


def _is_finished(destination: str, conversion: Conversion) -> bool:
    """Whether an earlier run was killed when all was done; what it left is removed."""
    finish = finish_published if storage_of(destination).renames else finish_published_objects
    return finish(destination, conversion.journal, conversion.plan.step_directory)


def _check_destination(conversion: Conversion) -> None:
    check_destination(conversion.destination, conversion.source.checkpoint.directory, overwrite=conversion.overwrite)


def _is_of_use(error: BaseException, conversion: Conversion) -> bool:
    """Whether another run can resume after an error: always, unless the source is not what it was.

    Who interrupts us does not wait until thousands of files are looked at: the next run sees what has changed.
    """
    if isinstance(error, DestinationError) or not isinstance(error, Exception):
        return True
    try:
        return not conversion.source_has_changed()
    except Exception:
        return True  # that it cannot be read now does not mean that it has changed


def _finish(conversion: Conversion, stage: Work, written: Written, committer: Committer) -> None:
    """Lets Orbax commit the staged leaves, adds the configuration, and makes all of it durable."""
    plan = conversion.plan
    records = stage.finish_leaves(plan.leaves, written.digests)
    table = conversion.source.match.table
    states = table.states(plan.options.table)
    entry = metadata_entry(
        records,
        fits={name: states[name] for name in table.fits},
        options={name: on for name, on in states.items() if name not in table.fits},
        settings={**plan.configuration.read, **plan.settings},
        tree=plan.tree,
        state=_state_record(plan),
    )
    leaves = tuple(
        StagedLeaf(leaf.path, leaf_key(leaf.path), stage.leaf_directory(leaf), leaf.shape, leaf.dtype)
        for leaf in plan.leaves
    )
    scan_layers = bool(plan.config["scan_layers"])
    optimizer = plan.state.optimizer if plan.state is not None else None
    committer.commit(
        Commit(
            output=stage.output,
            store=plan.options.store,
            leaves=leaves,
            custom_metadata={"scan_layers": scan_layers, **entry},
            step=plan.step_directory,
            lists=optimizer.lists if optimizer is not None else (),
            empty=optimizer.empty if optimizer is not None else (),
            chunks_elsewhere=not storage_of(conversion.destination).renames,
        )
    )
    text = config_yaml(
        plan.config,
        _comment(conversion),
        plan.settings,
        origins=plan.configuration.origins,
        comments=plan.configuration.comments,
        patches=conversion.patches,
        step=plan.step_directory,
    )
    try:
        storage = storage_of(stage.output)
        storage.write(os.path.join(stage.output, CONFIG_NAME), text.encode())
        write_receipt(stage.output, _origin(conversion))
        storage.flush(stage.output)
    except OSError as error:
        raise write_error(os.fspath(error.filename or stage.output), error) from None


def _origin(conversion: Conversion) -> Origin:
    plan, table = conversion.plan, conversion.source.match.table
    options = {
        **table.states(plan.options.table),
        "store": plan.options.store,
        "compress": plan.options.compressor,
        "set": dict(plan.settings),
        "tree": plan.tree,
        "layout": plan.options.layout,
        "dtype": plan.options.dtype,
        "state": _state_record(plan),
    }
    training = training_keys(table)
    whole = whole_config(plan.config)
    config = {
        MODEL: {key: value for key, value in whole.items() if key not in training},
        TRAINING: {key: value for key, value in whole.items() if key in training},
    }
    return Origin(
        f"ax2mt {__version__}",
        plan.source,
        plan.step,
        plan.table,
        plan.table_digest,
        options,
        config,
        conversion.patches,
    )


def _state_record(plan: Plan) -> dict[str, Any] | None:
    """What the checkpoint says about the training state that it holds; None where it holds none."""
    if plan.state is None:
        return None
    return {"optimizer": plan.state.optimizer.name, "leaves": {scalar.path: scalar.value for _, scalar in plan.scalars}}


def _comment(conversion: Conversion) -> str:
    """The first line of maxtext.yml."""
    step = conversion.plan.step
    shown = step if step is not None else "unknown"
    return f"Converted from AXLearn step {shown} with mapping '{conversion.plan.table}'."
