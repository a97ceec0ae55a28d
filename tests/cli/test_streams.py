"""Where what is printed cannot be written or encoded, the outcome stands, and a lost result is told of."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import AXLEARN, Cli
from tests.helpers.installation import ROOT

EQUAL, UNEQUAL = (str(AXLEARN / name) for name in ("micro-hybrid-qkpair", "micro-hybrid"))
READING = [["plan", EQUAL], ["inspect", EQUAL], ["params", EQUAL, "--markdown"], ["--help"], ["--version"]]


def shell(redirection: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    """Runs a command with redirections of a shell; `"$@"` stands for it."""
    return subprocess.run(
        ["bash", "-c", redirection, "bash", sys.executable, "-m", "converter", *arguments],
        capture_output=True, check=False, cwd=ROOT, timeout=120, env={**os.environ, **variables},
    )  # fmt: skip


def lines(done: subprocess.CompletedProcess[bytes]) -> list[str]:
    return done.stderr.decode().splitlines()


@pytest.mark.parametrize("arguments", [*READING, ["plan", EQUAL, "--json"], ["mappings", "list"]], ids=" ".join)
def test_a_result_that_is_lost_is_no_success(arguments: list[str]) -> None:
    for redirection, reason in ((">/dev/full", "No space left on device"), (">&-", "stdout is closed")):
        done = shell(f'"$@" {redirection}', *arguments)
        assert done.returncode == 1
        assert lines(done) == [f"ax2mt: the output on stdout is incomplete: {reason}"]


@pytest.mark.parametrize("arguments", READING, ids=" ".join)
def test_a_reader_may_stop_reading(arguments: list[str]) -> None:
    done = shell('"$@" | true; exit ${PIPESTATUS[0]}', *arguments)
    assert (done.returncode, lines(done)) == (0, [])


def test_the_outcome_of_work_stands(tmp_path: Path, in_process: Cli) -> None:
    out = tmp_path / "out"
    lost = "ax2mt: the output on stdout is incomplete: No space left on device"
    done = shell('"$@" >/dev/full', "convert", EQUAL, str(out))
    assert (done.returncode, lines(done)) == (0, [lost])
    assert shell('"$@" >/dev/full 2>/dev/full', "verify", EQUAL, str(out)).returncode == 0
    assert shell('"$@" 2>/dev/full | true; exit ${PIPESTATUS[0]}', "verify", str(out), "-v").returncode == 0
    # A program that asked for a document has none.
    assert shell('"$@" >/dev/full', "verify", EQUAL, str(out), "--json").returncode == 1
    # Another outcome than success is the one that is told.
    (out / "0/items/params.params.decoder.decoder_norm.scale/zarr.json").unlink()
    assert shell('"$@" >/dev/full', "verify", EQUAL, str(out)).returncode == 6
    assert shell('"$@" >/dev/full', "convert", EQUAL, str(out), "--json").returncode == 5
    assert in_process("inspect", out).code == 0


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
def test_characters_that_an_encoding_does_not_have(encoding: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = shell('"$@"', "convert", UNEQUAL, str(out), PYTHONIOENCODING=encoding)
    assert (done.returncode, lines(done)) == (0, [])
    text = done.stdout.decode(encoding)
    assert "NOT EXACT" in text
    assert "load_parameters_path=" in text
    assert ("█" if encoding == "utf-8" else "#") * 8 in text


def test_paths_that_are_no_text(tmp_path: Path) -> None:
    place = os.path.join(os.fsencode(tmp_path), b"\xff")
    os.mkdir(place)
    for options in ([], ["--json"]):
        command = [sys.executable, "-m", "converter", "inspect", place, *options]
        done = subprocess.run(command, capture_output=True, check=False, cwd=ROOT)
        assert done.returncode == 0, done.stderr
        assert b"\\udcff" in done.stdout
    assert json.loads(done.stdout)["path"].endswith("\udcff")


@pytest.mark.parametrize(("terminal", "steers"), [("dumb", False), ("", False), ("xterm", True)])
def test_a_terminal_gets_what_it_understands(terminal: str, steers: bool, tmp_path: Path) -> None:
    (tmp_path / "tokens.jsonl").write_text("[1, 2, 3]")
    ours, theirs = pty.openpty()
    variables = {"TERM": terminal, "COLUMNS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "converter", "logits", UNEQUAL, "--tokens", str(tmp_path / "tokens.jsonl")]
    with open(os.devnull, "wb") as nowhere:
        done = subprocess.run(command, stdout=nowhere, stderr=theirs, check=False, env={**os.environ, **variables})
    os.close(theirs)
    text = b""
    try:
        while part := os.read(ours, 1 << 16):
            text += part
    except OSError:
        pass  # Linux's answer where nobody has the other end open
    os.close(ours)
    assert done.returncode == 0, text
    assert (b"\x1b" in text) == steers


def test_a_column_of_one_character_is_no_table() -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "converter", "mappings", "list"]
    process = subprocess.Popen(command, stdout=theirs, cwd=ROOT, env={**os.environ, "COLUMNS": "1", "TERM": "xterm"})
    os.close(theirs)
    text = b""
    try:
        while part := os.read(ours, 1 << 16):
            text += part
    except OSError:
        pass  # likewise
    os.close(ours)
    assert process.wait() == 0
    assert b"envy" in text
