# The decorator `documented` fills in every keyword's default, which a TypedDict cannot say of itself.
# pyright: reportTypedDictNotRequiredAccess=false
"""The keywords of the public functions as the packages take them, checked. See `arguments` for what each means."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from converter.arguments import (
    BitsArguments,
    CompareArguments,
    ConversionArguments,
    Path,
    RunArguments,
    Settings,
    TableArguments,
)
from converter.choices import CAST_DTYPES, INTERLEAVED, LAYOUTS, MAX_JOBS, QK_NORMS, ROPES, CastDtype

if TYPE_CHECKING:
    from converter.conversion import Request
    from converter.planning import Options, Share
    from converter.work import Progress


def run_request(
    source: Path,
    destination: Path,
    given: RunArguments,
    *,
    overwrite: bool = False,
    fresh: bool = False,
    process: str | None = None,
) -> "Request":
    """What `convert` and `beam` are asked for.

    Raises:
      UsageError: values are not known, or contradict each other.
    """
    from converter.conversion import Request

    return Request(
        source=os.fspath(source),
        destination=os.fspath(destination),
        options=plan_options(given),
        step=given["step"],
        mapping=optional_path(given["mapping"]),
        settings=settings_of(given["set"]),
        jobs=job_count(given["jobs"]),
        overwrite=overwrite,
        fresh=fresh,
        check=given["check"],
        require_exact=given["require_exact"],
        share=share_of(process),
    )


def cast_dtype(given: BitsArguments) -> CastDtype | None:
    """The dtype that weights were cast to; None for none.

    Raises:
      UsageError: they cannot be cast to it.
    """
    from converter.errors import UsageError

    dtype = given["dtype"]
    if dtype is not None and dtype not in CAST_DTYPES:
        raise UsageError(f"--dtype {dtype}: expected one of {', '.join(CAST_DTYPES)}")
    return dtype


def sample_fraction(given: BitsArguments) -> float | None:
    """The fraction of blocks to compare; None for all.

    Raises:
      UsageError: it is none.
    """
    from converter.errors import UsageError

    sample = given["sample"]
    if sample is not None and not 0 < sample <= 1:
        raise UsageError(f"--sample {sample}: expected a fraction above 0 and up to 1")
    return sample


def limits_of(given: CompareArguments) -> list[tuple[str, float]]:
    """Names of figures and the largest differences of logits allowed."""
    limits = [("kl_max", given["max_kl"]), ("top1", given["min_top1"])]
    return limits if given["max_difference"] is None else [*limits, ("max_abs", given["max_difference"])]


def plan_options(given: ConversionArguments) -> "Options":
    """What shapes the result, as the planner takes it.

    Raises:
      UsageError: values are not known, or contradict each other.
    """
    from converter.errors import UsageError
    from converter.planning import Options

    if given["qk_norm"] not in QK_NORMS:
        raise UsageError(f"--qk-norm {given['qk_norm']}: expected one of {', '.join(QK_NORMS)}")
    fits = {"qk_norm"} if given["qk_norm"] == "fit" else set[str]()
    made = Options(
        table=table_options(given) | fits,
        max_memory=byte_count(given["max_memory"]),
        store=given["store"],
        compress=given["compress"],
        rewrite=given["rewrite"],
        link=given["link"],
        tree=given["tree"],
        state=given["state"],
        optimizer=given["optimizer"],
        force=given["force"],
        layout=given["layout"] or LAYOUTS[0],
        dtype=given["dtype"],
    )
    made.check()
    return made


def table_options(given: TableArguments) -> frozenset[str]:
    """The options of a mapping table that are on.

    Raises:
      UsageError: the names are not a list, or the order of pairs is not known.
    """
    from converter.errors import UsageError

    option, rope = given["option"], given["rope"]
    if isinstance(option, str):
        raise UsageError(f"option={option!r}: expected a list of names")
    if rope not in ROPES:
        raise UsageError(f"--rope {rope}: expected one of {', '.join(ROPES)}")
    short = {"untie": given["untie"], INTERLEAVED: rope == INTERLEAVED}
    return frozenset([*option, *(name for name, on in short.items() if on)])


def settings_of(given: Settings) -> list[str]:
    """Changes of maxtext.yml as `KEY=VALUE` texts."""
    if isinstance(given, Mapping):
        values = ((key, str(value).lower() if isinstance(value, bool) else value) for key, value in given.items())
        return [f"{key}={value}" for key, value in values]
    return list(given)


def job_count(count: int) -> int:
    """The number of blocks in flight.

    Raises:
      UsageError: there cannot be so many.
    """
    from converter.errors import UsageError

    if not 1 <= count <= MAX_JOBS:
        raise UsageError(f"--jobs {count}: expected a number from 1 to {MAX_JOBS}")
    return count


def share_of(process: str | None) -> "Share | None":
    """The share that `process` names; None for all of the work.

    Raises:
      UsageError: it names none.
    """
    if process is None:
        return None
    from converter.environment import launch_variables
    from converter.planning import read_share

    return read_share(process, launch_variables())


def byte_count(size: int | str) -> int:
    """Bytes of a size, be it a number or a text such as "1GiB".

    Raises:
      UsageError: it is not a size.
    """
    from converter.words import parse_size

    return parse_size(str(size))


def optional_path(path: Path | None) -> str | None:
    """A path as text, if there is one."""
    return None if path is None else os.fspath(path)


def silent() -> "Progress":
    """Progress that nobody looks at."""
    from converter.work import Silent

    return Silent()
