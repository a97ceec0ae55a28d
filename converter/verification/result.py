"""What a verification finds, as plain values."""

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from converter.planning import Share


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be.

    Attributes:
      check: which check failed: coverage, shape, dtype, chunks, values, cast, digest, receipt, metadata, markers,
        scan_layers, config.
      place: the leaf's path, or the file.
      message: what is wrong, in one line.
      elements: how many elements differ; None where values were not compared.
      first_index: the first of them.
      expected: the value in the source.
      found: the value in the checkpoint.
      diagnosis: what the wrong values are, where that was recognised.
    """

    check: str
    place: str
    message: str
    elements: int | None = None
    first_index: tuple[int, ...] | None = None
    expected: str = ""
    found: str = ""
    diagnosis: str = ""


@dataclass(frozen=True, slots=True)
class CastReport:
    """The errors of a cast, over all leaves that were stored in another dtype than the source's.

    Attributes:
      dtype: the checkpoint's dtype.
      max_absolute: largest absolute error of a finite element.
      max_relative: largest relative error of a finite element that is not zero.
      overflows: finite elements that became infinite.
    """

    dtype: str
    max_absolute: float
    max_relative: float
    overflows: int


@dataclass(frozen=True)
class Verification:
    """The result of `verify`.

    Attributes:
      method: "source" where every element was compared with the source, "digests" where with the stored digests.
      source: the source step directory; empty without one.
      step: the source's training step.
      destination: the checkpoint's directory.
      leaves: leaves that were compared.
      stored_leaves: those of them whose chunks were compared as they are stored, and not decoded.
      elements: elements that were compared.
      compared_bytes: their size in the checkpoint, decoded.
      sample: the fraction of blocks that was compared; None for all of them.
      findings: all that is wrong; empty for a checkpoint that is as it should be.
      notes: remarks that are not findings.
      cast: errors of the cast; None where no leaf was cast.
      seconds: wall time.
      peak_memory: the largest resident set of this process, in bytes.
      paths: the leaves that were compared.
      share: which part this process compared; None for all of it.
    """

    method: str
    source: str
    step: int | None
    destination: str
    leaves: int
    stored_leaves: int
    elements: int
    compared_bytes: int
    sample: float | None
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    cast: CastReport | None
    seconds: float
    peak_memory: int
    paths: tuple[str, ...] = ()
    share: "Share | None" = None

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings


class FirstFaults:
    """Why leaves cannot be read: for each leaf the first fault by its place, whichever thread comes upon it first."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[tuple[int, ...], str]] = {}
        self._lock = threading.Lock()

    def add(self, leaf: str, text: str, place: tuple[int, ...] = ()) -> None:
        """Notes a fault; one of the whole leaf has no place and comes first."""
        with self._lock:
            self._found[leaf] = min(self._found.get(leaf, (place, text)), (place, text))

    def __contains__(self, leaf: str) -> bool:
        return leaf in self._found

    def items(self) -> list[tuple[str, str]]:
        """Leaves with their first faults."""
        return [(leaf, text) for leaf, (_, text) in self._found.items()]
