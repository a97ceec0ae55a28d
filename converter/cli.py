"""The command line: parses, calls, prints. Heavy imports happen inside the commands, so that --help is quick."""

import json
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from converter import __version__
from converter.errors import Ax2mtError

app = typer.Typer(
    help="Converts AXLearn checkpoints into MaxText checkpoints, exactly and streaming.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
mappings_app = typer.Typer(help="Looks at mapping tables.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(mappings_app, name="mappings")

SourceArgument = Annotated[str, typer.Argument(metavar="SRC", help="AXLearn step directory, or a trainer directory.")]
StepOption = Annotated[int | None, typer.Option("--step", min=0, help="Step to take; default: latest committed.")]
MappingOption = Annotated[str | None, typer.Option("--mapping", metavar="FILE", help="Your own mapping table.")]
UntieOption = Annotated[bool, typer.Option("--untie", help="Write the output projection as a leaf of its own.")]
MemoryOption = Annotated[str, typer.Option("--max-memory", metavar="SIZE", help="Budget for blocks in flight.")]
StoreOption = Annotated[str, typer.Option("--store", help="files, ocdbt (one database) or zarr2 (for old readers).")]
RewriteOption = Annotated[bool, typer.Option("--rewrite", help="Decode and encode every chunk, pass none through.")]
LinkOption = Annotated[bool, typer.Option("--link", help="Hard-link chunks instead of copying: no checksums.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


@app.command()
def convert(
    source: SourceArgument,
    destination: Annotated[str, typer.Argument(metavar="DST", help="New directory; MaxText gets DST/0/items.")],
    step: StepOption = None,
    mapping: MappingOption = None,
    untie: UntieOption = False,
    max_memory: MemoryOption = "1GiB",
    jobs: Annotated[int, typer.Option("--jobs", min=1, max=256, help="Blocks in flight, as memory allows.")] = 2,
    store: StoreOption = "files",
    rewrite: RewriteOption = False,
    link: LinkOption = False,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change maxtext.yml.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the checkpoint at DST.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Do not go on with an interrupted conversion.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Decode also chunks that are only passed through.")] = False,
    require_exact: Annotated[
        bool, typer.Option("--require-exact", help="Fail (7) where stock MaxText's attention is not exact.")
    ] = False,
    as_json: JsonOption = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Name each finished leaf.")] = False,
) -> None:
    """Convert an AXLearn checkpoint into a MaxText checkpoint."""
    from converter.convert import Request
    from converter.convert import convert as run
    from converter.memory import parse_size
    from converter.plan import Options
    from converter.progress import Bar, Silent
    from converter.report import print_result, result_document

    options = Options(untie, parse_size(max_memory), store, rewrite, link)
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
    result = run(request, Silent() if quiet else Bar("convert", verbose=verbose))
    _show(as_json, lambda: result_document(result), lambda console: print_result(result, console))


@app.command()
def plan(
    source: SourceArgument,
    step: StepOption = None,
    mapping: MappingOption = None,
    untie: UntieOption = False,
    max_memory: MemoryOption = "1GiB",
    store: StoreOption = "files",
    rewrite: RewriteOption = False,
    link: LinkOption = False,
    metadata_only: Annotated[
        bool, typer.Option("--metadata-only", help="Chunk files are absent: index and .zarray files are enough.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what convert would do, from metadata alone."""
    from converter.memory import parse_size
    from converter.plan import Options, make_plan
    from converter.report import plan_document, print_plan
    from converter.source import open_source

    options = Options(untie, parse_size(max_memory), store, rewrite, link)
    opened = open_source(
        source, step=step, mapping=mapping, options=options.mapping_options, metadata_only=metadata_only
    )
    made = make_plan(opened, options)
    _show(as_json, lambda: plan_document(made), lambda console: print_plan(made, console))


@mappings_app.command("list")
def mappings_list() -> None:
    """The bundled tables."""
    from converter.mapping_file import load_bundled
    from converter.report import print_mappings

    tables = load_bundled()
    _show(False, dict, lambda console: print_mappings(tables, console))


@mappings_app.command("show")
def mappings_show(name: Annotated[str, typer.Argument(metavar="NAME", help="A bundled table, or a file.")]) -> None:
    """The rows of a table."""
    from converter.mapping_file import find_mapping
    from converter.report import print_mapping

    table = find_mapping(name)
    _show(False, dict, lambda console: print_mapping(table, console))


@mappings_app.command("check")
def mappings_check(file: Annotated[str, typer.Argument(metavar="FILE", help="A mapping table in TOML.")]) -> None:
    """Validate a table of your own."""
    from converter.mapping_file import load_mapping

    table = load_mapping(file)
    typer.echo(f"{file}: mapping '{table.name}' is valid ({len(table.rows)} rows, {len(table.drops)} drops)")


@app.callback(invoke_without_command=True)
def _top(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(f"ax2mt {__version__}")
        raise typer.Exit


def _show(as_json: bool, document: Callable[[], dict[str, Any]], render: Callable[[Any], None]) -> None:
    if as_json:
        typer.echo(json.dumps(document(), indent=2, allow_nan=False))
    else:
        from converter.report import stdout_console

        render(stdout_console())


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits with the documented code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(run(arguments))


def run(arguments: list[str]) -> int:
    """Runs one command and returns its exit code; errors are shown on stderr, or as JSON on stdout under --json."""
    # A job scheduler's SIGTERM is a clean stop, like Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        app(arguments, standalone_mode=False)
    except Ax2mtError as error:
        return _report(arguments, error.kind, error.message, error.details, error.exit_code)
    except KeyboardInterrupt:
        return _report(
            arguments, "interrupted", "interrupted; the same command goes on where this one stopped", (), 130
        )
    except BrokenPipeError:
        return 0
    except Exception as error:
        usage = getattr(error, "exit_code", None)
        if isinstance(usage, int) and hasattr(error, "format_message"):
            return _report(arguments, "usage", error.format_message(), (), usage)  # pyright: ignore
        if "-v" in arguments or "--verbose" in arguments:
            raise
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        return _report(arguments, "internal", f"internal error, please report it ({text}; -v shows where)", (), 1)
    return 0


def _printable(text: str) -> str:
    """One line that cannot steer a terminal, whatever a path or a file of somebody else's holds."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def _report(arguments: Sequence[str], kind: str, message: str, details: Sequence[str], code: int) -> int:
    message, details = _printable(message), [_printable(line) for line in details]
    if "--json" in arguments:
        from converter.report import SCHEMA_VERSION

        error = {"kind": kind, "exit_code": code, "message": message, "details": details}
        print(json.dumps({"schema_version": SCHEMA_VERSION, "error": error}, indent=2))
    else:
        print(f"ax2mt: {message}", file=sys.stderr)
        for line in details:
            print(f"  {line}", file=sys.stderr)
    return code
