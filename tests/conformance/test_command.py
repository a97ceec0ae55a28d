"""The command: what it is given, what it says and how it ends. The frameworks are scripts."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from converter.conformance.subjects import published_subject
from converter.mapping import load_bundled
from converter.report.documents import DOCUMENTS
from tests.conformance.conftest import Framework
from tests.conftest import AXLEARN, MAXTEXT, Cli

TABLES = json.loads((AXLEARN / "param_tables.json").read_text())
"""AXLearn's own parameters of Envy, as the real AXLearn made them."""

TREES = json.loads((MAXTEXT / "param_tables.json").read_text())
"""MaxText's own trees, as the real MaxText makes them of its published model files."""

MODEL = "envy-switch-base"


def axlearn_answer(name: str) -> dict[str, Any]:
    leaves = [
        {"path": f"model/{path}", "shape": shape, "dtype": dtype, "axes": []}
        for path, (shape, dtype) in TABLES[name]["table"].items()
    ]
    return {"python": "3.12.1", "version": "", "peak_memory": 1, "leaves": leaves, "lines": ""}


def maxtext_answer() -> dict[str, Any]:
    """The trees are MaxText's own; flags are as the weights need them."""
    subject = published_subject(load_bundled(), MODEL, options=(), settings=())
    models: dict[str, Any] = {}
    for layout, scan in (("scanned", True), ("unscanned", False)):
        values = {**subject.table.conformance.defaults, **subject.configuration(layout).keys}
        models[f"0 {layout}"] = {
            "leaves": [
                {"path": path.removeprefix("params.params.").replace(".", "/"), "shape": shape, "dtype": dtype,
                 "axes": ["x"] * len(shape)}
                for path, shape, dtype, _ in TREES[f"{MODEL} scan={scan}"]["leaves"]
            ],
            "values": values, "unknown": [], "problem": "",
        }  # fmt: skip
    published = {MODEL: {**models["0 scanned"]["values"], "num_experts_per_tok": 1}}
    return {"python": "3.12.1", "version": "0.2.5", "peak_memory": 5 << 20, "models": models, "published": published}


@pytest.mark.parametrize("name", TABLES)
def test_axlearn_of_every_size_of_envy(name: str, cli: Cli, framework: Framework) -> None:
    done = cli("conform", "--axlearn", framework(axlearn_answer(name)), "--config", name, "--json")
    assert done.code == 0, done.out
    jsonschema.validate(done.document, DOCUMENTS["conform"].schema)
    (model,) = done.document["models"]
    assert (model["framework"], model["model"], model["differences"]) == ("AXLearn", name.lower(), 0)
    assert len(model["leaves"]) == TABLES[name]["n_arrays"]


def test_a_renamed_parameter_of_axlearn(cli: Cli, framework: Framework) -> None:
    answer = axlearn_answer("envy-test")
    answer["leaves"][0]["path"] = "model/decoder/emb/token_emb/table"
    done = cli("conform", "--axlearn", framework(answer), "--config", "envy-test")
    assert done.code == 6
    assert "FAILED: 2 differences in 22 leaves" in done.out
    assert "model/decoder/emb/token_emb/weight  AXLearn envy-test  missing in the framework  32 x 8 float32" in done.out


def test_a_configuration_that_is_no_published_size(cli: Cli, framework: Framework) -> None:
    answer = axlearn_answer("envy-test")
    done = cli("conform", "--axlearn", framework(answer), "--config", "my.trainer:mine", "--json")
    assert (done.code, done.document["models"][0]["model"]) == (0, "mine")
    answer["leaves"].pop()
    assert cli("conform", "--axlearn", framework(answer), "--config", "mine").code == 4


def test_maxtext_of_a_published_size(cli: Cli, framework: Framework, tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    done = cli("conform", "--model", MODEL, "--maxtext", framework(maxtext_answer()), "--junit", junit)
    assert (done.code, done.err) == (0, "")
    assert "MaxText 0.2.5 (Python 3.12.1, " in done.out
    assert "checked before: envy with 0.2.5" in done.out
    assert "MaxText's envy-switch-base.yml is not what the weights of envy-switch-base need" in done.out
    assert "MaxText sends each token to this many experts, AXLearn to two" in done.out
    assert "OK: 0 differences in 179 leaves" in done.out
    (flags,) = re.findall(r"leaves and (\d+) flags of 2 trees", done.out)
    assert junit.read_text().count("<testcase") == 179 + int(flags)


def test_differences_of_maxtext_in_each_form(cli: Cli, framework: Framework) -> None:
    answer = maxtext_answer()
    answer["models"]["0 scanned"]["leaves"][0]["dtype"] = "int8"
    answer["models"]["0 unscanned"].update(leaves=[], values={}, problem="ValueError: <b>no</b> | such\x1b[31m")
    answer["version"] = "0.3.0"
    python = framework(answer)
    text = cli("conform", "--model", MODEL, "--maxtext", python)
    assert text.code == 6
    assert "ValueError: <b>no</b> | such\\x1b[31m" in text.out
    assert "note: MaxText 0.3.0 is not among the versions that envy were checked with: 0.2.5" in text.out
    markdown = cli("conform", "--model", MODEL, "--maxtext", python, "--markdown")
    assert markdown.code == 6
    assert markdown.out.startswith("## FAILED: 2 differences in 27 leaves")
    assert "ValueError: &lt;b&gt;no&lt;/b&gt; \\| such\\x1b[31m" in markdown.out
    document = cli("conform", "--model", MODEL, "--maxtext", python, "--json")
    jsonschema.validate(document.document, DOCUMENTS["conform"].schema)
    assert (document.document["ok"], document.document["differences"]) == (False, 2)
    quiet = cli("conform", "--model", MODEL, "--maxtext", python, "-q")
    assert (quiet.code, quiet.out) == (6, "")
    assert quiet.err == "ax2mt: conform: 2 differences from the installed frameworks\n"


def test_a_checkpoint(cli: Cli, framework: Framework) -> None:
    """Its own tensors are compared, with what a named size or its trainer_config says."""
    answer = axlearn_answer("envy-test")
    python = framework(answer)
    source = AXLEARN / "envy-test"
    assert cli("conform", source, "--axlearn", python, "--config", "envy-test").code == 0
    other = cli("conform", AXLEARN / "micro-hybrid", "--axlearn", python, "--config", "envy-test")
    assert other.code == 6
    assert "other shape" in other.out
    assert cli("conform", source, "--model", MODEL, "--axlearn", python, "--config", "envy-test").code == 4
    bf16 = cli("conform", AXLEARN / "envy-test-bf16", "--axlearn", python, "--config", "envy-test", "--json")
    assert bf16.code == 0, bf16.out
    assert {leaf["expected"]["dtype"] for leaf in bf16.document["models"][0]["leaves"]} == {"bfloat16"}


PYTHON = sys.executable


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "expected --maxtext PYTHON, --axlearn PYTHON, or both"),
        (["--model", MODEL], "expected --maxtext PYTHON, --axlearn PYTHON, or both"),
        (["--axlearn", PYTHON], "--axlearn PYTHON and --config NAME need each other"),
        (["--maxtext", PYTHON, "--config", "x"], "--axlearn PYTHON and --config NAME need each other"),
        (["--maxtext", PYTHON, "--step", "3"], "--step needs a source"),
        (["--axlearn", PYTHON, "--config", "x", "--untie"], "need --maxtext"),
        (["--axlearn", PYTHON, "--config", "x", "--option", "untie"], "need --maxtext"),
        (["--axlearn", PYTHON, "--config", "x", "--set", "rope_max_timescale=1"], "need --maxtext"),
        (["--axlearn", PYTHON, "--config", "x", "--layout", "scanned"], "need --maxtext"),
        (["--axlearn", PYTHON, "--config", "x:"], "--config x:: expected NAME, MODULE:NAME or FILE.py:NAME"),
        (["--maxtext", ""], "empty path of a Python"),
        (["--maxtext", "/nothing/python"], "--maxtext /nothing/python: cannot be started: No such file or directory"),
        (["--maxtext", PYTHON, "--markdown", "--json"], "--markdown and --json exclude each other"),
        (["--maxtext", PYTHON, "--model", MODEL], "No module named 'maxtext'"),
        (["--axlearn", PYTHON, "--config", "x"], "No module named 'axlearn'"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked(words: list[str], message: str, cli: Cli) -> None:
    done = cli("conform", *words)
    assert (done.code, message in done.out + done.err) == (2, True), done


def test_an_unknown_model_or_option(cli: Cli) -> None:
    assert cli("conform", "--model", "envy-huge", "--maxtext", PYTHON).code == 4
    assert cli("conform", "--maxtext", PYTHON, "--option", "nonsense").code == 4


@pytest.mark.parametrize(
    ("answer", "code", "message"),
    [
        ("", 0, "the answer is not JSON: b''"),
        ("[" * 100_000, 0, "the answer is not JSON"),
        ([1], 0, "the answer is not a JSON object"),
        ({"version": 3}, 0, "the answer is not valid: "),
        ({"python": "3", "version": "1", "peak_memory": 1, "models": {}, "published": {}}, 0, "other models"),
        ({}, 3, "the framework ended the process with exit code 3"),
    ],
)
def test_answers_of_another_form(answer: Any, code: int, message: str, cli: Cli, framework: Framework) -> None:
    done = cli("conform", "--model", MODEL, "--maxtext", framework(answer, code))
    assert (done.code, message in done.err) == (6, True), done
    assert ("a message" in done.err) == (code != 0)


def fake_axlearn(directory: Path, trainer: str) -> None:
    """An AXLearn that has nothing but one module of configurations."""
    for package in ("axlearn", "axlearn/common", "axlearn/experiments"):
        (directory / package).mkdir(parents=True, exist_ok=True)
        (directory / package / "__init__.py").touch()
    (directory / "axlearn" / "common" / "utils.py").write_text("def flatten_items(tree): return tree\n")
    (directory / "axlearn" / "experiments" / "old.py").write_text(trainer)


@pytest.mark.parametrize(
    ("config", "trainer", "code", "message"),
    [
        ("old:envy-test", "def named_trainer_configs(): return {'fuji': None}", 2,
         "no configuration 'envy-test' in old (1 configurations) of this AXLearn"),
        ("older:envy-test", "", 2, "No module named 'axlearn.experiments.older'"),
        ("missing.py:envy-test", "", 2, "missing.py: no such file"),
        ("old:envy-test", "import nothing_like_it", 2, "No module named 'nothing_like_it'"),
        ("old:envy-test", "raise SystemExit(9)", 6, "exit code 9"),
        ("old:envy-test", "raise ValueError('no TPU')", 6, "ValueError: no TPU"),
    ],
)  # fmt: skip
def test_an_axlearn_without_the_configuration(
    config: str, trainer: str, code: int, message: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_axlearn(tmp_path, trainer)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = cli("conform", "--axlearn", PYTHON, "--config", config)
    assert (done.code, message in done.err) == (code, True), done
