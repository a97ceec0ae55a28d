from dataclasses import dataclass

from converter.arrays import STORES
from converter.errors import UsageError
from converter.mapping import QK_NORM

DEFAULT_MEMORY = 1 << 30


QK_NORM_MODES = ("plain", "fit")


JOBS = 2
"""Blocks in flight by default; more than two bring nothing on two cores."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for, as far as it shapes the result.

    Attributes:
      untie: write the output projection as a tensor of its own.
      max_memory: bytes that blocks in flight may take together.
      store: how leaves are stored, see `encoding`.
      rewrite: decode and encode every chunk, also where it could be passed through.
      link: hard-link chunks that can be passed through.
      qk_norm: "plain" copies the q/k norm scales, "fit" fits them to stock MaxText's order of norm and RoPE.
    """

    untie: bool = False
    max_memory: int = DEFAULT_MEMORY
    store: str = STORES[0]
    rewrite: bool = False
    link: bool = False
    qk_norm: str = QK_NORM_MODES[0]

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
        if self.qk_norm not in QK_NORM_MODES:
            raise UsageError(f"--qk-norm {self.qk_norm}: expected one of {', '.join(QK_NORM_MODES)}")

    @property
    def mapping_options(self) -> frozenset[str]:
        """The options of a mapping table that are on."""
        fits = {QK_NORM} if self.qk_norm == "fit" else set()
        return frozenset({"untie"} if self.untie else ()) | fits
