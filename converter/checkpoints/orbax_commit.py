"""Turns staged leaves into a checkpoint: Orbax itself writes its metadata, merges and commits.

A stock `CheckpointManager.save` gets a tree of staged leaves; the type handler for them only links the staged files
into Orbax's directory. So the format of the metadata, the merge of OCDBT databases and the commit are Orbax's own, in
whatever version is installed. Only public interfaces are used.
"""

import errno
import glob
import logging
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import orbax.checkpoint as ocp
from orbax.checkpoint import future

from converter.checkpoints.commit import Commit, StagedLeaf
from converter.checkpoints.committed import check_committed
from converter.checkpoints.names import ITEMS
from converter.errors import DestinationError
from converter.storage import PART, free_text, is_litter, write_error


def commit(work: Commit) -> None:
    """Makes a committed checkpoint of all staged leaves, as `<output>/<step>/items`, and looks whether it can be read.

    Raises:
      DestinationError: the files cannot be linked or written, or not be read back.
    """
    quiet = _Quiet(merges=work.store == "ocdbt")
    logging.getLogger("absl").addFilter(quiet)
    directory = work.output
    try:
        with _without_wildcards(work.output) as directory:
            _save(work, directory)
        check_committed(work)
    except DestinationError:
        raise
    except Exception as error:
        # Orbax works in threads and wraps what happens there.
        causes = list(_causes(error))
        if any(isinstance(cause, MemoryError) for cause in causes):
            raise MemoryError(str(error)) from error
        system = next((cause for cause in causes if isinstance(cause, OSError) and cause.strerror), None)
        if system is not None:
            path = os.fspath(system.filename or work.output).replace(directory, work.output)
            raise write_error(path, system) from None
        if isinstance(error, ValueError):
            what = str(error).splitlines()[0].replace(directory, work.output)
            raise DestinationError(f"{work.output}: cannot be committed: {what}{free_text(work.output)}") from None
        raise
    finally:
        logging.getLogger("absl").removeFilter(quiet)


@contextmanager
def _without_wildcards(directory: str) -> Iterator[str]:
    """A path to a directory for Orbax, which lists databases to merge with glob: `[`, `*` and `?` would find none.

    Raises:
      DestinationError: such a path needs a symbolic link, and there is no place for one.
    """
    if glob.escape(directory) == directory:
        yield directory
        return
    try:
        folder = tempfile.TemporaryDirectory(prefix="ax2mt-")
    except OSError as error:
        raise DestinationError(
            f"{directory}: Orbax takes '*', '?' and '[' in a name for wildcards, and no directory can be made for a "
            f"symbolic link to it ({error.strerror}); set TMPDIR to one that can be written"
        ) from None
    with folder as place:
        if glob.escape(place) != place:
            raise DestinationError(
                f"{directory}: Orbax takes '*', '?' and '[' in a name for wildcards, and TMPDIR holds them too; set "
                "TMPDIR to a directory without them"
            )
        parent, name = os.path.split(directory)
        os.symlink(parent, os.path.join(place, "link"))
        yield os.path.join(place, "link", name)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and what lies behind it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _save(work: Commit, directory: str) -> None:
    registry = ocp.type_handlers.create_type_handler_registry((StagedLeaf, _LinkHandler()))
    handler = ocp.PyTreeCheckpointHandler(
        use_ocdbt=work.store == "ocdbt", use_zarr3=work.store != "zarr2", type_handler_registry=registry
    )
    options = ocp.CheckpointManagerOptions(enable_async_checkpointing=False, create=True)
    with ocp.CheckpointManager(
        directory, item_names=(ITEMS,), item_handlers={ITEMS: handler}, options=options
    ) as manager:
        items = ocp.args.PyTreeSave(_tree(work))  # pyright: ignore[reportCallIssue]
        saved = manager.save(
            work.step,
            args=ocp.args.Composite(**{ITEMS: items}),  # pyright: ignore[reportArgumentType]
            custom_metadata=work.custom_metadata,
        )
    if not saved:
        raise DestinationError(f"{work.output}: Orbax did not save the checkpoint")


class _LinkHandler(ocp.type_handlers.TypeHandler):
    """Saves a staged leaf by linking its files into the checkpoint."""

    def typestr(self) -> str:
        # What Orbax's own handler for numpy arrays writes: such a leaf restores with no arguments on any topology.
        return "np.ndarray"

    async def metadata(self, infos: Any) -> Any:
        raise NotImplementedError("staged leaves are only ever saved")

    async def deserialize(self, infos: Any, args: Any = None) -> Any:
        raise NotImplementedError("staged leaves are only ever saved")

    async def serialize(self, values: Any, infos: Any, args: Any = None) -> Any:  # noqa: ARG002
        for value, info in zip(values, infos, strict=True):
            if info.name != value.key:
                raise ValueError(f"Orbax names the leaf {info.name}, it was staged as {value.key}")
            if hasattr(info, "await_path_creation"):
                await info.await_path_creation()
            target = os.path.join(os.fspath(info.parent_dir), os.path.basename(value.directory))
            shutil.copytree(value.directory, target, copy_function=_link_or_move, ignore=_not_ours)
        return [future.NoopFuture()]


def _not_ours(_: str, names: list[str]) -> set[str]:
    """Litter, and what other processes write at this moment, or wrote when they were killed."""
    return {name for name in names if is_litter(name) or name.endswith(PART)}


def _link_or_move(source: str, target: str) -> None:
    """Links a file into place; where the file system has no hard links it is moved."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        os.replace(source, target)


def _tree(work: Commit) -> Any:
    tree: dict[str, Any] = {}
    for path, leaf in [*((leaf.path, leaf) for leaf in work.leaves), *((path, None) for path in work.empty)]:
        *parents, name = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = leaf
    return _with_lists(tree, "", work.lists)


def _with_lists(node: Any, path: str, lists: Collection[str]) -> Any:
    """A tree of dictionaries with those at the given paths made lists."""
    if not isinstance(node, dict):
        return node
    made = {name: _with_lists(child, f"{path}/{name}".lstrip("/"), lists) for name, child in node.items()}
    return [made[str(number)] for number in range(len(made))] if path in lists else made


class _Quiet(logging.Filter):
    """What Orbax logs and the user need not read.

    It warns that nothing in this tree is a jax.Array, and that there is no OCDBT to merge; the former is intended, the
    latter for the other stores. Errors of its threads are logged with their traceback, and raised as well.
    """

    def __init__(self, *, merges: bool):
        super().__init__()
        self._expected = ["No jax.Array in TypeHandlerRegistry", *([] if merges else ["Skipping merge of OCDBT"])]

    def filter(self, record: logging.LogRecord) -> bool:
        return not record.exc_info and not any(text in record.getMessage() for text in self._expected)
