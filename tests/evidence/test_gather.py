"""The evidence of checkpoints: what is gathered, what speaks against damaged ones, and that its commands work."""

import json
import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from converter import gather_evidence
from converter.evidence import Evidence
from converter.report.proofs import Shown, proofs
from converter.storage.local import LocalStorage
from tests.conftest import AXLEARN, Cli

PAIR = AXLEARN / "micro-hybrid-qkpair"
TRAINED = Path(__file__).parents[1] / "data" / "training" / "micro-envy" / "axlearn"


@pytest.fixture
def checkpoint(converted: Callable[..., Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(converted("micro-hybrid-qkpair", untie=True), tmp_path / "out"))


def origins(evidence: Evidence) -> dict[str, str]:
    return {key.name: key.origin for key in evidence.configuration}


def states(evidence: Evidence) -> dict[str, str]:
    return {proof.name: proof.state for proof in proofs(evidence, figures="")}


def test_a_sound_checkpoint(checkpoint: Path) -> None:
    evidence = gather_evidence(PAIR, checkpoint, logits=True)
    assert evidence.passed
    assert states(evidence) == dict.fromkeys(("Parameters", "Values", "Logits", "Stock MaxText"), "passed")
    shown = Shown(evidence=evidence)
    assert (shown.title, shown.summary) == (
        "Equivalent",
        "Every one of 63,200 elements is AXLearn's, bit for bit. Both models compute the same function.",
    )
    assert [(group.name, group.source, group.target, group.experts) for group in shown.groups] == [
        ("embedding", 2048, 4096, 0), ("attention", 12352, 12352, 0), ("dense ffn", 9216, 9216, 0),
        ("moe", 37120, 37120, 36864), ("norm", 416, 416, 0),
    ]  # fmt: skip
    assert sum(group.source for group in shown.groups) == evidence.parameters.source_total
    assert sum(group.leaves for group in shown.groups) == evidence.bits.leaves == len(evidence.receipt.leaves) == 28
    receipt = json.loads((checkpoint / "ax2mt.json").read_text())
    assert {file.path: {"bytes": file.bytes, "xxh3": file.xxh3} for file in evidence.receipt.files} == receipt["files"]
    assert origins(evidence)["head_dim"] == "solved from the tensors"
    assert not [key for key in evidence.configuration if key.problem]
    assert all(not entry.product for entry in evidence.mismatches)


@pytest.mark.parametrize(("logits", "times"), [(False, 1), (True, 2)])
def test_metadata_is_read_once(logits: bool, times: int, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the models of the logits, which are opened apart: they know their tensors by role."""
    names: list[str] = []
    read = LocalStorage.read

    def count(self: LocalStorage, name: str, limit: int) -> bytes:
        names.append(os.path.basename(name))
        return read(self, name, limit)

    monkeypatch.setattr(LocalStorage, "read", count)
    assert gather_evidence(PAIR, checkpoint, logits=logits).passed
    assert (names.count("index"), names.count(".zarray")) == (times, 23 * times)
    # Of the models, both look at what the destination was made with.
    assert names.count("_METADATA") == 1 + 2 * logits


def test_the_commands_do_what_they_say(checkpoint: Path, tmp_path: Path, in_process: Cli) -> None:
    evidence = gather_evidence(PAIR, checkpoint, jobs=1, max_memory="2GiB")
    lines = [shlex.split(command.line) for command in evidence.commands]
    assert [words[1] for words in lines] == ["convert", "verify", "verify", "verify", "report"]
    assert lines[0] == ["ax2mt", "convert", str(PAIR / "checkpoints" / "step_00000100"), "NEW", "--untie"]
    for _, *words in lines:
        done = in_process(*words, cwd=tmp_path)
        assert done.code == 0, (words, done.err)
    again = gather_evidence(PAIR, tmp_path / "NEW")
    assert again.receipt.leaves == evidence.receipt.leaves


def test_options_are_in_the_commands(converted: Callable[..., Path]) -> None:
    settings = ("rope_max_timescale=10000", "normalization_layer_epsilon=1e-06")
    source = AXLEARN / "micro-hybrid"
    made = converted(
        "micro-hybrid", qk_norm="fit", store="ocdbt", compress="none", layout="unscanned", settings=settings
    )
    evidence = gather_evidence(
        source, made, step=100, sample=0.5, logits=True, max_kl=0.25, max_difference=2, explain=False, decode=True,
        tree="params", set={"rope_max_timescale": 10000},
    )  # fmt: skip
    lines = [command.line for command in evidence.commands]
    options = "--qk-norm fit --store ocdbt --compress none --set normalization_layer_epsilon=1e-06"
    assert lines[0].endswith(f"NEW {options} --set rope_max_timescale=10000 --layout unscanned")
    assert lines[1].endswith(f"{made} --tree params --sample 0.5 --decode")
    computed = "--set rope_max_timescale=10000 --max-kl 0.25 --max-difference 2 --no-explain"
    assert lines[3].endswith(f"{made} --logits --tree params {computed}")
    assert lines[4].endswith(f"{made} --tree params --sample 0.5 --decode --logits {computed}")
    assert origins(evidence)["rope_max_timescale"] == "set by the user (--set)"
    assert Shown(evidence=evidence).title == "No difference found"
    assert states(evidence)["Values"] == "caution"
    # Leaves for each layer are one row of the table.
    assert len(evidence.parameters.rows) < len(evidence.receipt.leaves)


def test_a_compressor_that_is_not_the_usual_one_is_in_the_command(converted: Callable[..., Path]) -> None:
    made = converted("micro-hybrid-qkpair", layout="unscanned", compress="zstd")
    assert gather_evidence(PAIR, made).commands[0].line.endswith("NEW --compress zstd --layout unscanned")


def test_what_the_training_said_is_not_what_the_user_set(tmp_path: Path, in_process: Cli) -> None:
    assert in_process("convert", TRAINED, tmp_path / "out", "--set", "learner.max_step=5000").code == 0
    found = origins(gather_evidence(TRAINED, tmp_path / "out"))
    assert found["normalization_layer_epsilon"] == "read from the training's trainer_config"
    assert "set by the user (--set)" in found.values()


def test_damage_is_in_the_evidence(checkpoint: Path) -> None:
    (place,) = checkpoint.glob("0/items/*mlp.wi_0.kernel")
    chunk = next(file for file in place.rglob("*") if file.is_file() and file.name != "zarr.json")
    data = bytearray(chunk.read_bytes())
    data[len(data) // 2] ^= 1
    chunk.write_bytes(data)
    evidence = gather_evidence(PAIR, checkpoint, logits=True)
    assert not evidence.passed
    assert [finding.place.rpartition("/")[0][-4:] for finding in evidence.bits.findings] == ["wi_0"]
    assert states(evidence)["Values"] == "failed"
    assert states(evidence)["Parameters"] == "passed"
    assert Shown(evidence=evidence).title == "Not equivalent"
    assert "1 finding: params/params/decoder/layers/layers_0/mlp/wi_0/kernel." in Shown(evidence=evidence).summary


def test_a_leaf_that_cannot_be_opened(checkpoint: Path) -> None:
    next(checkpoint.glob("0/items/*wo.kernel/zarr.json")).write_text("{")
    evidence = gather_evidence(PAIR, checkpoint, logits=True)
    assert not evidence.passed
    assert evidence.logits is None
    assert "wo/kernel" in evidence.logits_problem
    assert (states(evidence)["Parameters"], states(evidence)["Logits"]) == ("caution", "failed")
    assert evidence.parameters.target_total == 63_200
    assert "chunks" in {finding.check for finding in evidence.bits.findings}


def test_what_is_lost_beside_the_weights(checkpoint: Path) -> None:
    config = checkpoint / "maxtext.yml"
    text = config.read_text().replace("head_dim: 8 ", "head_dim: 16 ").replace("use_qk_norm: true", "own_key: 1")
    config.write_text(text)
    (checkpoint / "ax2mt.json").unlink()
    evidence = gather_evidence(PAIR, checkpoint)
    problems = {key.name: key.problem for key in evidence.configuration if key.problem}
    assert problems == {"head_dim": "the file has 16", "use_qk_norm": "missing in the file"}
    assert origins(evidence)["own_key"] == "not written by convert"
    assert evidence.receipt.problem == "is missing"
    assert [command.line.split()[1] for command in evidence.commands] == ["verify", "verify", "verify", "report"]
    assert len(evidence.receipt.leaves) == 28
    config.unlink()
    assert not [key for key in gather_evidence(PAIR, checkpoint).configuration if key.problem]


def test_a_training_state_and_a_cast(tmp_path: Path, in_process: Cli) -> None:
    assert in_process("convert", TRAINED, tmp_path / "state", "--state").code == 0
    evidence = gather_evidence(TRAINED, tmp_path / "state")
    assert evidence.passed
    assert evidence.bits.elements > 3 * evidence.parameters.target_total - 1
    assert shlex.split(evidence.commands[0].line)[-3:] == ["--state", "--optimizer", "adamw"]
    assert states(evidence)["Stock MaxText"] == "caution"
    assert in_process("convert", PAIR, tmp_path / "cast", "--dtype", "bfloat16").code == 0
    assert not gather_evidence(PAIR, tmp_path / "cast", dtype="float16").passed
    cast = gather_evidence(PAIR, tmp_path / "cast")
    assert cast.passed
    assert "cast to bfloat16" in Shown(evidence=cast).summary
    assert "--dtype bfloat16" in cast.commands[0].line
