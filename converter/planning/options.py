"""The options of a conversion that shape its result."""

from dataclasses import dataclass

from converter.choices import STORES
from converter.errors import UsageError

DEFAULT_MEMORY = 1 << 30

JOBS = 2
"""Blocks in flight by default; more than two bring nothing on two cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the user asked for, as far as it shapes the result.

    Attributes:
      table: options of the mapping table that are on.
      max_memory: bytes that blocks in flight may take together.
      store: how leaves are stored, see `encoding`.
      rewrite: decode and encode every chunk, also where it could be passed through.
      link: hard-link chunks that can be passed through.
    """

    table: frozenset[str] = frozenset()
    max_memory: int = DEFAULT_MEMORY
    store: str = STORES[0]
    rewrite: bool = False
    link: bool = False

    def check(self) -> None:
        """Refuses options that contradict each other.

        Raises:
          UsageError: naming both.
        """
        if self.store not in STORES:
            raise UsageError(f"--store {self.store}: expected one of {', '.join(STORES)}")
        if self.link and self.store == "zarr2":
            raise UsageError("--link keeps chunks as they are, --store zarr2 rewrites them; use --store files or ocdbt")
        if self.link and self.rewrite:
            raise UsageError("--link passes chunks through, --rewrite never does; give one of them")
