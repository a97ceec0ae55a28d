"""Every fault of a source: exit code 3, the parameter and the file named, nothing left behind."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from converter.cli.app import run as run_cli
from tests.conftest import Cli
from tests.helpers.axlearn_checkpoint import STACK, envy_tensors, write_checkpoint
from tests.helpers.damage import cut_to, edit, replace_by_dangling_link, replace_by_directory, replace_by_pipe
from tests.helpers.faulty_storage import FaultyStorage
from tests.helpers.permissions import unprivileged
from tests.helpers.refusals import nothing_published, refused

PASSED = f"{STACK}/layer1/feed_forward/wi_0_weight"
REWRITTEN = f"{STACK}/layer0/self_attention/attention/i_proj/i_proj/qkv_proj/weight"
SCALE = f"{STACK}/layer0/self_attention/attention/scale_query/norm/scale"
STEP = "step_00000100"

each_tensor = pytest.mark.parametrize("path", [PASSED, REWRITTEN], ids=["passed", "rewritten"])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / STEP, envy_tensors())


TRUNCATED = "truncated|ends too early|cannot be decoded"
TRAILING = "followed by other bytes|cannot be decoded"

CHUNK_FAULTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing": (Path.unlink, "missing"),
    "empty": (cut_to(0), r"empty \(0 bytes\)"),
    "truncated": (lambda file: cut_to(file.stat().st_size // 2)(file), TRUNCATED),
    "truncated in the header": (cut_to(5), f"no zstd frame|{TRUNCATED}"),
    "one byte short": (cut_to(-1), TRUNCATED),
    "trailing bytes": (
        lambda file: file.write_bytes(file.read_bytes() + b"tail"),
        TRAILING,
    ),
    "zeros": (lambda file: file.write_bytes(bytes(file.stat().st_size)), "no zstd frame|cannot be decoded"),
    "directory": (replace_by_directory, "a directory in the place of a file"),
    "dangling link": (replace_by_dangling_link, "a dangling link to nowhere"),
    "pipe": (replace_by_pipe, "not a regular file"),
    "far too long": (lambda file: file.write_bytes(bytes(1 << 20)), "more than"),
}


@pytest.mark.parametrize("route", [(), ("--rewrite",), ("--store", "ocdbt")], ids=["pass", "rewrite", "ocdbt"])
@each_tensor
@pytest.mark.parametrize("fault", CHUNK_FAULTS)
def test_chunks(
    fault: str, path: str, route: tuple[str, ...], source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, expected = CHUNK_FAULTS[fault]
    change(source / "gda" / path / "0.0.0.0")
    message = refused(capsys, 3, source, tmp_path / "out", *route)
    assert f"{path}: chunk 0.0.0.0" in message
    assert re.search(expected, message)
    nothing_published(tmp_path, STEP)


def test_a_chunk_of_another_array(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # A whole zstd frame, but of another tensor: its content has another size.
    shutil.copy(source / "gda" / REWRITTEN / "0.0.0.0", source / "gda" / PASSED / "0.0.0.0")
    message = refused(capsys, 3, source, tmp_path / "out")
    assert f"{PASSED}: chunk 0.0.0.0: decodes to" in message
    nothing_published(tmp_path, STEP)


@pytest.mark.parametrize("name", ["0.0.0.0", ".zarray"])
@each_tensor
def test_unreadable_files(path: str, name: str, source: Path, tmp_path: Path) -> None:
    (source / "gda" / path / name).chmod(0)
    done = unprivileged("convert", "-q", source, tmp_path / "out")
    assert done.returncode == 3, done.stderr
    assert path in done.stderr
    assert "Permission denied" in done.stderr
    nothing_published(tmp_path, STEP)


@pytest.mark.parametrize("operation", ["open", "read", "readinto", "read_range"])
@each_tensor
def test_a_chunk_that_cannot_be_read(
    path: str, operation: str, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], faulty: FaultyStorage
) -> None:
    # What a damaged disk does; root meets it too.
    file = str(source / "gda" / path / "0.0.0.0")
    faulty.fail(operation, f"^{file}$")
    if (operation, path) in (("read", PASSED), ("readinto", REWRITTEN), ("read_range", REWRITTEN)):
        assert run_cli(["convert", "-q", str(source), str(tmp_path / "out")]) == 0  # not how this chunk is read
        return
    message = refused(capsys, 3, source, tmp_path / "out")
    assert f"{path}: chunk 0.0.0.0: " in message
    assert "cannot be read: Input/output error" in message
    nothing_published(tmp_path, STEP)


ZARRAY_FAULTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing": (Path.unlink, "is missing"),
    "empty": (cut_to(0), "not valid JSON"),
    "no JSON": (cut_to(20), "not valid JSON"),
    "no UTF-8": (lambda file: file.write_bytes(b'"\xff\xfe\xfd"'), "not valid JSON"),
    "a list": (lambda file: file.write_text("[]"), "expected a JSON object"),
    "directory": (replace_by_directory, "not a regular file"),
    "dangling link": (replace_by_dangling_link, "is missing"),
    "pipe": (replace_by_pipe, "not a regular file"),
    "other dtype": (lambda file: edit(file, dtype="<f8"), "index says float32"),
    "unknown dtype": (lambda file: edit(file, dtype=">f4"), "unknown dtype '>f4'"),
    "other shape": (lambda file: edit(file, shape=[2, 4, 12, 9], chunks=[2, 4, 12, 9]), "index says"),
    "other rank": (lambda file: edit(file, shape=[2, 4], chunks=[2, 4]), "index says"),
    "chunks of another rank": (lambda file: edit(file, chunks=[2, 4]), "but chunks of 2"),
    "other chunks": (lambda file: edit(file, chunks=[1, 1, 1, 1]), "missing"),
    "chunks larger than the array": (lambda file: edit(file, chunks=[2, 4, 12, 1 << 40]), "larger than the array"),
    "zero": (lambda file: edit(file, chunks=[0, 4, 12, 10]), "expected lists of positive numbers"),
    "negative": (lambda file: edit(file, shape=[-2, 4, 12, 10]), "expected lists of positive numbers"),
    "2^63": (lambda file: edit(file, shape=[2**63, 4, 12, 10]), "expected lists of positive numbers"),
    "zarr 3": (lambda file: edit(file, zarr_format=3), "zarr_format is 3, expected 2"),
    "level too high": (lambda file: edit(file, compressor={"id": "blosc", "clevel": 10}), "from 0 to 9"),
    "no level": (lambda file: edit(file, compressor={"id": "zstd", "level": None}), "zstd's level is None"),
    "level": (lambda file: edit(file, compressor={"id": "zstd", "level": "best"}), "zstd's level is 'best'"),
    "compressor": (lambda file: edit(file, compressor="zstd"), "expected null or an object with an id"),
    "nested compressor": (lambda file: edit(file, compressor={"id": "zstd", "x": {}}), "expected plain settings"),
    "unknown compressor": (
        lambda file: edit(file, compressor={"id": "magic"}),
        "compressor 'magic' is not supported; supported",
    ),
    "upper case": (lambda file: edit(file, compressor={"id": "ZSTD"}), "compressor 'ZSTD' is not supported; supported"),
    "filters": (lambda file: edit(file, filters=[{"id": "delta"}]), "filters [{'id': 'delta'}] are not supported"),
    "separator": (lambda file: edit(file, dimension_separator="/"), "dimension separator '/' is not supported"),
    "order": (lambda file: edit(file, order="K"), "order is 'K'"),
    "no order": (lambda file: edit(file, order=...), "order is None"),
}


FIGURES = ("other chunks", "other shape", "other rank", "chunks larger than the array")
"""Faults with the figures of one tensor."""


@pytest.mark.parametrize(
    ("path", "fault"),
    [(PASSED, fault) for fault in ZARRAY_FAULTS] + [(REWRITTEN, f) for f in ZARRAY_FAULTS if f not in FIGURES],
)
def test_array_metadata(
    fault: str, path: str, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, expected = ZARRAY_FAULTS[fault]
    change(source / "gda" / path / ".zarray")
    message = refused(capsys, 3, source, tmp_path / "out")
    assert path in message
    assert expected in message
    nothing_published(tmp_path, STEP)


def test_an_unreadable_scale(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # The q/k norm scales are read before everything else, for the report.
    cut_to(9)(source / "gda" / SCALE / "0.0")
    assert SCALE in refused(capsys, 3, source, tmp_path / "out")
    nothing_published(tmp_path, STEP)


def test_all_findings_come_at_once(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (PASSED, REWRITTEN):
        (source / "gda" / path / "0.0.0.0").unlink()
    message = refused(capsys, 3, source, tmp_path / "out")
    assert PASSED in message
    assert REWRITTEN in message


REMOVALS: dict[str, Callable[[Path], Any]] = {
    "the commit marker": lambda source: (source / "index").unlink(),
    "a chunk that was read": lambda source: (source / "gda/model/decoder/emb/token_emb/weight/0.0").unlink(),
    "a chunk not yet read": lambda source: (source / "gda" / PASSED / "0.0.0.0").unlink(),
    "an array": lambda source: shutil.rmtree(source / "gda" / REWRITTEN),
    "everything": shutil.rmtree,
    "replaced": lambda source: (source / "gda/model/decoder/output_norm/scale/0").write_bytes(b"another step's"),
}


class At:
    """Progress that changes the world when the first unit of work is done."""

    def __init__(self, change: Callable[[], Any]):
        self.change = change
        self.done = False

    def __call__(self) -> "At":
        return self

    def start(self, leaves: int, total_bytes: int) -> None: ...

    def advance(self, count: int) -> None:  # noqa: ARG002
        if not self.done:
            self.done = True
            self.change()

    def leaf_done(self, path: str) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize("route", [(), ("--rewrite",), ("--link",)], ids=["pass", "rewrite", "link"])
@pytest.mark.parametrize("removal", REMOVALS)
def test_removed_while_we_read(
    removal: str,
    route: tuple[str, ...],
    source: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("converter.work.Silent", At(lambda: REMOVALS[removal](source)))
    message = refused(capsys, 3, source, tmp_path / "out", "--jobs", "1", *route)
    assert str(source) in message or "model/decoder/output_norm/scale: chunk 0" in message
    assert sorted(os.listdir(tmp_path)) in ([STEP], [])


def test_faults_through_a_real_process(source: Path, tmp_path: Path, cli: Cli) -> None:
    cut_to(30)(source / "gda" / PASSED / "0.0.0.0")
    done = cli("convert", source, tmp_path / "out")
    assert (done.code, done.out) == (3, "")
    assert done.err.startswith(f"ax2mt: {PASSED}: chunk 0.0.0.0")
    assert len(done.err.splitlines()) == 1
    document = cli("convert", "--json", source, tmp_path / "out").document
    assert document["error"]["kind"] == "source"
    assert document["error"]["exit_code"] == 3
    nothing_published(tmp_path, STEP)


def test_damage_that_decodes_is_not_seen_and_check_finds_what_does_not(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Damage inside a block keeps the frame's outline: passed on as it is, and found by --check when it does not decode.
    file = source / "gda" / PASSED / "0.0.0.0"
    raw = np.random.default_rng(1).integers(0, 4, 960).astype(np.float32)
    data = bytearray(zstandard.ZstdCompressor(level=1).compress(raw.tobytes()))
    data[12:60] = b"\xff" * 48
    file.write_bytes(data)
    with pytest.raises(zstandard.ZstdError):
        zstandard.ZstdDecompressor().decompress(bytes(data))
    message = refused(capsys, 3, source, tmp_path / "out", "--check")
    assert f"{PASSED}: chunk 0.0.0.0" in message
    nothing_published(tmp_path, STEP)
    assert run_cli(["convert", "-q", str(source), str(tmp_path / "out")]) == 0
