"""Runs a conversion in this process."""

from pathlib import Path
from typing import Any

from converter.conversion.run import Request, Result, convert
from converter.planning.options import Options
from converter.work import Silent

REQUEST = ("jobs", "overwrite", "fresh", "require_exact", "step", "settings")


def make_options(*, untie: bool = False, qk_norm: str = "plain", **rest: Any) -> Options:
    """Options as the command line names them."""
    return Options(table=frozenset([*["untie"] * untie, *["qk_norm"] * (qk_norm == "fit")]), **rest)


def run(source: Path, target: Path, **options: Any) -> Result:
    """Converts, with the options of a plan and of a request by their names."""
    request = {name: options.pop(name) for name in REQUEST if name in options}
    return convert(Request(str(source), str(target), make_options(**options), **request), Silent())
