"""The command `verify`: bits or logits, against the source or against the checkpoint's own digests."""

from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from converter.cli.options import (
    JobsOption,
    JsonOption,
    MappingOption,
    PatchedOption,
    QuietOption,
    StepOption,
    TokensOption,
    VerboseOption,
    WhatIfOption,
)
from converter.cli.output import bar, show, speaker
from converter.errors import UsageError, VerificationError

if TYPE_CHECKING:
    from converter.verification import Verification, VerifyRequest


def verify(
    source: Annotated[str, typer.Argument(metavar="SRC|DST", help="The source; or alone, the checkpoint itself.")],
    destination: Annotated[str | None, typer.Argument(metavar="[DST]", help="The MaxText checkpoint.")] = None,
    step: StepOption = None,
    mapping: MappingOption = None,
    dtype: Annotated[str | None, typer.Option("--dtype", help="The dtype that weights were cast to.")] = None,
    sample: Annotated[float | None, typer.Option("--sample", help="Compare only this fraction of the blocks.")] = None,
    max_memory: Annotated[
        str | None, typer.Option("--max-memory", metavar="SIZE", help="Budget: 1GiB, with --logits 4GiB.")
    ] = None,
    jobs: JobsOption = 2,
    compare_logits: Annotated[
        bool, typer.Option("--logits", help="Compare what both models compute, not their bits.")
    ] = False,
    tokens: TokensOption = None,
    settings: WhatIfOption = None,
    norm_after_rope: PatchedOption = False,
    max_kl: Annotated[float, typer.Option("--max-kl", min=0, help="Worst token's divergence allowed.")] = 1e-4,
    max_difference: Annotated[
        float | None, typer.Option("--max-difference", min=0, help="Largest absolute difference allowed.")
    ] = None,
    min_top1: Annotated[
        float, typer.Option("--min-top1", min=0, max=1, help="Least share of tokens with the same top-1.")
    ] = 0.0,
    explain: Annotated[bool, typer.Option("--explain/--no-explain", help="Look for the cause of a difference.")] = True,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Compare a MaxText checkpoint with its source, or with the digests it carries."""
    from converter.words import parse_size

    output = _Output(as_json, quiet, verbose)
    memory = parse_size(max_memory or ("4GiB" if compare_logits else "1GiB"))
    if compare_logits:
        if destination is None or (dtype, sample) != (None, None):
            raise UsageError("--logits compares two checkpoints whole: verify SRC DST --logits, no --dtype or --sample")
        limits = [("kl_max", max_kl), ("top1", min_top1)]
        limits += [("max_abs", max_difference)] if max_difference is not None else []
        pair = _Pair(source, destination, step, mapping, settings or [], norm_after_rope)
        passed = _logits_agree(pair, tokens, limits, memory, explain, output)
    elif tokens or settings or norm_after_rope:
        raise UsageError("--tokens, --set and --norm-after-rope need --logits")
    elif destination is not None:
        from converter.verification import VerifyRequest

        request = VerifyRequest(source, destination, step, mapping, dtype, sample, memory, jobs)
        passed = _bits_agree(request, output)
    elif (step, mapping, dtype, sample) != (None, None, None, None):
        raise UsageError("--step, --mapping, --dtype and --sample need a source: verify SRC DST")
    else:
        passed = _digests_hold(source, memory, jobs, output)
    if not passed:
        raise typer.Exit(VerificationError.exit_code)


class _Output(NamedTuple):
    as_json: bool
    quiet: bool
    verbose: bool


class _Pair(NamedTuple):
    source: str
    destination: str
    step: int | None
    mapping: str | None
    settings: list[str]
    norm_after_rope: bool


def _bits_agree(request: "VerifyRequest", output: _Output) -> bool:
    from converter.verification import verify as compare

    return _show_verification(compare(request, bar("verify", output.quiet, output.verbose)), output)


def _digests_hold(checkpoint: str, memory: int, jobs: int, output: _Output) -> bool:
    from converter.verification import verify_digests

    progress = bar("verify", output.quiet, output.verbose)
    return _show_verification(verify_digests(checkpoint, progress, max_memory=memory, jobs=jobs), output)


def _show_verification(result: "Verification", output: _Output) -> bool:
    from converter.report.verify import print_verification, verification_document

    show(output.as_json, lambda: verification_document(result), lambda console: print_verification(result, console))
    return result.ok


def _logits_agree(
    pair: _Pair, tokens: str | None, limits: list[tuple[str, float]], memory: int, explain: bool, output: _Output
) -> bool:
    from converter.forward import choose_tokens, compare, open_pair
    from converter.report.logits import comparison_document, print_comparison
    from converter.work import reuse_freed_memory

    reuse_freed_memory()
    models = open_pair(
        pair.source,
        pair.destination,
        step=pair.step,
        mapping=pair.mapping,
        settings=pair.settings,
        norm_after=pair.norm_after_rope,
    )
    chosen = choose_tokens(tokens, models[0].weights.vocabulary)
    say = speaker("verify", output.quiet)
    result = compare(*models, chosen, budget=memory, limits=limits, explain=explain, say=say)
    show(output.as_json, lambda: comparison_document(result), lambda console: print_comparison(result, console))
    return result.passed
