"""What `conform` finds, as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from converter.mapping import Shape

Framework = Literal["MaxText", "AXLearn"]

LeafStatus = Literal["equal", "missing", "extra", "shape", "dtype"]
"""A leaf as it should be; one that the framework lacks, or has alone; one of another shape or dtype."""

FlagStatus = Literal["equal", "other", "unknown"]
"""A flag as it should be, with another value, or one that the framework does not know."""

LEAF_STATUSES: tuple[LeafStatus, ...] = get_args(LeafStatus)
FLAG_STATUSES: tuple[FlagStatus, ...] = get_args(FlagStatus)
FRAMEWORKS: tuple[Framework, ...] = get_args(Framework)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A leaf of one side.

    Attributes:
      shape: in elements.
      dtype: its name.
      axes: MaxText's logical names of its dimensions; empty where there are none.
    """

    shape: Shape
    dtype: str
    axes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafComparison:
    """A leaf of the table beside the framework's.

    Attributes:
      path: below the parameters' prefix for MaxText, the whole path for AXLearn.
      status: what is different; a leaf of another shape may have another dtype as well.
      expected: by the mapping table; None for a leaf that it does not have.
      found: in the framework; None for a leaf that it does not have.
    """

    path: str
    status: LeafStatus
    expected: Leaf | None
    found: Leaf | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagComparison:
    """A key of the configuration beside the framework's.

    Attributes:
      key: MaxText's name, or the path of a line of AXLearn's configuration.
      status: whether it differs.
      kind: "written" of a key in maxtext.yml, "default" of one that is left to MaxText, "axlearn" of one that AXLearn's
        configuration has a value of.
      expected: the value that the weights need, as text.
      found: the framework's, as text; empty where it has none.
      consequence: what the difference does, by the mapping table; empty where the table does not say.
    """

    key: str
    status: FlagStatus
    kind: Literal["written", "default", "axlearn"]
    expected: str
    found: str
    consequence: str = ""


@dataclass(frozen=True, kw_only=True)
class ModelComparison:
    """A model in one framework, with one layer layout.

    Attributes:
      framework: which one.
      model: the checkpoint, the published size or the named configuration.
      mapping: name of the mapping table.
      layout: MaxText's layer layout; empty for AXLearn.
      leaves: every leaf of either side.
      flags: every flag that is compared.
      problem: why the framework cannot make the model; empty where it can.
    """

    framework: Framework
    model: str
    mapping: str
    layout: str = ""
    leaves: tuple[LeafComparison, ...] = ()
    flags: tuple[FlagComparison, ...] = ()
    problem: str = ""

    @property
    def different_leaves(self) -> tuple[LeafComparison, ...]:
        """The leaves that are not equal."""
        return tuple(leaf for leaf in self.leaves if leaf.status != "equal")

    @property
    def different_flags(self) -> tuple[FlagComparison, ...]:
        """The flags that are not equal."""
        return tuple(flag for flag in self.flags if flag.status != "equal")

    @property
    def differences(self) -> int:
        """How much is not as the table says; a model that cannot be made counts as one."""
        return len(self.different_leaves) + len(self.different_flags) + bool(self.problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedComparison:
    """A model file that MaxText publishes, beside the keys that the weights need. It does not decide on the verdict.

    Attributes:
      model: the published size.
      name: the file's `model_name`.
      present: whether this MaxText has it.
      differences: keys whose effective values differ.
    """

    model: str
    name: str
    present: bool
    differences: tuple[FlagComparison, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """A framework as it is installed.

    Attributes:
      framework: which one.
      interpreter: the Python that was asked.
      python: its version.
      version: the framework's; empty for a source tree without one.
      checked: mapping table to the versions with which it was compared before without a difference.
    """

    framework: Framework
    interpreter: str
    python: str
    version: str
    checked: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def new_for(self) -> tuple[str, ...]:
        """The mapping tables that do not name this version among those that they were checked with."""
        return tuple(
            name
            for name, versions in self.checked.items()
            if not any(self.version and one.split()[0] == self.version for one in versions)
        )


@dataclass(frozen=True, kw_only=True)
class Conformance:
    """The result of `conform`.

    Attributes:
      installed: the frameworks that were asked.
      models: each model in each framework and layout.
      published: MaxText's own model files.
      notes: remarks that are not differences.
      seconds: wall time.
      peak_memory: the largest resident set of a framework's process, in bytes.
    """

    installed: tuple[Installed, ...]
    models: tuple[ModelComparison, ...]
    published: tuple[PublishedComparison, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    peak_memory: int = 0

    @property
    def differences(self) -> int:
        """How much is not as the tables say."""
        return sum(model.differences for model in self.models)

    @property
    def ok(self) -> bool:
        """Whether the installed frameworks are as the tables say."""
        return not self.differences
