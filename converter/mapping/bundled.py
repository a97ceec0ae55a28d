"""The mapping tables that come with ax2mt, one TOML file a model family, found beside the code."""

import os

from converter.own_process import HOME


def table_names() -> tuple[str, ...]:
    """Names of the bundled tables, sorted."""
    return tuple(sorted(name.removesuffix(".toml") for name in os.listdir(_folder()) if name.endswith(".toml")))


def table_path(name: str) -> str:
    """Path of a bundled table."""
    return os.path.join(_folder(), f"{name}.toml")


def _folder() -> str:
    """An installation has the tables inside the package, the repository beside it."""
    inside = os.path.join(HOME, "converter", "mappings")
    return inside if os.path.isdir(inside) else os.path.join(HOME, "mappings")
