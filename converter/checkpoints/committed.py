"""Looks at what Orbax committed, before it takes its place at the destination.

Orbax reports some of its failures in the log alone: a merge of databases that finds none leaves a checkpoint without
arrays, and no error. So every leaf is opened again, by TensorStore and then by Orbax's own metadata read; chunks are
counted by their names, for a missing one reads as zeros. No chunk is read.
"""

import os
from collections.abc import Iterator

from converter.checkpoints.commit import Commit, StagedLeaf
from converter.checkpoints.maxtext import Target, orbax_problems, read_target
from converter.checkpoints.names import items_path
from converter.errors import DestinationError, VerificationError


def check_committed(work: Commit) -> None:
    """Refuses a commit that does not hold every leaf as it was staged.

    Args:
      work: what was to be committed; `output` is looked at under its real name, which readers will give too.

    Raises:
      DestinationError: with a line for each leaf or file that cannot be read back.
    """
    try:
        target = read_target(os.path.join(work.output, items_path(work.step)))
        problems = list(target.problems) or list(_leaf_problems(work, target))
    except VerificationError as error:
        problems = [error.message]
    else:
        if not problems:
            problems = orbax_problems(target, {leaf.path: leaf.shape for leaf in work.leaves})
    if problems:
        raise DestinationError(
            f"{work.output}: what Orbax committed cannot be read back; nothing was put at the destination, and the "
            "finished leaves are kept: run the same command again, and report this if it fails again",
            problems,
        )


def _leaf_problems(work: Commit, target: Target) -> Iterator[str]:
    staged = {leaf.path for leaf in work.leaves}
    yield from (f"{path}: a leaf that was not staged" for path in target.keys if path not in staged)
    yield from (f"{path}: missing in _METADATA" for path in work.empty if path not in target.empty)
    yield from (f"{path}: expected a list" for path in work.lists if path not in target.lists)
    for leaf in work.leaves:
        if leaf.path not in target.keys:
            yield f"{leaf.path}: missing in _METADATA"
            continue
        try:
            yield from _array_problems(leaf, target, with_chunks=not work.chunks_elsewhere)
        except VerificationError as error:
            yield error.message


def _array_problems(leaf: StagedLeaf, target: Target, *, with_chunks: bool) -> Iterator[str]:
    opened = target.open(leaf.path)
    array = opened.array
    if (array.shape, array.dtype) != (leaf.shape, leaf.dtype):
        yield f"{leaf.path}: expected {leaf.dtype}{list(leaf.shape)}, found {array.dtype}{list(array.shape)}"
        return
    missing = opened.missing_chunks() if with_chunks or target.use_ocdbt else []
    if missing:
        yield f"{leaf.path}: missing chunks: {len(missing)}, the first is {missing[0]}"
