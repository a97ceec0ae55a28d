"""The plan that a checkpoint was evidently made by: what a conversion of its source would have to write."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from converter.checkpoints import OPTIMIZERS, Made, Target, recorded_settings, recorded_trees
from converter.planning.options import Options
from converter.planning.plan import Plan, make_plan
from converter.planning.qk_norm import fitted_scales
from converter.planning.source import Source, chosen_tree, configure_source, evident_match, open_source


@dataclass(frozen=True, kw_only=True)
class EvidentPlan:
    """A source, and the plan of a checkpoint that was made of it.

    Attributes:
      source: the source, with the options and the layout that the checkpoint was made with.
      plan: what it was made by; every chunk is decoded in it.
      made: which trees the checkpoint says that it was made of.
      fitted: MaxText's leaf path to its whole value, for the scales that are not copied (see `qk_norm`).
    """

    source: Source
    plan: Plan
    made: Made
    fitted: Mapping[str, np.ndarray]


def evident_plan(
    source: str,
    target: Target,
    *,
    step: int | None,
    mapping: str | None,
    tree: str | None,
    max_memory: int,
    jobs: int,
) -> EvidentPlan:
    """Plans what a checkpoint should hold, from the source's metadata and what the checkpoint says of itself.

    Args:
      source: a step or trainer directory.
      target: the checkpoint.
      step: the wanted step of the source; None for the latest.
      mapping: path of a user's own table, or None.
      tree: the tree that became the parameters; None for the one that the checkpoint names.
      max_memory: bytes that blocks in flight may take together.
      jobs: blocks in flight.

    Raises:
      SourceError: the source cannot be read.
      MappingError: no table fits the source.
      UsageError: the memory budget is too small, or the tree is another than the checkpoint was made of.
    """
    made = recorded_trees(target.custom, target.root)
    opened = open_source(
        source,
        step=step,
        mapping=mapping,
        tree=chosen_tree(tree, made, target.root),
        optimizer=OPTIMIZERS.get(made.optimizer),
        force=True,  # what was converted is looked at as it is
    )
    opened = dataclasses.replace(opened, match=evident_match(opened, target))
    configuration = configure_source(opened, recorded=recorded_settings(target.custom))
    options = Options(
        table=opened.match.options,
        max_memory=max_memory,
        rewrite=True,
        tree=opened.tree.name,
        state=opened.state is not None,
        optimizer=made.optimizer if opened.state is not None else None,
        force=opened.state is not None,
        layout=opened.match.target_layout,
    )
    plan = make_plan(opened, options, configuration, jobs=jobs)
    return EvidentPlan(source=opened, plan=plan, made=made, fitted=fitted_scales(opened, plan.config))
