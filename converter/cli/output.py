"""What commands print: results on stdout, errors and what is being worked on on stderr."""

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import typer

from converter.cli.streams import is_terminal
from converter.json_text import json_text

if TYPE_CHECKING:
    from converter.work import Progress
from converter.words import printable


def bar(title: str, quiet: bool, verbose: bool) -> "Progress":
    """The progress of work on many bytes, on stderr."""
    from converter.cli.progress import Bar
    from converter.work import Silent

    return Silent() if quiet else Bar(title, verbose=verbose)


def speaker(title: str, quiet: bool) -> Callable[[str], None]:
    """Tells on stderr what is being worked on: on one line of a terminal, and not at all elsewhere."""
    if quiet or not is_terminal(sys.stderr):
        return lambda _: None
    return lambda text: print(f"\r\033[K{title}: {text}", end="\r", file=sys.stderr, flush=True)


def show(as_json: bool, document: Callable[[], dict[str, Any]], render: Callable[[Any], None]) -> None:
    """Prints a result on stdout: its document under --json, its tables otherwise; only the wanted one is made."""
    if as_json:
        typer.echo(json_text(document()))
    else:
        from converter.report.console import stdout_console

        render(stdout_console())


def report_error(arguments: Sequence[str], kind: str, message: str, details: Sequence[str], code: int) -> int:
    """Tells of an error, on stderr or as a JSON document on stdout; returns the exit code."""
    message, details = printable(message), [printable(line) for line in details]
    if "--json" in arguments:
        from converter.report.console import document

        error = {"kind": kind, "exit_code": code, "message": message, "details": details}
        print(json_text(document(error=error)))
    else:
        print(f"ax2mt: {message}", file=sys.stderr)
        for line in details:
            print(f"  {line}", file=sys.stderr)
    return code
