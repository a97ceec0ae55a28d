"""The arguments of the public functions and of the commands, each described once: name, type, default, bounds, help.

A function of `api` takes one of the groups below as its keywords. From the group come its signature and the `Args` of
its docstring (`documented`), and the options of its command (`cli.options`). A new option is an entry of a group here,
and its use in `api`.
"""

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, TypeVar, cast, get_args

from converter.choices import (
    DEFAULT_KL,
    MAX_JOBS,
    CastDtype,
    Compressor,
    Layout,
    QkNorm,
    Rope,
    ServingDtype,
    Store,
    Tree,
)

if TYPE_CHECKING:
    from converter.work import Progress

Path = str | os.PathLike[str]

Settings = Sequence[str] | Mapping[str, Any]
"""Keys of maxtext.yml with their values: as a mapping, or as texts `KEY=VALUE`."""

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Option:
    """What the documentation and the command line need to know of an argument beside its type.

    Attributes:
      help: one sentence.
      default: its value where it is not given; of a positional argument, the function's signature has it.
      metavar: placeholder of a text on the command line; empty where the type says what can be given. With the default
        (), the option can be repeated.
      least: the smallest number that the command line takes.
      most: the largest.
      python_only: the command line does not have it.
    """

    help: str
    default: Any = None
    metavar: str = ""
    least: float | None = None
    most: float | None = None
    python_only: bool = False


SourcePath = Annotated[Path, Option("AXLearn step directory, or a trainer directory.", metavar="SRC")]
Budget = Annotated[int | str, Option("Budget for blocks in flight.", "1GiB", "SIZE")]
ProcessBudget = Annotated[int | str, Option("Budget for the process.", "4GiB", "SIZE")]
Jobs = Annotated[int, Option("Blocks in flight, as memory allows.", 2, least=1, most=MAX_JOBS)]
Process = Annotated[
    str | None,
    Option("Do share I of N, numbered from 0, of work that N processes do: I/N, auto or auto/N.", metavar="I/N"),
]
MadeTree = Annotated[Tree | None, Option("The tree that became the parameters; default: what DST says, or params.")]
ProgressObject = Annotated["Progress | None", Option("Notified of the work, from several threads.", python_only=True)]


class SourceArguments(TypedDict, total=False):
    """What every function takes that reads an AXLearn checkpoint."""

    step: Annotated[int | None, Option("Step to take; default: latest committed.", least=0)]
    mapping: Annotated[Path | None, Option("Your own mapping table, or a bundled one.", metavar="FILE")]


class TableArguments(SourceArguments, total=False):
    """What every function takes that plans the leaves of a MaxText checkpoint."""

    untie: Annotated[bool, Option("Write the output projection as a leaf of its own: --option untie.", False)]
    option: Annotated[Iterable[str], Option("Switch on an option of the mapping table.", (), "NAME")]
    rope: Annotated[Rope, Option("Order of the rotated pairs in q and k: MaxText's own, or AXLearn's.", "permuted")]
    layout: Annotated[Layout | None, Option("All layers in one leaf, or each in leaves of its own; default: scanned.")]


class ConversionArguments(TableArguments, total=False):
    """What `convert` and `plan` take."""

    max_memory: Budget
    jobs: Jobs
    store: Annotated[Store, Option("Plain files, one OCDBT database, or zarr2 files for old readers.", "files")]
    compress: Annotated[Compressor | None, Option("For rewritten chunks; default: zstd, none with unscanned layers.")]
    rewrite: Annotated[bool, Option("Decode and encode every chunk; pass none through.", False)]
    link: Annotated[bool, Option("Hard-link chunks instead of copying: no checksums.", False)]
    set: Annotated[Settings, Option("Change maxtext.yml.", (), "KEY=VALUE")]
    qk_norm: Annotated[QkNorm, Option("Copy the q/k norm scales, or fit them to stock MaxText.", "plain")]
    dtype: Annotated[ServingDtype | None, Option("Cast the weights, to serve them: rounded to nearest even.")]
    tree: Annotated[Tree, Option("What becomes the parameters: AXLearn's, or their moving average.", "params")]
    state: Annotated[bool, Option("Also the optimizer's moments, counts and step, to continue the training.", False)]
    optimizer: Annotated[str | None, Option("With --state: adamw (default) or adam_pax.", metavar="NAME")]
    force: Annotated[bool, Option("With --state: convert what cannot continue exactly.", False)]


class PlanArguments(ConversionArguments, total=False):
    """What `plan` takes."""

    to: Annotated[str | None, Option("Also show what converting to DST asks of object stores.", metavar="DST")]
    metadata_only: Annotated[bool, Option("Chunk files are absent: index and .zarray files are enough.", False)]


class RunArguments(ConversionArguments, total=False):
    """What every function takes that converts."""

    check: Annotated[bool, Option("Also decode the chunks that are passed through.", False)]
    require_exact: Annotated[bool, Option("Fail (7) where stock MaxText's attention is not exact.", False)]


class ConvertArguments(RunArguments, total=False):
    """What `convert` takes."""

    overwrite: Annotated[bool, Option("Replace the checkpoint at DST.", False)]
    fresh: Annotated[bool, Option("Do not resume an interrupted conversion.", False)]
    process: Process
    progress: ProgressObject


class BeamArguments(RunArguments, total=False):
    """What `beam` takes."""

    shares: Annotated[int | None, Option("Elements of the pipeline; default: one for 256 MiB of weights.", least=1)]


class ParameterArguments(TableArguments, total=False):
    """What `parameters` takes."""

    tree: MadeTree
    model: Annotated[str | None, Option("A published size.", metavar="NAME")]


class ConformArguments(TableArguments, total=False):
    """What `conform` takes."""

    set: Annotated[Settings, Option("Change maxtext.yml.", (), "KEY=VALUE")]
    model: Annotated[str | None, Option("A published size.", metavar="NAME")]
    maxtext: Annotated[Path | None, Option("The Python of an environment with MaxText.", metavar="PYTHON")]
    axlearn: Annotated[Path | None, Option("The Python of an environment with AXLearn.", metavar="PYTHON")]
    layout: Annotated[Layout | None, Option("All layers in one leaf, or each in leaves of its own; default: both.")]
    config: Annotated[str | None, Option("AXLearn's: NAME, MODULE:NAME or FILE.py:NAME.", metavar="NAME")]


class BitsArguments(SourceArguments, total=False):
    """What every function takes that compares a checkpoint's bits."""

    tree: MadeTree
    dtype: Annotated[CastDtype | None, Option("The dtype that weights were cast to, if DST does not say it.")]
    sample: Annotated[float | None, Option("Compare only this fraction of the blocks.")]
    decode: Annotated[bool, Option("Decode every chunk, also where the stored bytes decide.", False)]
    max_memory: Budget
    jobs: Jobs
    progress: ProgressObject


class VerifyArguments(BitsArguments, total=False):
    """What `verify` takes."""

    process: Process


class ModelArguments(SourceArguments, total=False):
    """What every function takes that computes logits."""

    tree: MadeTree
    tokens: Annotated[Path | None, Option("JSON lines of ids, or .npz; default: a built-in set.", metavar="FILE")]
    set: Annotated[Settings, Option("Compute as with other model keys.", (), "KEY=VALUE")]
    norm_after_rope: Annotated[bool, Option("Compute as MaxText does with converter.maxtext_patch.", False)]
    max_memory: ProcessBudget
    progress: ProgressObject


class LogitsArguments(ModelArguments, total=False):
    """What `logits` takes."""

    out: Annotated[Path | None, Option(".npz, or .jsonl for MaxText's logit checker.", metavar="FILE")]


class CompareArguments(ModelArguments, total=False):
    """What `compare_logits` takes."""

    max_kl: Annotated[float, Option("Worst token's divergence allowed.", DEFAULT_KL, least=0)]
    max_difference: Annotated[float | None, Option("Largest absolute difference allowed.", least=0)]
    min_top1: Annotated[float, Option("Smallest allowed share of tokens with the same top-1.", 0.0, least=0, most=1)]
    explain: Annotated[bool, Option("Look for the cause of a difference.", True)]


class EvidenceArguments(BitsArguments, CompareArguments, total=False):
    """What `gather_evidence` takes: all that both comparisons take."""

    logits: Annotated[bool, Option("Compare the models' logits as well.", False)]
    max_memory: Annotated[int | str, Option("Budget: 1GiB, with --logits 4GiB.", None, "SIZE")]


def arguments(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a public function, those of its group included; each annotation holds the `Option`."""
    result: list[inspect.Parameter] = []
    for parameter in inspect.signature(inspect.unwrap(function)).parameters.values():
        if parameter.kind is not parameter.VAR_KEYWORD:
            result.append(parameter)
            continue
        for name, annotation in get_args(parameter.annotation)[0].__annotations__.items():
            default = get_args(annotation)[1].default
            result.append(inspect.Parameter(name, parameter.KEYWORD_ONLY, default=default, annotation=annotation))
    return result


def documented(function: F) -> F:
    """Gives a public function the signature and the docstring of its whole group, and its keywords' defaults."""
    wanted = arguments(function)
    described = {parameter.name: get_args(parameter.annotation) for parameter in wanted}
    signature = inspect.Signature([parameter.replace(annotation=described[parameter.name][0]) for parameter in wanted])

    @functools.wraps(function)
    def complete(*args: Any, **keywords: Any) -> Any:
        bound = signature.bind(*args, **keywords)
        bound.apply_defaults()
        from converter.storage import store_errors

        with store_errors(str(bound.arguments.get("destination") or "")):
            return function(*bound.args, **bound.kwargs)

    lines = "\n".join(f"      {name}: {option.help}" for name, (_, option) in described.items())
    summary, mark, rest = (function.__doc__ or "").partition("Raises:")
    complete.__doc__ = f"{summary}Args:\n{lines}\n\n    {mark}{rest}"
    returned = inspect.signature(function).return_annotation
    complete.__signature__ = signature.replace(return_annotation=returned)  # type: ignore[attr-defined]
    return cast(F, complete)
