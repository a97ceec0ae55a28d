"""Gathers the evidence: calls what proves each part, and keeps what a damaged checkpoint does not let be proved."""

import time

from converter.checkpoints import Target, check_pair, open_target
from converter.errors import DestinationError, SourceError, VerificationError
from converter.evidence.commands import commands
from converter.evidence.configuration import config_keys
from converter.evidence.digests import Receipt, read_digests
from converter.evidence.evidence import Evidence, Request
from converter.forward import LogitsComparison, Model, Tokens, choose_tokens, compare, open_pair
from converter.location import locate
from converter.planning import EvidentPlan, ParameterReport, evident_plan, pair_mismatches, report_source
from converter.verification import verify_plan
from converter.version import __version__
from converter.work import Progress, peak_resident, reuse_freed_memory


def gather(request: Request, progress: Progress) -> Evidence:
    """Gathers all that is known of a checkpoint.

    Args:
      request: what to look at.
      progress: notified of each block, and of the layers whose logits are computed.

    Raises:
      UsageError: source and destination are swapped, an argument is wrong, or a memory budget is too small.
      SourceError: the source cannot be read.
      DestinationError: the destination is not a path that can be read, or is an AXLearn checkpoint.
      MappingError: no table fits the source, or, with logits, it does not say what its model computes with.
      VerificationError: there is no checkpoint at the destination, or its tree cannot be read.
    """
    started = time.monotonic()
    check_pair(locate(request.source, SourceError), locate(request.destination, DestinationError))
    reuse_freed_memory()
    # First of all what a mistyped argument would end, since the bits take longest.
    models, problem = _models(request)
    target = open_target(request.destination)
    evident = evident_plan(
        request.source,
        target,
        step=request.step,
        mapping=request.mapping,
        tree=request.tree,
        max_memory=request.bits_memory,
        jobs=request.jobs,
    )
    receipt = read_digests(target)
    parameters = _parameters(evident, target)
    bits = verify_plan(
        evident,
        target,
        progress,
        dtype=request.dtype,
        sample=request.sample,
        decode=request.decode,
        max_memory=request.bits_memory,
        jobs=request.jobs,
    )
    logits, problem = _logits(request, models, problem, progress)
    return Evidence(
        tool=f"ax2mt {__version__}",
        source=evident.plan.source,
        destination=request.destination,
        plan=evident.plan,
        parameters=parameters,
        bits=bits,
        logits=logits,
        logits_problem=problem,
        mismatches=pair_mismatches(evident.source, evident.fitted),
        configuration=config_keys(target, evident.plan.configuration, _chosen(receipt)),
        receipt=receipt,
        commands=commands(request, evident.plan.source, receipt),
        seconds=time.monotonic() - started,
        peak_memory=peak_resident(),
    )


def _parameters(evident: EvidentPlan, target: Target) -> ParameterReport:
    """The parameter report; of what is planned, where a leaf of the checkpoint cannot be opened."""
    try:
        return report_source(evident.source, target)
    except VerificationError:
        # The comparison of the bits says which leaf that is, and why.
        return report_source(evident.source, None)


def _models(request: Request) -> tuple[tuple[Model, Model, Tokens] | None, str]:
    """Both models and what they are given, or why a damaged checkpoint makes none; nothing without `logits`."""
    if not request.logits:
        return None, ""
    try:
        source, destination = open_pair(
            request.source,
            request.destination,
            step=request.step,
            mapping=request.mapping,
            tree=request.tree,
            settings=list(request.settings),
            norm_after=request.norm_after_rope,
        )
    except (SourceError, VerificationError) as error:
        return None, error.message
    return (source, destination, choose_tokens(request.tokens, source.weights.vocabulary)), ""


def _logits(
    request: Request, models: tuple[Model, Model, Tokens] | None, problem: str, progress: Progress
) -> tuple[LogitsComparison | None, str]:
    """The comparison of the logits, or why there is none."""
    if models is None:
        return None, problem
    try:
        return compare(
            *models, budget=request.logits_memory, limits=request.limits, explain=request.explain, progress=progress
        ), ""
    except SourceError as error:
        return None, error.message
    finally:
        progress.close()


def _chosen(receipt: Receipt) -> frozenset[str] | None:
    """The keys that the user set, by the receipt; None where it does not say."""
    settings = receipt.options.get("set")
    return frozenset(settings) if isinstance(settings, dict) else None
