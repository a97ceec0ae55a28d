"""What commands print: results on stdout, errors and progress on stderr."""

import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from converter.cli.command import Invocation
from converter.errors import VerificationError
from converter.json_text import json_text
from converter.words import printable

if TYPE_CHECKING:
    from converter.report.fields import Record
    from converter.work import Progress

R = TypeVar("R")


def progress(context: typer.Context) -> "Progress":
    """A progress bar on stderr; under --quiet, one that prints nothing."""
    from converter.cli.progress import Bar
    from converter.work import Silent

    invocation: Invocation = context.obj
    return Silent() if invocation.quiet else Bar(context.command.name or "", verbose=invocation.verbose)


def timed(result: R) -> R:
    """A result whose time counts from the start of the process: its user waits for the imports as well."""
    from converter.work import process_seconds

    return dataclasses.replace(result, seconds=process_seconds())  # type: ignore[type-var]


def show(context: typer.Context, kind: "Record", result: R, render: Callable[[R, Any], None]) -> None:
    """Prints a result on stdout: its document under --json, its tables otherwise; only the wanted one is made.

    Args:
      context: of the command.
      kind: the document's description.
      result: what to print.
      render: prints it on a console.
    """
    invocation: Invocation = context.obj
    if invocation.as_json:
        from converter.report.fields import document

        typer.echo(json_text(document(kind, result)))
    elif not invocation.quiet:
        from converter.report.console import stdout_console

        render(result, stdout_console())


def fail_unless(passed: bool, context: typer.Context, message: str) -> None:
    """Ends the command with the exit code of a failed verification; says why where the result was not printed."""
    if passed:
        return
    invocation: Invocation = context.obj
    if invocation.quiet and not invocation.as_json:
        print(f"ax2mt: {printable(message)}", file=sys.stderr)
    raise typer.Exit(VerificationError.exit_code)


def report_error(invocation: Invocation, kind: str, message: str, details: Sequence[str], code: int) -> int:
    """Reports an error, on stderr or as a JSON document on stdout; returns the exit code."""
    message, details = printable(message), [printable(line) for line in details]
    if invocation.as_json:
        from converter.report.documents import ERROR
        from converter.report.fields import document

        error = {"kind": kind, "exit_code": code, "message": message, "details": details}
        print(json_text(document(ERROR, error)))
    else:
        print(f"ax2mt: {message}", file=sys.stderr)
        for line in details:
            print(f"  {line}", file=sys.stderr)
    return code
