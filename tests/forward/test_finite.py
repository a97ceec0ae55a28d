"""NaN and infinity in weights: which side has them, from where on, and documents that stay JSON."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converter.cli.app import run as cli
from converter.json_text import json_text
from tests.helpers.axlearn_checkpoint import SMALL, STACK, envy_tensors, write_checkpoint

ATTENTION = f"{STACK}/layer1/self_attention/attention"
SPOILED = {
    "embedding": ("model/decoder/emb/token_emb/weight", np.nan, "embedding", ["embedding"]),
    "attention": (f"{ATTENTION}/i_proj/i_proj/qkv_proj/weight", np.nan, "layer 1, attention", ["query"]),
    "scale": (f"{ATTENTION}/scale_key/norm/scale", -np.inf, "layer 1, attention", ["key_scale"]),
    "overflow": (f"{STACK}/layer0/feed_forward/linear2/weight", 1e38, "layer 0, feed-forward", []),
    "logits": ("model/decoder/output_norm/scale", np.inf, "logits", ["final_norm"]),
}


def refuse(text: str) -> None:
    raise AssertionError(f"{text} is no JSON")


def spoiled(place: Path, name: str, value: float) -> str:
    tensors = dict(envy_tensors(SMALL))
    tensors[name] = tensors[name].copy()
    tensors[name].reshape(-1)[0] = value
    return str(write_checkpoint(place / "step_00000100", tensors))


@pytest.fixture
def tokens(tmp_path: Path) -> str:
    file = tmp_path / "tokens.jsonl"
    file.write_text(f"{list(range(24))}\n{[5] * 8}\n")
    return str(file)


@pytest.mark.parametrize("kind", SPOILED)
def test_logits_say_from_where_on(kind: str, tmp_path: Path, tokens: str, capsys: Any) -> None:
    name, value, first, weights = SPOILED[kind]
    source, out = spoiled(tmp_path, name, value), tmp_path / "out.jsonl"
    assert cli(["logits", source, "--tokens", tokens, "--json", "--out", str(out)]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert (found["non_finite"]["first"], found["non_finite"]["weights"]) == (first, weights)
    rows = [json.loads(line, parse_constant=refuse)["logits"] for line in out.read_text().splitlines()]
    values = np.concatenate([np.asarray(row, np.float32) for row in rows])
    assert np.count_nonzero(~np.isfinite(values).all(axis=1)) == found["non_finite"]["tokens"] > 0


def test_finite_logits_say_nothing(tmp_path: Path, tokens: str, capsys: Any) -> None:
    source = str(write_checkpoint(tmp_path / "step_00000100", envy_tensors(SMALL)))
    assert cli(["logits", source, "--tokens", tokens, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["non_finite"] is None


def test_a_comparison_says_which_side(tmp_path: Path, tokens: str, capsys: Any) -> None:
    name, value, first, _ = SPOILED["attention"]
    good = str(write_checkpoint(tmp_path / "good/step_00000100", envy_tensors(SMALL)))
    bad = spoiled(tmp_path / "bad", name, value)
    for source in (good, bad):
        assert cli(["convert", source, f"{source}-out", "-q"]) == 0
    capsys.readouterr()
    cases = ((bad, ["AXLearn", "MaxText"], "the source itself"), (good, ["MaxText"], "only MaxText"))
    for source, sides, verdict in cases:
        command = ["verify", source, f"{bad}-out", "--logits", "--tokens", tokens]
        assert cli(command) == 6
        told = capsys.readouterr().out
        assert [line.split(": ")[1] for line in told.splitlines() if line.startswith("NOT FINITE")] == sides
        assert verdict in told
        assert first in told
        assert cli([*command, "--json"]) == 6
        document = json.loads(capsys.readouterr().out, parse_constant=refuse)
        assert document["verdict"] == "not finite"
        assert [document["non_finite"][side] is not None for side in ("source", "destination")] == [source == bad, True]


def test_numbers_that_json_does_not_have_are_strings() -> None:
    values = {"a": [np.float64("nan"), float("inf")], "b": {"c": (float("-inf"), 1.5, 2, True, None, "x")}}
    found = json.loads(json_text(values), parse_constant=refuse)
    assert found == {"a": ["nan", "inf"], "b": {"c": ["-inf", 1.5, 2, True, None, "x"]}}
