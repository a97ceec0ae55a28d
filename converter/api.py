"""The public functions of the package: what the commands do, for notebooks and pipelines. See docs/api.md.

Arguments have the names and defaults of the command line's options. Each function returns the frozen value that the
command prints, and raises the errors of `converter.errors`. Nothing is printed and no signal is handled. Heavy imports
happen inside the functions, so that the command line can start quickly.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from converter.choices import CAST_DTYPES, DEFAULT_KL, MAX_JOBS, QK_NORMS, CastDtype, QkNorm, Store, Tree

if TYPE_CHECKING:
    from converter.checkpoints import Inspection
    from converter.conversion import Result
    from converter.forward import LogitsComparison, LogitsResult
    from converter.planning import Options, ParameterReport, Plan
    from converter.verification import Verification
    from converter.work import Progress

Path = str | os.PathLike[str]

Settings = Sequence[str] | Mapping[str, Any]
"""Keys of maxtext.yml with their values: as a mapping, or as texts `KEY=VALUE`."""


def convert(
    source: Path,
    destination: Path,
    *,
    step: int | None = None,
    mapping: Path | None = None,
    untie: bool = False,
    option: Iterable[str] = (),
    max_memory: int | str = "1GiB",
    jobs: int = 2,
    store: Store = "files",
    rewrite: bool = False,
    link: bool = False,
    set: Settings = (),
    tree: Tree = "params",
    state: bool = False,
    optimizer: str | None = None,
    force: bool = False,
    overwrite: bool = False,
    fresh: bool = False,
    check: bool = False,
    qk_norm: QkNorm = "plain",
    require_exact: bool = False,
    progress: "Progress | None" = None,
) -> "Result":
    """Converts an AXLearn checkpoint into a MaxText checkpoint, or resumes an interrupted conversion.

    Args:
      source: an AXLearn step directory, or a trainer directory.
      destination: the new checkpoint; MaxText gets `destination/0/items`, or `destination/<step - 1>/items` with
        `state`.
      step: the step to take from a trainer directory; None for the latest committed one.
      mapping: a mapping table of your own; None to find the bundled one that fits.
      untie: write the output projection as a leaf of its own; short for `option=["untie"]`.
      option: options of the mapping table to switch on.
      max_memory: budget for blocks in flight, in bytes or as a text such as "512MiB".
      jobs: blocks in flight, as far as the budget allows.
      store: how leaves are stored.
      rewrite: decode and encode every chunk.
      link: hard-link chunks to the source instead of copying them.
      set: keys of maxtext.yml that no checkpoint holds.
      tree: what becomes the parameters: AXLearn's ("params"), or their exponential moving average ("ema").
      state: convert the optimizer's moments, the counts and the step as well, so that the training goes on.
      optimizer: MaxText's `opt_type` that goes on with the state, "adamw" or "adam_pax"; None for adamw.
      force: convert the state also where training cannot go on exactly.
      overwrite: replace a checkpoint at the destination.
      fresh: do not resume an interrupted conversion.
      check: decode also chunks that are only passed through.
      qk_norm: copy the q/k norm scales, or fit them to stock MaxText.
      require_exact: refuse weights with which stock MaxText's attention is not exact.
      progress: is told of the work, from several threads.

    Raises:
      UsageError: arguments contradict each other, or `max_memory` is too small.
      SourceError: the source is not a committed checkpoint, or is damaged.
      MappingError: no mapping table fits the source.
      DestinationError: the destination is refused or cannot be written.
      InexactError: `require_exact`, and the weights are not.
      ResourceError: the system killed the process that commits the checkpoint.
    """
    from converter.checkpoints import Committer

    # Started first: it has the most to import.
    with Committer() as committer:
        from converter.conversion import Request
        from converter.conversion import convert as run

        request = Request(
            source=os.fspath(source),
            destination=os.fspath(destination),
            options=_options(
                untie,
                option,
                qk_norm,
                max_memory,
                store=store,
                rewrite=rewrite,
                link=link,
                tree=tree,
                state=state,
                optimizer=optimizer,
                force=force,
            ),
            step=step,
            mapping=_optional(mapping),
            settings=_settings(set),
            jobs=_jobs(jobs),
            overwrite=overwrite,
            fresh=fresh,
            check=check,
            require_exact=require_exact,
        )
        return run(request, progress or _silent(), committer)


def plan(
    source: Path,
    *,
    step: int | None = None,
    mapping: Path | None = None,
    untie: bool = False,
    option: Iterable[str] = (),
    max_memory: int | str = "1GiB",
    jobs: int = 2,
    store: Store = "files",
    rewrite: bool = False,
    link: bool = False,
    set: Settings = (),
    tree: Tree = "params",
    state: bool = False,
    optimizer: str | None = None,
    force: bool = False,
    qk_norm: QkNorm = "plain",
    metadata_only: bool = False,
) -> "Plan":
    """Plans what `convert` with the same arguments would do, from metadata alone.

    Args:
      source: an AXLearn step directory, or a trainer directory.
      step, mapping, untie, option, max_memory, jobs, store, rewrite, link, set, tree, state, optimizer, force, qk_norm:
        as in `convert`.
      metadata_only: chunk files are absent; `index` and the `.zarray` files are enough.

    Raises:
      UsageError: arguments contradict each other, or `max_memory` is too small.
      SourceError: the source is not a committed checkpoint, or is damaged.
      MappingError: no mapping table fits the source.
    """
    from converter.mapping import configure
    from converter.planning import make_plan, open_source

    options = _options(
        untie,
        option,
        qk_norm,
        max_memory,
        store=store,
        rewrite=rewrite,
        link=link,
        tree=tree,
        state=state,
        optimizer=optimizer,
        force=force,
    )
    opened = open_source(
        os.fspath(source),
        step=step,
        mapping=_optional(mapping),
        options=options.table,
        metadata_only=metadata_only,
        tree=options.tree,
        optimizer=options.state_optimizer,
        force=options.force,
    )
    return make_plan(opened, options, configure(opened.match, _settings(set)), jobs=_jobs(jobs))


def verify(
    source: Path,
    destination: Path | None = None,
    *,
    step: int | None = None,
    mapping: Path | None = None,
    tree: Tree | None = None,
    dtype: CastDtype | None = None,
    sample: float | None = None,
    max_memory: int | str = "1GiB",
    jobs: int = 2,
    progress: "Progress | None" = None,
) -> "Verification":
    """Compares a MaxText checkpoint with its source bit for bit, or with the digests that it carries.

    What differs is no error: it is in the result's `findings`, and its `ok` is false.

    Args:
      source: the AXLearn source; or alone, the MaxText checkpoint itself.
      destination: the MaxText checkpoint; None to compare `source` with its own digests.
      step: the step to take from a trainer directory; None for the latest committed one.
      mapping: a mapping table of your own; None to find the bundled one that fits.
      tree: the tree that became the parameters; None for the one that the checkpoint names.
      dtype: the dtype that the weights were cast to; None where they must have the source's.
      sample: the fraction of blocks to compare; None for all.
      max_memory: budget for blocks in flight, in bytes or as a text such as "512MiB".
      jobs: blocks in flight, as far as the budget allows.
      progress: is told of the work, from several threads.

    Raises:
      UsageError: arguments contradict each other, or `max_memory` is too small.
      SourceError: the source cannot be read.
      DestinationError: the destination is not a local path, or is an AXLearn checkpoint.
      MappingError: no mapping table fits the source.
      VerificationError: there is no checkpoint, it carries no digests, or its metadata cannot be read.
    """
    from converter.errors import UsageError
    from converter.verification import VerifyRequest, verify_digests
    from converter.verification import verify as compare

    if dtype is not None and dtype not in CAST_DTYPES:
        raise UsageError(f"--dtype {dtype}: expected one of {', '.join(CAST_DTYPES)}")
    progress, memory, jobs = progress or _silent(), _bytes(max_memory), _jobs(jobs)
    if destination is None:
        if (step, mapping, tree, dtype, sample) != (None,) * 5:
            raise UsageError("--step, --mapping, --tree, --dtype and --sample need a source: verify SRC DST")
        return verify_digests(os.fspath(source), progress, max_memory=memory, jobs=jobs)
    request = VerifyRequest(
        source=os.fspath(source),
        destination=os.fspath(destination),
        step=step,
        mapping=_optional(mapping),
        tree=tree,
        dtype=dtype,
        sample=sample,
        max_memory=memory,
        jobs=jobs,
    )
    return compare(request, progress)


def compare_logits(
    source: Path,
    destination: Path,
    *,
    step: int | None = None,
    mapping: Path | None = None,
    tree: Tree | None = None,
    tokens: Path | None = None,
    set: Settings = (),
    norm_after_rope: bool = False,
    max_memory: int | str = "4GiB",
    max_kl: float = DEFAULT_KL,
    max_difference: float | None = None,
    min_top1: float = 0.0,
    explain: bool = True,
    progress: "Progress | None" = None,
) -> "LogitsComparison":
    """Compares what both models compute, and finds the causes of a difference: `ax2mt verify --logits`.

    Logits that differ are no error: the result's `passed` is false.

    Args:
      source: the AXLearn source.
      destination: the MaxText checkpoint.
      step: the step to take from a trainer directory; None for the latest committed one.
      mapping: a mapping table of your own; None to find the bundled one that fits.
      tree: the tree that became the parameters; None for the one that the checkpoint names.
      tokens: a file of token sequences, JSON lines or .npz; None for a built-in set.
      set: compute MaxText's logits as with these keys of maxtext.yml.
      norm_after_rope: compute as MaxText does with `converter.maxtext_patch`.
      max_memory: budget for the process, in bytes or as a text such as "8GiB".
      max_kl: the worst token's divergence that passes.
      max_difference: the largest absolute difference that passes; None for any.
      min_top1: the least share of tokens with the same top-1 that passes.
      explain: look for the causes of a difference.
      progress: is told of the work.

    Raises:
      UsageError: the paths are swapped, a key is not known, or `max_memory` is too small.
      SourceError: a checkpoint is damaged.
      DestinationError: the destination is not a local path.
      MappingError: no mapping table fits, or it does not say what its model computes with.
      VerificationError: the destination's tensors make another model.
    """
    from converter.forward import choose_tokens, compare, open_pair
    from converter.work import reuse_freed_memory

    memory = _bytes(max_memory)
    reuse_freed_memory()
    models = open_pair(
        os.fspath(source),
        os.fspath(destination),
        step=step,
        mapping=_optional(mapping),
        tree=tree,
        settings=_settings(set),
        norm_after=norm_after_rope,
    )
    chosen = choose_tokens(_optional(tokens), models[0].weights.vocabulary)
    limits = [("kl_max", max_kl), ("top1", min_top1)]
    limits += [("max_abs", max_difference)] if max_difference is not None else []
    with closing(progress or _silent()) as told:
        return compare(*models, chosen, budget=memory, limits=limits, explain=explain, progress=told)


def logits(
    path: Path,
    *,
    step: int | None = None,
    mapping: Path | None = None,
    tree: Tree | None = None,
    tokens: Path | None = None,
    out: Path | None = None,
    set: Settings = (),
    norm_after_rope: bool = False,
    max_memory: int | str = "4GiB",
    progress: "Progress | None" = None,
) -> "LogitsResult":
    """Computes a checkpoint's logits on the CPU, as AXLearn or as MaxText computes them.

    Args:
      path: an AXLearn step or trainer directory, or a MaxText checkpoint.
      step: the step to take from a trainer directory; None for the latest committed one.
      mapping: a mapping table of your own; None to find the bundled one that fits.
      tree: the tree that became the parameters; None for the one that the checkpoint names.
      tokens: a file of token sequences, JSON lines or .npz; None for a built-in set.
      out: the file to write the logits to, .npz or .jsonl; None for the summary alone.
      set: compute as with these keys of maxtext.yml.
      norm_after_rope: compute as MaxText does with `converter.maxtext_patch`.
      max_memory: budget for the process, in bytes or as a text such as "8GiB".
      progress: is told of the work.

    Raises:
      UsageError: an argument is not for this kind of checkpoint, or `max_memory` is too small.
      SourceError: the checkpoint is damaged, or there is none.
      MappingError: no mapping table fits, or it does not say what its model computes with.
      DestinationError: `out` cannot be written.
    """
    from converter.forward import choose_tokens, open_model
    from converter.forward import logits as run
    from converter.work import reuse_freed_memory

    memory = _bytes(max_memory)
    reuse_freed_memory()
    model = open_model(
        os.fspath(path),
        step=step,
        mapping=_optional(mapping),
        tree=tree,
        settings=_settings(set),
        norm_after_rope=norm_after_rope,
    )
    chosen = choose_tokens(_optional(tokens), model.weights.vocabulary)
    with closing(progress or _silent()) as told:
        return run(model, chosen, _optional(out), memory, told)


def parameters(
    source: Path | None = None,
    destination: Path | None = None,
    *,
    model: str | None = None,
    step: int | None = None,
    mapping: Path | None = None,
    untie: bool = False,
    option: Iterable[str] = (),
    tree: Tree | None = None,
) -> "ParameterReport":
    """Reports which AXLearn parameter is which MaxText parameter, with shapes and counts: `ax2mt params`.

    Args:
      source: an AXLearn step or trainer directory; None for a published model.
      destination: the MaxText checkpoint to look at; None for the planned one.
      model: name of a published model; with a source: what the source must be.
      step: the step to take from a trainer directory; None for the latest committed one.
      mapping: a mapping table of your own; None to find the bundled one that fits.
      untie: plan the output projection as a leaf of its own; short for `option=["untie"]`.
      option: options of the mapping table to switch on.
      tree: what becomes the parameters; None for AXLearn's, or with a destination for the one that it names.

    Raises:
      UsageError: neither a source nor a model was given.
      SourceError: the source cannot be read.
      DestinationError: the destination is not a local path, or is an AXLearn checkpoint.
      MappingError: no mapping table fits, or there is no such model.
      VerificationError: there is no checkpoint at the destination.
    """
    from converter.planning import ParameterRequest, make_report

    request = ParameterRequest(
        source=_optional(source),
        destination=_optional(destination),
        model=model,
        step=step,
        mapping=_optional(mapping),
        options=_table_options(untie, option),
        tree=tree,
    )
    return make_report(request)


def inspect(path: Path) -> "Inspection":
    """Identifies a checkpoint and lists its contents.

    Args:
      path: anything on a local file system; what cannot be read is reported as such.

    Raises:
      SourceError: the path is not a local one.
    """
    from converter.checkpoints import inspect as look

    return look(os.fspath(path))


def _options(untie: bool, option: Iterable[str], qk_norm: str, max_memory: int | str, **rest: Any) -> "Options":
    from converter.planning import Options

    made = Options(
        table=_table_options(untie, option, qk_norm),
        max_memory=_bytes(max_memory),
        **rest,
    )
    made.check()
    return made


def _table_options(untie: bool, option: Iterable[str], qk_norm: str = "plain") -> frozenset[str]:
    from converter.errors import UsageError

    if isinstance(option, str):
        raise UsageError(f"option={option!r}: expected a list of names")
    if qk_norm not in QK_NORMS:
        raise UsageError(f"--qk-norm {qk_norm}: expected one of {', '.join(QK_NORMS)}")
    fits = ["qk_norm"] if qk_norm == "fit" else []
    return frozenset([*option, *(["untie"] if untie else []), *fits])


def _settings(given: Settings) -> list[str]:
    if isinstance(given, Mapping):
        values = ((key, str(value).lower() if isinstance(value, bool) else value) for key, value in given.items())
        return [f"{key}={value}" for key, value in values]
    return list(given)


def _jobs(count: int) -> int:
    from converter.errors import UsageError

    if not 1 <= count <= MAX_JOBS:
        raise UsageError(f"--jobs {count}: expected a number from 1 to {MAX_JOBS}")
    return count


def _bytes(size: int | str) -> int:
    from converter.words import parse_size

    return parse_size(str(size))


def _optional(path: Path | None) -> str | None:
    return None if path is None else os.fspath(path)


def _silent() -> "Progress":
    from converter.work import Silent

    return Silent()
