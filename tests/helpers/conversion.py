"""Runs a conversion in this process."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from converter.conversion.conversion import Conversion, make_conversion
from converter.conversion.run import Request, Result, convert
from converter.planning.options import Options
from converter.planning.plan import Plan
from converter.planning.source import open_source
from converter.work import Silent

REQUEST = ("jobs", "mapping", "overwrite", "fresh", "require_exact", "step", "settings")


def make_options(*, untie: bool = False, qk_norm: str = "plain", rope: str = "permuted", **rest: Any) -> Options:
    """Options as the command line names them."""
    named = {"untie": untie, "qk_norm": qk_norm == "fit", "interleaved": rope == "interleaved"}
    return Options(table=frozenset(name for name, on in named.items() if on), **rest)


def run(source: Path, target: Path, **options: Any) -> Result:
    """Converts, with the options of a plan and of a request by their names."""
    request = {name: options.pop(name) for name in REQUEST if name in options}
    return convert(Request(str(source), str(target), make_options(**options), **request), Silent())


def conversion_of(plan: Plan, target: Path, *, jobs: int = 2, **changes: Any) -> Conversion:
    """What the engine gets to do for a plan; `changes` are fields that are to be others."""
    plan = replace(plan, jobs=jobs)
    request = Request(plan.source, str(target), plan.options)
    made = make_conversion(request, open_source(plan.source, options=plan.options.table), plan, str(target))
    return replace(made, **changes)
