"""The one value that a report is made of."""

from dataclasses import dataclass

from converter.choices import DEFAULT_MEMORY
from converter.evidence.configuration import ConfigKey
from converter.evidence.digests import Receipt
from converter.forward import LogitsComparison
from converter.planning import PairMismatch, ParameterReport, Plan
from converter.verification import Verification

LOGITS_MEMORY = 4 << 30

PASSED, FAILED, CAUTION, OPEN = "passed", "failed", "caution", "open"
"""What came of a proof: it holds, it does not, it holds with something to know, or it was not asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to gather evidence of, and how.

    Attributes:
      source: a step or trainer directory.
      destination: the MaxText checkpoint.
      step: the wanted step of the source; None for the latest.
      mapping: path of a user's own table, or None.
      tree: the tree that became the parameters; None for the one that the checkpoint names.
      dtype: the dtype that weights were cast to; None for the one that the receipt names, or else the source's.
      sample: the fraction of blocks to compare; None for all.
      decode: decode every chunk.
      max_memory: bytes for blocks in flight while bits are compared, and for the process while logits are computed;
        None for the usual budget of each.
      jobs: blocks in flight.
      logits: compare what the models compute as well.
      tokens: file of token sequences; None for the built-in set.
      settings: `KEY=VALUE` changes of the configuration that logits are computed with.
      norm_after_rope: MaxText runs with the patch of `maxtext_patch`.
      limits: names of figures and the largest differences of logits allowed.
      explain: look for the causes of a difference.
    """

    source: str
    destination: str
    step: int | None = None
    mapping: str | None = None
    tree: str | None = None
    dtype: str | None = None
    sample: float | None = None
    decode: bool = False
    max_memory: int | None = None
    jobs: int = 2
    logits: bool = False
    tokens: str | None = None
    settings: tuple[str, ...] = ()
    norm_after_rope: bool = False
    limits: tuple[tuple[str, float], ...] = ()
    explain: bool = True

    @property
    def bits_memory(self) -> int:
        """Bytes that blocks in flight may take together."""
        return self.max_memory or DEFAULT_MEMORY

    @property
    def logits_memory(self) -> int:
        """Bytes that the process may take while logits are computed."""
        return self.max_memory or LOGITS_MEMORY


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command line to paste into a shell.

    Attributes:
      purpose: what it does.
      line: the command.
    """

    purpose: str
    line: str


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All that is known of a converted checkpoint.

    Attributes:
      tool: program and version that gathered it.
      source: the source step directory, in the user's words.
      destination: the checkpoint, in the user's words.
      plan: what the checkpoint should hold.
      parameters: which AXLearn parameter is which MaxText parameter.
      bits: the comparison of every element.
      logits: the comparison of what the models compute; None where it was not asked for, or could not be made.
      logits_problem: why it could not be made.
      mismatches: the q/k norm pairs of every layer.
      configuration: the keys of maxtext.yml.
      receipt: the digests that the checkpoint carries.
      commands: commands that reproduce the report.
      seconds: wall time.
      peak_memory: the largest resident set of this process, in bytes.
    """

    tool: str
    source: str
    destination: str
    plan: Plan
    parameters: ParameterReport
    bits: Verification
    logits: LogitsComparison | None
    logits_problem: str
    mismatches: tuple[PairMismatch, ...]
    configuration: tuple[ConfigKey, ...]
    receipt: Receipt
    commands: tuple[Command, ...]
    seconds: float
    peak_memory: int

    @property
    def passed(self) -> bool:
        """Whether counts, shapes and bits agree, and the logits where they were wanted."""
        logits = not self.logits_problem and (self.logits is None or self.logits.passed)
        return self.parameters.equivalent and self.bits.ok and logits
