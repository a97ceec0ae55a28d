"""The small files of a checkpoint on this machine: Orbax reads gs:// only with gcsfs, and other stores not at all."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from converter.checkpoints.receipt import metadata_files
from converter.storage import in_parallel, storage_of

MAX_BYTES = 256 << 20


@contextmanager
def local_metadata(root: str) -> Iterator[str]:
    """A local directory with all files of a checkpoint that hold no chunk; the checkpoint itself where it is local.

    Raises:
      OSError: a file cannot be read, or not be written here.
    """
    storage = storage_of(root)
    if storage.renames:
        yield root
        return
    with tempfile.TemporaryDirectory(prefix="ax2mt-") as place:
        local, names = storage_of(place), metadata_files(root)
        contents = in_parallel(lambda name: storage.read(os.path.join(root, name), MAX_BYTES), names, root)
        for name, content in zip(names, contents, strict=True):
            file = os.path.join(place, name)
            local.make_directory(os.path.dirname(file))
            local.write(file, content)
        yield place
