"""The page of a report in a real browser: what it shows and asks for, hostile names, long tables, paper."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from converter import gather_evidence
from converter.evidence import ConfigKey, Evidence
from converter.planning import ParameterRow, make_report
from converter.report.page import html_page
from converter.verification import Finding
from tests.conftest import AXLEARN
from tests.helpers.browser import Browser, browser

__all__ = ["browser"]

HOSTILE = (
    "<script>window.owned = 1</script>",
    '"><img src=x onerror="window.owned = 1">',
    "</style></script></title><b id=owned>",
    "{{ 7 * 7 }}{% raw %}",
    "javascript:window.owned=1 ' onclick=window.owned=1 `",
    "x" * 5000,
    "\u202egnp.\x1b[31m\x00\udce9",
)
SMUGGLED = """async () => {
  const script = document.createElement("script");
  script.textContent = "window.owned = 1";
  document.body.append(script);
  await fetch("https://example.org/").catch(() => 0);
}"""
CONTRAST = """(selectors) => {
  const light = (text) => {
    const [red, green, blue] = text.match(/[\\d.]+/g).map(Number).map((value) => {
      const share = value / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const paper = light(getComputedStyle(document.body).backgroundColor);
  return selectors.map(([selector, name]) => {
    const own = light(getComputedStyle(document.querySelector(selector))[name]);
    return (Math.max(own, paper) + 0.05) / (Math.min(own, paper) + 0.05);
  });
}"""


@pytest.fixture(scope="module")
def evidence(converted: Callable[..., Path]) -> Evidence:
    """Of a checkpoint whose logits are not AXLearn's, for two reasons."""
    return gather_evidence(AXLEARN / "micro-hybrid", converted("micro-hybrid"), logits=True)


@pytest.fixture(scope="module")
def page(evidence: Evidence, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(evidence, tmp_path_factory.mktemp("page"))


def written(evidence: Evidence, place: Path) -> Path:
    file = place / "report.html"
    file.write_text(html_page(evidence), encoding="utf-8")
    return file


def with_rows(evidence: Evidence, rows: list[ParameterRow]) -> Evidence:
    return dataclasses.replace(evidence, parameters=dataclasses.replace(evidence.parameters, rows=tuple(rows)))


def test_it_asks_for_nothing_and_says_nothing(browser: Browser, page: Path) -> None:
    with browser.visit(page) as visit:
        assert visit.page.locator("h1").inner_text().split() == ["✕", "Equal", "weights,", "different", "logits"]
        visit.page.locator("#parameter-search").fill("norm")
        assert (visit.requests, visit.messages) == ([], [])
        assert visit.page.evaluate("document.querySelectorAll('[style]').length") == 0
        attributes = visit.page.evaluate("[...document.querySelectorAll('*')].flatMap((e) => e.getAttributeNames())")
        assert not [name for name in attributes if name.startswith("on")]
        # What somebody smuggled in would not run, and would reach nobody.
        visit.page.evaluate(SMUGGLED)
        assert visit.page.evaluate("window.owned") is None
        assert visit.requests == []
        assert {"script-src", "connect-src"} <= {
            word for text in visit.messages for word in re.findall("[a-z-]+-src", text)
        }


def test_the_order_of_the_page(browser: Browser, page: Path, evidence: Evidence) -> None:
    with browser.visit(page) as visit:
        text = visit.page.locator("body").inner_text()
        assert "The logits are beyond the limits: kl_max is" in visit.page.locator(".lead").inner_text()
        headings = visit.page.locator("h2").all_inner_texts()
        assert headings == [
            "Parts of the model", "Parameters", "q/k norm scales inside rotated pairs", "Logits", "maxtext.yml",
            "Digests", "Reproduce", "Notes",
        ]  # fmt: skip
        for anchor in visit.page.locator("nav a").all():
            assert visit.count(str(anchor.get_attribute("href"))) == 1
        for command in evidence.commands:
            assert command.line in text
        visit.page.locator("summary", has_text="Digests of 27 leaves").click()
        assert evidence.receipt.leaves[0].xxh3 in visit.page.locator("#digests").inner_text()
        states = [proof.get_attribute("class") for proof in visit.page.locator(".proofs > li").all()]
        assert states == ["passed", "passed", "failed", "caution"]


def test_the_search(browser: Browser, page: Path, evidence: Evidence) -> None:
    rows = evidence.parameters.rows
    with browser.visit(page) as visit:
        box, told = visit.page.locator("#parameter-search"), visit.page.locator("#parameter-count")

        def found(text: str) -> tuple[int, str]:
            box.fill(text)
            return visit.count("#parameter-table tbody tr:not(.group):visible"), told.inner_text()

        assert visit.count("#parameter-table tbody tr:not(.group)") == len(rows) == 23
        assert found("LAYERS_1 query_norm") == (1, "1 of 23 rows")
        assert visit.page.locator("#parameter-table .group:visible th").all_inner_texts() == ["attention"]
        assert found("rope pairs") == (sum("RoPE pairs" in row.relation for row in rows), "6 of 23 rows")
        assert found("2 x 4 x 32 x 48") == (2, "2 of 23 rows")
        assert found("2x4x32x48") == (2, "2 of 23 rows")
        assert found("nothing is named like this") == (0, "0 of 23 rows")
        assert found(" ") == (23, "")
        visit.page.locator("#key-search").fill("solved")
        assert visit.page.locator("#key-count").inner_text() == f"10 of {len(evidence.configuration)} rows"


def test_the_plots(browser: Browser, page: Path, evidence: Evidence) -> None:
    assert evidence.logits is not None
    buckets, steps = len(evidence.logits.buckets), len(evidence.logits.steps)
    assert (buckets, steps) == (5, 2)
    with browser.visit(page) as visit:
        assert visit.count(".plot-pairs circle") == 3 * 4
        assert [visit.count(f".plot-{name} circle") for name in ("distance", "divergence", "agreement")] == [10, 10, 5]
        assert visit.count(".plot-causes rect") == steps + 2
        # All, active per token, and five parts; three of these bars have experts and others.
        assert visit.count(".plot-parameters rect.mark") == 7 + 3
        for plot in visit.page.locator("svg.plot").all():
            names = str(plot.get_attribute("aria-labelledby")).split()
            assert (plot.get_attribute("role"), len(names)) == ("img", 2)
            assert all(visit.page.locator(f"#{name}").text_content() for name in names)
        dots = visit.page.locator(".plot-pairs circle.first").all()
        heights = [float(str(dot.get_attribute("cy"))) for dot in dots]
        products = [entry.product for entry in evidence.mismatches]
        assert sorted(range(4), key=lambda n: -heights[n]) == sorted(range(4), key=lambda n: products[n])
        assert str(dots[3].text_content()).strip() == f"layer 3, query × key: {products[3]:.3g}"
        bars = visit.page.locator(".plot-causes rect").all()
        ends = [(float(str(bar.get_attribute("x"))), float(str(bar.get_attribute("width")))) for bar in bars]
        assert ends[1][0] == pytest.approx(ends[2][0] + ends[2][1])  # each begins where the one before it ends
        assert sum(ends[0]) == pytest.approx(sum(ends[1]))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(browser: Browser, page: Path, scheme: str) -> None:
    texts = [(selector, "color") for selector in (".lead", ".kicker", "nav a", "h1", ".caution .mark", "td code span")]
    marks = [(f".plot :is(rect, circle).{name}", "fill") for name in ("first", "second", "third", "total")]
    with browser.visit(page, scheme=scheme) as visit:
        assert min(visit.page.evaluate(CONTRAST, texts)) >= 4.5
        assert min(visit.page.evaluate(CONTRAST, marks)) >= 3
        assert (visit.page.evaluate(CONTRAST, [("body", "backgroundColor")])) == [1]


def test_400_pixels(browser: Browser, page: Path) -> None:
    with browser.visit(page, width=400) as visit:
        assert visit.page.evaluate("document.documentElement.scrollWidth") == 400
        box = visit.page.locator(".scroll", has=visit.page.locator("#parameter-table"))
        assert box.evaluate("(e) => e.scrollWidth > e.clientWidth && e.clientWidth <= 400")


def test_paper(browser: Browser, page: Path) -> None:
    width = round((210 - 28) / 25.4 * 96)
    with browser.visit(page, width=width, scheme="dark") as visit:
        document = visit.page.pdf(prefer_css_page_size=True)
        assert document.startswith(b"%PDF")
        sizes = re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", document)
        assert len(sizes) > 3
        assert {(round(float(w)), round(float(h))) for w, h in sizes} == {(595, 842)}
        visit.page.emulate_media(media="print")
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
        assert visit.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert not visit.page.locator("nav").is_visible()
        assert not visit.page.locator(".search").first.is_visible()


def test_what_is_folded_is_printed(browser: Browser, page: Path) -> None:
    is_open = "[...document.querySelectorAll('details')].map((e) => e.open)"
    with browser.visit(page) as visit:
        visit.page.locator("details.printed > summary").click()
        assert visit.page.evaluate(is_open) == [False, False, False]
        visit.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert visit.page.evaluate(is_open) == [True, False, False]
        visit.page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert visit.page.evaluate(is_open) == [False, False, False]


def test_hostile_names(browser: Browser, evidence: Evidence, tmp_path: Path) -> None:
    row = evidence.parameters.rows[0]
    rows = [dataclasses.replace(row, group=name, sources=(name,), targets=(name,), relation=name) for name in HOSTILE]
    findings = tuple(Finding("values", name, name, 1, (0,), name, name, name) for name in HOSTILE)
    hostile = dataclasses.replace(
        with_rows(evidence, rows),
        source=HOSTILE[1],
        destination=HOSTILE[0],
        bits=dataclasses.replace(evidence.bits, findings=findings, notes=HOSTILE),
        configuration=tuple(ConfigKey(name=name, value=name, origin=name, problem=name) for name in HOSTILE),
        commands=tuple(dataclasses.replace(evidence.commands[0], purpose=name, line=name) for name in HOSTILE),
        logits_problem=HOSTILE[2],
    )
    with browser.visit(written(hostile, tmp_path), width=400) as visit:
        assert (visit.requests, visit.messages) == ([], [])
        assert visit.page.evaluate("window.owned") is None
        assert (visit.count("img"), visit.count("#owned"), visit.count("script")) == (0, 0, 1)
        assert visit.page.evaluate("document.documentElement.scrollWidth") == 400
        cells = visit.page.locator("#parameter-table tr:not(.group) td:first-child code").all_text_contents()
        assert cells == [*HOSTILE[:-1], r"\u202egnp.\x1b[31m\x00\udce9"]
        assert visit.page.locator("#parameter-table .group th").all_text_contents() == cells
        visit.page.locator("#parameter-search").fill("<script>")
        assert visit.page.locator("#parameter-count").inner_text() == f"1 of {len(HOSTILE)} rows"


def test_ten_thousand_leaves(browser: Browser, evidence: Evidence, tmp_path: Path) -> None:
    row = evidence.parameters.rows[1]
    rows = [
        dataclasses.replace(row, sources=(f"{row.sources[0]}/{n}",), targets=(f"{row.targets[0]}/{n}",))
        for n in range(10_000)
    ]
    file = written(with_rows(evidence, rows), tmp_path)
    assert file.stat().st_size < 6 << 20
    with browser.visit(file) as visit:
        visit.page.locator("#parameter-search").fill("kernel/9999")
        assert visit.page.locator("#parameter-count").inner_text() == "1 of 10000 rows"
        assert visit.page.evaluate("document.querySelectorAll('#parameter-table tbody tr:not([hidden])').length") == 2
        assert visit.messages == []


@pytest.mark.parametrize("model", ["envy-switch-base", "fuji-405B-v3"])
def test_published_sizes_are_small_pages(evidence: Evidence, model: str) -> None:
    report = make_report(model=model)
    text = html_page(dataclasses.replace(evidence, parameters=report))
    assert f"{report.source_total:,}" in text
    assert len(text.encode()) < 150_000


def test_the_same_evidence_is_the_same_page(evidence: Evidence) -> None:
    assert html_page(evidence) == html_page(evidence)
