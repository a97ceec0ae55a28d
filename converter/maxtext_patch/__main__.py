"""Runs a module of MaxText with the patches that its configuration lists; `--help` prints the options."""

import runpy
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from converter.maxtext_patch import PatchError, apply_all
from converter.maxtext_patch.needs import NAMES, Needs, chosen, is_config, read_needs
from converter.maxtext_patch.source import UsageError, maxtext_version

USAGE = f"""\
usage: python -m converter.maxtext_patch [OPTIONS] MODULE DST/maxtext.yml [ARGUMENT ...]
       python -m converter.maxtext_patch --list DST/maxtext.yml

Runs a module of MaxText with the patches that the configuration lists.

options:
  --only NAME[,NAME]     apply only these of them
  --without NAME[,NAME]  apply all but these
  --list                 print what the configuration needs and what would be applied, and stop
  --help                 print this text

patches: {", ".join(NAMES)}
"""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A parsed command line.

    Attributes:
      rest: the module and its arguments.
      only: patches to apply; None for all that are needed.
      without: patches to leave out.
      lists: only print.
      helps: only print the usage.
    """

    rest: tuple[str, ...] = ()
    only: tuple[str, ...] | None = None
    without: tuple[str, ...] = ()
    lists: bool = False
    helps: bool = False


def parse(arguments: Sequence[str]) -> Command:
    """Parses the options before the module.

    Raises:
      UsageError: unknown options or names, options that exclude each other, or no module.
    """
    values: dict[str, tuple[str, ...]] = {}
    lists = False
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        option, equals, value = rest.pop(0).partition("=")
        if option in ("--help", "-h") and not equals:
            return Command(helps=True)
        if option == "--list" and not equals:
            lists = True
        elif option in ("--only", "--without"):
            if not equals and not rest:
                raise UsageError(f"{option} needs the name of a patch: {', '.join(NAMES)}")
            values[option] = values.get(option, ()) + _names(option, value if equals else rest.pop(0))
        else:
            raise UsageError(f"unknown option {option}; --help lists the options")
    if len(values) == 2:
        raise UsageError("--only and --without exclude each other")
    if not rest or (is_config(rest[0]) and not lists):
        raise UsageError(
            "a configuration is missing" if lists else "a module is missing, such as maxtext.trainers.pre_train.train"
        )
    return Command(rest=tuple(rest), only=values.get("--only"), without=values.get("--without", ()), lists=lists)


def describe(needs: Needs, left_out: Mapping[str, str | None]) -> list[str]:
    """What is applied and what is not, one line for each patch."""
    lines = [f"{patch.name}: {left_out[patch.name] or patch}" for patch in needs.patches]
    if needs.origin is None:
        kind = "this is the one for older conversions" if lines else "its decoder block needs none"
        return [*lines, f"the configuration does not list patches; {kind}"]
    return lines or [f"nothing to apply: {needs.origin} says that its checkpoint needs no patch"]


def main(arguments: Sequence[str]) -> int:
    """Patches MaxText and runs one of its modules as a program; returns the exit code."""
    try:
        command = parse(arguments)
        if command.helps:
            print(USAGE, end="")
            return 0
        if not command.lists:
            maxtext_version()  # without MaxText nothing else matters
        return _run(command)
    except PatchError as error:
        _say(str(error))
        return 2 if isinstance(error, UsageError) else 1


def _run(command: Command) -> int:
    module = command.rest[0]
    needs = read_needs(command.rest)
    if not is_config(module):
        needs = Needs(patches=needs.patches, origin=needs.origin, settings={**needs.settings, "module": module})
    left_out = chosen(needs, command.only, command.without)
    if command.lists:
        print(f"needed: {', '.join(left_out) or 'nothing'}", *describe(needs, left_out), sep="\n")
        return 0
    version = apply_all([patch for patch in needs.patches if left_out[patch.name] is None])
    _say(f"MaxText {version}")
    for line in describe(needs, left_out):
        _say(line)
    sys.argv = list(command.rest)
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    return 0


def _names(option: str, text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise UsageError(f"{option}: unknown patch {unknown[0]!r}; there are {', '.join(NAMES)}")
    return names


def _say(text: str) -> None:
    print(f"maxtext_patch: {text}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
