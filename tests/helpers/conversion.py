"""Runs a conversion in this process."""

from pathlib import Path
from typing import Any

from converter.conversion.run import Request, Result, convert
from converter.planning.options import Options
from converter.work import Silent

REQUEST = ("jobs", "mapping", "overwrite", "fresh", "require_exact", "step", "settings")


def run(source: Path, target: Path, **options: Any) -> Result:
    """Converts, with the options of a plan and of a request by their names."""
    request = {name: options.pop(name) for name in REQUEST if name in options}
    return convert(Request(str(source), str(target), Options(**options), **request), Silent())
