"""What commands print under --json fits the published schemas, and docs/json.md describes the same fields."""

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import pytest

from converter.cli.app import run
from converter.json_text import json_text
from converter.report.documents import DOCUMENTS
from converter.report.fields import NUMBER, Field, Record, document, items, optional
from converter.report.json_page import filled

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
        ("status", ["status", GOLDEN], 0),
        ("plan", ["plan", SOURCE, "--untie"], 0),
        ("mappings list", ["mappings", "list"], 0),
        ("mappings show", ["mappings", "show", "envy"], 0),
        ("mappings check", ["mappings", "check", str(DATA.parents[1] / "mappings" / "envy.toml")], 0),
        ("logits", ["logits", SOURCE], 0),
        ("verify --logits", ["verify", SOURCE, GOLDEN, "--logits"], 0),
        ("verify --logits", ["verify", str(DATA / "axlearn" / "micro-hybrid"), GOLDEN, "--logits"], 6),
        ("report", ["report", str(DATA / "axlearn" / "micro-hybrid"), GOLDEN, "--logits"], 6),
        ("error", ["verify", GOLDEN, "-q"], 6),
        ("error", ["params", "--model", "unknown"], 4),
        ("error", ["params"], 2),
    ],
)
def test_documents(capsys: pytest.CaptureFixture[str], name: str, arguments: list[str], code: int) -> None:
    assert run([*arguments, "--json"]) == code
    jsonschema.validate(json.loads(capsys.readouterr().out), DOCUMENTS[name].schema)


@pytest.mark.parametrize("source", ["micro-hybrid", "micro-hybrid-qkpair"])
def test_a_conversion(capsys: pytest.CaptureFixture[str], tmp_path: Path, source: str) -> None:
    assert run(["convert", str(DATA / "axlearn" / source), str(tmp_path / "out"), "-q", "--untie", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, DOCUMENTS["convert"].schema)
    assert document["fidelity"]["exact_logits"] == (source == "micro-hybrid-qkpair")


def test_the_page_has_the_fields_of_every_document() -> None:
    page = (DATA.parents[1] / "docs" / "json.md").read_text()
    assert filled(page) == page, "docs/json.md is not up to date: run `make docs`"
    assert set(re.findall("<!-- fields of (.*) -->", page)) == set(DOCUMENTS)


NUMBERS = Record("numbers", (Field("numbers", items(NUMBER), "any"), Field("none", optional(NUMBER), "may be null")))


@pytest.mark.parametrize(("value", "written"), [(math.inf, "inf"), (-math.inf, "-inf"), (math.nan, "nan"), (0.5, 0.5)])
def test_infinity_is_one_thing(value: float, written: object) -> None:
    made = SimpleNamespace(numbers=[value], none=value)
    found = json.loads(json_text(document(NUMBERS, made)))
    assert (found["numbers"], found["none"]) == ([written], written)
    jsonschema.validate(found, NUMBERS.schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**found, "numbers": ["infinite"]}, NUMBERS.schema)


def test_a_schema_refuses_what_is_missing_and_what_is_not_described() -> None:
    whole = {"schema_version": 1, "error": {"kind": "usage", "exit_code": 2, "message": "no", "details": []}}
    schema = DOCUMENTS["error"].schema
    jsonschema.validate(whole, schema)
    for broken in ({**whole, "more": 1}, {**whole, "schema_version": 2}, {"error": whole["error"]}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(broken, schema)
