"""Arrays that TensorStore reads: whatever its codecs, keys and stores are."""

from dataclasses import dataclass
from typing import Any

from converter.arrays.array import Array, slices
from converter.arrays.zarr import array_metadata, parse_array
from converter.axes import Box
from converter.dtypes import item_size
from converter.errors import Ax2mtError, SourceError, reason
from converter.storage import storage_of

DRIVERS = {2: "zarr", 3: "zarr3"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenArray:
    """An array opened by TensorStore; safe to use from several threads.

    Attributes:
      array: the array.
      store: TensorStore's handle.
      error: what is raised for a chunk that cannot be read.
    """

    array: Array
    store: Any
    error: type[Ax2mtError]

    def read(self, box: Box) -> Any:
        """Reads a part.

        Raises:
          Ax2mtError: a chunk is missing or damaged.
        """
        try:
            return self.store[slices(box)].read().result()
        except ValueError as error:
            raise self.error(f"{self.array.path}: a chunk cannot be read: {self._first_fault(box, error)}") from None

    def _first_fault(self, box: Box, error: ValueError) -> str:
        """What is wrong with the first chunk that cannot be read; TensorStore names any of them."""
        for index in self.array.chunks_in(box):
            try:
                self.store[slices(self.array.chunk_box(index))].read().result()
            except ValueError as first:
                return reason(first)
        return reason(error)

    def read_stored(self, index: tuple[int, ...]) -> bytes:
        """Reads the bytes of a chunk as they are stored.

        Raises:
          Ax2mtError: the chunk is missing or cannot be read.
        """
        label = self.array.chunk_label(index)
        try:
            result = self.store.kvstore.read(self.array.chunk_key(index)).result()
        except ValueError as error:
            raise self.error(f"{label} cannot be read: {reason(error)}") from None
        if result.state != "value":
            raise self.error(f"{label} is missing")
        return result.value

    def read_end(self, index: tuple[int, ...], count: int) -> bytes:
        """The last bytes of a chunk as it is stored.

        Raises:
          Ax2mtError: the chunk is missing or cannot be read.
        """
        label = self.array.chunk_label(index)
        try:
            result = self.store.kvstore.read(self.array.chunk_key(index), byte_range=slice(-count, None)).result()
        except ValueError as error:
            raise self.error(f"{label} cannot be read: {reason(error)}") from None
        if result.state != "value":
            raise self.error(f"{label} is missing")
        return result.value

    def list_keys(self) -> set[str]:
        """The keys of all that is stored of the array: chunks, metadata, and what else lies there.

        Raises:
          Ax2mtError: the store cannot be listed.
        """
        directory = self.array.directory
        if self.array.database_key is None and not storage_of(directory).renames:
            return self._listed(directory)
        try:
            return {name.decode(errors="replace") for name in self.store.kvstore.list().result()}
        except ValueError as error:
            raise self.error(f"{self.array.path}: cannot be listed: {reason(error)}") from None

    def _listed(self, directory: str) -> set[str]:
        try:
            return {blob.name for blob in storage_of(directory).walk(directory)}
        except OSError as error:
            raise self.error(f"{self.array.path}: cannot be listed: {error.strerror}") from None

    def missing_chunks(self) -> list[str]:
        """Keys of chunks that are not stored.

        Raises:
          Ax2mtError: the store cannot be listed.
        """
        stored = self.list_keys()
        return [key for key in map(self.array.chunk_key, self.array.chunk_indices()) if key not in stored]


def new_context() -> Any:
    """TensorStore's context for arrays that are read once: nothing is kept."""
    import tensorstore as ts

    return ts.Context({"cache_pool": {"total_bytes_limit": 0}})


def open_array(array: Array) -> OpenArray:
    """Opens an array whose metadata we have read.

    TensorStore does not read a `.zarray` again: it refuses what does not matter here, such as numcodecs' `checksum` of
    zstd, other settings for the writer of a compressor, or a fill value. All that decoding needs is in the chunks.

    Raises:
      SourceError: it cannot be opened.
    """
    if array.parts:
        import tensorstore as ts

        stores = [open_array(part).store for part in array.parts]
        return OpenArray(array=array, store=ts.stack(stores, axis=0), error=SourceError)
    place = {"directory": array.directory, "database_key": array.database_key}
    if array.encoding.zarr_format == 3:
        return open_stored_array(array.path, **place, zarr_format=3, context=new_context(), error=SourceError)
    compressor = None if array.compressor is None else {"id": array.compressor["id"]}
    metadata = {**array_metadata(array), "compressor": compressor}
    spec = {**_spec(**place, zarr_format=2), "metadata": metadata, "assume_metadata": True}
    return OpenArray(array=array, store=_open(array.path, spec, new_context(), SourceError), error=SourceError)


def open_stored_array(
    path: str, *, directory: str, database_key: str | None, zarr_format: int, context: Any, error: type[Ax2mtError]
) -> OpenArray:
    """Opens an array of which TensorStore reads the metadata: anything that it can decode.

    Args:
      path: the tensor's path.
      directory: where the array is, or the database that it is in.
      database_key: its key in that database; None for a directory of its own.
      zarr_format: 2 or 3.
      context: see `new_context`; one for all arrays of a checkpoint.
      error: what is raised where it cannot be read.

    Raises:
      Ax2mtError: it is not there, or its metadata is damaged.
    """
    spec = {**_spec(directory, database_key, zarr_format), "recheck_cached_metadata": False}
    store = _open(path, spec, context, error)
    metadata = store.spec().to_json()["metadata"]
    name = store.dtype.name
    array = parse_array(metadata, path=path, dtype=name, directory=directory, database_key=database_key)
    try:
        item_size(name)
    except TypeError:
        raise error(f"{path}: cannot be opened: unknown dtype {name}") from None
    return OpenArray(array=array, store=store, error=error)


def _spec(directory: str, database_key: str | None, zarr_format: int) -> dict[str, Any]:
    """TensorStore's specification to read an array; a missing chunk raises."""
    place = storage_of(directory).kvstore(directory)
    return {
        "driver": DRIVERS[zarr_format],
        "kvstore": place if database_key is None else {"driver": "ocdbt", "base": place, "path": database_key + "/"},
        "fill_missing_data_reads": False,
        "recheck_cached_data": False,
    }


def _open(path: str, spec: dict[str, Any], context: Any, error: type[Ax2mtError]) -> Any:
    import tensorstore as ts

    try:
        return ts.open(spec, read=True, context=context).result()
    except ValueError as problem:
        raise error(f"{path}: cannot be opened: {reason(problem)}") from None
