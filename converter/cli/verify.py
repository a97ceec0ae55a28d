"""The command `verify`: bits or logits, against the source or against the checkpoint's own digests."""

from typing import Annotated

import typer

from converter import api
from converter.choices import DEFAULT_KL, CastDtype
from converter.cli.options import (
    JobsOption,
    MadeTreeOption,
    MappingOption,
    PatchedOption,
    StepOption,
    TokensOption,
    WhatIfOption,
)
from converter.cli.output import fail_unless, progress, show, timed
from converter.errors import UsageError


def verify(
    context: typer.Context,
    source: Annotated[
        str, typer.Argument(metavar="SRC|DST", help="The source; if given alone, the checkpoint itself.")
    ],
    destination: Annotated[str | None, typer.Argument(metavar="[DST]", help="The MaxText checkpoint.")] = None,
    step: StepOption = None,
    mapping: MappingOption = None,
    dtype: Annotated[CastDtype | None, typer.Option("--dtype", help="The dtype that weights were cast to.")] = None,
    sample: Annotated[float | None, typer.Option("--sample", help="Compare only this fraction of the blocks.")] = None,
    max_memory: Annotated[
        str | None, typer.Option("--max-memory", metavar="SIZE", help="Budget: 1GiB, with --logits 4GiB.")
    ] = None,
    jobs: JobsOption = 2,
    tree: MadeTreeOption = None,
    compare_logits: Annotated[
        bool, typer.Option("--logits", help="Compare the models' logits instead of the bits.")
    ] = False,
    tokens: TokensOption = None,
    settings: WhatIfOption = None,
    norm_after_rope: PatchedOption = False,
    max_kl: Annotated[float, typer.Option("--max-kl", min=0, help="Worst token's divergence allowed.")] = DEFAULT_KL,
    max_difference: Annotated[
        float | None, typer.Option("--max-difference", min=0, help="Largest absolute difference allowed.")
    ] = None,
    min_top1: Annotated[
        float, typer.Option("--min-top1", min=0, max=1, help="Smallest allowed share of tokens with the same top-1.")
    ] = 0.0,
    explain: Annotated[bool, typer.Option("--explain/--no-explain", help="Look for the cause of a difference.")] = True,
) -> None:
    """Compare a MaxText checkpoint with its source, or with the digests it carries."""
    if not compare_logits:
        if tokens or settings or norm_after_rope:
            raise UsageError("--tokens, --set and --norm-after-rope need --logits")
        result = api.verify(
            source,
            destination,
            step=step,
            mapping=mapping,
            tree=tree,
            dtype=dtype,
            sample=sample,
            max_memory=max_memory or "1GiB",
            jobs=jobs,
            progress=progress(context),
        )
        from converter.report.documents import VERIFY
        from converter.report.verify import print_verification

        show(context, VERIFY, timed(result), print_verification)
        count = len(result.findings)
        fail_unless(result.ok, context, f"{result.destination}: verification failed with {count} findings")
        return
    if destination is None or (dtype, sample) != (None, None):
        raise UsageError("--logits compares two complete checkpoints: verify SRC DST --logits, no --dtype or --sample")
    compared = api.compare_logits(
        source,
        destination,
        step=step,
        mapping=mapping,
        tree=tree,
        tokens=tokens,
        set=settings or [],
        norm_after_rope=norm_after_rope,
        max_memory=max_memory or "4GiB",
        max_kl=max_kl,
        max_difference=max_difference,
        min_top1=min_top1,
        explain=explain,
        progress=progress(context),
    )
    from converter.report.documents import COMPARISON
    from converter.report.logits import print_comparison

    show(context, COMPARISON, timed(compared), print_comparison)
    fail_unless(compared.passed, context, f"{destination}: verification failed: {'; '.join(compared.limits)}")
