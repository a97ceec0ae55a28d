"""Logits of a checkpoint, from AXLearn or from MaxText, written to a file.

`.npz` holds `input_ids` [sequences, positions] and `logits` [sequences, positions, vocabulary]. `.jsonl` is what
MaxText's `forward_pass_logit_checker` takes as golden logits: a line a sequence with `prompt`, `tokens` and `logits`
[positions, vocabulary]. JSON has no NaN and no infinity: they are the strings "nan", "inf" and "-inf", as numpy reads
them.
"""

import json
import os
import time
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from converter.checkpoints import CONFIG_NAME, has_items, open_target
from converter.errors import DestinationError, SourceError, UsageError, VerificationError
from converter.forward.checkpoint_weights import axlearn_weights, converting_table, fitting_table, maxtext_weights
from converter.forward.finite import NonFinite, is_finite
from converter.forward.model import Variant, run, working_memory
from converter.forward.semantics import Semantics, axlearn_semantics, check_semantics, maxtext_semantics, read_config
from converter.forward.tokens import Tokens, built_in, read_tokens
from converter.forward.weights import Weights
from converter.json_text import json_values
from converter.location import check_readable, locate
from converter.mapping import (
    PARAMS,
    QUERY_SCALE,
    MappingTable,
    arithmetic_keys,
    configure,
    converted_keys,
    find_mapping,
    is_of_training,
    source_arithmetic,
    undecided_keys,
)
from converter.planning import open_source
from converter.storage import is_file
from converter.words import format_size
from converter.work import Progress, peak_resident

DEFAULT_MEMORY = "4GiB"

AXLEARN, MAXTEXT = "AXLearn", "MaxText"
"""Kinds of a model."""

INTERPRETER = 600 << 20
"""What the process takes with numpy, jax and TensorStore loaded and compiled code in place: measured."""


@dataclass(frozen=True)
class Model:
    """A checkpoint and what is computed from it.

    Attributes:
      weights: its tensors.
      semantics: the arithmetic.
      kind: "AXLearn" or "MaxText".
      table: the mapping table that names its tensors.
      origin: where the arithmetic was taken from, for reports.
    """

    weights: Weights
    semantics: Semantics
    kind: str
    table: MappingTable
    origin: str


@dataclass(frozen=True)
class LogitsResult:
    """What `ax2mt logits` did.

    Attributes:
      model: the model.
      tokens: what it was given.
      file: the file that was written; None where only the summary was asked for.
      mean: of all logits.
      deviation: standard deviation of all logits.
      non_finite: where NaN or infinity first appears; None where all values are finite.
      bad_tokens: how many tokens have logits that are not finite.
      seconds: wall time.
      peak_memory: the largest resident set of this process, in bytes.
    """

    model: Model
    tokens: Tokens
    file: str | None
    mean: float
    deviation: float
    non_finite: NonFinite | None
    bad_tokens: int
    seconds: float
    peak_memory: int


def open_model(
    path: str,
    *,
    step: int | None = None,
    mapping: str | None = None,
    settings: Sequence[str] = (),
    recorded: Mapping[str, Any] | None = None,
    norm_after_rope: bool = False,
    tree: str | None = None,
) -> Model:
    """Opens a checkpoint of either kind with the arithmetic that belongs to it.

    Args:
      path: an AXLearn step or trainer directory, or a MaxText checkpoint.
      step: the wanted AXLearn step.
      mapping: a user's own table.
      settings: `KEY=VALUE` changes of the MaxText configuration; for AXLearn of the facts that no tensor shows.
      recorded: keys that were set when an AXLearn checkpoint was converted.
      norm_after_rope: MaxText runs with the patch of `maxtext_patch`.
      tree: the AXLearn tree that is computed with; None for the parameters.

    Raises:
      UsageError: MaxText's options were given for an AXLearn checkpoint, or the other way round.
      SourceError: the checkpoint is damaged or is none.
      MappingError: no table fits, or it does not say what its model computes with.
    """
    place = locate(path, SourceError)
    check_readable(place.path, SourceError)
    if has_items(place.path):
        if step is not None:
            raise UsageError(f"{path} is a MaxText checkpoint; --step is for AXLearn's, name the step's directory")
        if tree is not None:
            raise UsageError(f"{path} is a MaxText checkpoint, whose parameters are one tree; --tree is for AXLearn's")
        return _maxtext_model(path, mapping, settings, norm_after_rope)
    source = open_source(path, step=step, mapping=mapping, tree=tree or PARAMS)
    if norm_after_rope:
        raise UsageError(f"{path} is an AXLearn checkpoint; --norm-after-rope is for MaxText checkpoints")
    weights, table = axlearn_weights(source), source.match.table
    idle = next((setting for setting in settings if is_of_training(setting, table)), "")
    if idle:
        raise UsageError(f"--set {idle}: the constants of the training change no logits; drop the option")
    lines = source.trained.lines if source.trained is not None else None
    made = configure(source.match, settings, recorded=recorded, lines=lines)
    weights = replace(weights, notes=(*weights.notes, *made.assumptions))
    semantics = axlearn_semantics(source_arithmetic(table, made.keys), tied="unembedding" not in weights.top)
    changes = (
        f"{key}={made.keys[key]}" + (f" ({made.origins[key]})" if key in made.read else "")
        for key in arithmetic_keys(table)
        if key in made.settings or key in made.read
    )
    return Model(weights, semantics, AXLEARN, table, f"AXLearn's '{table.name}'{_with(changes)}")


def _maxtext_model(path: str, mapping: str | None, settings: Sequence[str], norm_after_rope: bool) -> Model:
    place = locate(path, SourceError)
    try:
        target = open_target(path)
    except VerificationError as error:
        raise SourceError(error.message, error.details) from None
    if mapping is None:
        table, notes = converting_table(target)
    else:
        table, notes = fitting_table([find_mapping(mapping)], target), ()
    weights = maxtext_weights(target, table, path, notes)
    has_unembedding = "unembedding" in weights.top
    beside = os.path.join(target.root, CONFIG_NAME)
    file = beside if is_file(beside) else None
    named = {setting.partition("=")[0] for setting in settings}
    undecided = undecided_keys(table, {*weights.settings, *named}) if file is None else []
    if undecided:
        raise UsageError(
            f"{path}: has no {CONFIG_NAME} beside it, and mapping '{table.name}' has several values of "
            f"{', '.join(undecided)}; give --set {undecided[0]}=VALUE"
        )
    converted = converted_keys(table, weights.settings, weights.orders)
    config = read_config(file, settings, converted, has_unembedding=has_unembedding)
    needed = {key: converted[key] for key in ("decoder_block",) if key in converted}
    needed["use_qk_norm"] = QUERY_SCALE in weights.layers[0]
    missing = "" if has_unembedding else _path_of(table, "unembedding")
    semantics = maxtext_semantics(config, needed, norm_after_rope=norm_after_rope, missing=missing)
    check_semantics(semantics, weights.experts)
    origin = (file and place.shown(file)) or "the flags that a conversion writes (no maxtext.yml beside the checkpoint)"
    changes = [*settings, *(["--norm-after-rope"] if norm_after_rope else [])]
    return Model(weights, semantics, MAXTEXT, table, origin + _with(changes))


def _path_of(table: MappingTable, role: str) -> str:
    """Where a table has the tensor of a role in MaxText, for messages."""
    paths = (path for row in table.rows for path, own in zip(row.maxtext, row.roles, strict=False) if own == role)
    return next(paths, f"tensor of the role {role}")


def _with(changes: Iterable[str]) -> str:
    text = ", ".join(changes)
    return f" with {text}" if text else ""


def choose_tokens(file: str | None, vocabulary: int) -> Tokens:
    """The tokens of a file, or the built-in set."""
    return built_in(vocabulary) if file is None else read_tokens(file, vocabulary)


def check_memory(model: Model, tokens: Tokens, budget: int, kept: int = 0) -> None:
    """Refuses a run that would not fit the budget.

    Args:
      model: the checkpoint and its arithmetic.
      tokens: what it is given.
      budget: bytes that the process may take.
      kept: bytes that the caller holds besides.

    Raises:
      UsageError: with the bytes needed.
    """
    needed = working_memory(model.weights, [Variant(model.semantics)], len(tokens.ids)) + kept + INTERPRETER
    if needed > budget:
        raise UsageError(
            f"--max-memory {format_size(budget)} is too small: {len(tokens.ids)} tokens through {model.weights.path} "
            f"take {format_size(needed)}; give more, or fewer tokens with --tokens"
        )


def logits(model: Model, tokens: Tokens, out: str | None, budget: int, progress: Progress) -> LogitsResult:
    """Computes the logits of all tokens and writes them as they come.

    Args:
      model: the checkpoint and its arithmetic.
      tokens: the sequences.
      out: `.npz` or `.jsonl` file to write; None for the summary alone.
      budget: bytes that the process may take.
      progress: notified of what is being worked on.

    Raises:
      UsageError: the budget is too small, or the file has another ending, or `.npz` cannot hold the sequences.
      DestinationError: the file cannot be written.
      SourceError: a tensor cannot be read.
    """
    started = time.monotonic()
    check_memory(model, tokens, budget)
    moments = np.zeros(2)
    bad_tokens = 0
    non_finite: NonFinite | None = None

    def collect(write: Callable[[np.ndarray], None]) -> None:
        nonlocal non_finite

        def sink(_: int, values: np.ndarray) -> None:
            nonlocal bad_tokens
            for row in values[0]:
                bad_tokens += not is_finite(row)
                moments[:] += row.sum(dtype=np.float64), np.square(row, dtype=np.float64).sum()
            write(values[0])

        with np.errstate(invalid="ignore", over="ignore"):
            non_finite = run(model.weights, [Variant(model.semantics)], tokens, sink, progress=progress.say)

    if out is None:
        collect(lambda _: None)
    else:
        _write_file(out, tokens, model.weights.vocabulary, collect)
    count = len(tokens.ids) * model.weights.vocabulary
    with np.errstate(invalid="ignore"):
        mean = moments[0] / count
        deviation = float(np.sqrt(np.maximum(moments[1] / count - mean**2, 0.0)))
    seconds = time.monotonic() - started
    return LogitsResult(model, tokens, out, float(mean), deviation, non_finite, bad_tokens, seconds, peak_resident())


def _write_file(out: str, tokens: Tokens, vocabulary: int, collect: Callable[[Callable], None]) -> None:
    """Writes beside the file and renames, so that an interrupted run leaves nothing that looks finished."""
    writers = {".npz": _write_npz, ".jsonl": _write_lines}
    writer = writers.get(os.path.splitext(out)[1])
    if writer is None:
        raise UsageError(f"--out {out}: expected a file that ends in .npz or .jsonl")
    if out.endswith(".npz") and not tokens.rectangular:
        raise UsageError(f"--out {out}: sequences of different lengths do not fit an .npz; write a .jsonl")
    file = locate(out, DestinationError, local=True).path
    part = file + ".part"
    try:
        writer(part, tokens, vocabulary, collect)
        os.replace(part, file)
    except OSError as error:
        raise DestinationError(f"--out {out}: cannot be written: {error.strerror or error}") from None
    finally:
        if os.path.lexists(part):
            os.unlink(part)


def _write_npz(part: str, tokens: Tokens, vocabulary: int, collect: Callable[[Callable], None]) -> None:
    start, stop = tokens.sequences[0]
    shape = len(tokens.sequences), stop - start
    with zipfile.ZipFile(part, "w", allowZip64=True) as archive:
        with archive.open("input_ids.npy", "w") as member:
            np.lib.format.write_array(member, tokens.ids.reshape(shape))
        header = {"descr": "<f4", "fortran_order": False, "shape": (*shape, vocabulary)}
        with archive.open("logits.npy", "w", force_zip64=True) as member:
            np.lib.format.write_array_header_1_0(member, header)
            collect(lambda values: member.write(np.ascontiguousarray(values, "<f4").data))


def _write_lines(part: str, tokens: Tokens, _: int, collect: Callable[[Callable], None]) -> None:
    with open(part, "w", encoding="utf-8") as file:
        writer = _LineWriter(file, tokens)
        collect(writer.add)


class _LineWriter:
    """Writes rows of logits as JSON lines, one for each sequence, a row at a time."""

    def __init__(self, file: Any, tokens: Tokens):
        self.file = file
        self.tokens = tokens
        self.starts = dict(tokens.sequences)
        self.stops = {stop for _, stop in tokens.sequences}
        self.at = 0

    def add(self, rows: np.ndarray) -> None:
        for row in rows:
            if self.at in self.starts:
                ids = self.tokens.ids[self.at : self.starts[self.at]].tolist()
                self.file.write(f'{{"prompt": "", "tokens": {json.dumps(ids)}, "logits": [')
            self.at += 1
            self.file.write(json.dumps(json_values(row.tolist())))
            self.file.write("]}\n" if self.at in self.stops else ", ")
