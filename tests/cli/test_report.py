"""The command `report`: its file, its exit codes, what it refuses, and its forms of output."""

import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from converter.errors import DestinationError
from converter.report.documents import DOCUMENTS
from converter.report.markdown import code, table, words
from tests.conftest import AXLEARN, MAXTEXT, Cli

SOURCE = AXLEARN / "micro-hybrid-qkpair"
GOLDEN = MAXTEXT / "micro-hybrid-qkpair" / "scanned-untied"


@pytest.fixture(scope="module")
def checkpoint(converted: Callable[..., Path]) -> Path:
    return converted("micro-hybrid-qkpair", untie=True)


def test_a_page_beside_markdown(checkpoint: Path, process: Cli, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("an older one")
    done = process("report", SOURCE, checkpoint, "--html", "page.html", "--markdown", cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    page = (tmp_path / "page.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert page.endswith("</html>")
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]
    assert done.out.startswith("## Equivalent\n\nEvery one of 63,200 elements is AXLearn's, bit for bit.\n")
    for text in ("### Parts of the model", "maxtext.yml, 37 keys", "Digests of 28 leaves", "### Reproduce"):
        assert text in done.out
    assert "| `params/params/token_embedder/embedding` | 64 x 32 | identical | 2,048 |" in done.out
    # Both verify what they show: the same counts, the same digests.
    digests = re.findall(r"`([0-9a-f]{32})`", done.out)
    assert len(digests) > 50
    assert all(digest in page for digest in digests)


def test_json_and_the_terminal(checkpoint: Path, in_process: Cli, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    document = in_process("report", SOURCE, checkpoint, "--html", file, "--json").document
    jsonschema.validate(document, DOCUMENTS["report"].schema)
    assert (document["passed"], document["html"], document["title"]) == (True, str(file), "Equivalent")
    assert (document["verify"]["ok"], document["params"]["equivalent"], document["logits"]) == (True, True, None)
    assert {entry["state"] for entry in document["proofs"]} == {"passed", "open"}
    done = in_process("report", SOURCE, checkpoint)
    assert done.out.splitlines()[-2:-1] == [f"{document['title']}: {document['summary']}"]
    assert "Nothing written (--html FILE, or --markdown)" in done.out
    assert in_process("report", SOURCE, checkpoint, "-q").out == ""


def test_a_checkpoint_that_fails_has_its_page(checkpoint: Path, in_process: Cli, tmp_path: Path) -> None:
    damaged, file = Path(shutil.copytree(checkpoint, tmp_path / "out")), tmp_path / "page.html"
    next(damaged.glob("0/items/*wo.kernel/zarr.json")).unlink()
    done = in_process("report", SOURCE, damaged, "--html", file, "-q")
    assert done.code == 6
    assert done.err.startswith(f"ax2mt: {damaged}: Not equivalent: ")
    assert "<title>Not equivalent: " in file.read_text()
    document = in_process("report", SOURCE, damaged, "--json")
    assert (document.code, document.document["passed"]) == (6, False)
    jsonschema.validate(document.document, DOCUMENTS["report"].schema)


def test_a_checkpoint_that_another_program_wrote(in_process: Cli, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    done = in_process("report", SOURCE, GOLDEN, "--html", file, "--json", "--logits", "--max-kl", 1)
    assert done.code == 0
    jsonschema.validate(done.document, DOCUMENTS["report"].schema)
    assert done.document["receipt"]["problem"] == "is missing"
    assert "ax2mt.json is missing." in file.read_text()
    assert done.document["logits"]["verdict"] == "equal"


def test_no_checkpoint_no_page(in_process: Cli, tmp_path: Path) -> None:
    for source, destination, code_ in ((SOURCE, tmp_path, 6), (tmp_path, GOLDEN, 3), (GOLDEN, SOURCE, 2)):
        file = tmp_path.parent / "none.html"
        done = in_process("report", source, destination, "--html", file)
        assert (done.code, file.exists()) == (code_, False), done.err


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nowhere/page.html", "there is no directory {place}/nowhere; make it first"),
        (".", "is a directory; expected the name of a file"),
        ("pipe", "is not a regular file; expected the name of a file"),
        ("out/page.html", "lies in the checkpoint {place}/out, where `verify` would find a foreign file"),
        ("link/page.html", "lies in the checkpoint {place}/out, where `verify` would find a foreign file"),
        ("", "empty path: expected a file or directory"),
    ],
)
def test_files_that_are_refused_before_any_work(
    name: str, why: str, in_process: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("converter.cli.report.call", lambda *_: pytest.fail("worked"))
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to("out")
    os.mkfifo(tmp_path / "pipe")
    done = in_process("report", SOURCE, tmp_path / "out", "--html", name, cwd=tmp_path)
    assert done.code == DestinationError.exit_code
    (line,) = done.err.splitlines()
    assert why.format(place=tmp_path) in line
    assert {file.name for file in tmp_path.iterdir()} == {"out", "link", "pipe"}


def test_a_full_disk_leaves_the_old_page(
    checkpoint: Path, in_process: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "page.html").write_text("an older one")
    monkeypatch.setattr("converter.cli.output_file.os.replace", full)
    done = in_process("report", SOURCE, checkpoint, "--html", tmp_path / "page.html")
    assert done.code == DestinationError.exit_code
    assert done.err == f"ax2mt: --html {tmp_path}/page.html: cannot be written: No space left on device\n"
    assert [file.read_text() for file in tmp_path.iterdir()] == ["an older one"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--markdown", "--json"], "--markdown and --json both print on stdout"),
        (["--tokens", "x"], "report: --tokens cannot be used without --logits"),
        (["--set", "a=1"], "report: --set cannot be used without --logits"),
        (["--norm-after-rope"], "report: --norm-after-rope cannot be used without --logits"),
        (["--no-explain"], "report: --explain cannot be used without --logits"),
        (["--max-kl", "0.0001"], "report: --max-kl cannot be used without --logits"),
        (["--max-difference", "1"], "report: --max-difference cannot be used without --logits"),
        (["--min-top1", "0"], "report: --min-top1 cannot be used without --logits"),
        (["--logits", "--max-memory", "16MiB"], "--max-memory 16.0 MiB is too small"),
        (["--logits", "--tokens", "nothing.jsonl"], "--tokens nothing.jsonl: cannot be read"),
        (["--logits", "--set", "nothing=1"], "--set nothing=1"),
        (["--sample", "2"], "--sample 2.0: expected a fraction"),
    ],
)
def test_options_that_are_refused(options: list[str], why: str, in_process: Cli, tmp_path: Path) -> None:
    done = in_process("report", SOURCE, GOLDEN, "--html", tmp_path / "page.html", *options)
    assert done.code == 2
    assert why in (done.document["error"]["message"] if "--json" in options else done.err)
    assert not list(tmp_path.iterdir())


def test_a_destination_alone_is_not_enough(in_process: Cli) -> None:
    done = in_process("report", GOLDEN)
    assert (done.code, done.err) == (2, "ax2mt: Missing argument 'DST'.\n")


@pytest.mark.parametrize("package", ["jinja2", "drawsvg"])
def test_without_the_extra(package: str, in_process: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("converter.report.page", "converter.report.plots"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "converter.report.drawing", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    done = in_process("report", SOURCE, GOLDEN, "--html", tmp_path / "page.html")
    assert done.code == 2
    assert done.err == f"ax2mt: --html needs {package}: pip install 'axlearn2maxtext[report]'\n"
    assert in_process("report", SOURCE, GOLDEN, "--markdown").code == 0


def test_markdown_of_hostile_values() -> None:
    assert code("a`b|c") == "``a`b\\|c``"
    assert code("`a\nb`") == "`` `a\\nb` ``"
    assert words("<img src=x> [a](b) | `code` \x1b") == "&lt;img src=x> \\[a\\](b) \\| `code` \\\\x1b"
    assert table(("a", "b"), [("1", "2")], right=("b",)) == ["| a | b |", "|---|---:|", "| 1 | 2 |", ""]
