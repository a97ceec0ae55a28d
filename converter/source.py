"""The source as the planner needs it: a committed step, the table that fits it, its arrays, its audited files."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from converter.axlearn import Checkpoint, find_step, read_arrays, read_checkpoint
from converter.errors import MappingError, SourceError
from converter.mapping_file import load_bundled, load_mapping
from converter.matching import Match, choose_table, match_table, shorten
from converter.zarr2 import ArraySpec, audit_chunks


@dataclass(frozen=True)
class Source:
    """An audited source.

    Attributes:
      checkpoint: the committed step.
      match: the mapping table on its tensors.
      arrays: metadata of every tensor that is converted.
      stored_bytes: size of each such tensor's chunk files; empty where only metadata is there.
    """

    checkpoint: Checkpoint
    match: Match
    arrays: Mapping[str, ArraySpec]
    stored_bytes: Mapping[str, int]


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
      path: a step directory or a trainer directory.
      step: the wanted step; None for the latest committed one.
      mapping: path of a user's own table; None to find the bundled one that fits.
      options: mapping options, such as `untie`.
      metadata_only: do not look for chunk files; a plan can be made of `index` and `.zarray` files alone.

    Raises:
      SourceError: no committed step, or damaged metadata, or chunk files missing or of an impossible size.
      MappingError: the named table, or every bundled one, does not fit, or does not know a tensor's dtype.
    """
    checkpoint = read_checkpoint(find_step(path, step))
    shapes = {name: entry.shape for name, entry in checkpoint.tensors.items()}
    if mapping is None:
        match = choose_table(load_bundled(), shapes, options)
    else:
        match = match_table(load_mapping(mapping), shapes, options=options)
    used = list(dict.fromkeys(name for row in match.rows for name in row.sources))
    arrays = read_arrays(checkpoint, used)
    _check_dtypes(match, arrays)
    stored = {} if metadata_only else _audit(checkpoint, arrays)
    return Source(checkpoint, match, arrays, stored)


def _check_dtypes(match: Match, arrays: Mapping[str, ArraySpec]) -> None:
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
            f"mapping '{match.table.name}': {first} is {arrays[first].dtype}, which holds no weights without scales; a "
            "table of your own can name the dtypes of a row (dtypes = [...])",
            shorten(list(wrong.values())),
        )


def _audit(checkpoint: Checkpoint, arrays: Mapping[str, ArraySpec]) -> dict[str, int]:
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
