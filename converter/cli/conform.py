"""The command `conform`: a mapping against MaxText and AXLearn as they are installed."""

import inspect
from typing import Annotated, Any

import typer

from converter import api
from converter.cli.options import JUnitFile, call, options_of, with_options
from converter.cli.output import fail_unless, show, timed
from converter.cli.output_file import OutputFile
from converter.errors import UsageError


def own_options(
    *,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Markdown for a pull request.")] = False,
    junit: JUnitFile = None,
) -> None:
    """What the command has beside the options of the function."""


def conform(context: typer.Context, as_markdown: bool, junit: str | None, **given: Any) -> None:
    """Compare a mapping with MaxText and AXLearn as they are installed: leaves, shapes, dtypes, flags."""
    if as_markdown and context.obj.as_json:
        raise UsageError("conform: --markdown and --json exclude each other")
    file = OutputFile.checked("--junit", junit, outside=[given["source"]]) if junit is not None else None
    result = timed(call(api.conform, context, given))
    if file is not None:
        from converter.report.junit import conformance_suites

        file.write(conformance_suites(result))
    from converter.report.conformance import print_conformance, print_conformance_markdown
    from converter.report.documents import CONFORM

    show(context, CONFORM, result, print_conformance_markdown if as_markdown else print_conformance)
    fail_unless(result.ok, context, f"conform: {result.differences} differences from the installed frameworks")


with_options(conform, conform, [*options_of(api.conform).values(), *inspect.signature(own_options).parameters.values()])
