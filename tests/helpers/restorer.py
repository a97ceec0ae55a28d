"""Talks to `orbax_restore.py`: restores through a vanilla Orbax, in a process that imports none of our code."""

import json
import math
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from tests.helpers.axlearn_checkpoint import numpy_dtype

SCRIPT = Path(__file__).with_name("orbax_restore.py")


class RestoreError(Exception):
    """Orbax refused; the message is its own."""


class Restorer:
    """One process with one Orbax; importing it takes seconds, so it serves many restores.

    Attributes:
      version: the Orbax version that restores.
    """

    def __init__(self, python: str):
        # -P keeps the project's directory off the path: what is imported by accident is not ours.
        self.folder = tempfile.TemporaryDirectory()
        self.log = (Path(self.folder.name) / "log").open("w+")
        self.process = subprocess.Popen(
            [python, "-P", str(SCRIPT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True
        )
        self.version: str = self._read()["version"]

    def restore(self, checkpoint: Path, *, plain: bool = True, step: int = 0) -> dict[str, np.ndarray]:
        """All leaves of `<checkpoint>/<step>/items`.

        Raises:
          RestoreError: Orbax raised.
        """
        out = Path(self.folder.name) / "leaves"
        request = {"items": str(checkpoint.resolve() / str(step) / "items"), "out": str(out), "plain": plain}
        assert self.process.stdin
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        reply = self._read()
        if "error" in reply:
            raise RestoreError(reply["error"])
        data, at = out.read_bytes(), 0
        leaves: dict[str, np.ndarray] = {}
        for path, (dtype, shape) in reply["leaves"].items():
            kind = numpy_dtype(dtype)
            leaves[path] = np.frombuffer(data, kind, math.prod(shape), at).reshape(shape)
            at += leaves[path].nbytes
        assert at == len(data)
        return leaves

    def close(self) -> None:
        """Ends the process."""
        self.process.communicate()
        self.log.close()
        self.folder.cleanup()

    def _read(self) -> dict:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            self.log.seek(0)
            raise RuntimeError(f"the restoring process ended: {self.log.read()[-2000:]}")
        return json.loads(line)
