"""What the patches share: which MaxText is installed, and how one of its functions is read and replaced."""

import ast
import importlib
import importlib.metadata
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

VERSIONS = (0, 2, 5), (0, 3)
"""First version of MaxText, and the first that is not taken."""

_DONE = "ax2mt_patch"

Change = Callable[[], None]
"""A checked change that only remains to be made."""


class PatchError(RuntimeError):
    """MaxText is missing, or is not what a patch was made for; nothing was changed."""


class UsageError(PatchError):
    """The arguments or the configuration contradict themselves, or a patch; nothing was changed."""


def other_code(what: str) -> PatchError:
    """The refusal of code that a patch was not made for."""
    return PatchError(f"{what}; use MaxText 0.2.5, or leave this patch out (--without), which is not exact")


def maxtext_version() -> str:
    """The version of the installed MaxText.

    Raises:
      PatchError: it is not installed, or out of range.
    """
    try:
        version = importlib.metadata.version("maxtext")
    except importlib.metadata.PackageNotFoundError:
        raise PatchError("MaxText is not installed in this environment") from None
    numbers = re.match(r"\d+(\.\d+)*", version)
    parsed = tuple(int(part) for part in numbers[0].split(".")) if numbers else ()
    if not VERSIONS[0] <= parsed < VERSIONS[1]:
        raise PatchError(f"MaxText {version} is installed; the patches support 0.2.5 up to, but not including, 0.3")
    return version


@dataclass(frozen=True, kw_only=True)
class Code:
    """A function whose source is known.

    Attributes:
      function: the function itself.
      tree: its source, parsed; line numbers are those of its file.
      done: what was patched in it before, None if nothing was.
    """

    function: Any
    tree: ast.Module
    done: Any

    @property
    def body(self) -> list[ast.stmt]:
        """The statements of the function, to be changed in place."""
        return function_body(self.tree)

    def replaced(self, done: Any, names: Mapping[str, Any] | None = None) -> Change:
        """The change that gives the function the code of the changed tree.

        The function stays the same object, so that modules that imported it by name have the new code too.

        Args:
          done: what to find as `done` in the future.
          names: what the new code needs in its module, by name.
        """
        code = self.compiled(self.function.__globals__).__code__

        def change() -> None:
            self.function.__globals__.update(names or {})
            self.function.__code__ = code
            setattr(self.function, _DONE, done)

        return change

    def compiled(self, names: Mapping[str, Any]) -> FunctionType:
        """A new function from the changed tree, with these globals."""
        found: dict[str, Any] = {}
        known = names if isinstance(names, dict) else dict(names)
        exec(compile(self.tree, self.function.__code__.co_filename, "exec", dont_inherit=True), known, found)
        return found[self.function.__name__]


def read_code(module_name: str, name: str, what: str) -> Code:
    """Reads a function for a change.

    Args:
      module_name: the module that defines it.
      name: its name there, such as `Class.method`.
      what: what it is, in messages.

    Raises:
      PatchError: it is not there, or has no source of its own.
    """
    try:
        function: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise PatchError(f"{module_name} cannot be imported: {error}") from None
    for part in name.split("."):
        function = getattr(function, part, None)
    if function is None:
        raise other_code(f"{module_name} has no {name}")
    if not isinstance(function, FunctionType) or inspect.unwrap(function) is not function or function.__closure__:
        raise other_code(f"{what} ({module_name}.{name}) is wrapped by something else")
    done = getattr(function, _DONE, None)
    if done is not None:
        return Code(function=function, tree=ast.Module([], []), done=done)
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        raise other_code(f"the source of {what} ({module_name}.{name}) cannot be read") from None
    ast.increment_lineno(tree, first - 1)
    return Code(function=function, tree=tree, done=None)


def function_body(tree: ast.Module) -> list[ast.stmt]:
    """The statements of the one function in a source; empty if it is something else."""
    return tree.body[0].body if len(tree.body) == 1 and isinstance(tree.body[0], ast.FunctionDef) else []


def find(statements: Sequence[ast.stmt], wanted: str, what: str, where: str) -> int:
    """The place of the one statement that has exactly this source.

    Raises:
      PatchError: it is not there exactly once.
    """
    dump = ast.dump(ast.parse(textwrap.dedent(wanted)).body[0])
    found = [number for number, statement in enumerate(statements) if ast.dump(statement) == dump]
    if len(found) != 1:
        raise other_code(f"{what} is expected once in {where}, found {len(found)} times")
    return found[0]


def statement(source: str, place: ast.stmt) -> ast.stmt:
    """A statement that counts as standing at another one's place in the file."""
    result = ast.parse(textwrap.dedent(source)).body[0]
    for node in ast.walk(result):
        ast.copy_location(node, place)
    return result
