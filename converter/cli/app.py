"""The command line: parses, calls, prints. Heavy imports happen inside the commands, so that --help is quick.

What commands share is in `cli_arguments` and `cli_output`; `verify`, which is several commands in one, in `cli_verify`.
"""

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from converter import __version__
from converter.cli.interrupts import Interrupts
from converter.cli.options import (
    JobsOption,
    JsonOption,
    LinkOption,
    MappingOption,
    MemoryOption,
    PatchedOption,
    ProcessMemoryOption,
    QkNormOption,
    QuietOption,
    RewriteOption,
    SetOption,
    SourceArgument,
    StepOption,
    StoreOption,
    TokensOption,
    UntieOption,
    VerboseOption,
    WhatIfOption,
)
from converter.cli.output import bar, report_error, show, speaker
from converter.cli.streams import StandardStreams
from converter.cli.verify import verify
from converter.errors import Ax2mtError, ResourceError, UsageError, VerificationError
from converter.launch import INTERRUPTED

WORKING = ("convert", "verify")
"""Commands whose exit code says what came of work; of the others, what they print is the result."""

app = typer.Typer(
    help="Converts AXLearn checkpoints into MaxText checkpoints, exactly and streaming.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
mappings_app = typer.Typer(help="Looks at mapping tables.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(mappings_app, name="mappings")


@app.command()
def convert(
    source: SourceArgument,
    destination: Annotated[str, typer.Argument(metavar="DST", help="New directory; MaxText gets DST/0/items.")],
    step: StepOption = None,
    mapping: MappingOption = None,
    untie: UntieOption = False,
    max_memory: MemoryOption = "1GiB",
    jobs: JobsOption = 2,
    store: StoreOption = "files",
    rewrite: RewriteOption = False,
    link: LinkOption = False,
    settings: SetOption = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the checkpoint at DST.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Do not go on with an interrupted conversion.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Decode also chunks that are only passed through.")] = False,
    qk_norm: QkNormOption = "plain",
    require_exact: Annotated[
        bool, typer.Option("--require-exact", help="Fail (7) where stock MaxText's attention is not exact.")
    ] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Convert an AXLearn checkpoint into a MaxText checkpoint."""
    from converter.checkpoints import Committer

    # Started first: it has the most to import.
    with Committer() as committer:
        from converter.conversion import Request
        from converter.conversion import convert as run
        from converter.planning import Options
        from converter.report.plan import print_result, result_document
        from converter.words import parse_size

        options = Options(untie, parse_size(max_memory), store, rewrite, link, qk_norm)
        options.check()
        request = Request(
            source=source,
            destination=destination,
            options=options,
            step=step,
            mapping=mapping,
            settings=settings or [],
            jobs=jobs,
            overwrite=overwrite,
            fresh=fresh,
            check=check,
            require_exact=require_exact,
        )
        result = run(request, bar("convert", quiet, verbose), committer)
    show(as_json, lambda: result_document(result), lambda console: print_result(result, console))


@app.command()
def plan(
    source: SourceArgument,
    step: StepOption = None,
    mapping: MappingOption = None,
    untie: UntieOption = False,
    max_memory: MemoryOption = "1GiB",
    jobs: JobsOption = 2,
    store: StoreOption = "files",
    rewrite: RewriteOption = False,
    link: LinkOption = False,
    settings: SetOption = None,
    qk_norm: QkNormOption = "plain",
    metadata_only: Annotated[
        bool, typer.Option("--metadata-only", help="Chunk files are absent: index and .zarray files are enough.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what convert would do, from metadata alone."""
    from converter.mapping import configure
    from converter.planning import Options, make_plan, open_source
    from converter.report.plan import plan_document, print_plan
    from converter.words import parse_size

    options = Options(untie, parse_size(max_memory), store, rewrite, link, qk_norm)
    options.check()
    opened = open_source(
        source, step=step, mapping=mapping, options=options.mapping_options, metadata_only=metadata_only
    )
    made = make_plan(opened, options, configure(opened.match, settings or []), jobs=jobs)
    show(as_json, lambda: plan_document(made), lambda console: print_plan(made, console))


app.command()(verify)


@app.command()
def params(
    source: Annotated[str | None, typer.Argument(metavar="[SRC]", help="AXLearn step or trainer directory.")] = None,
    destination: Annotated[str | None, typer.Argument(metavar="[DST]", help="The MaxText checkpoint.")] = None,
    model: Annotated[str | None, typer.Option("--model", metavar="NAME", help="A published size.")] = None,
    step: StepOption = None,
    mapping: MappingOption = None,
    untie: UntieOption = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Markdown for a pull request.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Report which AXLearn parameter is which MaxText parameter, with shapes and counts."""
    from converter.planning import ParameterRequest, make_report
    from converter.report.verify import parameters_document, parameters_markdown, print_parameters

    report = make_report(ParameterRequest(source, destination, model, step, mapping, untie))
    if as_markdown and not as_json:
        typer.echo(parameters_markdown(report), nl=False)
    else:
        show(as_json, lambda: parameters_document(report), lambda console: print_parameters(report, console))
    if not report.equivalent:
        raise typer.Exit(VerificationError.exit_code)


@app.command()
def inspect(
    path: Annotated[str, typer.Argument(metavar="PATH", help="Anything.")],
    as_json: JsonOption = False,
) -> None:
    """Say what a path is: which kind of checkpoint, what is in it, what is missing."""
    from converter.checkpoints import inspect as look
    from converter.report.verify import inspection_document, print_inspection

    found = look(path)
    show(as_json, lambda: inspection_document(found), lambda console: print_inspection(found, console))


@app.command()
def logits(
    path: Annotated[str, typer.Argument(metavar="PATH", help="AXLearn step or trainer directory, or MaxText's.")],
    step: StepOption = None,
    mapping: MappingOption = None,
    tokens: TokensOption = None,
    out: Annotated[
        str | None, typer.Option("--out", metavar="FILE", help=".npz, or .jsonl for MaxText's logit checker.")
    ] = None,
    settings: WhatIfOption = None,
    norm_after_rope: PatchedOption = False,
    max_memory: ProcessMemoryOption = "4GiB",
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Compute a checkpoint's logits, as AXLearn or as MaxText computes them."""
    from converter.forward import choose_tokens, open_model
    from converter.forward import logits as run
    from converter.report.logits import logits_document, print_logits
    from converter.words import parse_size
    from converter.work import reuse_freed_memory

    reuse_freed_memory()
    model = open_model(path, step=step, mapping=mapping, settings=settings or [], norm_after_rope=norm_after_rope)
    chosen = choose_tokens(tokens, model.weights.vocabulary)
    result = run(model, chosen, out, parse_size(max_memory), speaker("logits", quiet))
    show(as_json, lambda: logits_document(result), lambda console: print_logits(result, console))


@mappings_app.command("list")
def mappings_list(as_json: JsonOption = False) -> None:
    """The bundled tables."""
    from converter.mapping import load_bundled
    from converter.report.tables import mappings_document, print_mappings

    tables = load_bundled()
    show(as_json, lambda: mappings_document(tables), lambda console: print_mappings(tables, console))


@mappings_app.command("show")
def mappingsshow(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A bundled table, or a file.")],
    as_json: JsonOption = False,
) -> None:
    """The rows of a table."""
    from converter.mapping import find_mapping
    from converter.report.tables import mapping_document, print_mapping

    table = find_mapping(name)
    show(as_json, lambda: mapping_document(table), lambda console: print_mapping(table, console))


@mappings_app.command("check")
def mappings_check(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A mapping table in TOML.")],
    as_json: JsonOption = False,
) -> None:
    """Validate a table of your own."""
    from converter.mapping import load_mapping
    from converter.report.tables import mapping_check_document

    table = load_mapping(file)
    text = f"{file}: mapping '{table.name}' is valid ({len(table.rows)} rows, {len(table.drops)} drops)"
    show(as_json, lambda: mapping_check_document(table), lambda console: console.print(text, soft_wrap=True))


@app.callback(invoke_without_command=True)
def _top(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(f"ax2mt {__version__}")
        raise typer.Exit


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits with the documented code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    code = 1
    try:
        streams = StandardStreams()
        try:
            code = run(arguments)
        except Exception:
            # Its own fault, and asked for with -v.
            traceback.print_exc()
        code = streams.finish(code, output_is_result="--json" in arguments or not set(WORKING) & set(arguments[:1]))
    except KeyboardInterrupt:
        # A second one, while the first one was told of; or one while the output was written.
        code = INTERRUPTED
    finally:
        # All is written and every thread has ended; large libraries take a third of a second to take themselves apart.
        os._exit(code)


def run(arguments: list[str]) -> int:
    """Runs one command and returns its exit code; errors are shown on stderr, or as JSON on stdout under --json."""
    interrupts = Interrupts()
    try:
        code = app(arguments, standalone_mode=False)
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except Ax2mtError as error:
        # The others say themselves what has to be changed before the same command can work.
        as_it_is = isinstance(error, ResourceError) or error.exit_code == Ax2mtError.exit_code
        message = f"{error.message}{_again(arguments)}" if as_it_is else error.message
        return report_error(arguments, error.kind, message, error.details, error.exit_code)
    except KeyboardInterrupt:
        return _report_interrupt(arguments)
    except MemoryError as error:
        why = f" ({error})" if str(error) else ""
        text = f"out of memory{why}; give more of it, or a smaller --max-memory"
        return report_error(arguments, "resources", f"{text}{_again(arguments)}", (), ResourceError("").exit_code)
    except Exception as error:
        if interrupts.seen:
            return _report_interrupt(arguments)
        usage = getattr(error, "exit_code", None)
        if isinstance(usage, int) and hasattr(error, "format_message"):
            return report_error(arguments, "usage", error.format_message(), (), usage)  # pyright: ignore
        if "-v" in arguments or "--verbose" in arguments:
            raise
        if isinstance(error, FileNotFoundError) and _directory_is_gone():
            text = "the current directory was removed; change to another one, or give absolute paths"
            return report_error(arguments, "usage", text, (), UsageError.exit_code)
        if isinstance(error, ImportError):
            return report_error(arguments, "environment", f"the installation is incomplete: {error}", (), 1)
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        return report_error(
            arguments,
            "internal",
            f"internal error, please report it ({text}; -v shows where){_again(arguments)}",
            (),
            1,
        )


def _again(arguments: Sequence[str]) -> str:
    """What the same command does after it was stopped, for the end of a message: only `convert` can resume."""
    command = arguments[0] if arguments else ""
    if command == "convert" and "--fresh" in arguments:
        return "; run the same command without --fresh to resume"
    if command == "convert":
        return "; run the same command again to resume"
    return "; run the same command again: it starts from the beginning" if command in ("verify", "logits") else ""


def _directory_is_gone() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _report_interrupt(arguments: list[str]) -> int:
    return report_error(arguments, "interrupted", f"interrupted{_again(arguments)}", (), INTERRUPTED)
