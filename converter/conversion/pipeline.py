"""A conversion as an Apache Beam pipeline: a runner brings the workers, retries what failed, and adds more workers.

The elements are shares of the plan, as processes with `--process` do them; the work area, the records and the commit
are theirs too. Each worker process makes the plan once, and does one share at a time, so that `--max-memory` holds for
it. What is wrong with the source, the destination or the options, when a worker makes its plan or later, is no reason
to try again: it is noted in the work area, ends the job, and is raised where the job was started.
"""

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import converter.errors as errors
from converter.checkpoints import Committer, train_command
from converter.conversion.conversion import Conversion, Request
from converter.conversion.object_stage import ObjectStage
from converter.conversion.run import check_target, commit, describe, do_share, is_finished, open_stage, prepare
from converter.conversion.shared_stage import SharedStage
from converter.conversion.status import BEGUN, conversion_status
from converter.conversion.stream import Written
from converter.errors import Ax2mtError, DestinationError, UsageError
from converter.planning import Share, portion_of
from converter.storage import parse_json, storage_of
from converter.work import Silent

SHARE_BYTES = 256 << 20
"""Decoded bytes of a share, about: little enough to be done again."""

MAX_SHARES = 10_000

MAX_FAILURE_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class BeamResult:
    """A conversion that a pipeline has finished.

    Attributes:
      destination: the checkpoint.
      shares: elements of the pipeline; 0 where nothing was left to do.
      seconds: wall time.
      command: the command line to continue in MaxText.
    """

    destination: str
    shares: int
    seconds: float
    command: str


def run_pipeline(request: Request, shares: int | None, beam_options: Sequence[str]) -> BeamResult:
    """Converts a checkpoint by a pipeline, and waits for its end.

    Args:
      request: what is wanted; without a share.
      shares: elements of the pipeline; None for as many as their size asks for.
      beam_options: for Beam, such as `--runner=DataflowRunner`.

    Raises:
      UsageError: Beam is not installed.
      Ax2mtError: what a worker met; or the job ended without a checkpoint.
    """
    beam = _import_beam()
    started = time.monotonic()
    conversion = prepare(replace(request, share=Share(0, 1)))
    count = shares or min(max(conversion.plan.totals.write_bytes // SHARE_BYTES, 1), MAX_SHARES)
    done = is_finished(conversion, shared=True)
    if not done:
        _run(beam, request, conversion, Share.checked(0, count).count, beam_options)
    plan = conversion.plan
    step = plan.step_directory if plan.state is not None else None
    return BeamResult(
        destination=conversion.destination,
        shares=0 if done else count,
        seconds=time.monotonic() - started,
        command=train_command(conversion.destination, patched=bool(conversion.patches), state_step=step),
    )


def _run(beam: Any, request: Request, conversion: Conversion, count: int, beam_options: Sequence[str]) -> None:
    """Begins the work area, so that what stands in its way is met here; then runs the pipeline."""
    check_target(conversion)
    stage = _begin(request, conversion)
    place = _failure_name(stage)
    try:
        _forget_failure(place)
        options = beam.options.pipeline_options.PipelineOptions(list(beam_options))
        try:
            with beam.Pipeline(options=options) as pipeline:
                _ = (
                    pipeline
                    | "Shares" >> beam.Create(list(range(count)))
                    | "Spread" >> beam.Reshuffle()
                    | "Convert" >> beam.Map(Convert(request, count, place))
                    | "Count" >> beam.CombineGlobally(sum)
                    | "Commit" >> beam.Map(Commit(request, place))
                )
        except Exception as error:
            raise _failure(place) or DestinationError(
                f"{conversion.destination}: the pipeline failed: {errors.reason(error)}; run the same command again to "
                "resume"
            ) from error
        if not is_finished(conversion, shared=True):
            raise _failure(place) or DestinationError(
                f"{conversion.destination}: the pipeline ended without a checkpoint; run the same command again"
            )
    finally:
        stage.close()


@dataclass(frozen=True)
class Convert:
    """Does one share in a worker; returns 1, or 0 where the job has failed.

    Attributes:
      request: what is wanted.
      count: how many shares there are.
      failure: where an error is noted.
    """

    request: Request
    count: int
    failure: str

    def __call__(self, index: int) -> int:
        if _failure(self.failure) is not None:
            return 0
        try:
            with _worker(self.request) as (conversion, stage):
                if conversion is not None and stage is not None:
                    do_share(conversion, portion_of(conversion.plan, Share(index, self.count)), stage, Silent())
        except Ax2mtError as error:
            return _ended(self.request, self.failure, error)
        return 1


@dataclass(frozen=True)
class Commit:
    """Commits in a worker, when all shares were done; returns whether it did.

    Attributes:
      request: what is wanted.
      failure: where an error is noted.
    """

    request: Request
    failure: str

    def __call__(self, done: int) -> bool:
        if not done or _failure(self.failure) is not None:
            return False
        try:
            with _worker(self.request) as (conversion, stage):
                if conversion is None or stage is None:
                    return True
                if stage.awaited(Share(0, 1)):
                    return False
                with Committer() as committer:
                    commit(conversion, stage, Written(), committer)
                stage.remove()
        except Ax2mtError as error:
            return bool(_ended(self.request, self.failure, error))
        return True


class _Worker:
    """What a worker process keeps between elements: the plan of the request that it works on."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.request: Request | None = None
        self.conversion: Conversion | None = None


_this_worker = _Worker()


@contextmanager
def _worker(request: Request) -> Iterator[tuple[Conversion | None, SharedStage | ObjectStage | None]]:
    """The conversion and its work area, for one element at a time; neither where the conversion is finished."""
    with _this_worker.lock:
        if _this_worker.request != request or _this_worker.conversion is None:
            _this_worker.conversion = prepare(replace(request, share=Share(0, 1)))
            _this_worker.request = request
        conversion = _this_worker.conversion
        if is_finished(conversion, shared=True):
            yield None, None
            return
        stage = _begin(request, conversion)
        try:
            yield conversion, stage
        finally:
            stage.close()


def _begin(request: Request, conversion: Conversion) -> SharedStage | ObjectStage:
    """Joins the work area, or makes it."""
    stage = open_stage(conversion, shared=True, one_of_many=True)
    assert isinstance(stage, SharedStage | ObjectStage)
    try:
        stage.begin(conversion.journal, fresh=False, overwrite=False, about=describe(request, conversion))
    except BaseException:
        stage.close()
        raise
    return stage


def _ended(request: Request, place: str, error: Ax2mtError) -> int:
    """Notes an error for all workers and for whoever started the job; 1 where all was done without this worker."""
    if _is_done(request):
        return 1
    document = {"kind": error.kind, "message": error.message, "details": list(error.details)}
    storage_of(place).write(place, json.dumps(document).encode())
    return 0


def _is_done(request: Request) -> bool:
    """Whether all was done without this worker, which may have made no plan."""
    conversion = _this_worker.conversion if _this_worker.request == request else None
    if conversion is not None:
        return is_finished(conversion, shared=True)
    with suppress(Ax2mtError):
        return conversion_status(request.destination).state != BEGUN
    return False


def _failure(place: str) -> Ax2mtError | None:
    """The error that a worker noted."""
    try:
        data = storage_of(place).read(place, MAX_FAILURE_BYTES)
    except OSError:
        return None
    content = parse_json(data, DestinationError, label=place)
    kinds = {kind.kind: kind for kind in Ax2mtError.__subclasses__()}
    kind = kinds.get(str(content.get("kind")), Ax2mtError)
    return kind(str(content.get("message")), list(map(str, content.get("details", ()))))


def _forget_failure(place: str) -> None:
    """The job is started again: what stood in its way may be gone."""
    with suppress(FileNotFoundError):
        storage_of(place).remove(place)


def _failure_name(stage: SharedStage | ObjectStage) -> str:
    return f"{stage.root}/failure.json"


def _import_beam() -> Any:
    try:
        import apache_beam  # pyright: ignore[reportMissingImports] - an extra
    except ImportError:
        raise UsageError("beam needs Apache Beam: pip install 'axlearn2maxtext[beam]'") from None
    return apache_beam
