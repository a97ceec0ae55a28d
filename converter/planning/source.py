"""The source as the planner needs it: a committed step, the table that fits it, its arrays, its audited files."""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from converter.arrays import Array, audit_chunks
from converter.checkpoints import (
    ADAMW,
    CONFIG_NAME,
    Checkpoint,
    Made,
    Optimizer,
    Target,
    TrainerConfig,
    load_config,
    open_checkpoint,
    read_trainer_config,
    recorded_fits,
    recorded_options,
    same_value,
)
from converter.choices import SCANNED, TREES
from converter.errors import MappingError, SourceError, UsageError, VerificationError
from converter.location import check_readable, locate
from converter.mapping import (
    PARAMS,
    Configuration,
    MappingTable,
    Match,
    Tree,
    choose_table,
    configure,
    find_mapping,
    join,
    load_bundled,
    match_table,
    matches,
)
from converter.planning.optimizer_trees import find_average
from converter.planning.training_state import (
    TrainingState,
    check_counts,
    check_dtypes,
    check_exact,
    find_state,
    inexact_reasons,
    moved,
    parameter_tree,
)
from converter.storage import is_file, storage_of
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
      tree: what becomes MaxText's parameters.
      state: the training state that is converted as well; None where only parameters are.
      trained: what the training's own configuration says; None where there is none.
    """

    checkpoint: Checkpoint
    shown: str
    match: Match
    arrays: Mapping[str, Array]
    stored_bytes: Mapping[str, int]
    tree: Tree
    state: TrainingState | None = None
    trained: TrainerConfig | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user has to know about what is converted, one line each."""
        inexact = inexact_reasons(self.match) if self.state else []
        forced = tuple(f"training will not continue exactly (--force): {reason}" for reason in inexact)
        return (*self.checkpoint.notes, *self.match.notes, *forced)

    @property
    def dropped(self) -> Mapping[str, str]:
        """Path of each tensor that is left behind, to the reason."""
        return {path: reason for path, reason in self.match.dropped.items() if path not in self.arrays}


def open_source(
    path: str,
    *,
    step: int | None = None,
    mapping: str | None = None,
    options: Collection[str] = (),
    metadata_only: bool = False,
    tree: str = PARAMS,
    optimizer: Optimizer | None = None,
    force: bool = False,
    layout: str = SCANNED,
) -> Source:
    """Finds, matches and audits a source, reading metadata only.

    Args:
      path: a step directory or a trainer directory, as a user writes it.
      step: the wanted step; None for the latest committed one.
      mapping: path of a user's own table; None to find the bundled one that fits.
      options: mapping options, such as `untie`.
      metadata_only: do not look for chunk files; a plan can be made of `index` and `.zarray` files alone.
      tree: the tree that becomes MaxText's parameters, PARAMS or EMA.
      optimizer: MaxText's, where the training state is wanted as well.
      force: take the state even if training cannot continue exactly.
      layout: MaxText's layer layout.

    Raises:
      SourceError: not a local path, no committed step, or damaged metadata, or chunk files missing or of an impossible
        size; or the tree or state that is wanted is not there, or incomplete.
      UsageError: training could not continue exactly with the selected options.
      MappingError: the named table, or every bundled one, does not fit, or does not know a tensor's dtype.
    """
    if tree not in TREES:
        raise UsageError(f"--tree {tree}: expected one of {', '.join(TREES)}")
    place = locate(path, SourceError)
    check_readable(place.path, SourceError)
    storage = storage_of(place.path)
    try:
        storage.release(place.path)
        with storage.browsing(place.path):
            checkpoint = open_checkpoint(place.path, step, given=place.given)
            trained = read_trainer_config(checkpoint.directory)
        storage.pin(checkpoint.directory, parts=checkpoint.array_directories)
    except OSError as error:
        raise SourceError(f"{error.filename or place.path}: cannot be read: {error.strerror or error}") from None
    tables = load_bundled() if mapping is None else [find_mapping(mapping)]
    check_options(tables, options)
    _check_entries(checkpoint, tables)
    shapes = checkpoint.shapes
    if mapping is None:
        match = choose_table(tables, shapes, options, trained.lines if trained is not None else {})
        if layout != SCANNED:
            match = match_table(match.table, shapes, options=options, target_layout=layout)
    else:
        match = match_table(tables[0], shapes, options=options, target_layout=layout)
    if tree != PARAMS:
        prefix = find_average(match)
        match = match_table(match.table, shapes, options=options, prefix=prefix, target_layout=layout)
    state = None
    if optimizer is not None:
        if not force:
            check_exact(match)
        state = find_state(match, checkpoint, optimizer, capacity_known=trained is not None)
    arrays = checkpoint.read_arrays(_used(match, state), match.stacks)
    _check_dtypes(match, arrays)
    if state is not None:
        check_dtypes(match, state, arrays)
    stored = {} if metadata_only else _audit(checkpoint, arrays)
    if state is not None and not metadata_only:
        check_counts(state, arrays, checkpoint.directory)
    return Source(
        checkpoint,
        place.shown(checkpoint.directory),
        match,
        arrays,
        stored,
        parameter_tree(match, tree),
        state,
        trained,
    )


def _used(match: Match, state: TrainingState | None) -> list[str]:
    """Paths of all tensors that are converted or looked at, each once."""
    rows = list(match.rows)
    if state is not None:
        rows += [moved(match, row, tree) for tree in state.trees for row in match.rows]
    counts = state.counts if state is not None else ()
    return list(dict.fromkeys((*(path for row in rows for path in row.sources), *counts)))


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
    trained = source.trained
    return configure(
        source.match,
        settings,
        recorded=recorded,
        trained=trained.learner if trained is not None else None,
        lines=trained.lines if trained is not None else None,
        step=checkpoint.step,
        optimizer=source.state.optimizer.name if source.state is not None else ADAMW.name,
    )


def check_options(tables: Sequence[MappingTable], options: Collection[str]) -> None:
    """Refuses options that no table has.

    Raises:
      MappingError: naming the options there are.
    """
    known = {option for table in tables for option in table.options}
    for option in sorted(set(options) - known):
        one = len(tables) == 1
        lacking = f"mapping '{tables[0].name}' has no such" if one else "no bundled mapping has such an"
        raise MappingError(
            f"{option_flag(option)}: {lacking} option; expected one of {', '.join(sorted(known)) or 'none'}"
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
        audits = [audit_chunks(part) for part in array.each]
        findings += [finding for audit in audits for finding in audit.findings]
        stored[name] = sum(audit.stored_bytes for audit in audits)
    if findings:
        raise SourceError(
            f"{checkpoint.directory}: the chunk files do not fit the arrays; the checkpoint is damaged or was copied "
            "incompletely",
            findings,
        )
    return stored


def chosen_tree(given: str | None, made: Made, shown: str) -> str:
    """The tree that became a checkpoint's parameters.

    Args:
      given: the user's choice; None for none.
      made: what the checkpoint says.
      shown: the checkpoint, for messages.

    Raises:
      UsageError: both contradict each other.
    """
    if given is not None and made.tree and given != made.tree:
        raise UsageError(
            f"--tree {given}: {shown} says that its parameters were made of AXLearn's tree {made.tree!r}; drop --tree"
        )
    return given or (made.tree if made.tree in TREES else PARAMS)


def evident_options(match: Match, target: Target) -> frozenset[str]:
    """The mapping options that a checkpoint was evidently made with: those whose leaves it has, and what it records.

    Its configuration decides over the order of axes where nothing is recorded.
    """
    table = match.table
    added = {
        row.option
        for row in table.rows
        if row.option
        and (not row.when or row.when in match.kinds)
        and any(join(table.maxtext.prefix, path) in target.keys for path in row.maxtext)
    }
    return recorded_fits(target.custom, table.fits) | evident_orders(table, target) | added


def evident_orders(table: MappingTable, target: Target) -> frozenset[str]:
    """The options that left axes in AXLearn's order in a checkpoint, by its records or else by its configuration."""
    recorded = recorded_options(target.custom, target.root)
    if recorded is not None:
        return recorded & table.orders
    file = os.path.join(target.root, CONFIG_NAME)
    try:
        found = load_config(file, VerificationError) if is_file(file) else {}
    except VerificationError:
        return frozenset()  # reported where the file itself is checked
    rules = {name: [rule for rule in table.config if rule.option == name] for name in table.orders}
    return frozenset(
        name
        for name, own in rules.items()
        if own and all(rule.key in found and same_value(found[rule.key], rule.constant) for rule in own)
    )


def evident_match(source: Source, target: Target) -> Match:
    """The source's match with the options and the layout that a checkpoint was evidently made with."""
    match = source.match
    options, layout = evident_options(match, target), evident_layout(match, target)
    if (options, layout) == (match.options, match.target_layout):
        return match
    shapes = source.checkpoint.shapes
    return match_table(match.table, shapes, options=options, prefix=match.prefix, target_layout=layout)


def evident_layout(match: Match, target: Target) -> str:
    """The layer layout that a checkpoint has, by its leaves; the usual one where it has none of the table's."""
    prefix = match.table.maxtext.prefix
    for layout in match.table.maxtext.layers:
        place = re.escape(join(prefix, layout.path))
        pattern = re.compile(re.sub(r"\\\{(?:block|layer|repeat)\\\}", r"\\d{1,4}", place) + "/")
        if any(pattern.match(path) for path in target.keys):
            return layout.name
    return SCANNED
