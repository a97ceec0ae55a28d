"""What every command has: --json, --quiet and --verbose, also for command lines that cannot be parsed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer.core import TyperCommand


def _flags(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only; no progress.")] = False,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="Name each leaf and each retry; show where an internal error is."),
    ] = False,
) -> None:
    """The options that all commands have, as Typer reads them."""


@dataclass
class Invocation:
    """The options of a command line that all commands have, and what messages need.

    Attributes:
      command: the command with its group, such as "mappings list"; empty until it is known.
      as_json: print one JSON document, errors included.
      quiet: print errors only.
      verbose: name each finished leaf, and show where an internal error is.
      fresh: the command does not resume what was interrupted.
    """

    command: str = ""
    as_json: bool = False
    quiet: bool = False
    verbose: bool = False
    fresh: bool = False

    @classmethod
    def unparsed(cls, arguments: Sequence[str]) -> "Invocation":
        """What the words alone show, for a command line that cannot be parsed."""
        return cls(
            as_json="--json" in arguments,
            quiet="--quiet" in arguments or "-q" in arguments,
            verbose="--verbose" in arguments or "-v" in arguments,
        )


class Command(TyperCommand):
    """A command with the options that all have. Its context's object is the `Invocation`."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        template = typer.Typer(add_completion=False)
        template.command()(_flags)
        for option in typer.main.get_command(template).params:
            option.expose_value = False
            self.params.append(option)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # Before the arguments are checked, so that their errors are shown in the requested form.
        invocation = ctx.ensure_object(Invocation)
        invocation.command = ctx.command_path.partition(" ")[2]
        values = self._values(ctx, args)
        if values is not None:
            for name in ("as_json", "quiet", "verbose", "fresh"):
                setattr(invocation, name, bool(values.get(name)))
        return super().parse_args(ctx, args)

    def _values(self, ctx: Any, args: Sequence[str]) -> dict[str, Any] | None:
        """The options' values as they stand, unknown ones ignored; None where the words cannot be parsed."""
        parser = self.make_parser(ctx)
        parser.ignore_unknown_options = True
        try:
            return parser.parse_args(list(args))[0]
        except Exception:  # the parser that counts reports it
            return None
