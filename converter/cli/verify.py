"""The command `verify`: bits or logits, against the source or against the checkpoint's own digests."""

import inspect
from typing import TYPE_CHECKING, Annotated, Any

import typer

from converter import api
from converter.cli.options import JUnitFile, call, options_of, refuse_given, with_options
from converter.cli.output import fail_unless, show, timed
from converter.cli.output_file import OutputFile
from converter.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from converter.forward import LogitsComparison
    from converter.verification import Verification

BITS, LOGITS = options_of(api.verify), options_of(api.compare_logits)


def own_options(
    *,
    max_memory: Annotated[
        str | None, typer.Option("--max-memory", metavar="SIZE", help="Budget: 1GiB, with --logits 4GiB.")
    ] = None,
    compare_logits: Annotated[
        bool, typer.Option("--logits", help="Compare the models' logits instead of the bits.")
    ] = False,
    junit: JUnitFile = None,
) -> None:
    """What the command has beside the options of both functions, or in their place."""


def verify(context: typer.Context, compare_logits: bool, junit: str | None, **given: Any) -> None:
    """Compare a MaxText checkpoint with its source, or with the digests it carries."""
    if not compare_logits:
        refuse_given(context, LOGITS.keys() - BITS.keys(), "without --logits")
        checkpoints = given["source"], given["destination"]
        file = OutputFile.checked("--junit", junit, outside=checkpoints) if junit is not None else None
        result = timed(call(api.verify, context, {name: given[name] for name in BITS}))
        if file is not None:
            from converter.report.junit import verification_suites

            file.write(verification_suites(result))
        _show_bits(context, result)
        return
    if given["destination"] is None:
        raise UsageError("--logits compares two complete checkpoints: verify SRC DST --logits")
    refuse_given(context, (BITS.keys() | {"junit"}) - LOGITS.keys(), "with --logits")
    _show_logits(context, call(api.compare_logits, context, {name: given[name] for name in LOGITS}))


with_options(verify, verify, (BITS | LOGITS | BITS | dict(inspect.signature(own_options).parameters)).values())


def _show_bits(context: typer.Context, result: "Verification") -> None:
    from converter.report.documents import VERIFY

    def render(result: "Verification", console: "Console") -> None:
        from converter.report.verify import print_verification

        print_verification(result, console)

    show(context, VERIFY, result, render)
    count = len(result.findings)
    fail_unless(result.ok, context, f"{result.destination}: verification failed with {count} findings")


def _show_logits(context: typer.Context, result: "LogitsComparison") -> None:
    from converter.report.documents import COMPARISON
    from converter.report.logits import print_comparison

    show(context, COMPARISON, timed(result), print_comparison)
    path = context.params["destination"]
    fail_unless(result.passed, context, f"{path}: verification failed: {'; '.join(result.limits)}")
