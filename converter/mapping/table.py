"""A mapping table as plain data: what the rows of a `mappings/*.toml` file say, before they meet a checkpoint.

`mapping_file` reads and validates the file; `matching` applies it to the tensors of a checkpoint.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from converter.axes import Expression
from converter.mapping.values import FITTED, PLAIN, Fit, ValueRule

LAYER_AXIS = "layers"
"""Name of the axis that holds the repeats of a layer cycle."""

LAYER_FIELD = "{layer}"
"""Stands in a row's paths for the place of one layer."""

REPEAT_FIELDS = ("{layer}", "{repeat}")
"""Stand in the path of a layout for a layer's number in the model, and for that of the cycle it belongs to."""

ConfigValue = bool | int | float | str | list[str]

Number = int | float

MODEL, TRAINING = "model", "training"
"""What a user's value of a configuration key means: a fact that no tensor shows, or a choice of training."""

WEIGHT_DTYPES = ("bfloat16", "float16", "float32", "float64")
"""Dtypes whose values are weights as they stand. Integers and float8 need scales to mean anything."""


@dataclass(frozen=True, slots=True)
class LayerLayout:
    """Where one layer lives in a tree.

    Attributes:
      name: such as `scanned`.
      path: below the tree's prefix; `{layer}` is the layer's number in the model, `{block}` in its cycle, `{repeat}`
        that of the cycle.
      axis: the dimension of every layer tensor that holds the repeats of the cycle; None where each layer has its own
        place.
    """

    name: str
    path: str
    axis: int | None


@dataclass(frozen=True, slots=True)
class TreeLayout:
    """One side's parameter tree.

    Attributes:
      prefix: the path under which the model's parameters live.
      layers: the layer layouts this side can have.
      cycle: the kind of each layer of a cycle, in order; empty where the table does not say.
    """

    prefix: str
    layers: tuple[LayerLayout, ...]
    cycle: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """What shows that something is of a kind: a tensor that is there, one of that many dimensions, or one that is not.

    Attributes:
      tensor: its path, below the layer or, for a kind of the whole model, below the tree's prefix.
      dims: how many dimensions it has, the layer axis left out; None for any number.
      absent: the kind is that without the tensor.
    """

    tensor: str
    dims: int | None = None
    absent: bool = False

    def __str__(self) -> str:
        dims = f" with {self.dims} dimensions" if self.dims is not None else ""
        return f"{'no ' if self.absent else ''}{self.tensor}{dims}"


@dataclass(frozen=True, slots=True)
class Choice:
    """Kinds that exclude each other: a layer has one of them, or where there is only one kind, perhaps it.

    Attributes:
      name: for messages.
      markers: kind to what shows it.
      of_model: the kinds are of the whole model, not of a layer.
    """

    name: str
    markers: Mapping[str, Marker]
    of_model: bool = False


@dataclass(frozen=True, slots=True)
class TensorRow:
    """One row: source tensors, target tensors and what happens to the axes.

    Attributes:
      axlearn: source paths below the prefix; `{layer}` in front for tensors of a layer.
      maxtext: target paths, likewise.
      expression: the layout, without the layer axis.
      group: heading in the parameter report.
      note: why, for the report.
      when: the kind of layer, or of model, that has the row; empty for all.
      option: the option that adds this row; empty for always. Such a row reads a source that another row consumes.
      unpermuted: the option that leaves axes that share a dimension in the source's order; empty for none.
      value: what becomes of the values; a fit only with the option of its name.
      roles: what each target is in the model, see `roles`; empty where the table does not say.
      dtypes: dtypes that the source tensors may have.
      update_scale: whether the learner multiplies Adam's update of these tensors by its update_scale.
      line: line of the row in its file.
    """

    axlearn: tuple[str, ...]
    maxtext: tuple[str, ...]
    expression: Expression
    group: str
    note: str
    when: str
    option: str
    roles: tuple[str, ...]
    value: ValueRule
    line: int
    dtypes: tuple[str, ...] = WEIGHT_DTYPES
    update_scale: bool = False
    unpermuted: str = ""

    @property
    def in_layer(self) -> bool:
        return self.axlearn[0].startswith(LAYER_FIELD)


@dataclass(frozen=True, slots=True)
class DropRow:
    """Source tensors that are left behind.

    Attributes:
      pattern: of their paths, see `matching.matches`.
      reason: what they are, for reports.
      note: what users have to know when a checkpoint has such tensors; empty for nothing.
    """

    pattern: str
    reason: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class RefuseRow:
    """Source tensors of models that MaxText cannot compute.

    Attributes:
      pattern: of their paths, see `match.matches`.
      model: what such a model is called.
      reason: why it cannot be converted.
    """

    pattern: str
    model: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Another value of a configuration key, for checkpoints of a kind or of certain sizes.

    Attributes:
      value: the value.
      when: the kind that has it; empty for any.
      sizes: axis to the size that it must have.
      why: what is known about these models.
    """

    value: ConfigValue
    when: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)
    why: str = ""


@dataclass(frozen=True, slots=True)
class ConfigRule:
    """How one key of the MaxText configuration gets its value.

    Attributes:
      key: MaxText's name.
      constant: the value itself, where the rule is a plain value.
      size: the axis whose solved size is the value.
      otherwise: the axis that counts where the tensors do not have `size`; empty for none.
      times: a factor on the size.
      times_blocks: multiply by the number of layers in a cycle.
      has: the value is whether layers, or the model, are of this kind.
      unless: the value is whether this option is off; with `has` both must hold.
      layout: the value is whether the target has this layer layout.
      set: what another value of a user (`--set`) means; empty where the tensors or the family leave no choice.
      above: the value must be larger than this.
      at_least: the value must not be smaller than this.
      at_most: the axis whose size the value must not exceed.
      divides: the axis whose size the value must divide.
      note: why it has this value, for maxtext.yml.
      cases: other values, for some checkpoints; the first that applies counts.
      why: what the constant is assumed from; empty where every model of the family has it.
      trainer_config: patterns of the lines of a training's own configuration that hold the value, see `trained`; the
        first with a line counts.
      words: what texts in these lines mean; empty where they hold the value as it is.
      option: the key is written with this option only; empty for always.
    """

    key: str
    constant: ConfigValue | None = None
    size: str = ""
    times: int = 1
    times_blocks: bool = False
    has: str = ""
    unless: str = ""
    layout: str = ""
    set: str = ""
    above: float | None = None
    at_least: float | None = None
    at_most: str = ""
    divides: str = ""
    note: str = ""
    cases: tuple[Case, ...] = ()
    why: str = ""
    otherwise: str = ""
    trainer_config: tuple[str, ...] = ()
    words: Mapping[str, ConfigValue] = field(default_factory=dict)
    option: str = ""

    @property
    def read_only(self) -> bool:
        """Whether only a training's own configuration has a value for the key."""
        return self.constant is None and not (self.size or self.has or self.unless or self.layout)


@dataclass(frozen=True, slots=True)
class Expected:
    """What lines of a training's own configuration have to say.

    Attributes:
      pattern: of their paths, see `trained`.
      values: those that they may have.
      note: what users have to know where a line has another value; empty where that is another model.
    """

    pattern: str
    values: tuple[ConfigValue, ...]
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArithmeticRule:
    """What the source's model computes with and no tensor shows: each a number, or the [config] key that has it.

    Attributes:
      rope_theta: RoPE's base.
      norm_epsilon: of all norms.
      experts_per_token: experts that each token is routed to; 0 for models without experts.
      share_epsilon: added to the sum by which the shares of a token's experts are divided.
    """

    rope_theta: float | str
    norm_epsilon: float | str
    experts_per_token: float | str = 0
    share_epsilon: float | str = 0.0


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """A published size of the family.

    Attributes:
      name: AXLearn's or MaxText's name for it.
      kinds: kinds of its layers and of itself.
      sizes: the size of each axis.
      learner: constants of the learner that are its own.
      maxtext: MaxText's own `model_name` for it; empty where MaxText publishes no configuration.
    """

    name: str
    kinds: tuple[str, ...]
    sizes: Mapping[str, int]
    learner: Mapping[str, Number] = field(default_factory=dict)
    maxtext: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformanceRules:
    """What `conform` compares beside the tensors, and what the table was compared with before.

    Attributes:
      maxtext: versions of MaxText in which no difference was found.
      axlearn: versions or commits of AXLearn, likewise.
      trainers: modules of AXLearn with the family's named configurations; the first that has a name counts.
      defaults: keys that maxtext.yml leaves to MaxText, with the default that the weights rely on.
      consequences: key of MaxText's configuration to what another value of it does to the weights.
    """

    maxtext: tuple[str, ...] = ()
    axlearn: tuple[str, ...] = ()
    trainers: tuple[str, ...] = ()
    defaults: Mapping[str, ConfigValue] = field(default_factory=dict)
    consequences: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MappingTable:
    """A whole mapping file.

    Attributes:
      name: short name, for messages and reports.
      title: a line for people.
      path: the file.
      digest: hash of the file's text; a plan made with another table is another plan.
      groups: headings of the parameter report in their order; other groups follow in the order of the rows.
      learner: constants of the learner that trained the family's models, by the names of `learner.BOUNDS`.
      optimizer: the optimizer that trained them, where MaxText has none like it; empty for AdamW.
      expected: what a training's own configuration has to say beside the keys of [config].
      conformance: what is compared with the installed frameworks beside the tensors.
    """

    name: str
    title: str
    path: str
    digest: str
    groups: tuple[str, ...]
    axlearn: TreeLayout
    maxtext: TreeLayout
    choices: tuple[Choice, ...]
    rows: tuple[TensorRow, ...]
    drops: tuple[DropRow, ...]
    refusals: tuple[RefuseRow, ...]
    config: tuple[ConfigRule, ...]
    arithmetic: ArithmeticRule | None
    models: tuple[PublishedModel, ...]
    learner: Mapping[str, Number] = field(default_factory=dict)
    optimizer: str = ""
    expected: tuple[Expected, ...] = ()
    conformance: ConformanceRules = field(default_factory=ConformanceRules)

    @property
    def fits(self) -> frozenset[str]:
        """Names of the options that fit values."""
        return frozenset(row.value.name for row in self.rows if isinstance(row.value, Fit))

    @property
    def options(self) -> frozenset[str]:
        """Names of the options that can be switched on: they add rows, leave axes in their order, or fit values."""
        return self.fits | self.orders | {row.option for row in self.rows if row.option}

    @property
    def orders(self) -> frozenset[str]:
        """Names of the options that leave axes in the source's order; no leaf shows them."""
        return frozenset(row.unpermuted for row in self.rows if row.unpermuted)

    def states(self, options: Collection[str]) -> dict[str, bool | str]:
        """Every option with its state, as journals and receipts record it: on or off, and "fit" or "plain" of a fit.

        Args:
          options: those that are on.
        """
        rows = {name: name in options for name in sorted(self.options - self.fits)}
        return rows | {name: FITTED if name in options else PLAIN for name in sorted(self.fits)}
