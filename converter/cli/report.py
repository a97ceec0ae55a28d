"""The command `report`: all that is known of a checkpoint, as a page, Markdown or JSON."""

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from converter import api
from converter.cli.options import call, options_of, refuse_given, with_options
from converter.cli.output import fail_unless, show, timed
from converter.cli.output_file import OutputFile
from converter.errors import UsageError

if TYPE_CHECKING:
    from converter.evidence import Evidence

EXTRA = "jinja2", "markupsafe", "drawsvg"
"""Packages of the extra `report`."""

OPTIONS = options_of(api.gather_evidence)
OF_LOGITS = options_of(api.compare_logits).keys() - options_of(api.verify).keys()


def own_options(
    *,
    html: Annotated[
        str | None, typer.Option("--html", metavar="FILE", help="Write the report as one self-contained page.")
    ] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Markdown for a pull request.")] = False,
) -> None:
    """What the command has beside the options of the function."""


def report(context: typer.Context, html: str | None, as_markdown: bool, **given: Any) -> None:
    """Report what is known of a MaxText checkpoint: a page for reviewers, or Markdown."""
    if as_markdown and context.obj.as_json:
        raise UsageError("report: --markdown and --json both print on stdout; give one of them")
    if not given["logits"]:
        refuse_given(context, OF_LOGITS, "without --logits")
    page = _page_writer() if html is not None else None
    file = (
        OutputFile.checked("--html", html, outside=[given["source"], given["destination"]])
        if html is not None
        else None
    )
    evidence: Evidence = timed(call(api.gather_evidence, context, given))
    size = file.write(page(evidence)) if file is not None and page is not None else 0
    from converter.report.documents import REPORT
    from converter.report.evidence_markdown import print_evidence_markdown
    from converter.report.proofs import Shown, print_evidence

    shown = Shown(evidence=evidence, html=html or "", html_bytes=size)
    show(context, REPORT, shown, print_evidence_markdown if as_markdown else print_evidence)
    fail_unless(evidence.passed, context, f"{evidence.destination}: {shown.title}: {shown.summary}")


with_options(report, report, (OPTIONS | dict(inspect.signature(own_options).parameters)).values())


def _page_writer() -> "Callable[[Evidence], str]":
    """What makes the page, before any work.

    Raises:
      UsageError: the extra is not installed.
    """
    try:
        from converter.report.page import html_page
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRA:
            raise
        raise UsageError(f"--html needs {package}: pip install 'axlearn2maxtext[report]'") from None
    return html_page
