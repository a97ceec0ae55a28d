"""The tables against the real MaxText as it is installed, and against copies of it in which something was changed."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from converter.conformance import Conformance
from converter.conformance.run import with_maxtext
from converter.conformance.subjects import published_subject
from converter.mapping import load_bundled
from tests.conftest import Cli

pytestmark = pytest.mark.maxtext

MOST_LAYERS = 12
"""Layers one by one take MaxText as many times as long: deeper models are compared scanned here, and `make conform`
compares them in both layouts."""


def test_every_published_size(maxtext_python: str) -> None:
    tables = load_bundled()
    subjects = [
        published_subject(tables, model.name, options=(), settings=()) for table in tables for model in table.models
    ]
    deep = [subject.configuration("scanned").keys["base_num_decoder_layers"] > MOST_LAYERS for subject in subjects]
    asked = [subject.only("scanned") if is_deep else subject for subject, is_deep in zip(subjects, deep, strict=True)]
    result = with_maxtext(Conformance(installed=(), models=()), maxtext_python, asked)
    wrong = [(model.model, model.layout, model) for model in result.models if model.differences]
    assert not wrong
    assert len(result.models) == 2 * len(subjects) - sum(deep)
    assert 0 < sum(deep) < len(subjects)
    (maxtext,) = result.installed
    assert maxtext.version == "0.2.5"
    assert maxtext.new_for == ()  # each table says that it was checked with this version
    published = {one.name: {flag.key: (flag.expected, flag.found) for flag in one.differences}
                 for one in result.published}  # fmt: skip
    switch = {
        "num_experts_per_tok": ("2", "1"), "normalize_embedding_logits": ("false", "true"),
        "load_balance_loss_weight": ("0.0", "0.01"),
    }  # fmt: skip
    assert published == {
        "envy-test": {
            "num_experts_per_tok": ("2", "1"), "normalize_embedding_logits": ("false", "true"),
            "head_dim": ("2", "128"), "base_mlp_dim": ("32", "16"), "base_moe_mlp_dim": ("32", "16"),
            "use_post_ffw_norm": ("false", "true"),
        },
        **dict.fromkeys(("envy-switch-base", "envy-switch-large", "envy-switch-xxl"), switch),
        "qwen3-30b-a3b": {
            "normalize_embedding_logits": ("false", "true"), "rope_max_timescale": ("1000000", "10000000")
        },
    }  # fmt: skip
    assert all(flag.consequence for one in result.published for flag in one.differences)


CHANGES = {
    "layers/nnx_decoders.py": ("self.decoder_norm", "self.last_norm"),
    "models/models.py": ("num_embeddings=cfg.vocab_size,", "num_embeddings=cfg.vocab_size + 128,"),
    "configs/base.yml": ("\ncapacity_factor: -1.0", "\ncapacity_factor: 1.0"),
}
"""A leaf renamed, a shape and a default changed: file to the text and its replacement."""


def changed_package(python: str, directory: Path) -> Path:
    """A copy of the installed package in which `CHANGES` are made; whatever stays as it is, is a link."""
    find = "import importlib.util; print(importlib.util.find_spec('maxtext').submodule_search_locations[0])"
    installed = Path(subprocess.run([python, "-c", find], capture_output=True, text=True, check=True).stdout.strip())
    shutil.copytree(installed, directory / "maxtext", copy_function=os.symlink)
    for name, (text, other) in CHANGES.items():
        file = directory / "maxtext" / name
        content = file.read_text()
        assert text in content
        file.unlink()
        file.write_text(content.replace(text, other))
    return directory


def test_a_changed_maxtext(maxtext_python: str, cli: Cli, tmp_path: Path, elsewhere: Path) -> None:
    package = changed_package(maxtext_python, tmp_path)
    words = ["conform", "--model", "envy-test", "--maxtext", maxtext_python, "--json"]
    done = cli(*words, cwd=elsewhere, PYTHONPATH=str(package))
    assert done.code == 6, done.err
    for model in json.loads(done.out)["models"]:
        leaves = [(one["path"], one["status"]) for one in model["leaves"] if one["status"] != "equal"]
        assert leaves == [
            ("token_embedder/embedding", "shape"),
            ("decoder/decoder_norm/scale", "missing"),
            ("decoder/last_norm/scale", "extra"),
        ]
        (embedding,) = [one for one in model["leaves"] if one["path"] == "token_embedder/embedding"]
        assert (embedding["expected"]["shape"], embedding["found"]["shape"]) == ([32, 8], [160, 8])
        assert embedding["found"]["axes"] == ["vocab", "embed_vocab"]
        flags = [(one["key"], one["status"], one["found"]) for one in model["flags"] if one["status"] != "equal"]
        assert flags == [("capacity_factor", "other", "1.0")]
