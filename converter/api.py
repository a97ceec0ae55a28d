# The decorator `documented` fills in every keyword's default, which a TypedDict cannot say of itself.
# pyright: reportTypedDictNotRequiredAccess=false
"""The public functions of the package: what the commands do, for notebooks and pipelines. See docs/api.md.

`converter.arguments` describes the keywords; they have the names and defaults of the command line's options. Each
function returns the frozen value that the command prints, and raises the errors of `converter.errors`. Nothing is
printed and no signal is handled. Heavy imports happen inside the functions, so that the command line starts quickly.
"""

import dataclasses
import os
from collections.abc import Iterable
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Unpack

from converter.argument_values import (
    byte_count,
    cast_dtype,
    job_count,
    limits_of,
    optional_path,
    plan_options,
    run_request,
    sample_fraction,
    settings_of,
    share_of,
    silent,
    table_options,
)
from converter.arguments import (
    BeamArguments,
    CompareArguments,
    ConformArguments,
    ConvertArguments,
    EvidenceArguments,
    LogitsArguments,
    Option,
    ParameterArguments,
    Path,
    PlanArguments,
    SourcePath,
    VerifyArguments,
    arguments,
    documented,
)

if TYPE_CHECKING:
    from converter.checkpoints import Inspection
    from converter.conformance import Conformance
    from converter.conversion import BeamResult, Result, Status
    from converter.evidence import Evidence
    from converter.forward import LogitsComparison, LogitsResult
    from converter.planning import ParameterReport, Plan
    from converter.verification import Verification


@documented
def convert(
    source: SourcePath,
    destination: Annotated[Path, Option("New directory; MaxText gets DST/<step>/items.", metavar="DST")],
    **options: Unpack[ConvertArguments],
) -> "Result":
    """Converts an AXLearn checkpoint into a MaxText checkpoint, or resumes an interrupted conversion.

    Raises:
      UsageError: arguments contradict each other, or `max_memory` is too small.
      SourceError: the source is not a committed checkpoint, or is damaged.
      MappingError: no mapping table fits the source.
      DestinationError: the destination is refused or cannot be written.
      InexactError: `require_exact`, and the weights are not.
      ResourceError: the system killed the process that commits the checkpoint.
    """
    from converter.checkpoints import Committer

    # Started first: it has the most to import. A process with a share rarely is the one that commits.
    with Committer(at_once=options["process"] is None) as committer:
        from converter.conversion import convert as run

        request = run_request(
            source,
            destination,
            options,
            overwrite=options["overwrite"],
            fresh=options["fresh"],
            process=options["process"],
        )
        return run(request, options["progress"] or silent(), committer)


@documented
def plan(source: SourcePath, **options: Unpack[PlanArguments]) -> "Plan":
    """Plans what `convert` with the same arguments would do, from metadata alone.

    Raises:
      UsageError: arguments contradict each other, or `max_memory` is too small.
      SourceError: the source is not a committed checkpoint, or is damaged.
      MappingError: no mapping table fits the source.
    """
    from converter.conversion import resolve_destination
    from converter.planning import configure_source, estimate_traffic, make_plan, open_source, transfer_between

    made = plan_options(options)
    to = optional_path(options["to"])
    opened = open_source(
        os.fspath(source),
        step=options["step"],
        mapping=optional_path(options["mapping"]),
        options=made.table,
        metadata_only=options["metadata_only"],
        tree=made.tree,
        optimizer=made.state_optimizer,
        force=made.force,
        layout=made.layout,
    )
    configuration, directory = configure_source(opened, settings_of(options["set"])), opened.checkpoint.directory
    target = directory if to is None else resolve_destination(to)
    if to is not None:
        made = dataclasses.replace(made, transfer=transfer_between(directory, target))
    made_plan = make_plan(opened, made, configuration, jobs=job_count(options["jobs"]))
    if to is None:
        return made_plan
    return dataclasses.replace(made_plan, traffic=estimate_traffic(made_plan, directory, target))


@documented
def verify(
    source: Annotated[Path, Option("The source; if given alone, the checkpoint itself.", metavar="SRC|DST")],
    destination: Annotated[Path | None, Option("The MaxText checkpoint.", metavar="[DST]")] = None,
    **options: Unpack[VerifyArguments],
) -> "Verification":
    """Compares a MaxText checkpoint with its source bit for bit, or with the digests that it carries.

    Differences are not an error: they are in the result's `findings`, and its `ok` is false.

    Raises:
      UsageError: arguments contradict each other, or `max_memory` is too small.
      SourceError: the source cannot be read.
      DestinationError: the destination is not a local path, or is an AXLearn checkpoint.
      MappingError: no mapping table fits the source.
      VerificationError: there is no checkpoint, it carries no digests, or its metadata cannot be read.
    """
    from converter.errors import UsageError
    from converter.verification import verify_digests

    step, mapping, sample = options["step"], optional_path(options["mapping"]), sample_fraction(options)
    tree, dtype = options["tree"], cast_dtype(options)
    progress, memory, jobs = (
        options["progress"] or silent(),
        byte_count(options["max_memory"]),
        job_count(options["jobs"]),
    )
    share = share_of(options["process"])
    if destination is None:
        if (step, mapping, tree, dtype, sample) != (None,) * 5:
            raise UsageError("--step, --mapping, --tree, --dtype and --sample need a source: verify SRC DST")
        return verify_digests(
            os.fspath(source), progress, decode=options["decode"], max_memory=memory, jobs=jobs, share=share
        )
    from converter.verification import verify as compare

    return compare(
        os.fspath(source),
        os.fspath(destination),
        progress,
        step=step,
        mapping=mapping,
        tree=tree,
        dtype=dtype,
        sample=sample,
        decode=options["decode"],
        max_memory=memory,
        jobs=jobs,
        share=share,
    )


@documented
def compare_logits(
    source: SourcePath,
    destination: Annotated[Path, Option("The MaxText checkpoint.", metavar="DST")],
    **options: Unpack[CompareArguments],
) -> "LogitsComparison":
    """Compares what both models compute, and finds the causes of a difference: `ax2mt verify --logits`.

    Logits that differ are not an error: the result's `passed` is false.

    Raises:
      UsageError: the paths are swapped, a key is not known, or `max_memory` is too small.
      SourceError: a checkpoint is damaged.
      DestinationError: the destination is not a local path.
      MappingError: no mapping table fits, or it does not say what its model computes with.
      VerificationError: the destination's tensors make another model.
    """
    from converter.forward import choose_tokens, compare, open_pair
    from converter.work import reuse_freed_memory

    memory = byte_count(options["max_memory"])
    reuse_freed_memory()
    models = open_pair(
        os.fspath(source),
        os.fspath(destination),
        step=options["step"],
        mapping=optional_path(options["mapping"]),
        tree=options["tree"],
        settings=settings_of(options["set"]),
        norm_after=options["norm_after_rope"],
    )
    tokens = choose_tokens(optional_path(options["tokens"]), models[0].weights.vocabulary)
    limits = limits_of(options)
    with closing(options["progress"] or silent()) as progress:
        explain = options["explain"]
        return compare(*models, tokens, budget=memory, limits=limits, explain=explain, progress=progress)


@documented
def logits(
    path: Annotated[Path, Option("AXLearn step or trainer directory, or MaxText's.", metavar="PATH")],
    **options: Unpack[LogitsArguments],
) -> "LogitsResult":
    """Computes a checkpoint's logits on the CPU, as AXLearn or as MaxText computes them.

    Raises:
      UsageError: an argument is not for this kind of checkpoint, or `max_memory` is too small.
      SourceError: the checkpoint is damaged, or there is none.
      MappingError: no mapping table fits, or it does not say what its model computes with.
      DestinationError: `out` cannot be written.
    """
    from converter.forward import choose_tokens, open_model
    from converter.forward import logits as run
    from converter.work import reuse_freed_memory

    memory = byte_count(options["max_memory"])
    reuse_freed_memory()
    model = open_model(
        os.fspath(path),
        step=options["step"],
        mapping=optional_path(options["mapping"]),
        tree=options["tree"],
        settings=settings_of(options["set"]),
        norm_after_rope=options["norm_after_rope"],
    )
    tokens = choose_tokens(optional_path(options["tokens"]), model.weights.vocabulary)
    with closing(options["progress"] or silent()) as progress:
        return run(model, tokens, optional_path(options["out"]), memory, progress)


@documented
def parameters(
    source: Annotated[Path | None, Option("AXLearn step or trainer directory.", metavar="[SRC]")] = None,
    destination: Annotated[Path | None, Option("The MaxText checkpoint.", metavar="[DST]")] = None,
    **options: Unpack[ParameterArguments],
) -> "ParameterReport":
    """Reports which AXLearn parameter is which MaxText parameter, with shapes and counts: `ax2mt params`.

    Raises:
      UsageError: neither a source nor a model was given.
      SourceError: the source cannot be read.
      DestinationError: the destination is not a local path, or is an AXLearn checkpoint.
      MappingError: no mapping table fits, or there is no such model.
      VerificationError: there is no checkpoint at the destination.
    """
    from converter.planning import make_report

    return make_report(
        optional_path(source),
        optional_path(destination),
        model=options["model"],
        step=options["step"],
        mapping=optional_path(options["mapping"]),
        options=table_options(options),
        tree=options["tree"],
        layout=options["layout"],
    )


@documented
def conform(
    source: Annotated[Path | None, Option("AXLearn step or trainer directory.", metavar="[SRC]")] = None,
    **options: Unpack[ConformArguments],
) -> "Conformance":
    """Compares the mapping with MaxText and AXLearn as they are installed: leaves, shapes, dtypes and flags.

    Without a source, a model or a configuration, every published size is compared. Differences are not an error: the
    result's `ok` is false.

    Raises:
      UsageError: arguments contradict each other, or an interpreter lacks its framework.
      SourceError: the source cannot be read.
      MappingError: no mapping table fits, or there is no such model.
      VerificationError: a framework gives no answer.
    """
    from converter.conformance import ConformRequest
    from converter.conformance import conform as run

    return run(
        ConformRequest(
            source=optional_path(source),
            model=options["model"],
            maxtext=optional_path(options["maxtext"]),
            axlearn=optional_path(options["axlearn"]),
            config=options["config"],
            layout=options["layout"],
            step=options["step"],
            mapping=optional_path(options["mapping"]),
            options=table_options(options),
            settings=tuple(settings_of(options["set"])),
        )
    )


@documented
def gather_evidence(
    source: SourcePath,
    destination: Annotated[Path, Option("The MaxText checkpoint.", metavar="DST")],
    **options: Unpack[EvidenceArguments],
) -> "Evidence":
    """Gathers counts, shapes, bits, logits, configuration and digests of a checkpoint: `ax2mt report`.

    What differs is not an error: the result's `passed` is false.

    Raises:
      UsageError: arguments contradict each other, or `max_memory` is too small.
      SourceError: the source cannot be read.
      DestinationError: the destination is not a local path, or is an AXLearn checkpoint.
      MappingError: no mapping table fits, or, with `logits`, it does not say what its model computes with.
      VerificationError: there is no checkpoint, or its tree cannot be read.
    """
    from converter.evidence import Request, gather

    if not options["logits"]:
        _refuse_options_of_logits(options)
    request = Request(
        source=os.fspath(source),
        destination=os.fspath(destination),
        step=options["step"],
        mapping=optional_path(options["mapping"]),
        tree=options["tree"],
        dtype=cast_dtype(options),
        sample=sample_fraction(options),
        decode=options["decode"],
        max_memory=byte_count(options["max_memory"]) if options["max_memory"] is not None else None,
        jobs=job_count(options["jobs"]),
        logits=options["logits"],
        tokens=optional_path(options["tokens"]),
        settings=tuple(settings_of(options["set"])),
        norm_after_rope=options["norm_after_rope"],
        limits=tuple(limits_of(options)),
        explain=options["explain"],
    )
    return gather(request, options["progress"] or silent())


@documented
def inspect(path: Annotated[Path, Option("Any file or directory.", metavar="PATH")]) -> "Inspection":
    """Identifies a checkpoint and lists its contents; what cannot be read is reported as such.

    Raises:
      SourceError: the path is not a local one.
    """
    from converter.checkpoints import inspect as look

    return look(os.fspath(path))


@documented
def beam(
    source: SourcePath,
    destination: Annotated[Path, Option("New directory; MaxText gets DST/<step>/items.", metavar="DST")],
    beam_options: Annotated[Iterable[str], Option("Options of Beam, behind --.", metavar="BEAM_OPTIONS")] = (),
    **options: Unpack[BeamArguments],
) -> "BeamResult":
    """Converts as `convert` does, by an Apache Beam pipeline, on whatever workers its runner has.

    Raises:
      UsageError: arguments contradict each other, or Beam is not installed.
      SourceError: the source is not a committed checkpoint, or is damaged.
      MappingError: no mapping table fits the source.
      DestinationError: the destination is refused or cannot be written, or the pipeline failed.
      InexactError: `require_exact`, and the weights are not.
    """
    from converter.conversion import run_pipeline

    request = run_request(source, destination, options)
    return run_pipeline(request, options["shares"], list(beam_options))


@documented
def status(
    destination: Annotated[Path, Option("Where a conversion was begun.", metavar="DST")],
) -> "Status":
    """Reports how far a running or interrupted conversion is, and which command finishes it.

    Raises:
      DestinationError: a journal or a record beside the destination is damaged.
    """
    from converter.conversion import conversion_status

    return conversion_status(os.fspath(destination))


def _refuse_options_of_logits(given: EvidenceArguments) -> None:
    """Refuses values that would have no effect."""
    from converter.errors import UsageError

    usual = {parameter.name: parameter.default for parameter in arguments(compare_logits)}
    idle = usual.keys() - {parameter.name for parameter in arguments(verify)}
    flags = [f"--{name.replace('_', '-')}" for name in sorted(idle) if given.get(name) != usual[name]]
    if flags:
        raise UsageError(f"{', '.join(flags)} cannot be used without --logits")
