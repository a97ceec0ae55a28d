"""What a stopped command says that comes next, and that it is true."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from converter.cli.app import run as run_cli
from tests.conftest import AXLEARN
from tests.helpers.axlearn_checkpoint import envy_tensors, expected_leaves, write_checkpoint
from tests.helpers.compare import assert_same_leaves
from tests.helpers.faulty_storage import FaultyStorage
from tests.helpers.refusals import nothing_left, nothing_published, refused
from tests.helpers.restorer import Restorer

SOURCE = str(AXLEARN / "envy-test")
STEP = "step_00000100"
CHUNK = "gda/model/decoder/emb/token_emb/weight/0.0"


def stop(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("command", "where", "expected"),
    [
        (["convert", SOURCE, "{out}"], "conversion.run.run", "; run the same command again to resume"),
        (
            ["convert", SOURCE, "{out}", "--fresh"],
            "conversion.run.run",
            "; run the same command without --fresh to resume",
        ),
        (
            ["verify", SOURCE, "{done}"],
            "verification.verify",
            "; run the same command again: it starts from the beginning",
        ),
        (["verify", "{done}"], "verification.verify_digests", "; run the same command again: it starts from the beg"),
        (["logits", SOURCE], "forward.logits", "; run the same command again: it starts from the beginning"),
        (["plan", SOURCE], "planning.open_source", ""),
        (["params", SOURCE], "planning.make_report", ""),
        (["inspect", SOURCE], "checkpoints.inspect", ""),
    ],
)
def test_interrupted(
    command: list[str],
    where: str,
    expected: str,
    tmp_path: Path,
    converted: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    done = converted("envy-test")
    monkeypatch.setattr(f"converter.{where}", stop)
    capsys.readouterr()
    assert run_cli([word.format(out=tmp_path / "out", done=done) for word in command]) == 130
    error = capsys.readouterr().err
    assert error.startswith(f"ax2mt: interrupted{expected}")
    assert error.endswith("\n" if expected else "interrupted\n")


def test_links_that_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], faulty: FaultyStorage) -> None:
    faulty.fail("link", "", errno.EXDEV)
    message = refused(capsys, 5, SOURCE, tmp_path / "out", "--link")
    assert "to copy, run the command without --link and with --fresh" in message
    assert run_cli(["convert", "-q", SOURCE, str(tmp_path / "out"), "--fresh"]) == 0
    nothing_left(tmp_path, "out")


@pytest.mark.parametrize("route", [(), ("--rewrite",), ("--store", "ocdbt")], ids=["pass", "rewrite", "ocdbt"])
def test_a_repaired_source_needs_no_other_command(
    route: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str], newest_orbax: Restorer
) -> None:
    tensors = envy_tensors()
    source = write_checkpoint(tmp_path / STEP, tensors)
    whole = (source / CHUNK).read_bytes()
    (source / CHUNK).write_bytes(whole[:-9])
    refused(capsys, 3, source, tmp_path / "out", *route)
    nothing_published(tmp_path, STEP)
    (source / CHUNK).write_bytes(whole)
    assert run_cli(["convert", "-q", str(source), str(tmp_path / "out"), *route]) == 0
    nothing_left(tmp_path, "out", STEP)
    assert_same_leaves(newest_orbax.restore(tmp_path / "out"), expected_leaves(tensors))


@pytest.mark.parametrize("operation", ["open", "readinto"])
def test_a_passing_fault_of_the_source_costs_no_work(
    operation: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    faulty: FaultyStorage,
) -> None:
    """A network that was gone for a while: the source is what it was, and what was done is kept."""
    source = write_checkpoint(tmp_path / STEP, envy_tensors())
    faulty.fail(operation, str(source / CHUNK))
    with monkeypatch.context() as patch:
        patch.setattr("converter.conversion.work_area.COPIERS", 0)
        assert "Input/output error" in refused(capsys, 3, source, tmp_path / "out", "--jobs", "1")
    faulty.heal()
    assert run_cli(["convert", "--json", "-q", str(source), str(tmp_path / "out")]) == 0
    assert '"resumed": true' in capsys.readouterr().out
    nothing_left(tmp_path, "out", STEP)


def test_a_source_that_changed_leaves_nothing(tmp_path: Path, faulty: FaultyStorage) -> None:
    source = write_checkpoint(tmp_path / STEP, envy_tensors())

    def change(_: str) -> None:
        (source / CHUNK).write_bytes((source / CHUNK).read_bytes() + b"more")
        raise KeyError("what our code makes of it")

    faulty.before("missing", "/leaves/", change)
    assert run_cli(["convert", "-q", str(source), str(tmp_path / "out")]) == 1
    nothing_left(tmp_path, STEP)
