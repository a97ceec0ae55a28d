"""Facts about the source that no tensor shows: what the user set for it is known to every later command."""

import json
import shutil
from pathlib import Path

import pytest

from tests.conftest import AXLEARN, Cli

EQUAL_PAIRS = AXLEARN / "micro-hybrid-qkpair"


def convert(cli: Cli, source: Path, target: Path, *options: str) -> Path:
    done = cli("convert", source, target, "--untie", "-q", *options)
    assert done.code == 0, done.err
    return target


@pytest.mark.parametrize("setting", ["rope_max_timescale=1000000", "num_experts_per_tok=1",
                                     "normalization_layer_epsilon=0.01"])  # fmt: skip
def test_no_advice_against_what_was_set_for_the_source(setting: str, cli: Cli, tmp_path: Path) -> None:
    out = convert(cli, EQUAL_PAIRS, tmp_path / "out", "--set", setting)
    compared = cli("verify", EQUAL_PAIRS, out, "--logits", "--json")
    assert (compared.code, compared.document["verdict"], compared.document["causes"]) == (0, "equal", [])
    assert compared.document["source"]["semantics_from"] == f"AXLearn's 'envy' with {setting}"
    assert cli("verify", EQUAL_PAIRS, out).code == 0
    # The yml can be lost or left behind: the step's own metadata says it too.
    (out / "maxtext.yml").unlink()
    assert cli("verify", EQUAL_PAIRS, out, "--logits", "--json").document["verdict"] == "equal"


def test_a_value_that_was_not_set_is_still_a_cause(cli: Cli, tmp_path: Path) -> None:
    out = convert(cli, EQUAL_PAIRS, tmp_path / "out")
    text = (out / "maxtext.yml").read_text()
    (out / "maxtext.yml").write_text(text.replace("rope_max_timescale: 500000", "rope_max_timescale: 1000000"))
    compared = cli("verify", EQUAL_PAIRS, out, "--logits", "--json")
    (cause,) = compared.document["causes"]
    assert compared.code == 6
    assert cause["name"] == "RoPE's base"
    assert cause["advice"] == (
        "set rope_max_timescale=500000 in maxtext.yml, as the source computes; if the source was trained with the "
        "other value, convert it with --set rope_max_timescale=VALUE"
    )
    assert cli("verify", EQUAL_PAIRS, out).code == 6


def test_logits_of_the_source_follow_the_settings(cli: Cli) -> None:
    found = [
        cli("logits", EQUAL_PAIRS, "--json", *options).document
        for options in ([], ["--set", "rope_max_timescale=500000"], ["--set", "rope_max_timescale=100"])
    ]
    assert [entry["model"]["semantics"]["theta"] for entry in found] == [500000, 500000, 100]
    assert found[0]["deviation"] == found[1]["deviation"] != found[2]["deviation"]


def test_the_fit_follows_the_settings(cli: Cli, tmp_path: Path) -> None:
    source = AXLEARN / "micro-hybrid"
    makes = {
        "table": [],
        "same": ["--set", "rope_max_timescale=500000"],
        "other": ["--set", "rope_max_timescale=10000"],
    }
    outs = {
        name: convert(cli, source, tmp_path / name, "--qk-norm", "fit", *options) for name, options in makes.items()
    }
    leaf = Path("0/items/params.params.decoder.layers.layers_0.self_attention.query_norm.scale")
    scales = {
        name: [p.read_bytes() for p in sorted((out / leaf).rglob("*")) if p.is_file()] for name, out in outs.items()
    }
    assert scales["table"] == scales["same"] != scales["other"]
    assert all(cli("verify", source, out).code == 0 for out in outs.values())
    # Without the record the values are those of another fit.
    shutil.copy(outs["table"] / "0" / "_CHECKPOINT_METADATA", outs["other"] / "0")
    assert cli("verify", source, outs["other"]).code == 6


def test_the_parameter_report_counts_the_experts_that_were_set(cli: Cli, tmp_path: Path) -> None:
    out = convert(cli, EQUAL_PAIRS, tmp_path / "out", "--set", "num_experts_per_tok=3")
    assert cli("params", EQUAL_PAIRS, "--json").document["experts_per_token"] == 2
    assert cli("params", EQUAL_PAIRS, out, "--json").document["experts_per_token"] == 3


def test_what_was_set_is_recorded(cli: Cli, tmp_path: Path) -> None:
    out = convert(cli, EQUAL_PAIRS, tmp_path / "out", "--set", "rope_max_timescale=500000")
    custom = (out / "0" / "_CHECKPOINT_METADATA").read_text()
    assert '"settings": {"rope_max_timescale": 500000}' in custom
    receipt = json.loads((out / "ax2mt.json").read_text())
    assert receipt["options"]["set"] == {"rope_max_timescale": 500000}
    assert receipt["config"]["model"]["rope_max_timescale"] == 500000
    assert receipt["config"]["training"]["tokenizer_type"] == "huggingface"
    assert (out / "maxtext.yml").read_text().splitlines()[3] == "# Set with --set: rope_max_timescale."
