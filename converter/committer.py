"""Lets Orbax commit in a process of its own.

Importing jax and Orbax takes a second of Python. In a process beside ours it takes place while the leaves are staged,
on another core, and does not hold up the threads that write them. A process that has Orbax already commits itself.
"""

import json
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Any

from converter.environment import child_variables
from converter.errors import DestinationError
from converter.launch import HOME, import_path


@dataclass(frozen=True, slots=True)
class StagedLeaf:
    """A leaf that is ready to become part of a checkpoint.

    Attributes:
      path: its path in the tree, with slashes.
      key: its name in the checkpoint.
      directory: what holds its files, and nothing else.
      shape: the array's.
      dtype: the array's.
    """

    path: str
    key: str
    directory: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Commit:
    """What is committed: a checkpoint of staged leaves.

    Attributes:
      output: the checkpoint's directory.
      store: how the leaves are stored.
      leaves: all of them.
      custom_metadata: what goes into the step's `_CHECKPOINT_METADATA`, as JSON values.
    """

    output: str
    store: str
    leaves: tuple[StagedLeaf, ...]
    custom_metadata: dict[str, Any]


class Committer:
    """A process that gets ready to commit; a context, at whose end it is gone."""

    def __init__(self) -> None:
        self.peak_memory = 0
        self._process: subprocess.Popen[bytes] | None = None
        if "orbax.checkpoint" not in sys.modules:
            self._process = _start()

    def __enter__(self) -> "Committer":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def commit(self, work: Commit) -> None:
        """Makes the checkpoint.

        Raises:
          DestinationError: the files cannot be linked or written.
          RuntimeError: something else went wrong.
        """
        if self._process is None:
            from converter.orbax import commit

            commit(work)
            return
        answer, _ = self._process.communicate(json.dumps(asdict(work)).encode())
        try:
            result = json.loads(answer)
        except ValueError:
            code = self._process.returncode
            raise RuntimeError(f"the process that commits the checkpoint ended with code {code}") from None
        self.peak_memory = result["peak_memory"]
        if result["refused"]:
            raise DestinationError(result["refused"])


def decode(document: dict[str, Any]) -> Commit:
    """A commit from the JSON values of its fields."""
    leaves = (StagedLeaf(**{**leaf, "shape": tuple(leaf["shape"])}) for leaf in document["leaves"])
    return Commit(**{**document, "leaves": tuple(leaves)})


def _start() -> subprocess.Popen[bytes] | None:
    """Starts the process, with this very package and the packages that this process has.

    Returns:
      None where no process can be started: then this one commits itself.
    """
    path = import_path(sys.path)
    program = (
        f"import sys; sys.path[:] = [{HOME!a}]; import converter; sys.path[:] = {path!a}; "
        "from converter.commit_process import main; main()"
    )
    flags = ["-P", "-X", "utf8", *(["-s"] if sys.flags.no_user_site else [])]
    # Ctrl-C at a terminal reaches both processes. What follows from it is for this one to say, from the first moment.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        return subprocess.Popen(
            [sys.executable, *flags, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=child_variables(),
            # Not the user's, which may have been removed. All paths of a commit are absolute.
            cwd="/",
        )
    except (OSError, ValueError):
        return None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
