"""The source as the planner needs it: a committed step, the table that fits it, its arrays, its audited files."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from converter.arrays import Array, audit_chunks
from converter.checkpoints import Checkpoint, Target, check_source, open_checkpoint, recorded_fits, trained_learner
from converter.errors import MappingError, SourceError
from converter.location import check_readable, locate
from converter.mapping import (
    Configuration,
    MappingTable,
    Match,
    choose_table,
    configure,
    join,
    load_bundled,
    load_mapping,
    match_table,
    matches,
)
from converter.storage import storage_of
from converter.words import option_flag, shorten


@dataclass(frozen=True)
class Source:
    """An audited source.

    Attributes:
      checkpoint: the committed step.
      shown: its directory in the user's words, for reports.
      match: the mapping table on its tensors.
      arrays: metadata of every tensor that is converted.
      stored_bytes: size of each such tensor's chunk files; empty where only metadata is there.
    """

    checkpoint: Checkpoint
    shown: str
    match: Match
    arrays: Mapping[str, Array]
    stored_bytes: Mapping[str, int]

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user has to know about what is converted, one line each."""
        return (*self.checkpoint.notes, *self.match.notes)


def open_source(
    path: str,
    *,
    step: int | None = None,
    mapping: str | None = None,
    options: Collection[str] = (),
    metadata_only: bool = False,
) -> Source:
    """Finds, matches and audits a source, reading metadata only.

    Args:
      path: a step directory or a trainer directory, as a user writes it.
      step: the wanted step; None for the latest committed one.
      mapping: path of a user's own table; None to find the bundled one that fits.
      options: mapping options, such as `untie`.
      metadata_only: do not look for chunk files; a plan can be made of `index` and `.zarray` files alone.

    Raises:
      SourceError: not a local path, no committed step, or damaged metadata, or chunk files missing or of an impossible
        size.
      MappingError: the named table, or every bundled one, does not fit, or does not know a tensor's dtype.
    """
    place = locate(path, SourceError)
    check_readable(place.path, SourceError)
    storage = storage_of(place.path)
    try:
        storage.release(place.path)
        check_source(place)
        checkpoint = open_checkpoint(place.path, step)
        storage.pin(checkpoint.directory)
    except OSError as error:
        raise SourceError(f"{error.filename or place.path}: cannot be read: {error.strerror or error}") from None
    tables = load_bundled() if mapping is None else [load_mapping(mapping)]
    check_options(tables, options)
    _check_entries(checkpoint, tables)
    shapes = checkpoint.shapes
    if mapping is None:
        match = choose_table(tables, shapes, options)
    else:
        match = match_table(tables[0], shapes, options=options)
    used = list(dict.fromkeys(name for row in match.rows for name in row.sources))
    arrays = checkpoint.read_arrays(used)
    _check_dtypes(match, arrays)
    stored = {} if metadata_only else _audit(checkpoint, arrays)
    return Source(checkpoint, place.shown(checkpoint.directory), match, arrays, stored)


def configure_source(
    source: Source, settings: Sequence[str] = (), *, recorded: Mapping[str, Any] | None = None
) -> Configuration:
    """MaxText's configuration for a source: what its tensors need, and the training flags of its own learner.

    Args:
      source: the checkpoint and its table.
      settings: the user's `KEY=VALUE` texts.
      recorded: what was set when it was converted.

    Raises:
      UsageError, MappingError: see `configure`.
    """
    checkpoint = source.checkpoint
    trained = trained_learner(checkpoint.directory)
    return configure(source.match, settings, recorded=recorded, trained=trained, step=checkpoint.step)


def check_options(tables: Sequence[MappingTable], options: Collection[str]) -> None:
    """Refuses options that no table has.

    Raises:
      MappingError: naming the options there are.
    """
    known = {option for table in tables for option in table.options}
    for option in sorted(set(options) - known):
        names = ", ".join(f"'{table.name}'" for table in tables)
        raise MappingError(
            f"{option_flag(option)}: mapping {names} has no such option; expected one of "
            f"{', '.join(sorted(known)) or 'none'}"
        )


def _check_entries(checkpoint: Checkpoint, tables: Sequence[MappingTable]) -> None:
    """Refuses index entries that cannot be understood, where no table leaves the tensor behind anyway."""
    patterns = {drop.pattern for table in tables for drop in table.drops}
    problems = [
        entry.problem
        for path, entry in checkpoint.tensors.items()
        if entry.problem and not any(matches(pattern, path) for pattern in patterns)
    ]
    if len(problems) == 1:
        raise SourceError(problems[0])
    if problems:
        raise SourceError(f"{checkpoint.directory}: {len(problems)} index entries cannot be read", shorten(problems))


def _check_dtypes(match: Match, arrays: Mapping[str, Array]) -> None:
    """Refuses values that are not weights as they stand.

    Raises:
      MappingError: a tensor has a dtype that its row does not name.
    """
    wrong = {
        path: f"{path}: {arrays[path].dtype}, expected {' or '.join(row.row.dtypes)}"
        for row in match.rows
        for path in row.sources
        if arrays[path].dtype not in row.row.dtypes
    }
    if wrong:
        first = next(iter(wrong))
        raise MappingError(
            f"mapping '{match.table.name}': {first} is {arrays[first].dtype}, which needs scales to be read as "
            "weights; a table of your own can name the dtypes of a row (dtypes = [...])",
            shorten(list(wrong.values())),
        )


def _audit(checkpoint: Checkpoint, arrays: Mapping[str, Array]) -> dict[str, int]:
    stored: dict[str, int] = {}
    findings: list[str] = []
    for name, array in arrays.items():
        audit = audit_chunks(array)
        findings += audit.findings
        stored[name] = audit.stored_bytes
    if findings:
        raise SourceError(
            f"{checkpoint.directory}: the chunk files do not fit the arrays; the checkpoint is damaged or was copied "
            "incompletely",
            findings,
        )
    return stored


def evident_options(table: MappingTable, target: Target) -> frozenset[str]:
    """The mapping options that a checkpoint was evidently made with: those whose leaves it has, and recorded fits."""
    added = {
        row.option
        for row in table.rows
        if row.option and any(join(table.maxtext.prefix, path) in target.keys for path in row.maxtext)
    }
    return recorded_fits(target.custom, table.fits) | added
