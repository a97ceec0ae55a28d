"""What commands print under --json fits the published schemas."""

import json
from pathlib import Path

import jsonschema
import pytest

from converter.cli.app import run
from converter.report.schemas import SCHEMAS

DATA = Path(__file__).parents[1] / "data"
SOURCE = str(DATA / "axlearn" / "micro-hybrid-qkpair")
GOLDEN = str(DATA / "maxtext" / "micro-hybrid-qkpair" / "scanned-untied")


@pytest.mark.parametrize(
    ("name", "arguments", "code"),
    [
        ("verify", ["verify", SOURCE, GOLDEN, "-q"], 0),
        ("verify", ["verify", str(DATA / "axlearn" / "micro-hybrid"), GOLDEN, "-q"], 6),
        ("params", ["params", SOURCE, GOLDEN], 0),
        ("params", ["params", "--model", "envy-switch-xxl"], 0),
        ("inspect", ["inspect", GOLDEN], 0),
        ("inspect", ["inspect", "/nothing"], 0),
        ("plan", ["plan", SOURCE, "--untie"], 0),
        ("mappings list", ["mappings", "list"], 0),
        ("mappings show", ["mappings", "show", "envy"], 0),
        ("mappings check", ["mappings", "check", str(DATA.parents[1] / "mappings" / "envy.toml")], 0),
        ("error", ["verify", GOLDEN, "-q"], 6),
        ("error", ["params", "--model", "unknown"], 4),
        ("error", ["params"], 2),
    ],
)
def test_documents(capsys: pytest.CaptureFixture[str], name: str, arguments: list[str], code: int) -> None:
    assert run([*arguments, "--json"]) == code
    jsonschema.validate(json.loads(capsys.readouterr().out), SCHEMAS[name])


@pytest.mark.parametrize("source", ["micro-hybrid", "micro-hybrid-qkpair"])
def test_a_conversion(capsys: pytest.CaptureFixture[str], tmp_path: Path, source: str) -> None:
    assert run(["convert", str(DATA / "axlearn" / source), str(tmp_path / "out"), "-q", "--untie", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, SCHEMAS["convert"])
    assert document["fidelity"]["exact_logits"] == (source == "micro-hybrid-qkpair")
