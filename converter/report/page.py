"""The report as one HTML page that asks nobody for anything: style, script and plots are in it.

Values become text through the template engine's escaping; the plots are the only markup that is put in as it stands.
The page's own content security policy allows its one style sheet and its one script, by their hashes, and nothing else.
"""

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jinja2
from markupsafe import Markup

from converter.evidence import FAILED, PASSED, Evidence
from converter.forward import EQUAL
from converter.planning import ParameterReport, ParameterRow
from converter.report.console import shape_text
from converter.report.plan import plural
from converter.report.plots import cause_plot, mismatch_plot, parameter_plot, position_plots
from converter.report.proofs import (
    GroupSum,
    figures,
    group_sums,
    notes,
    origin_counts,
    proofs,
    summary,
    title,
)
from converter.report.verify import found_shape
from converter.words import format_size, printable

STYLE, SCRIPT, TEMPLATE = "style.css", "script.js", "report.html.jinja"

OWN_PARTS = 3
"""Parts of a path that tell it from its neighbours, such as self_attention/query/kernel."""

MOST_FINDINGS = 500
"""Findings that the page shows; JSON has all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRow:
    """A row of the parameter table.

    Attributes:
      sources: AXLearn's paths, each with its shape.
      targets: MaxText's paths, each with its shape.
      relation: what becomes of the elements, in words.
      parameters: MaxText's.
      fits: the checkpoint has the planned shapes.
    """

    sources: Sequence[tuple[str, str]]
    targets: Sequence[tuple[str, str]]
    relation: str
    parameters: int
    fits: bool


def html_page(evidence: Evidence) -> str:
    """The page.

    Args:
      evidence: what is known of a checkpoint.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("converter.report", "page_files"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: printable(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "count": "{:,}".format,
        "json": _one_line,
        "code": _with_code,
        "path": _path,
        "plural": plural,
        "size": format_size,
        "shape": shape_text,
    }
    style, script = (_file(environment, name) for name in (STYLE, SCRIPT))
    return environment.get_template(TEMPLATE).render(
        **_content(evidence), style=Markup(style), script=Markup(script), policy=_policy(style, script)
    )


def _content(evidence: Evidence) -> dict[str, Any]:
    """What the template shows."""
    groups, logits = group_sums(evidence.parameters), evidence.logits
    findings = evidence.bits.findings
    return {
        "evidence": evidence,
        "report": evidence.parameters,
        "plan": evidence.plan,
        "receipt": evidence.receipt,
        "state": PASSED if evidence.passed else FAILED,
        "title": title(evidence),
        "summary": summary(evidence),
        "proofs": proofs(evidence, figures="the plot below"),
        "figures": figures(evidence),
        "findings": findings[:MOST_FINDINGS],
        "more_findings": max(len(findings) - MOST_FINDINGS, 0),
        "groups": groups,
        "tables": _tables(evidence.parameters, groups),
        "row_count": len(evidence.parameters.rows) + len(evidence.parameters.extra),
        "parameter_plot": Markup(parameter_plot(evidence.parameters, groups)),
        "mismatches": evidence.mismatches,
        "mismatch_plot": Markup(mismatch_plot(evidence.mismatches)) if evidence.mismatches else "",
        "logits": logits,
        "position_plots": [(text, Markup(plot)) for text, plot in position_plots(logits)] if logits else [],
        "cause_plot": Markup(cause_plot(logits)) if logits and logits.switched else "",
        "equal": f"{EQUAL:.0e}",
        "origins": origin_counts(evidence),
        "notes": notes(evidence),
    }


def _tables(report: ParameterReport, groups: Sequence[GroupSum]) -> list[tuple[str, int, list[PageRow]]]:
    """The rows of the parameter table by group, each group with its parameters in MaxText."""
    rows: dict[str, list[PageRow]] = {group.name: [] for group in groups}
    for row in report.rows:
        rows[row.group].append(_row(row))
    made = [(group.name, group.target, rows[group.name]) for group in groups]
    extra = [
        PageRow(sources=(), targets=[(path, shape_text(shape))], relation="extra leaf: no row produces it",
                parameters=_product(shape), fits=False)
        for path, shape in report.extra.items()
    ]  # fmt: skip
    return [*made, ("not planned", sum(row.parameters for row in extra), extra)] if extra else made


def _row(row: ParameterRow) -> PageRow:
    return PageRow(
        sources=list(zip(row.sources, map(shape_text, row.source_shapes), strict=True)),
        targets=[(path, found_shape(row, number)) for number, path in enumerate(row.targets)],
        relation=row.relation + (" (a copy)" if row.added else ""),
        parameters=row.target_parameters,
        fits=row.fits,
    )


def _product(shape: Sequence[int]) -> int:
    result = 1
    for size in shape:
        result *= size
    return result


def _one_line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _with_code(text: str) -> Markup:
    """A text in which what is between backticks is code."""
    parts = printable(text).split("`")
    if len(parts) % 2 == 0:
        return Markup.escape(printable(text))
    marked = (Markup("<code>{}</code>").format(part) if number % 2 else part for number, part in enumerate(parts))
    return Markup("").join(marked)


def _path(text: str) -> Markup:
    """A path that lines break at its slashes, its last parts more visible than the directory that many share."""
    parts = printable(text).split("/")
    above, own = parts[:-OWN_PARTS], parts[-OWN_PARTS:]
    directory = Markup("/<wbr>").join([*above, ""])
    name = Markup("/<wbr>").join(own)
    return Markup("<span>{}</span>{}").format(directory, name) if above else name


def _file(environment: jinja2.Environment, name: str) -> str:
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0].strip()


def _policy(style: str, script: str) -> str:
    """The content security policy, as a `meta` element has it; an icon of data keeps browsers from asking for one."""
    hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script))
    allowed = "style-src 'sha256-{}'; script-src 'sha256-{}'".format(*hashes)
    return f"default-src 'none'; {allowed}; img-src data:; base-uri 'none'; form-action 'none'"
