"""The order of the packages, read from their imports; and that nothing of one model family stands in code."""

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from converter.mapping import RANKS

CONVERTER = Path(__file__).parents[1] / "converter"
MAPPINGS = Path(__file__).parents[1] / "mappings"

HELPERS = (
    "errors",
    "choices",
    "words",
    "work",
    "dtypes",
    "json_text",
    "location",
    "own_process",
    "environment",
    "version",
)
"""Modules beside the packages that any of them may use."""

MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "axes": (),  # a language: it knows no file and no model
    "storage": (),  # where bytes live: it knows no array
    "location": ("storage",),  # a helper: the storages say which URLs there are
    "arrays": ("axes", "storage"),  # how an array is stored as chunks
    "mapping": ("axes",),  # a family's table as data: it knows no checkpoint
    "checkpoints": ("axes", "storage", "arrays", "mapping"),  # how arrays form a checkpoint
    "planning": ("axes", "storage", "arrays", "mapping", "checkpoints"),  # what would be done, from metadata alone
    "conversion": ("axes", "storage", "arrays", "mapping", "checkpoints", "planning"),  # does it
    # The proofs never import what they prove.
    "verification": ("axes", "storage", "arrays", "mapping", "checkpoints", "planning"),
    "forward": ("axes", "storage", "arrays", "mapping", "checkpoints", "planning"),
    "conformance": ("axes", "mapping", "checkpoints", "planning"),  # the mapping against the installed frameworks
    # Calls both proofs and keeps what they find.
    "evidence": ("storage", "mapping", "checkpoints", "planning", "verification", "forward"),
    # Prints finished values; their types come from every package that makes one.
    "report": (
        "arrays",
        "mapping",
        "checkpoints",
        "planning",
        "conversion",
        "verification",
        "forward",
        "conformance",
        "evidence",
    ),
}
"""For each package those that it may import, beside HELPERS: only what stands above it."""

ABOVE_ALL = ("cli", "api", "arguments", "argument_values", "launch", "__init__", "__main__")
"""The ways in: they import everything, and nothing below imports them."""

OPEN_PACKAGES = ("report", "cli")
"""Their modules are imported one by one: a command loads only the reports that it prints, so that it starts quickly."""

ALONE = ("maxtext_patch", "framework_probe")
"""Run where a framework is installed and nothing of ours needs to be: they import nothing else of ours."""

Import = tuple[Path, int, str, str]
"""File, line, imported module and name; the name is empty for `import module`."""


@cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sorted(CONVERTER.rglob("*.py"))}


def imports() -> Iterator[Import]:
    """Every import of our own code, those inside functions included."""
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                assert not node.level, f"{path}:{node.lineno}: imports are absolute"
                if (node.module or "").split(".")[0] == "converter":
                    yield from ((path, node.lineno, node.module or "", alias.name) for alias in node.names)
            elif isinstance(node, ast.Import):
                yield from (
                    (path, node.lineno, alias.name, "")
                    for alias in node.names
                    if alias.name.split(".")[0] == "converter"
                )


def part(path: Path) -> str:
    """The package or helper that a file belongs to."""
    return path.relative_to(CONVERTER).parts[0].removesuffix(".py")


def imported_part(module: str, name: str) -> str:
    """The package or helper that an import names; the face of all of it is `__init__`."""
    parts = module.split(".")
    if len(parts) > 1:
        return parts[1]
    is_part = (CONVERTER / name).is_dir() or (CONVERTER / f"{name}.py").is_file()
    return name if name and is_part else "__init__"


def test_every_package_has_its_place() -> None:
    found = {part(path) for path in trees()}
    known = {*MAY_IMPORT, *HELPERS, *ABOVE_ALL, *ALONE}
    assert found <= known, f"no place in the order for {sorted(found - known)}"


def test_packages_import_only_from_above() -> None:
    wrong: list[str] = []
    for path, line, module, name in imports():
        own, other = part(path), imported_part(module, name)
        if own in ABOVE_ALL or other == own:
            continue
        if own in ALONE or other not in (*HELPERS, *MAY_IMPORT.get(own, ())):
            wrong.append(f"{path.relative_to(CONVERTER)}:{line}: {own} may not import {other}")
    assert not wrong, "\n".join(wrong)


def test_the_order_has_no_circle() -> None:
    names = list(MAY_IMPORT)
    for number, allowed in enumerate(MAY_IMPORT.values()):
        assert set(allowed) <= set(names[:number])


def test_packages_are_entered_by_their_face() -> None:
    wrong: list[str] = []
    for path, line, module, name in imports():
        parts = module.split(".")
        other = imported_part(module, name)
        if other == part(path) or other in OPEN_PACKAGES or not (CONVERTER / other).is_dir():
            continue
        where = f"{path.relative_to(CONVERTER)}:{line}"
        if len(parts) > 2 or not name or module == "converter":
            wrong.append(f"{where}: import names from converter.{other}, not its modules")
        elif name not in face(other):
            wrong.append(f"{where}: {name} is not in __all__ of converter.{other}")
    assert not wrong, "\n".join(wrong)


@cache
def face(package: str) -> frozenset[str]:
    """The names that a package exports."""
    for node in trees()[CONVERTER / package / "__init__.py"].body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__":
            return frozenset(ast.literal_eval(node.value))
    return frozenset()


def test_modules_have_no_circle() -> None:
    """Of the imports at the top of modules; a circle makes a module's content depend on who came first."""
    edges: dict[str, set[str]] = {}
    for path, tree in trees().items():
        own = ".".join(("converter", *path.relative_to(CONVERTER).with_suffix("").parts))
        edges[own] = set()
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "converter":
                module = node.module or ""
                is_package = (CONVERTER.parent / module.replace(".", "/")).is_dir()
                edges[own].add(f"{module}.__init__" if is_package else module)
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " imports ".join((*trail[trail.index(module) :], module))
        if module not in done:
            for other in edges.get(module, ()):
                visit(other, (*trail, module))
            done.add(module)

    for module in edges:
        visit(module, ())


FILES_OF_ITS_OWN = {
    "work.py": "what Linux says about this process",
    "own_process.py": "the program's own files",
    "location.py": "where `..` leads in a user's local path",
    "maxtext_patch/needs.py": "the configuration of a MaxText command",
    "mapping/bundled.py": "the tables that come with the program",
    "mapping/file.py": "a user's table",
    "forward/tokens.py": "a user's tokens",
    "forward/run.py": "the file of logits, --out",
    "framework_probe/probe.py": "MaxText's own model files, and a configuration for it",
    "report/json_page.py": "docs/json.md",
    "cli/output_file.py": "the page of a report, --html, and the file of a result, --junit",
    "checkpoints/orbax_commit.py": "hands a local directory to Orbax, which knows no storage of ours",
}
"""Modules outside of `storage` that open files: what they open is no part of a checkpoint, with one exception."""

BY_NAME = frozenset({
    *("access", "chmod", "chown", "link", "listdir", "lstat", "makedirs", "mkdir", "open", "readlink", "remove"),
    *("rename", "replace", "rmdir", "scandir", "stat", "statvfs", "symlink", "truncate", "unlink", "utime", "walk"),
    *(f"path.{name}" for name in ("exists", "getmtime", "getsize", "isdir", "isfile", "islink", "ismount", "lexists")),
    *("path.realpath", "path.samefile"),
})  # fmt: skip
"""Functions of `os` that look at a file by its name."""


def file_accesses(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Calls that look at the local file system."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            module, _, function = name.partition(".")
            by_name = module == "os" and function in BY_NAME
            if by_name or name == "open" or module in ("Path", "glob", "mmap", "pathlib", "shutil"):
                yield node.lineno, name


def test_checkpoints_are_read_and_written_through_a_storage() -> None:
    found = {
        f"{path.relative_to(CONVERTER)}:{line}: {name}"
        for path, tree in trees().items()
        if part(path) != "storage"
        for line, name in file_accesses(tree)
    }
    wrong = [line for line in sorted(found) if line.split(":")[0] not in FILES_OF_ITS_OWN]
    assert not wrong, "\n".join(("use storage_of(name):", *wrong))
    idle = FILES_OF_ITS_OWN.keys() - {line.split(":")[0] for line in found}
    assert not idle, f"open no files: {sorted(idle)}"


FACTS_ABOUT_MAXTEXT = {
    "maxtext_patch/norms.py": "source text of MaxText's attention, and its names of decoder blocks",
    "forward/semantics.py": "the decoder blocks of MaxText whose arithmetic is computed",
}
"""Files in which words of a family stand as MaxText's own words."""


def family_words(table: Path) -> set[str]:
    """The words that only a family's table may have: its name, its kinds of layers, its tensors' names."""
    content = tomllib.loads(table.read_text())
    words = {content["name"], *(kind for choice in content.get("choice", ()) for kind in choice if kind != "name")}
    for row in content["tensor"]:
        for side in ("axlearn", "maxtext"):
            paths = [row[side]] if isinstance(row[side], str) else row[side]
            words |= {word for path in paths for word in path.split("/")}
        words |= set(re.findall(r"\w+", row["axes"]))
    # Roles and the field's plain words are everybody's.
    plain = re.compile(r"[a-z]+|\d+|\{layer\}")
    return {content["name"]} | {word for word in words if word not in RANKS and not plain.fullmatch(word)}


def literals(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Texts in code and names of functions and classes, without docstrings."""
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            yield node.lineno, node.value
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.lineno, node.name


@pytest.mark.parametrize("table", sorted(MAPPINGS.glob("*.toml")), ids=lambda path: path.stem)
def test_no_family_stands_in_code(table: Path) -> None:
    words = "|".join(map(re.escape, sorted(family_words(table))))
    pattern = re.compile(rf"(?<![A-Za-z0-9])({words})(?![A-Za-z0-9])", re.IGNORECASE)
    wrong = [
        f"{path.relative_to(CONVERTER)}:{line}: {found[1]} belongs into mappings/{table.name}"
        for path, tree in trees().items()
        if str(path.relative_to(CONVERTER)) not in FACTS_ABOUT_MAXTEXT
        for line, text in literals(tree)
        if (found := pattern.search(text))
    ]
    assert not wrong, "\n".join(wrong)
