"""The options of a conversion that shape its result."""

from dataclasses import dataclass

from converter.checkpoints import ADAMW, OPTIMIZERS, REFUSED_OPTIMIZERS, Optimizer
from converter.choices import (
    COMPRESSORS,
    DEFAULT_MEMORY,
    LAYOUTS,
    NO_COMPRESSION,
    SERVING_DTYPES,
    STORES,
    TREES,
    UNSCANNED,
    ZSTD,
)
from converter.errors import UsageError
from converter.storage import is_remote, storage_of

JOBS = 2
"""Blocks in flight by default; more than two bring nothing on two cores."""


LOCAL, DOWNLOAD, UPLOAD, IN_STORE = "local", "download", "upload", "in store"
"""How chunks that are passed through travel: between local files, from an object store to files, through this machine
into an object store, or inside one store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the user asked for, as far as it shapes the result.

    Attributes:
      table: options of the mapping table that are on.
      max_memory: bytes that blocks in flight may take together.
      store: how leaves are stored, see `encoding`.
      rewrite: decode and encode every chunk, also where it could be passed through.
      link: hard-link chunks that can be passed through.
      tree: what becomes MaxText's parameters, see TREES.
      state: convert the training state as well.
      optimizer: MaxText's, whose state is written; None for the default.
      force: convert the state even if training cannot continue exactly.
      transfer: LOCAL, DOWNLOAD, UPLOAD or IN_STORE: it follows from where source and destination are.
      layout: MaxText's layer layout, see LAYOUTS.
      dtype: what weights are cast to; None for none.
      compress: how chunks that are rewritten are compressed, see COMPRESSORS; None for what measured best.
    """

    table: frozenset[str] = frozenset()
    max_memory: int = DEFAULT_MEMORY
    store: str = STORES[0]
    rewrite: bool = False
    link: bool = False
    transfer: str = LOCAL
    tree: str = TREES[0]
    state: bool = False
    optimizer: str | None = None
    force: bool = False
    layout: str = LAYOUTS[0]
    dtype: str | None = None
    compress: str | None = None

    @property
    def compressor(self) -> str:
        """How chunks that are rewritten are compressed.

        Weights hardly compress, and zstd takes time from the conversion and from each restore (docs/storage.md). With a
        leaf for each layer nearly all chunks are rewritten: there they are raw, unless they travel to a store or carry
        their checksum in zstd's frame.
        """
        if self.compress is not None:
            return self.compress
        raw = self.layout == UNSCANNED and self.store != "zarr2" and self.transfer not in (UPLOAD, IN_STORE)
        return NO_COMPRESSION if raw else ZSTD

    @property
    def state_optimizer(self) -> Optimizer | None:
        """The optimizer whose state is written; None where none is."""
        return OPTIMIZERS[self.optimizer or ADAMW.name] if self.state else None

    def check(self) -> None:
        """Refuses options that contradict each other.

        Raises:
          UsageError: naming both.
        """
        if self.store not in STORES:
            raise UsageError(f"--store {self.store}: expected one of {', '.join(STORES)}")
        if self.link and self.store == "zarr2":
            raise UsageError("--link keeps chunks as they are, --store zarr2 rewrites them; use --store files or ocdbt")
        if self.link and self.transfer != LOCAL:
            raise UsageError("--link makes hard links, which are between local files; drop it for URLs")
        if self.store == "zarr2" and self.transfer in (UPLOAD, IN_STORE):
            raise UsageError("--store zarr2 is for local files; use --store files or ocdbt in an object store")
        if self.link and self.rewrite:
            raise UsageError("--link passes chunks through, --rewrite never does; give one of them")
        if self.compress not in (None, *COMPRESSORS):
            raise UsageError(f"--compress {self.compress}: expected one of {', '.join(COMPRESSORS)}")
        if self.compressor != ZSTD and self.store == "zarr2":
            raise UsageError(
                f"--store zarr2 keeps its checksums in zstd's frames, --compress {self.compress} writes none; use "
                "--store files or ocdbt"
            )
        if self.layout not in LAYOUTS:
            raise UsageError(f"--layout {self.layout}: expected one of {', '.join(LAYOUTS)}")
        if self.dtype is not None and self.dtype not in SERVING_DTYPES:
            raise UsageError(f"--dtype {self.dtype}: expected {' or '.join(SERVING_DTYPES)}")
        if self.dtype is not None and self.link:
            raise UsageError(f"--link passes chunks through, --dtype {self.dtype} rewrites them; give one of them")
        if self.dtype is not None and self.state and not self.force:
            raise UsageError(
                f"--state keeps what a training needs exactly, --dtype {self.dtype} rounds it; drop one of them, or "
                "add --force"
            )
        if self.tree not in TREES:
            raise UsageError(f"--tree {self.tree}: expected one of {', '.join(TREES)}")
        if self.state and self.tree != TREES[0]:
            raise UsageError(
                f"--state needs the parameters that the moments belong to, --tree {self.tree} converts others; "
                "give one of them"
            )
        if self.optimizer is not None and not self.state:
            raise UsageError("--optimizer chooses the form of the training state; add --state")
        if self.force and not self.state:
            raise UsageError(
                "--force lets --state convert a training that cannot continue exactly; add --state, or drop --force"
            )
        if self.optimizer is not None and self.optimizer not in OPTIMIZERS:
            raise UsageError(_refused_optimizer(self.optimizer))


def _refused_optimizer(name: str) -> str:
    """Why there is no state for one of MaxText's optimizers."""
    known = ", ".join(OPTIMIZERS)
    why = REFUSED_OPTIMIZERS.get(name)
    return (
        f"--optimizer {name}: {why}; expected one of {known}" if why else f"--optimizer {name}: expected one of {known}"
    )


def transfer_between(source: str, destination: str) -> str:
    """How passed chunks travel from one path or URL to another."""
    if not is_remote(destination):
        return DOWNLOAD if is_remote(source) else LOCAL
    return IN_STORE if storage_of(source) is storage_of(destination) else UPLOAD
