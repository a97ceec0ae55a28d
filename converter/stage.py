"""The work area of a conversion: leaves are written here, and become a checkpoint in one step at the end.

The stage is a directory beside the destination, on the same file system, so that finished leaves can be linked into
place and the finished checkpoint renamed. Nothing in it can be taken for a checkpoint.
"""

import fcntl
import os
import shutil
from collections.abc import Sequence
from typing import Any

from converter.errors import DestinationError
from converter.maxtext import leaf_key
from converter.plan import Leaf

SUFFIX = ".ax2mt-wip"
STORES = ("files", "ocdbt")


class Stage:
    """A locked work area; see the module's docstring.

    Attributes:
      root: its directory.
      store: how leaves are stored, one of STORES.
    """

    def __init__(self, destination: str, store: str, leaves: Sequence[Leaf]):
        """Creates the work area, or takes over one that a dead process left behind.

        Raises:
          DestinationError: it cannot be created, or another process works in it.
        """
        self.root = destination.rstrip("/") + SUFFIX
        self.store = store
        self._numbers = {leaf.path: number for number, leaf in enumerate(leaves)}
        try:
            os.makedirs(self.root, exist_ok=True)
            self._lock = os.open(os.path.join(self.root, "lock"), os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise DestinationError(f"{self.root}: cannot be created: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise DestinationError(
                f"{self.root}: another ax2mt works on this destination; wait for it to end"
            ) from None
        self.clear()

    @property
    def output(self) -> str:
        """Where the whole checkpoint takes shape before it is renamed to the destination."""
        return os.path.join(self.root, "checkpoint")

    def leaf_directory(self, leaf: Leaf) -> str:
        """The directory that holds a leaf, and nothing else."""
        name = leaf_key(leaf.path) if self.store == "files" else f"ocdbt.process_{self._numbers[leaf.path]}"
        return os.path.join(self.root, "leaves", name)

    def kvstore(self, leaf: Leaf) -> dict[str, Any]:
        """TensorStore's key-value store for a leaf's array."""
        directory = self.leaf_directory(leaf) + "/"
        if self.store == "files":
            return {"driver": "file", "path": directory}
        return {"driver": "ocdbt", "base": {"driver": "file", "path": directory}, "path": leaf_key(leaf.path) + "/"}

    def clear(self) -> None:
        """Removes all that was staged; the lock stays."""
        for name in os.listdir(self.root):
            if name != "lock":
                path = os.path.join(self.root, name)
                if os.path.isdir(path) and not os.path.islink(path):
                    shutil.rmtree(path)
                else:
                    os.unlink(path)

    def remove(self) -> None:
        """Removes the work area with all that is in it, and the lock last."""
        try:
            shutil.rmtree(self.root, ignore_errors=True)
        finally:
            os.close(self._lock)
