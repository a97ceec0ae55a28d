"""What a conversion will do, from metadata alone: source, options, routes, the plan, the parameter report."""

from converter.planning.evident import EvidentPlan, evident_plan
from converter.planning.fidelity import PairMismatch, Remedies, pair_mismatches, scale_mismatches
from converter.planning.launchers import read_share
from converter.planning.options import (
    DOWNLOAD,
    IN_STORE,
    JOBS,
    LOCAL,
    UPLOAD,
    Options,
    transfer_between,
)
from converter.planning.parameters import ParameterReport, ParameterRow, make_report, report_source
from converter.planning.plan import COPIERS, Plan, Task, make_plan
from converter.planning.qk_norm import fitted_scales
from converter.planning.routes import LINK, REWRITE, Route, choose_route
from converter.planning.share import Load, Portion, Share, divide, portion_of
from converter.planning.source import (
    Source,
    check_options,
    chosen_tree,
    configure_source,
    evident_match,
    evident_options,
    evident_orders,
    open_source,
)
from converter.planning.traffic import Traffic, estimate_traffic

__all__ = [
    "COPIERS",
    "DOWNLOAD",
    "IN_STORE",
    "JOBS",
    "LINK",
    "LOCAL",
    "REWRITE",
    "UPLOAD",
    "EvidentPlan",
    "Load",
    "Options",
    "PairMismatch",
    "ParameterReport",
    "ParameterRow",
    "Plan",
    "Portion",
    "Remedies",
    "Route",
    "Share",
    "Source",
    "Task",
    "Traffic",
    "check_options",
    "choose_route",
    "chosen_tree",
    "configure_source",
    "divide",
    "estimate_traffic",
    "evident_match",
    "evident_options",
    "evident_orders",
    "evident_plan",
    "fitted_scales",
    "make_plan",
    "make_report",
    "open_source",
    "pair_mismatches",
    "portion_of",
    "read_share",
    "report_source",
    "scale_mismatches",
    "transfer_between",
]
