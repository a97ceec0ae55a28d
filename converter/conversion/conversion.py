"""What `convert` is asked for, and the one value that all of it becomes before a weight is read."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from converter.arrays import file_states
from converter.checkpoints import is_committed
from converter.conversion.work_area import SOURCE_FILES
from converter.errors import InexactError, SourceError, UsageError
from converter.mapping import needed_patches
from converter.planning import (
    JOBS,
    LINK,
    REWRITE,
    Options,
    PairMismatch,
    Plan,
    Share,
    Source,
    Task,
    fitted_scales,
    pair_mismatches,
)
from converter.storage import storage_of
from converter.version import __version__


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
      fresh: discard the work of an interrupted run.
      check: decode every chunk, also those that are passed through as they are.
      require_exact: refuse weights that stock MaxText cannot compute exactly with.
      share: which part of the work this process does; None for all of it, alone.
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
    share: Share | None = None

    def check_share(self) -> None:
        """Refuses options that processes cannot share.

        Raises:
          UsageError: naming both.
        """
        if self.share is None:
            return
        if self.overwrite:
            raise UsageError(
                f"--process {self.share} and --overwrite: a process that is late would replace what the others made; "
                "give a new DST, or remove the old checkpoint first"
            )
        if self.fresh:
            raise UsageError(
                f"--process {self.share} and --fresh: each process would discard the others' work; give a new DST, or "
                "convert with --fresh and without --process"
            )
        if self.options.store == "zarr2":
            raise UsageError(
                f"--process {self.share} and --store zarr2: its chunks do not show that they are whole; use --store "
                "files or ocdbt"
            )


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """All that decides what is written, and where.

    Attributes:
      source: the checkpoint, its metadata read and audited, with the table that it matches.
      plan: what is done with each array.
      destination: absolute path of the checkpoint.
      journal: all that decides over the result: another value of any of these is another conversion.
      computed: leaf path to a whole value that is written in place of the moved one.
      mismatches: the q/k norm pairs of every layer.
      overwrite: replace a checkpoint that is there.
      fresh: start over, also where an interrupted run could be resumed.
      check: decode every chunk, also those that are passed through as they are.
    """

    source: Source
    plan: Plan
    destination: str
    journal: Mapping[str, Any]
    computed: Mapping[str, np.ndarray]
    mismatches: tuple[PairMismatch, ...]
    overwrite: bool
    fresh: bool
    check: bool

    @property
    def patches(self) -> tuple[Mapping[str, Any], ...]:
        """The changes to MaxText that the checkpoint needs. Norms after RoPE want AXLearn's own scales, not fitted.

        Scales that are equal inside pairs give equal outputs in either order, but not equal gradients: a training that
        continues needs the order of AXLearn.
        """
        training = self.plan.state is not None
        after_rope = not self.computed and any(training or not entry.exact for entry in self.mismatches)
        return needed_patches(self.plan.config, self.plan.configuration.learner, norm_after_rope=after_rope)

    @property
    def expected_bytes(self) -> int:
        """Bytes that the checkpoint will take on disk; compression is assumed to do as well as in the source."""
        tasks = self.plan.tasks
        linked = {array.path for task in tasks if task.route == LINK for array in task.sources}
        written = (task for task in tasks if task.sources[0].path not in linked)
        return int(sum(max(task.stored_bytes, _raw_bytes(task)) for task in written) * 1.02)

    def source_has_changed(self) -> bool:
        """Whether the source changed, or was removed, since the start.

        Raises:
          SourceError: that cannot be determined.
        """
        directory = self.source.checkpoint.directory
        try:
            storage_of(directory).pin(directory, parts=self.source.checkpoint.array_directories)
        except OSError as error:
            raise SourceError(f"{directory}: cannot be read any more: {error.strerror}") from None
        try:
            unchanged = _source_digest(self.source) == self.journal[SOURCE_FILES]
            return not unchanged or not is_committed(self.source.checkpoint.directory)
        except SourceError as error:
            if isinstance(error.__context__, FileNotFoundError | NotADirectoryError):
                return True
            raise


def make_conversion(request: Request, source: Source, plan: Plan, destination: str) -> Conversion:
    """Puts together what is known before the work begins; reads the q/k norm scales, and no other weight.

    Raises:
      InexactError: the result cannot be exact, and that was asked for.
      SourceError: a scale cannot be read.
    """
    computed = fitted_scales(source, plan.config)
    conversion = Conversion(
        source=source,
        plan=plan,
        destination=destination,
        journal=_describe(source, plan),
        computed=computed,
        mismatches=pair_mismatches(source, computed),
        overwrite=request.overwrite,
        fresh=request.fresh,
        check=request.check,
    )
    if request.require_exact:
        # Fitted scales are not those that the moments belong to.
        _check_exact(conversion.mismatches, "" if computed or plan.state is not None else plan.remedies.fit)
    return conversion


def _raw_bytes(task: Task) -> int:
    """Bytes of a task's leaves that are not compressed."""
    return sum(leaf.bytes for leaf in task.leaves if task.route == REWRITE and leaf.compressor is None)


def _describe(source: Source, plan: Plan) -> dict[str, Any]:
    """All that decides over the result, for the journal: another value of any of these is another conversion."""
    directory = source.checkpoint.directory
    leaves = repr([(leaf.path, leaf.shape, leaf.chunks, leaf.encoding) for leaf in plan.leaves])
    return {
        "version": __version__,
        "source": storage_of(directory).resolve(directory),
        "step": plan.step,
        SOURCE_FILES: _source_digest(source),
        "mapping": f"{plan.table} {plan.table_digest[:16]}",
        "store": plan.options.store,
        "compress": plan.options.compressor,
        "route": "rewrite" if plan.options.rewrite else "link" if plan.options.link else "pass",
        **source.match.table.states(plan.options.table),
        "tree": plan.tree,
        "layout": plan.options.layout,
        "dtype": plan.options.dtype,
        "state": {scalar.path: scalar.value for _, scalar in plan.scalars},
        "chunks of the leaves": hashlib.sha256(leaves.encode()).hexdigest()[:16],
        "maxtext.yml": json.loads(json.dumps(plan.config)),
        "update scales": _update_scales(plan),
        "set": json.loads(json.dumps(plan.settings)),
    }


def _update_scales(plan: Plan) -> dict[str, float] | None:
    scales = plan.configuration.learner.update_scales
    return None if scales is None else dict(scales.value)


def _check_exact(mismatches: Sequence[PairMismatch], remedy: str) -> None:
    """Refuses weights with which stock MaxText computes another function.

    Raises:
      InexactError: with a line for each layer concerned.
    """
    found = [entry for entry in mismatches if not entry.exact]
    if found:
        fit = remedy and all(entry.separable for entry in found)
        advice = f"{remedy} makes it exact" if fit else "drop --require-exact to convert anyway"
        raise InexactError(
            f"stock MaxText is not exact with these weights: the q/k norm scales of {len(found)} of {len(mismatches)} "
            f"layers differ inside rotated pairs; {advice}",
            [f"layer {entry.layer}: pair mismatch {max(entry.product, entry.query, entry.key):.3g}" for entry in found],
        )


def _source_digest(source: Source) -> str:
    """A hash of the source's metadata and of name, size and time of change of all its chunk files.

    Raises:
      SourceError: a directory is not there any more.
    """
    digest = hashlib.sha256()
    databases: set[str] = set()
    try:
        for name, array in sorted(source.arrays.items()):
            digest.update(repr((name, array.shape, array.chunks, array.dtype, array.compressor)).encode())
            for part in array.each:
                if part.database_key is None or part.directory not in databases:
                    digest.update(repr(sorted(file_states(part))).encode())
                databases |= {part.directory} if part.database_key is not None else set()
    except OSError as error:
        raise SourceError(f"{error.filename}: cannot be read any more: {error.strerror}") from None
    return digest.hexdigest()[:16]
