"""The command: tokens in, files out, and what is refused."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from converter.cli.app import run as cli
from converter.errors import SourceError, UsageError
from converter.forward.run import open_model
from converter.forward.semantics import read_config
from converter.forward.tokens import BUILT_IN_LENGTH, built_in, read_tokens
from converter.mapping.bundled import table_path
from tests.helpers.arrays import read_npz

DATA = Path(__file__).parents[1] / "data"
SOURCE = str(DATA / "axlearn" / "micro-hybrid")
CONVERTED = str(DATA / "maxtext" / "micro-hybrid" / "scanned")


def test_npz_holds_the_golden_logits(tmp_path):
    golden = read_npz(f"{SOURCE}/logits.npz")
    out = tmp_path / "x.npz"
    assert cli(["logits", SOURCE, "--tokens", f"{SOURCE}/logits.npz", "--out", str(out)]) == 0
    found = read_npz(out)
    np.testing.assert_array_equal(found["input_ids"], golden["input_ids"])
    np.testing.assert_allclose(found["logits"], golden["logits"], rtol=0, atol=1e-5)
    assert os.listdir(tmp_path) == ["x.npz"]


def test_jsonl_holds_the_same_float32_as_npz(tmp_path):
    for name in ("x.npz", "x.jsonl"):
        assert cli(["logits", SOURCE, "--tokens", f"{SOURCE}/logits.npz", "--out", str(tmp_path / name)]) == 0
    lines = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    found = read_npz(tmp_path / "x.npz")
    np.testing.assert_array_equal([line["tokens"] for line in lines], found["input_ids"])
    np.testing.assert_array_equal(np.array([line["logits"] for line in lines], np.float32), found["logits"])


def test_jsonl_is_what_the_logit_checker_takes(tmp_path):
    tokens, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    tokens.write_text('[1, 2, 3]\n\n{"tokens": [5]}\n')
    assert cli(["logits", CONVERTED, "--tokens", str(tokens), "--out", str(out), "--json"]) == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["tokens"] for line in lines] == [[1, 2, 3], [5]]
    for line in lines:
        assert set(line) == {"prompt", "tokens", "logits"}
        assert isinstance(line["prompt"], str)
        assert np.asarray(line["logits"], np.float32).shape == (len(line["tokens"]), 64)


def test_what_if_settings_change_the_logits(capsys):
    deviations = {}
    for setting in ([], ["--set", "num_experts_per_tok=1"], ["--set", "normalize_embedding_logits=true"]):
        assert cli(["logits", CONVERTED, "--json", *setting]) == 0
        deviations[tuple(setting)] = json.loads(capsys.readouterr().out)["deviation"]
    plain, one_expert, divided = deviations.values()
    assert plain != one_expert
    assert divided == pytest.approx(plain / np.sqrt(32))


def test_the_configuration_beside_the_checkpoint_is_used(tmp_path):
    os.symlink(f"{CONVERTED}/0", tmp_path / "0")
    (tmp_path / "maxtext.yml").write_text(
        "decoder_block: envy\nnum_experts_per_tok: 3\nlogits_via_embedding: true\nuse_qk_norm: true\n"
    )
    semantics = open_model(str(tmp_path)).semantics
    assert (semantics.top_k, semantics.normalize_logits, semantics.theta) == (3, True, 10000)
    (tmp_path / "maxtext.yml").write_text("decoder_block: [envy]\n")
    with pytest.raises(SourceError, match="decoder_block"):
        open_model(str(tmp_path))
    (tmp_path / "maxtext.yml").write_text("decoder_block: llama2\n")
    with pytest.raises(UsageError, match="tensors need decoder_block=envy"):
        open_model(str(tmp_path))


@pytest.mark.parametrize("setting", ["top_k=1", "num_experts_per_tok", "num_experts_per_tok=two", "use_qk_norm=3"])
def test_settings_are_checked(setting):
    with pytest.raises(UsageError, match="--set"):
        read_config(None, [setting], {}, has_unembedding=False)


def test_the_built_in_tokens_are_fixed_and_long():
    tokens = built_in(32768)
    assert len(tokens.ids) == BUILT_IN_LENGTH > 400
    assert len(set(tokens.ids.tolist())) > 500
    np.testing.assert_array_equal(tokens.ids[:4], built_in(32768, 4).ids)
    np.testing.assert_array_equal(tokens.positions, np.arange(BUILT_IN_LENGTH))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty sequence, or none"),
        ("[]", "empty sequence, or none"),
        ("[1, 2", "line 1: not valid JSON"),
        ('[1]\n["a"]', "line 2: expected a list of ids"),
        ("[true]", "line 1: expected a list of ids"),
        ("[64]", "the vocabulary has 64"),
        ("[-1]", "the vocabulary has 64"),
        ('{"ids": [1]}', "line 1: expected a list of ids"),
    ],
)
def test_token_files_are_checked(text, message, tmp_path):
    file = tmp_path / "tokens.jsonl"
    file.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_tokens(str(file), 64)


def test_npz_token_files_are_checked(tmp_path):
    file = str(tmp_path / "tokens.npz")
    np.savez(file, ids=np.zeros((1, 2), np.int32))
    with pytest.raises(UsageError, match="expected integers input_ids"):
        read_tokens(file, 64)
    Path(file).write_bytes(b"no archive")
    with pytest.raises(UsageError, match=r"not an \.npz file"):
        read_tokens(file, 64)
    with pytest.raises(UsageError, match="cannot be read"):
        read_tokens(str(tmp_path / "absent.npz"), 64)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([SOURCE, "--out", "x.txt"], 2, "ends in .npz or .jsonl"),
        ([SOURCE, "--norm-after-rope"], 2, "is an AXLearn checkpoint"),
        ([SOURCE, "--set", "num_experts_per_tok=5"], 2, "expected at most 4, the checkpoint's experts"),
        ([SOURCE, "--set", "vocab_size=9"], 2, "contradicts the checkpoint's tensors, which have vocab_size=64"),
        ([CONVERTED, "--set", "num_experts_per_tok=5"], 2, "expected 1 to 4, the checkpoint's experts"),
        ([CONVERTED, "--set", "rope_max_timescale=0"], 2, "expected a number above 0"),
        ([CONVERTED, "--set", "normalization_layer_epsilon=-1e-5"], 2, "expected a number above 0"),
        ([CONVERTED, "--step", "1"], 2, "is a MaxText checkpoint"),
        ([CONVERTED, "--set", "logits_via_embedding=false"], 2, "no decoder/logits_dense/kernel"),
        ([SOURCE, "--max-memory", "100MiB"], 2, "is too small"),
        ([SOURCE, "--out", "absent/x.npz"], 5, "cannot be written"),
        ([str(DATA / "axlearn" / "micro-qwen"), "--mapping", table_path("envy")], 4, "mapping 'envy' does not fit"),
        ([str(DATA)], 3, "no AXLearn checkpoint"),
    ],
)
def test_refusals(arguments, code, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli(["logits", *arguments]) == code
    assert message in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


def test_sequences_of_different_lengths_need_lines(tmp_path, capsys):
    tokens = tmp_path / "in.jsonl"
    tokens.write_text("[1, 2]\n[3]\n")
    assert cli(["logits", SOURCE, "--tokens", str(tokens), "--out", str(tmp_path / "x.npz")]) == 2
    assert "write a .jsonl" in capsys.readouterr().err
