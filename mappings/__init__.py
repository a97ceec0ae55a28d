"""The mapping tables that come with ax2mt, one TOML file a model family. Data only."""

from importlib.resources import files


def table_names() -> tuple[str, ...]:
    """Names of the bundled tables, sorted."""
    return tuple(sorted(entry.name.removesuffix(".toml") for entry in _folder() if entry.name.endswith(".toml")))


def table_path(name: str) -> str:
    """Path of a bundled table."""
    return str(files(__name__) / f"{name}.toml")


def _folder():
    return files(__name__).iterdir()
