"""The command line: parses, calls, prints. Heavy imports happen inside the commands, so that --help is quick."""

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import typer

from converter import __version__
from converter.errors import Ax2mtError, UsageError, VerificationError

INTERRUPTED = 130
"""Exit code after Ctrl-C; also what Typer makes of it."""

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
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
TokensOption = Annotated[
    str | None, typer.Option("--tokens", metavar="FILE", help="JSON lines of ids, or .npz; default: a built-in set.")
]
WhatIfOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Compute as under another maxtext.yml.")
]
PatchedOption = Annotated[
    bool, typer.Option("--norm-after-rope", help="Compute as MaxText does with converter.maxtext_patch.")
]
ProcessMemoryOption = Annotated[str, typer.Option("--max-memory", metavar="SIZE", help="Budget for the process.")]


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
    qk_norm: Annotated[
        str, typer.Option("--qk-norm", help="plain: copy the q/k norm scales; fit: fit them to stock MaxText.")
    ] = "plain",
    require_exact: Annotated[
        bool, typer.Option("--require-exact", help="Fail (7) where stock MaxText's attention is not exact.")
    ] = False,
    as_json: JsonOption = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Name each finished leaf.")] = False,
) -> None:
    """Convert an AXLearn checkpoint into a MaxText checkpoint."""
    from converter.committer import Committer

    # Started first: it has the most to import.
    with Committer() as committer:
        from converter.convert import Request
        from converter.convert import convert as run
        from converter.memory import parse_size
        from converter.plan import Options
        from converter.progress import Bar, Silent
        from converter.report import print_result, result_document

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
        result = run(request, Silent() if quiet else Bar("convert", verbose=verbose), committer)
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


@app.command()
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
    jobs: Annotated[int, typer.Option("--jobs", min=1, max=256, help="Blocks in flight, as memory allows.")] = 2,
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
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Name each finished leaf.")] = False,
) -> None:
    """Compare a MaxText checkpoint with its source, or with the digests it carries."""
    from converter.memory import parse_size

    if compare_logits:
        if destination is None or (dtype, sample) != (None, None):
            raise UsageError("--logits compares two checkpoints whole: verify SRC DST --logits, no --dtype or --sample")
        limits = [("kl_max", max_kl), ("top1", min_top1)]
        limits += [("max_abs", max_difference)] if max_difference is not None else []
        memory = parse_size(max_memory or "4GiB")
        pair = _Pair(source, destination, step, mapping, tokens, settings or [], norm_after_rope)
        passed = _verify_logits(pair, limits, explain, memory, as_json, quiet)
    else:
        if tokens or settings or norm_after_rope:
            raise UsageError("--tokens, --set and --norm-after-rope need --logits")
        memory = parse_size(max_memory or "1GiB")
        passed = _verify_bits(
            (source, destination, step, mapping, dtype, sample, memory, jobs), as_json, quiet, verbose
        )
    if not passed:
        raise typer.Exit(VerificationError.exit_code)


class _Pair(NamedTuple):
    source: str
    destination: str
    step: int | None
    mapping: str | None
    tokens: str | None
    settings: list[str]
    norm_after_rope: bool


def _verify_logits(
    pair: _Pair, limits: list[tuple[str, float]], explain: bool, memory: int, as_json: bool, quiet: bool
) -> bool:
    from converter.logits import choose_tokens
    from converter.logits_compare import compare, open_pair
    from converter.logits_report import comparison_document, print_comparison
    from converter.memory import reuse_freed_memory

    reuse_freed_memory()
    models = open_pair(
        pair.source,
        pair.destination,
        step=pair.step,
        mapping=pair.mapping,
        settings=pair.settings,
        norm_after=pair.norm_after_rope,
    )
    chosen = choose_tokens(pair.tokens, models[0].weights.vocabulary)
    speaker = _speaker("verify", quiet)
    result = compare(*models, chosen, budget=memory, limits=limits, explain=explain, say=speaker)
    _show(as_json, lambda: comparison_document(result), lambda console: print_comparison(result, console))
    return result.passed


def _verify_bits(request: tuple[Any, ...], as_json: bool, quiet: bool, verbose: bool) -> bool:
    from converter.progress import Bar, Silent
    from converter.proof_report import print_verification, verification_document
    from converter.verify import VerifyRequest
    from converter.verify import verify as compare
    from converter.verify_digests import verify_digests

    source, destination, step, mapping, dtype, sample, memory, jobs = request
    progress = Silent() if quiet else Bar("verify", verbose=verbose)
    if destination is not None:
        result = compare(VerifyRequest(*request), progress)
    elif (step, mapping, dtype, sample) != (None, None, None, None):
        raise UsageError("--step, --mapping, --dtype and --sample need a source: verify SRC DST")
    else:
        result = verify_digests(source, progress, max_memory=memory, jobs=jobs)
    _show(as_json, lambda: verification_document(result), lambda console: print_verification(result, console))
    return result.ok


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
    from converter.parameters import ParameterRequest, make_report
    from converter.proof_report import parameters_document, parameters_markdown, print_parameters

    report = make_report(ParameterRequest(source, destination, model, step, mapping, untie))
    if as_markdown and not as_json:
        typer.echo(parameters_markdown(report), nl=False)
    else:
        _show(as_json, lambda: parameters_document(report), lambda console: print_parameters(report, console))
    if not report.equivalent:
        raise typer.Exit(VerificationError.exit_code)


@app.command()
def inspect(
    path: Annotated[str, typer.Argument(metavar="PATH", help="Anything.")],
    as_json: JsonOption = False,
) -> None:
    """Say what a path is: which kind of checkpoint, what is in it, what is missing."""
    from converter.inspection import inspect as look
    from converter.proof_report import inspection_document, print_inspection

    found = look(path)
    _show(as_json, lambda: inspection_document(found), lambda console: print_inspection(found, console))


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
    from converter.logits import choose_tokens, open_model
    from converter.logits import logits as run
    from converter.logits_report import logits_document, print_logits
    from converter.memory import parse_size, reuse_freed_memory

    reuse_freed_memory()
    model = open_model(path, step=step, mapping=mapping, settings=settings or [], norm_after_rope=norm_after_rope)
    chosen = choose_tokens(tokens, model.weights.vocabulary)
    result = run(model, chosen, out, parse_size(max_memory), _speaker("logits", quiet))
    _show(as_json, lambda: logits_document(result), lambda console: print_logits(result, console))


@mappings_app.command("list")
def mappings_list(as_json: JsonOption = False) -> None:
    """The bundled tables."""
    from converter.mapping_file import load_bundled
    from converter.proof_report import mappings_document
    from converter.report import print_mappings

    tables = load_bundled()
    _show(as_json, lambda: mappings_document(tables), lambda console: print_mappings(tables, console))


@mappings_app.command("show")
def mappings_show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A bundled table, or a file.")],
    as_json: JsonOption = False,
) -> None:
    """The rows of a table."""
    from converter.mapping_file import find_mapping
    from converter.proof_report import mapping_document
    from converter.report import print_mapping

    table = find_mapping(name)
    _show(as_json, lambda: mapping_document(table), lambda console: print_mapping(table, console))


@mappings_app.command("check")
def mappings_check(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A mapping table in TOML.")],
    as_json: JsonOption = False,
) -> None:
    """Validate a table of your own."""
    from converter.mapping_file import load_mapping
    from converter.proof_report import mapping_check_document

    table = load_mapping(file)
    text = f"{file}: mapping '{table.name}' is valid ({len(table.rows)} rows, {len(table.drops)} drops)"
    _show(as_json, lambda: mapping_check_document(table), lambda console: console.print(text, soft_wrap=True))


@app.callback(invoke_without_command=True)
def _top(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(f"ax2mt {__version__}")
        raise typer.Exit


def _speaker(title: str, quiet: bool) -> Callable[[str], None]:
    """Tells on stderr what is being worked on: on one line of a terminal, and not at all elsewhere."""
    if quiet or not sys.stderr.isatty():
        return lambda _: None
    return lambda text: print(f"\r\033[K{title}: {text}", end="\r", file=sys.stderr, flush=True)


def _show(as_json: bool, document: Callable[[], dict[str, Any]], render: Callable[[Any], None]) -> None:
    if as_json:
        typer.echo(json.dumps(document(), indent=2, allow_nan=False))
    else:
        from converter.report import stdout_console

        render(stdout_console())


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits with the documented code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    code = run(arguments)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        # All is written and every thread has ended; large libraries take a third of a second to take themselves apart.
        os._exit(code)


def run(arguments: list[str]) -> int:
    """Runs one command and returns its exit code; errors are shown on stderr, or as JSON on stdout under --json."""
    # A job scheduler's SIGTERM is a clean stop, like Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        code = app(arguments, standalone_mode=False)
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except Ax2mtError as error:
        return _report(arguments, error.kind, error.message, error.details, error.exit_code)
    except KeyboardInterrupt:
        return _report(
            arguments, "interrupted", "interrupted; the same command goes on where this one stopped", (), INTERRUPTED
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
