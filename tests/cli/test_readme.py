"""The documents are true: commands print what is shown, exist with their options, and links lead somewhere."""

import re
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest
import typer.main

from converter.cli.app import app
from tests.conftest import AXLEARN, Cli
from tests.helpers.axlearn_checkpoint import write_checkpoint
from tests.helpers.conversion import run

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "BENCHMARKS.md", *sorted((ROOT / "docs").glob("*.md"))]
GOLDEN = "tests/data/axlearn/micro-hybrid-qkpair"
TRAINED = "tests/data/training/micro-envy/axlearn"

FIGURES = re.compile(r"\d[\d.,]*(e[-+]\d+)?( (B|KiB|MiB|s)\b)?")
"""Sizes and times depend on the machine and on the length of its paths, rounding on its processor."""

EXACT = ("parameters", "difference", "leaves", "left behind")
"""Lines that start with these are the same everywhere."""


def examples(page: Path) -> list[tuple[str, list[str]]]:
    """Each `$ ax2mt ...` of a page, with the lines that it is shown to print."""
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"^```\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *lines = part.rstrip().splitlines()
            found.append((command, [line.rstrip() for line in lines]))
    return found


def masked(line: str) -> str:
    return line if line.strip().startswith(EXACT) else FIGURES.sub("N", re.sub(r" +", " ", line))


def assert_shown(printed: list[str], wanted: list[str]) -> None:
    """What is printed is what is shown, where a line `...` stands for any lines."""
    pattern = "\n".join(r"[\s\S]*" if line == "..." else re.escape(masked(line)) for line in wanted)
    text = "\n".join(masked(line.rstrip()) for line in printed)
    found = re.fullmatch(pattern.replace("\n[\\s\\S]*", r"[\s\S]*"), text)
    assert found is not None, "\n".join(["printed:", *printed, "shown:", *wanted])


@pytest.mark.parametrize("page", [page for page in PAGES if examples(page)], ids=lambda page: page.name)
def test_commands_print_what_a_page_shows(page: Path, cli: Cli, in_process: Cli, tmp_path: Path) -> None:
    run_command = cli if page.name == "README.md" else in_process
    shutil.copytree(AXLEARN / Path(GOLDEN).name, tmp_path / GOLDEN)
    shutil.copytree(ROOT / TRAINED, tmp_path / TRAINED)
    shutil.copytree(ROOT / "mappings", tmp_path / "mappings")
    for command, wanted in examples(page):
        program, *arguments = command.split()
        assert program == "ax2mt"
        done = run_command(*arguments, cwd=tmp_path)
        assert done.code == 0, (command, done.err)
        assert_shown(done.out.replace(f"{tmp_path}/", "").splitlines(), wanted)


def test_lines_that_are_not_printed_are_found() -> None:
    assert_shown(["parameters 12", "took 1.2 s", "more"], ["parameters 12", "took 3 s", "..."])
    for wanted in (["parameters 13", "..."], ["parameters 12", "more"], ["parameters 12", "lasted 3 s", "more"]):
        with pytest.raises(AssertionError):
            assert_shown(["parameters 12", "took 1.2 s", "more"], wanted)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_options_exist(page: Path) -> None:
    root = typer.main.get_command(app)
    for words in re.findall(r"ax2mt ([a-z]+[^`\n#|>]*)", page.read_text()):
        first, *rest = words.partition(" -- ")[0].split()
        command = root.commands.get(first)  # pyright: ignore[reportAttributeAccessIssue]
        if command is None:
            assert not any(word.startswith("--") for word in rest), (page.name, words)
            continue
        while rest and rest[0] in getattr(command, "commands", {}):
            command = command.commands[rest.pop(0)]
        known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
        given = {word.split("=")[0] for word in rest if re.match(r"-{1,2}[a-z]", word)}
        assert given <= known | {"--help"}, (page.name, words)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.is_file(), (page.name, link)
        assert not anchor or anchor in anchors(target), (page.name, link)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_of_the_project_exist(page: Path) -> None:
    for path in re.findall(r"`((?:converter|tests|mappings|benchmarks|docs)/[\w/.]+)`", page.read_text()):
        assert (ROOT / path).exists(), (page.name, path)


def test_the_stages_of_a_request_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    walk = page.split("## The way of a `convert` request")[1].split("\n## ")[0]
    names = re.findall(r"`((?:[a-z_]+\.)+\w+)`", walk)
    names = [name for name in names if not name.endswith(".py")]
    assert len(names) > 10
    for name in names:
        module, _, attribute = name.rpartition(".")
        path = ROOT / "converter" / module.replace(".", "/")
        if path.is_dir() or name.startswith("report."):
            assert (ROOT / "converter" / name.replace(".", "/")).with_suffix(".py").is_file(), name
        else:
            assert re.search(rf"^(def|class) {attribute}\b", path.with_suffix(".py").read_text(), re.MULTILINE), name


def test_the_family_of_the_guide_converts(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text().split("## Add a model family")[1].split("\n## ")[0]
    text = "\n".join(re.sub(r"^   ", "", block, flags=re.M) for block in re.findall(r"```toml\n(.*?)```", page, re.S))
    assert tomllib.loads(text)["name"] == "pebble"
    (tmp_path / "pebble.toml").write_text(text)
    embed, layers, heads, kv_heads, size, vocab = 8, 3, 4, 2, 6, 24
    stack = "model/decoder/stack/repeat/layer"
    shapes = {
        "model/decoder/emb/weight": (vocab, embed),
        f"{stack}/attn/q_proj/weight": (layers, embed, heads * size),
        f"{stack}/attn/kv_proj/weight": (layers, embed, 2 * kv_heads, size),
        "learner/mu/decoder/emb/weight": (vocab, embed),
    }
    random = np.random.default_rng(0)
    tensors = {path: random.standard_normal(shape).astype(np.float32) for path, shape in shapes.items()}
    step = write_checkpoint(tmp_path / "step_00000100", tensors)
    result = run(step, tmp_path / "out", mapping=str(tmp_path / "pebble.toml"))
    assert [leaf.shape for leaf in result.plan.leaves] == [
        (vocab, embed),
        (embed, layers, heads, size),
        (embed, layers, kv_heads, size),
        (embed, layers, kv_heads, size),
    ]
    config = {"base_num_query_heads": heads, "base_num_kv_heads": kv_heads, "head_dim": size, "vocab_size": vocab}
    assert result.plan.config.items() >= config.items()
