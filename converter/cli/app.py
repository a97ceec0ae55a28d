"""The command line: parses, calls, prints. Heavy imports happen inside the commands, so that --help is quick.

What commands share is in `command`, `options` and `output`; commands that are more than a call, in modules of their
own.
"""

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated

import typer
import typer.main

from converter import api
from converter.cli.command import Command, Invocation
from converter.cli.conform import conform
from converter.cli.interrupts import Interrupts
from converter.cli.options import shows
from converter.cli.output import fail_unless, report_error, show, timed
from converter.cli.report import report
from converter.cli.streams import StandardStreams
from converter.cli.verify import verify
from converter.errors import Ax2mtError, ResourceError, UsageError
from converter.own_process import INTERRUPTED
from converter.version import __version__

if TYPE_CHECKING:
    from converter.checkpoints import Inspection
    from converter.conversion import BeamResult, Result, Status
    from converter.forward import LogitsResult
    from converter.planning import ParameterReport, Plan

NAME = "ax2mt"
WORKING = ("convert", "verify")
"""Commands whose exit code says what came of work; of the others, what they print is the result."""

app = typer.Typer(
    help="Converts AXLearn checkpoints into MaxText checkpoints, exactly and streaming.",
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
mappings_app = typer.Typer(
    help="List, show and check mapping tables.", invoke_without_command=True, rich_markup_mode=None
)
app.add_typer(mappings_app, name="mappings")
command = partial(app.command, cls=Command)
mappings_command = partial(mappings_app.command, cls=Command)


@command()
@shows(api.convert)
def convert(context: typer.Context, result: "Result") -> None:
    """Convert an AXLearn checkpoint into a MaxText checkpoint."""
    from converter.report.documents import CONVERT
    from converter.report.plan import print_result

    show(context, CONVERT, timed(result), print_result)


@command()
@shows(api.plan)
def plan(context: typer.Context, result: "Plan") -> None:
    """Show what convert would do, from metadata alone."""
    from converter.report.documents import PLAN
    from converter.report.plan import print_plan

    show(context, PLAN, result, print_plan)


command()(verify)
command()(conform)
command()(report)


@command()
@shows(api.parameters)
def params(
    context: typer.Context,
    found: "ParameterReport",
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Markdown for a pull request.")] = False,
) -> None:
    """Report which AXLearn parameter is which MaxText parameter, with shapes and counts."""
    from converter.report.documents import PARAMETERS
    from converter.report.verify import print_markdown, print_parameters

    show(context, PARAMETERS, found, print_markdown if as_markdown else print_parameters)
    given = context.params
    about = given["destination"] or given["source"] or given["model"]
    fail_unless(found.equivalent, context, f"{about}: the parameters are not equivalent")


@command()
@shows(api.inspect)
def inspect(context: typer.Context, found: "Inspection") -> None:
    """Identify a checkpoint and list its contents."""
    from converter.report.documents import INSPECTION
    from converter.report.verify import print_inspection

    show(context, INSPECTION, found, print_inspection)


@command()
@shows(api.beam)
def beam(context: typer.Context, result: "BeamResult") -> None:
    """Convert by an Apache Beam pipeline: beam SRC DST -- BEAM_OPTIONS."""
    from converter.report.documents import BEAM
    from converter.report.status import print_pipeline

    show(context, BEAM, timed(result), print_pipeline)


@command()
@shows(api.status)
def status(context: typer.Context, found: "Status") -> None:
    """Show how far a conversion is, and which command finishes it."""
    from converter.report.documents import STATUS
    from converter.report.status import print_status

    show(context, STATUS, found, print_status)


@command()
@shows(api.logits)
def logits(context: typer.Context, result: "LogitsResult") -> None:
    """Compute a checkpoint's logits, as AXLearn or as MaxText computes them."""
    from converter.report.documents import LOGITS
    from converter.report.logits import print_logits

    show(context, LOGITS, timed(result), print_logits)


@mappings_command("list")
def mappings_list(context: typer.Context) -> None:
    """The bundled tables."""
    from converter.mapping import load_bundled
    from converter.report.documents import MAPPINGS
    from converter.report.tables import print_mappings

    show(context, MAPPINGS, load_bundled(), print_mappings)


@mappings_command("show")
def mappings_show(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A bundled table, or a file.")],
) -> None:
    """The rows of a table."""
    from converter.mapping import find_mapping
    from converter.report.documents import MAPPING
    from converter.report.tables import print_mapping

    show(context, MAPPING, find_mapping(name), print_mapping)


@mappings_command("check")
def mappings_check(
    context: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A mapping table in TOML.")],
) -> None:
    """Validate a table of your own."""
    from converter.mapping import load_mapping
    from converter.report.documents import MAPPING_CHECK

    table = load_mapping(file)
    text = f"{file}: mapping '{table.name}' is valid ({len(table.rows)} rows, {len(table.drops)} drops)"
    show(context, MAPPING_CHECK, table, lambda _, console: console.print(text, soft_wrap=True))


@app.callback()
def _top(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(f"{NAME} {__version__}")
        raise typer.Exit
    _help_without_command(context)


@mappings_app.callback()
def _help_without_command(context: typer.Context) -> None:
    """Shows help where the command is missing, as Click does: on stderr, and it counts as wrong usage."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(UsageError.exit_code)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits with the documented code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    invocation = Invocation.unparsed(arguments)
    code = 1
    try:
        streams = StandardStreams()
        try:
            code = run(arguments, invocation)
        except Exception:
            # Its own fault, and asked for with -v.
            traceback.print_exc()
        only_printed = invocation.as_json or invocation.command not in WORKING
        code = streams.finish(code, output_is_result=only_printed)
    except KeyboardInterrupt:
        # A second one while the first was reported, or one while the output was written.
        code = INTERRUPTED
    finally:
        # All is written and every thread has ended; large libraries take a third of a second to take themselves apart.
        os._exit(code)


@cache
def _parser() -> Callable[..., object]:
    """What parses a command line and calls; a process that runs many commands makes it once."""
    return typer.main.get_command(app)


def run(arguments: list[str], invocation: Invocation | None = None) -> int:
    """Runs one command and returns its exit code; errors are shown on stderr, or as JSON on stdout under --json.

    Args:
      arguments: the words after the program's name.
      invocation: is filled with what they ask for.
    """
    interrupts = Interrupts()
    invocation = invocation or Invocation.unparsed(arguments)
    try:
        code = _parser()(arguments, standalone_mode=False, prog_name=NAME, obj=invocation)
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except Ax2mtError as error:
        # The others say themselves what has to be changed before the same command can work.
        as_it_is = isinstance(error, ResourceError) or error.exit_code == Ax2mtError.exit_code
        message = f"{error.message}{_again(invocation)}" if as_it_is else error.message
        return report_error(invocation, error.kind, message, error.details, error.exit_code)
    except SystemExit as error:
        # Shell completion has answered.
        return error.code if isinstance(error.code, int) else 0
    except KeyboardInterrupt:
        return _report_interrupt(invocation)
    except MemoryError as error:
        why = f" ({error})" if str(error) else ""
        text = f"out of memory{why}; give the job more memory, or lower --max-memory"
        return report_error(invocation, "resources", f"{text}{_again(invocation)}", (), ResourceError("").exit_code)
    except Exception as error:
        if interrupts.seen:
            return _report_interrupt(invocation)
        usage = getattr(error, "exit_code", None)
        if isinstance(usage, int) and hasattr(error, "format_message"):
            return report_error(invocation, "usage", error.format_message(), (), usage)  # pyright: ignore
        if invocation.verbose:
            raise
        if isinstance(error, FileNotFoundError) and _directory_is_gone():
            text = "the current directory was removed; change to another one, or give absolute paths"
            return report_error(invocation, "usage", text, (), UsageError.exit_code)
        if isinstance(error, ImportError):
            return report_error(invocation, "environment", f"the installation is incomplete: {error}", (), 1)
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        return report_error(
            invocation,
            "internal",
            f"internal error, please report it ({text}; -v shows where){_again(invocation)}",
            (),
            1,
        )


def _again(invocation: Invocation) -> str:
    """What the same command does after it was stopped, for the end of a message: only `convert` can resume."""
    name = invocation.command
    if name == "convert" and invocation.fresh:
        return "; run the same command without --fresh to resume"
    if name == "convert":
        return "; run the same command again to resume"
    again = "; run the same command again: it starts from the beginning"
    return again if name in ("verify", "report", "logits") else ""


def _directory_is_gone() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _report_interrupt(invocation: Invocation) -> int:
    return report_error(invocation, "interrupted", f"interrupted{_again(invocation)}", (), INTERRUPTED)
