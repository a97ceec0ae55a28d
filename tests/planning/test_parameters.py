"""The parameter report of published models and of small checkpoints."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from converter.errors import MappingError
from converter.planning.parameters import ParameterRequest, make_report
from converter.report.verify import print_markdown

SOURCE = str(Path(__file__).parents[1] / "data" / "axlearn" / "micro-hybrid")


@pytest.mark.parametrize(
    ("model", "total"),
    [
        ("envy-test", 15_064),
        ("envy-switch-base", 22_077_958_656),
        ("envy-switch-large", 78_386_454_528),
        ("envy-switch-xxl", 396_486_064_128),
    ],
)
def test_published_totals(model: str, total: int) -> None:
    report = make_report(ParameterRequest(None, model=model))
    assert (report.source_total, report.target_total, report.difference) == (total, total, 0)
    assert report.equivalent


def test_switch_base_reads_like_the_table() -> None:
    report = make_report(ParameterRequest(None, model="envy-switch-base"))
    rows = {row.targets[0].split("layers/")[-1]: row for row in report.rows}
    query = rows["layers_0/self_attention/query/kernel"]
    assert query.relation == (
        "query, key, value split 12 + 12 + 12 of 36 heads; layer axis moved (0 to 1); "
        "RoPE pairs re-ordered (interleaved to halves) on query and key"
    )
    assert query.target_shapes[0] == (1536, 6, 12, 128)
    assert rows["layers_1/MoeBlock_0/wi_0"].relation == "layer axis moved (0 to 1)"
    assert report.expert_total == 3 * 6 * 128 * 1536 * 6144
    assert report.active_total == report.source_total - report.expert_total + report.expert_total // 64


def test_a_source_of_another_size_is_refused_with_a_table() -> None:
    with pytest.raises(MappingError, match="not envy-test") as caught:
        make_report(ParameterRequest(SOURCE, model="envy-test"))
    assert caught.value.exit_code == 4
    assert any(line.split() == ["vocab", "32", "64"] for line in caught.value.details)


def test_the_markdown_has_every_leaf() -> None:
    report = make_report(ParameterRequest(SOURCE, options=frozenset({"untie"})))
    console = Console(file=io.StringIO(), width=40)
    print_markdown(report, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(f"`{path}`" in text for row in report.rows for path in (*row.sources, *row.targets))
    assert report.added_total == 2_048
