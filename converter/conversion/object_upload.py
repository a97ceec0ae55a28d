"""Puts the small files of a checkpoint into a store of objects, where nothing can be renamed; the markers go last."""

import io
import os
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from converter.arrays import MANIFEST_NAME
from converter.checkpoints import CONFIG_NAME, CUSTOM_METADATA, ITEMS, MARKER, RECEIPT_NAME, TREE_METADATA
from converter.storage import Mark, has_litter_in, storage_of

if TYPE_CHECKING:
    from converter.storage import ObjectStorage

MAX_BUNDLE_BYTES = 1 << 30

LAST = 6
"""The rank of the markers."""


@dataclass(frozen=True, slots=True)
class Upload:
    """Where the files of a conversion go.

    Attributes:
      storage: of the destination.
      destination: the checkpoint.
      step: the name of its step directory.
      work_area: where equal runs find what they agreed on.
      mark: what the objects carry.
    """

    storage: "ObjectStorage"
    destination: str
    step: str
    work_area: str
    mark: Mark

    def agree(self, files: Mapping[str, bytes], is_finished: Callable[[], bool]) -> dict[str, bytes]:
        """The small files that all runs of this conversion upload: those of the run that came first.

        Args:
          files: this run's, by their names below the checkpoint.
          is_finished: whether a run has put all in its place meanwhile, and tidied up.
        """
        place = f"{self.work_area}/files.zip"
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as bundle:
            for name, data in files.items():
                bundle.writestr(name, data)
        try:
            self.storage.put(place, packed.getvalue(), mark=self.mark, version=0)
            return dict(files)
        except FileExistsError:
            pass
        try:
            with zipfile.ZipFile(io.BytesIO(self.storage.read(place, MAX_BUNDLE_BYTES))) as bundle:
                return {name: bundle.read(name) for name in bundle.namelist()}
        except (FileNotFoundError, zipfile.BadZipFile):
            if is_finished():
                return dict(files)
            raise

    def put(self, files: Mapping[str, bytes], before_markers: Callable[[], None]) -> None:
        """Uploads the files, what others point to first.

        Args:
          files: their contents, by their names below the checkpoint.
          before_markers: is called when only the markers are left; what it raises ends the upload.
        """
        last = f"{self.step}/{MARKER}"
        groups: dict[int, list[str]] = {}
        for name in files:
            if name != last:
                groups.setdefault(self._rank(name), []).append(name)
        for rank in sorted(groups):
            if rank == LAST:
                before_markers()
            self.storage.together(lambda name: self._put(name, files[name]), sorted(groups[rank]))
        self._put(last, files[last])

    def _put(self, name: str, data: bytes) -> None:
        self.storage.put(f"{self.destination}/{name}", data, mark=self.mark, version=0)

    def _rank(self, name: str) -> int:
        items = f"{self.step}/{ITEMS}"
        order = (
            (f"{items}/{MANIFEST_NAME}",),
            (CONFIG_NAME, RECEIPT_NAME),
            (f"{items}/{TREE_METADATA}",),
            (f"{self.step}/{CUSTOM_METADATA}",),
            (f"{items}/{MARKER}",),
        )
        return next(
            (number for number, names in enumerate(order, 2) if name in names), int(name.endswith(MANIFEST_NAME))
        )


def small_files(directory: str) -> dict[str, bytes]:
    """The files below a local directory, by their names below it."""
    storage = storage_of(directory)
    names = [blob.name for blob in storage.walk(directory) if blob.kind == "file" and not has_litter_in(blob.name)]
    return {name: storage.read(os.path.join(directory, name), MAX_BUNDLE_BYTES) for name in names}
