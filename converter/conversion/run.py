"""A whole conversion, from the user's two paths to a checkpoint in its place."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from converter.checkpoints import Committer, check_order, train_command
from converter.conversion.command import convert_command
from converter.conversion.conversion import Conversion, Request, make_conversion
from converter.conversion.destination import check_destination, check_overlap, check_space, resolve_destination
from converter.conversion.finish import finish
from converter.conversion.object_stage import ObjectStage, finish_published_objects
from converter.conversion.shared_stage import SharedStage, finish_published_shares, is_shared
from converter.conversion.stage import Stage, finish_published
from converter.conversion.stream import Written, run
from converter.conversion.work_area import Work, tree_bytes
from converter.errors import DestinationError, SourceError
from converter.location import locate
from converter.planning import (
    PairMismatch,
    Plan,
    Portion,
    Share,
    configure_source,
    estimate_traffic,
    make_plan,
    open_source,
    portion_of,
    transfer_between,
)
from converter.storage import storage_of
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
      command: the command line to continue in MaxText, patched where the stock one is not exact with plain scales.
      stock_command: the same without the patch.
      patches: what the patch changes in MaxText, one dictionary each, as maxtext.yml and the receipt have it.
      leftover: what could not be removed of the work area or of the replaced checkpoint in it; empty if all was.
      removed_first: a checkpoint was replaced where nothing can be renamed: for a while there was none.
      portion: what this process did of it; None where it worked alone.
      finished: whether the checkpoint is in its place.
      awaited: the shares that were not done yet when this process ended; empty where it is finished.
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
    portion: Portion | None = None
    finished: bool = True
    awaited: tuple[Share, ...] = ()

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
    with committer or Committer(at_once=request.share is None) as ready:
        return _convert(request, progress, ready, started)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Outcome:
    """What became of the work; see `Result`."""

    written: Written = field(default_factory=Written)
    resumed: bool = True
    leftover: str = ""
    removed_first: bool = False
    finished: bool = True
    awaited: tuple[Share, ...] = ()


def prepare(request: Request) -> Conversion:
    """All that is known of a conversion before the work begins: source, match, plan.

    Raises:
      Ax2mtError: the request makes no sense, or the source or the table cannot be used.
    """
    destination = resolve_destination(request.destination)
    check_order(locate(request.source, SourceError), locate(request.destination, DestinationError))
    options = request.options
    options.check()
    request.check_share()
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
    check_overlap(destination, request.source)
    return conversion


def _convert(request: Request, progress: Progress, committer: Committer, started: float) -> Result:
    """The stages, each once: source, match, plan, conversion, written."""
    conversion = prepare(request)
    plan, destination = conversion.plan, conversion.destination
    portion = portion_of(plan, request.share) if request.share is not None else None
    outcome = _do(conversion, portion, describe(request, conversion), progress, committer)
    state_step = plan.step_directory if plan.state is not None else None
    return Result(
        plan=plan,
        destination=destination,
        mismatches=conversion.mismatches,
        written=outcome.written,
        resumed=outcome.resumed,
        seconds=time.monotonic() - started,
        peak_memory=peak_resident() + committer.peak_memory,
        written_bytes=tree_bytes(destination) if outcome.finished else 0,
        command=train_command(destination, patched=bool(conversion.patches), state_step=state_step),
        stock_command=train_command(destination, state_step=state_step),
        patches=conversion.patches,
        leftover=outcome.leftover,
        removed_first=outcome.removed_first,
        portion=portion,
        finished=outcome.finished,
        awaited=outcome.awaited,
    )


def describe(request: Request, conversion: Conversion) -> dict[str, Any]:
    """What the journal says of a conversion to people."""
    plan = conversion.plan
    return {
        "command": convert_command(request, plan, conversion.destination),
        "bytes": plan.totals.write_bytes,
        "leaves": len(plan.leaves),
    }


def _do(
    conversion: Conversion, portion: Portion | None, about: Mapping[str, Any], progress: Progress, committer: Committer
) -> _Outcome:
    """Does the work, unless an earlier run, or other processes, have done all of it."""
    shared = portion is not None or _is_shared(conversion)
    if is_finished(conversion, shared=shared):
        return _Outcome()
    try:
        check_target(conversion)
        return _stage_and_publish(conversion, portion, about, progress, committer)
    except (DestinationError, SourceError):
        # A process that was suspended finds neither its work area nor perhaps the source, when all was done without it.
        if shared and is_finished(conversion, shared=True):
            return _Outcome()
        raise


def _is_shared(conversion: Conversion) -> bool:
    """Whether other processes may work on this conversion, so that this one joins them."""
    destination = conversion.destination
    return storage_of(destination).renames and not conversion.fresh and is_shared(destination)


def open_stage(conversion: Conversion, *, shared: bool, one_of_many: bool = False) -> Work:
    """The work area of a conversion.

    Args:
      conversion: what is made there.
      shared: with other processes, where that makes a difference.
      one_of_many: this process does a small part of the work.
    """
    plan, destination = conversion.plan, conversion.destination
    place = (destination, plan.options.store, plan.leaves, plan.step_directory)
    if not storage_of(destination).renames:
        return ObjectStage(*place, one_of_many=one_of_many)
    return (SharedStage if shared else Stage)(*place)


def _stage_and_publish(
    conversion: Conversion,
    portion: Portion | None,
    about: Mapping[str, Any],
    progress: Progress,
    committer: Committer,
) -> _Outcome:
    """Does the work; the stage stays if the same command can resume later, and is removed otherwise."""
    plan = conversion.plan
    stage = open_stage(
        conversion,
        shared=portion is not None or _is_shared(conversion),
        one_of_many=portion is not None and portion.share.count > 1,
    )
    if isinstance(stage, SharedStage) and portion is None:
        portion = portion_of(plan, Share(0, 1))
    try:
        overwrite = conversion.overwrite and not isinstance(stage, SharedStage)
        stage.begin(conversion.journal, fresh=conversion.fresh, overwrite=overwrite, about=about)
        check_space(conversion.destination, _needed_bytes(conversion, portion) - stage.staged_bytes())
        stage.prepare()
        if portion is None:
            written, awaited = run(conversion, stage, progress, watch=committer.check), []
        else:
            written, awaited = do_share(conversion, portion, stage, progress)
        if not awaited:
            commit(conversion, stage, written, committer)
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
    if awaited:
        stage.close()
        return _Outcome(written=written, resumed=stage.resumed, finished=False, awaited=tuple(awaited))
    return _Outcome(written=written, resumed=stage.resumed, leftover=stage.remove(), removed_first=stage.replaced)


def do_share(conversion: Conversion, portion: Portion, stage: Work, progress: Progress) -> tuple[Written, list[Share]]:
    """Does a share and says so; returns what was done, and the shares that are not done yet."""
    assert isinstance(stage, ObjectStage | SharedStage)
    stage.check_share(portion)
    written = run(conversion, stage, progress, portion=portion)
    stage.record(portion, written.digests)
    awaited = stage.awaited(portion.share)
    if stage.is_finished():
        raise DestinationError(f"{conversion.destination}: the conversion is finished")
    return written, awaited


def commit(conversion: Conversion, stage: Work, written: Written, committer: Committer) -> None:
    """Makes a checkpoint of what is staged, and puts it in its place."""
    finish(conversion, stage, written, committer)
    if conversion.source_has_changed():
        raise SourceError(f"{conversion.plan.source}: changed or was removed while it was read; nothing was kept")
    if not isinstance(stage, SharedStage):
        # Others may have put something there since we looked; a shared stage sees that itself.
        check_target(conversion)
    stage.publish()


def _needed_bytes(conversion: Conversion, portion: Portion | None) -> int:
    """Bytes that this process will write."""
    whole = conversion.expected_bytes
    return whole if portion is None else int(whole * portion.bytes / max(portion.total_bytes, 1))


def is_finished(conversion: Conversion, *, shared: bool) -> bool:
    """Whether an earlier run was killed when all was done, or other processes have done it; what is left is removed."""
    destination, journal, step = conversion.destination, conversion.journal, conversion.plan.step_directory
    if not storage_of(destination).renames:
        return finish_published_objects(destination, journal, step, shared=shared)
    return (finish_published_shares if shared else finish_published)(destination, journal, step)


def check_target(conversion: Conversion) -> None:
    """Refuses a destination that must not be written, see `destination`."""
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
