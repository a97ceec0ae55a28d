"""The parameter report of published models and of small checkpoints."""

import io
import itertools
from pathlib import Path

import pytest
from rich.console import Console

from converter.errors import MappingError
from converter.mapping.bundled import table_path
from converter.planning.parameters import make_report
from converter.report.verify import print_markdown

SOURCE = str(Path(__file__).parents[1] / "data" / "axlearn" / "micro-hybrid")
PLAIN = Path(__file__).parents[1] / "data" / "mappings" / "plain.toml"


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
    report = make_report(None, model=model)
    assert (report.source_total, report.target_total, report.difference) == (total, total, 0)
    assert report.equivalent


def test_switch_base_reads_like_the_table() -> None:
    report = make_report(None, model="envy-switch-base")
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
        make_report(SOURCE, model="envy-test")
    assert caught.value.exit_code == 4
    assert any(line.split() == ["vocab", "32", "64"] for line in caught.value.details)


def test_the_markdown_has_every_leaf() -> None:
    report = make_report(SOURCE, options=frozenset({"untie"}))
    console = Console(file=io.StringIO(), width=40)
    print_markdown(report, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(f"`{path}`" in text for row in report.rows for path in (*row.sources, *row.targets))
    assert report.added_total == 2_048


def relations(tmp_path: Path, *replacements: tuple[str, str]) -> dict[str, str]:
    """The words of the plain family's rows, by the end of their first MaxText path, after changes of its table."""
    text = PLAIN.read_text()
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "table.toml").write_text(text)
    report = make_report(None, model="plain-small", mapping=str(tmp_path / "table.toml"))
    return {"/".join(row.targets[0].split("/")[-2:]): row.relation for row in report.rows}


def test_words_come_from_roles_not_from_the_names_of_axes(tmp_path: Path) -> None:
    own_names = relations(
        tmp_path, ("pair", "half"), ("kv_heads", "groups"), ("heads", "q"), ("base_num_query_q", "base_num_query_heads")
    )
    assert own_names["query/kernel"] == (
        "query, key, value split 4 + 2 + 2 of 8 heads; layer axis moved (0 to 1); "
        "RoPE pairs re-ordered (interleaved to halves) on query and key"
    )
    assert own_names["out/kernel"] == (
        "layer axis moved (0 to 1); axes re-ordered (embed, q, head dim to q, head dim, embed)"
    )


def test_words_without_roles_say_only_what_the_axes_say(tmp_path: Path) -> None:
    plain = relations(tmp_path, ('role = ["query", "key", "value"]\n', ""), ('role = "out"\n', ""))
    assert plain["query/kernel"] == (
        "split 4 + 2 + 2 (query, key, value); layer axis moved (0 to 1); re-ordered inside an axis on query and key"
    )
    assert plain["out/kernel"].endswith("axes re-ordered (embed, heads, pair 2 to heads, pair 2, embed)")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("mlp embed -> mlp embed", "(half 2) embed -> (2 half) embed", "re-ordered inside an axis"),
        ("mlp embed -> mlp embed", "(a 5 2) embed -> (5 a 2) embed", "re-ordered inside an axis"),
        ('role = "wo"', 'role = "wo"\nscale = 0.5', "values times 0.5"),
        ('role = "wo"', 'role = "wo"\nscale = { size = "mlp", power = 2 }', "values times 400"),
    ],
)
def test_rows_say_what_they_do(old: str, new: str, words: str, tmp_path: Path) -> None:
    sizes = ("mlp = 20, vocab", "mlp = 20, half = 10, a = 2, vocab")
    assert relations(tmp_path, (old, new), sizes)["wo/kernel"] == f"layer axis moved (0 to 1); {words}"


def test_a_regrouped_tensor_is_not_identical(tmp_path: Path) -> None:
    found = relations(tmp_path, ('role = "wo"\n', ""), ("mlp embed -> mlp embed", "mlp embed -> (mlp embed)"))
    assert found["wo/kernel"] == "layer axis moved (0 to 1); dimensions merged (mlp, embed to mlp embed)"


def test_groups_keep_together_in_the_order_of_the_table(tmp_path: Path) -> None:
    def groups(text: str) -> list[str]:
        (tmp_path / "table.toml").write_text(text)
        rows = make_report(None, model="plain-small", mapping=str(tmp_path / "table.toml")).rows
        return [group for group, _ in itertools.groupby(row.group for row in rows)]

    plain = PLAIN.read_text()
    assert groups(plain) == ["embedding", "other", "norm", "attention", "dense ffn"]
    assert groups('groups = ["norm", "attention"]\n' + plain) == [
        "norm",
        "attention",
        "embedding",
        "other",
        "dense ffn",
    ]


def test_experts_are_counted_by_their_roles(tmp_path: Path) -> None:
    """Whatever the table calls the axis; a router has one vector for each expert and is not a part of it."""
    text = Path(table_path("envy")).read_text().replace("experts ", "specialists ").replace(" experts", " specialists")
    (tmp_path / "table.toml").write_text(text.replace('at_most = "experts"', 'at_most = "specialists"').replace(
        '{ size = "experts"', '{ size = "specialists"'))  # fmt: skip
    found, wanted = (
        make_report(None, model="envy-switch-base", mapping=mapping) for mapping in (str(tmp_path / "table.toml"), None)
    )
    assert (found.experts, found.expert_total, found.active_total) == (128, wanted.expert_total, wanted.active_total)
