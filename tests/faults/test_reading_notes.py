"""What the commands say of the source: steps passed over, an EMA left behind, no permission; and of odd entries."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import tensorstore as ts

from converter.cli.app import run as run_cli
from converter.forward.run import open_model
from converter.report.documents import DOCUMENTS
from tests.conftest import AXLEARN, Cli
from tests.helpers.axlearn_checkpoint import STACK, envy_tensors, write_checkpoint
from tests.helpers.damage import edit, edit_index
from tests.helpers.permissions import unprivileged

UNCOMMITTED = AXLEARN / "micro-hybrid-uncommitted"
PASSED_OVER = "/step_00000200 was passed over: it has no index file, so its save or its copy did not finish"
EMA = "the checkpoint holds two sets of weights: the raw parameters are converted, not their EMA (learner/ema)"


@pytest.fixture(scope="module")
def cli(in_process: Cli) -> Cli:
    """Commands run in this process: what counts here is what they do to files, and what they say."""
    return in_process


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory, cli: Cli) -> Path:
    target = tmp_path_factory.mktemp("result") / "out"
    assert cli("convert", "-q", UNCOMMITTED, target).code == 0
    return target


COMMANDS: dict[str, Callable[[Path], list[object]]] = {
    "plan": lambda _: ["plan", UNCOMMITTED],
    "params": lambda _: ["params", UNCOMMITTED],
    "params of a result": lambda result: ["params", UNCOMMITTED, result],
    "verify": lambda result: ["verify", UNCOMMITTED, result],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_step_passed_over_is_told(command: str, result: Path, cli: Cli) -> None:
    arguments = COMMANDS[command](result)
    done = cli(*arguments)
    assert done.code == 0, done.err
    (line,) = [line for line in done.out.splitlines() if PASSED_OVER in line]
    assert line.lstrip().startswith("note")
    document = cli(*arguments, "--json").document
    assert [note for note in document["notes"] if note.endswith(PASSED_OVER)]
    jsonschema.validate(document, DOCUMENTS[str(arguments[0])].schema)


def test_a_step_passed_over_is_told_by_convert(tmp_path: Path, cli: Cli) -> None:
    done = cli("convert", UNCOMMITTED, tmp_path / "out")
    assert done.code == 0
    assert PASSED_OVER in done.out
    document = cli("convert", UNCOMMITTED, tmp_path / "other", "--json").document
    assert document["notes"][0].endswith(PASSED_OVER)
    jsonschema.validate(document, DOCUMENTS["convert"].schema)


def test_a_step_passed_over_is_told_by_logits(result: Path, tmp_path: Path, cli: Cli) -> None:
    tokens = tmp_path / "tokens.jsonl"
    tokens.write_text("[1, 2, 3, 4]\n")
    assert PASSED_OVER in cli("logits", UNCOMMITTED, "--tokens", tokens).out
    document = cli("logits", UNCOMMITTED, "--tokens", tokens, "--json").document
    assert document["model"]["notes"][0].endswith(PASSED_OVER)
    compared = cli("verify", UNCOMMITTED, result, "--logits", "--tokens", tokens, "--max-kl", "1e9", "--json")
    assert compared.document["source"]["notes"] == document["model"]["notes"]
    assert compared.document["destination"]["notes"] == []


def test_a_step_passed_over_is_told_by_inspect(cli: Cli) -> None:
    assert PASSED_OVER in cli("inspect", UNCOMMITTED).out
    facts = cli("inspect", UNCOMMITTED, "--json").document["facts"]
    assert (facts["committed_steps"], facts["uncommitted_steps"]) == ([100], [200])
    assert facts["passed_over"][0].endswith(PASSED_OVER)


def test_an_ema_is_named_and_the_raw_parameters_are_converted(tmp_path: Path, cli: Cli) -> None:
    source = AXLEARN / "envy-test-ema"
    done = cli("convert", source, tmp_path / "out")
    assert done.code == 0, done.err
    assert "left behind  EMA of the parameters: 21 tensors, 15,064 elements\n" in done.out
    assert "left behind  optimizer state: 42 tensors, 30,128 elements\n" in done.out
    assert f"note         {EMA}\n" in done.out
    document = cli("plan", source, "--json").document
    assert document["notes"] == [EMA]
    assert {entry["reason"]: entry["tensors"] for entry in document["dropped"]} == {
        "EMA step counter": 1, "EMA of the parameters": 21, "optimizer step counters": 3, "optimizer state": 42,
        "training random key": 1,
    }  # fmt: skip
    assert f"note                 {EMA}\n" in cli("params", source).out
    verified = cli("verify", source, tmp_path / "out", "--json").document
    assert (verified["ok"], verified["notes"]) == (True, [EMA])


@pytest.fixture
def trainer(tmp_path: Path) -> Path:
    for number in (100, 200):
        write_checkpoint(tmp_path / "trainer" / "checkpoints" / f"step_{number:08d}", envy_tensors(), step=number)
    return tmp_path / "trainer"


DENIED = {
    "the trainer directory": (".", "cannot be "),
    "checkpoints": ("checkpoints", "cannot be listed"),
    "the newest step": ("checkpoints/step_00000200", "cannot be read"),
    "its index": ("checkpoints/step_00000200/index", "cannot be read"),
    "its arrays": ("checkpoints/step_00000200/gda", "cannot be read"),
}


@pytest.mark.parametrize("place", DENIED)
def test_no_permission_is_not_absence(place: str, trainer: Path) -> None:
    where, expected = DENIED[place]
    denied = trainer / where
    mode = denied.stat().st_mode
    denied.chmod(0)
    try:
        done = unprivileged("plan", trainer)
        message = done.stderr
        assert (done.returncode, len(message.splitlines())) == (3, 1)
        assert f"{denied}" in message
        assert expected in message
        assert "Permission denied" in message
        if "step_" in where:
            assert "--step" in message
            assert unprivileged("plan", trainer, "--step", 100).returncode == 0
            assert unprivileged("plan", trainer, "--step", 200).returncode == 3
    finally:
        denied.chmod(mode)


def test_a_named_step_needs_no_permission_to_list(trainer: Path) -> None:
    places = [trainer, trainer / "checkpoints"]
    for place in places:
        place.chmod(0o300)
    try:
        assert unprivileged("plan", trainer).returncode == 3
        done = unprivileged("plan", trainer, "--step", 100)
        assert (done.returncode, done.stderr) == (0, "")
    finally:
        for place in places:
            place.chmod(0o700)


def test_inspect_tells_what_it_may_not_read(trainer: Path) -> None:
    step = trainer / "checkpoints" / "step_00000200"
    step.chmod(0)
    try:
        done = unprivileged("inspect", trainer, "--json")
    finally:
        step.chmod(0o700)
    document = json.loads(done.stdout)
    assert document["facts"]["committed_steps"] == [100]
    assert document["facts"]["unreadable_steps"] == [200]
    assert "Permission denied" in document["missing"][0]


LEFT = "learner/optimizer/1/0/mu/w"

ODD_ENTRIES: dict[str, tuple[Any, int | None]] = {
    "no elements": ([LEFT, {"dtype": "float32", "shape": "(0,)"}], 0),
    "int2": ([LEFT, {"dtype": "int2", "shape": "(3, 2)"}], 6),
    "no dtype": ([LEFT, {"shape": "(3,)"}], 3),
    "no shape": ([LEFT, {"dtype": "float32"}], None),
    "a list as shape": ([LEFT, {"dtype": "float32", "shape": [3]}], None),
    "33 dimensions": ([LEFT, {"dtype": "float32", "shape": "(" + "1, " * 33 + ")"}], None),
    "backslash": (["learner/optimizer/a\\b", {"dtype": "float32", "shape": "(3,)"}], 3),
    "dots": (["learner/optimizer/../x", {"dtype": "float32", "shape": "(3,)"}], 3),
    "control character": (["learner/optimizer/\x1b[31m", {"dtype": "float32", "shape": "(3,)"}], 3),
    "surrogate": (["learner/optimizer/\ud800", {"dtype": "float32", "shape": "(3,)"}], 3),
}


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """What a command prints; it runs in this process and must succeed."""
    assert run_cli([*map(str, arguments)]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


@pytest.mark.parametrize("kind", ODD_ENTRIES)
def test_odd_entries_that_are_left_behind(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry, elements = ODD_ENTRIES[kind]
    source = write_checkpoint(tmp_path / "step_00000100", envy_tensors())
    edit_index(source, lambda index: [*index, entry])
    document = json.loads(said(capsys, "plan", source, "--json"))
    (dropped,) = document["dropped"]
    assert dropped["paths"] == [entry[0]]
    assert (dropped["elements"], dropped["unknown_shapes"]) == (elements or 0, int(elements is None))
    jsonschema.validate(document, DOCUMENTS["plan"].schema)
    tell = "1 of unknown shape" if elements is None else f"{elements} element{'s' * (elements != 1)}"
    assert f"left behind  optimizer state: 1 tensor, {tell}\n" in said(capsys, "plan", source)
    assert "\x1b" not in said(capsys, "inspect", source)


def test_odd_entries_listed_twice_or_nested_are_left_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_checkpoint(tmp_path / "step_00000100", envy_tensors())
    value = {"dtype": "float32", "shape": "(3,)"}
    edit_index(source, lambda index: [*index, [LEFT, value], [LEFT, value], [f"{LEFT}/x", value]])
    document = json.loads(said(capsys, "plan", source, "--json"))
    assert document["dropped"][0]["paths"] == [LEFT, f"{LEFT}/x"]


def test_names_of_entries_that_are_no_tensors_are_printed_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_checkpoint(tmp_path / "step_00000100", envy_tensors(), others=[("\x1b[31mred", "x")])
    out = said(capsys, "plan", source)
    assert "\x1b" not in out
    assert "\\x1b[31mred" in out


COMPRESSORS: dict[str, dict[str, Any]] = {
    "no checksum": {"id": "zstd", "level": 1, "checksum": False},
    "checksum": {"id": "zstd", "level": 1, "checksum": True},
    "no level": {"id": "zstd"},
    "negative level": {"id": "zstd", "level": -7},
    "an unknown setting": {"id": "zstd", "level": 1, "threads": 4},
}


@pytest.mark.parametrize("kind", COMPRESSORS)
def test_settings_of_a_compressor_that_do_not_matter_for_reading(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = envy_tensors()
    source = write_checkpoint(tmp_path / "step_00000100", tensors)
    for path in tensors:
        edit(source / "gda" / path / ".zarray", compressor=COMPRESSORS[kind])
    said(capsys, "convert", "-q", source, tmp_path / "out")
    assert "0 findings" in said(capsys, "verify", source, tmp_path / "out")
    open_model(str(source))


@pytest.mark.parametrize("name", ["blosc", "zlib", "gzip", "bz2"])
def test_other_compressors_with_settings_of_their_own(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = envy_tensors()
    source = write_checkpoint(tmp_path / "step_00000100", tensors)
    path = f"{STACK}/layer0/self_attention/attention/i_proj/i_proj/qkv_proj/weight"
    place = source / "gda" / path
    shutil.rmtree(place)
    ts.open(
        {
            "driver": "zarr", "kvstore": f"file://{place}/", "create": True,
            "metadata": {"compressor": {"id": name}, "shape": list(tensors[path].shape), "dtype": "<f4"},
        }
    ).result().write(np.asarray(tensors[path])).result()  # fmt: skip
    stored = json.loads((place / ".zarray").read_text())["compressor"]
    edit(place / ".zarray", compressor={**stored, "typesize": 4})
    said(capsys, "convert", "-q", source, tmp_path / "out")
    assert "0 findings" in said(capsys, "verify", source, tmp_path / "out")


def test_an_unknown_compressor_is_one_line(tmp_path: Path, cli: Cli) -> None:
    source = write_checkpoint(tmp_path / "step_00000100", envy_tensors())
    edit(source / "gda" / "model/decoder/output_norm/scale" / ".zarray", compressor={"id": "lz4", "acceleration": 1})
    done = cli("convert", "-q", source, tmp_path / "out")
    assert done.code == 3
    assert done.err.splitlines()[1:] == [
        f"  model/decoder/output_norm/scale: {source}/gda/model/decoder/output_norm/scale/.zarray: compressor 'lz4' is "
        "not supported; supported are zstd, zlib, gzip, bz2, blosc and null (none)"
    ]
    assert os.listdir(tmp_path) == ["step_00000100"]
