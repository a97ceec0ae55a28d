"""The work area: locked, begun for one conversion, gone on with, thrown away; and what must survive each of these."""

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from converter.conversion.stage import Stage, finish_published
from converter.conversion.work_area import SOURCE_FILES, journal_path, stage_path, tree_bytes
from converter.errors import DestinationError
from tests.helpers.faulty_storage import FaultyStorage, Kill

CONVERSION: dict[str, Any] = {"source": "/train/envy", "step": 100, "store": "files", "maxtext.yml": {"head_dim": 8}}


@pytest.fixture
def target(tmp_path: Path) -> str:
    return str(tmp_path / "out")


@contextmanager
def staged(target: str, conversion: Any = None, *, fresh: bool = False) -> Iterator[Stage]:
    """A run that begins, and ends with its work area left for the next one."""
    stage = Stage(target, "files", ())
    try:
        stage.begin(CONVERSION if conversion is None else conversion, fresh=fresh)
        yield stage
    finally:
        stage.close()


def work_on(stage: Stage) -> Path:
    """Something that a run has staged."""
    file = Path(stage.root) / "leaves" / "params.w" / "0.0"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(bytes(100))
    return file


def test_places_belong_to_the_destination(target: str) -> None:
    assert stage_path(target) == stage_path(target + "/") == f"{target}.ax2mt-wip"
    assert journal_path(target) == journal_path(target + "/") == f"{target}.ax2mt-wip.json"
    with staged(target) as stage:
        assert (stage.root, stage.journal) == (stage_path(target), journal_path(target))
        assert os.path.dirname(stage.output) == stage.root
        assert not stage.resumed
        assert not stage.holds_work()
        assert stage.staged_bytes() == 0
        assert stage.read_journal() == (CONVERSION, False)


def test_the_same_conversion_goes_on(target: str) -> None:
    with staged(target) as stage:
        chunk = work_on(stage)
        (chunk.parent / "manifest.__lock").write_text("half")
        (Path(stage.output) / "0").mkdir(parents=True)
    with staged(target) as stage:
        assert stage.resumed
        assert stage.holds_work()
        assert stage.staged_bytes() == 100
        assert os.listdir(chunk.parent) == ["0.0"]
        assert not os.path.exists(stage.output)


def test_another_conversion_is_refused_and_says_what_differs(target: str) -> None:
    with staged(target) as stage:
        chunk = work_on(stage)
    other = {**CONVERSION, "step": 200, "untie": True, "maxtext.yml": {"head_dim": 16}}
    del other["source"]
    with pytest.raises(DestinationError) as caught, staged(target, other):
        pytest.fail("this must not begin")
    assert caught.value.message == (
        f"{target}.ax2mt-wip: holds an interrupted conversion that differs from this one; --fresh starts over"
    )
    assert caught.value.details == (
        "maxtext.yml: then {'head_dim': 8}, now {'head_dim': 16}",
        "source: then '/train/envy', now None",
        "step: then 100, now 200",
        "untie: then None, now True",
    )
    assert chunk.exists()
    with staged(target) as stage:
        assert stage.resumed
    with staged(target, other, fresh=True) as stage:
        assert not stage.resumed
        assert not stage.holds_work()
        assert stage.read_journal() == (other, False)


@pytest.mark.parametrize(
    "journal",
    [
        *(None, "", "[]", "{", '{"conversion": 1}', '{"published": true}', '{"conversion": null, "published": 0}'),
        *('{"conversion": "x", "published": false}', '{"conversion": [1], "published": true}'),
    ],
)
def test_work_of_unknown_origin_is_thrown_away(journal: str | None, target: str) -> None:
    with staged(target) as stage:
        chunk = work_on(stage)
        os.unlink(stage.journal)
    if journal is not None:
        Path(journal_path(target)).write_text(journal)
    with staged(target) as stage:
        assert not stage.resumed
        assert not chunk.exists()
        assert stage.read_journal() == (CONVERSION, False)


def test_clearing_does_not_follow_links(target: str, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("precious")
    with staged(target) as stage:
        (Path(stage.root) / "leaves").symlink_to(tmp_path / "mine")
    with staged(target, fresh=True) as stage:
        assert os.listdir(stage.root) == ["lock"]
    assert (tmp_path / "mine" / "file").read_text() == "precious"


def test_removing_leaves_nothing(target: str, tmp_path: Path) -> None:
    stage = Stage(target, "files", ())
    stage.begin(CONVERSION, fresh=False)
    work_on(stage)
    stage.remove()
    assert os.listdir(tmp_path) == []
    with staged(target) as again:
        assert not again.resumed


@contextmanager
def other_process(target: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that works on the destination until it is killed."""
    script = (
        "import sys; from converter.conversion.stage import Stage; stage = Stage(sys.argv[1], 'files', ()); "
        "print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, target], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "locked\n"
        yield process
        process.send_signal(signal.SIGKILL)


def test_another_process_keeps_us_out_while_it_lives(target: str, tmp_path: Path) -> None:
    with staged(target) as stage:
        chunk = work_on(stage)
        stage.mark_published()
    (tmp_path / "out").mkdir()
    message = f"{target}.ax2mt-wip: another ax2mt works on this destination; wait for it to end"
    with other_process(target):
        for fresh in (False, True):
            with pytest.raises(DestinationError) as caught, staged(target, fresh=fresh):
                pytest.fail("this must not begin")
            assert str(caught.value) == message
        with pytest.raises(DestinationError) as caught:
            finish_published(target, CONVERSION)
        assert str(caught.value) == message
        assert chunk.exists()
    with staged(target) as stage:
        assert stage.resumed


def test_one_process_does_not_share_a_work_area_either(target: str) -> None:
    with staged(target), pytest.raises(DestinationError, match="another ax2mt works on this destination"):
        Stage(target, "files", ())


def killed_after_publishing(target: str) -> None:
    with staged(target) as stage:
        work_on(stage)
        stage.mark_published()
        (Path(target) / "0").mkdir(parents=True)


def test_a_run_that_was_killed_when_it_had_published_is_finished(target: str, tmp_path: Path) -> None:
    killed_after_publishing(target)
    assert finish_published(target + "/", CONVERSION)
    assert os.listdir(tmp_path) == ["out"]
    assert not finish_published(target, CONVERSION)


def test_a_run_that_had_not_yet_published_is_not(target: str, tmp_path: Path) -> None:
    assert not finish_published(target, CONVERSION)
    assert os.listdir(tmp_path) == []
    killed_after_publishing(target)
    # Its destination may be there already, empty or to be replaced: then the new checkpoint still is in the work area.
    os.makedirs(f"{target}.ax2mt-wip/checkpoint/0")
    assert not finish_published(target, CONVERSION)
    os.removedirs(f"{target}.ax2mt-wip/checkpoint/0")
    os.rmdir(f"{target}/0")
    assert not finish_published(target, CONVERSION)
    os.mkdir(f"{target}/0")
    assert not finish_published(target, {**CONVERSION, "step": 200})
    os.rename(target, tmp_path / "elsewhere")
    assert not finish_published(target, CONVERSION)
    os.rename(tmp_path / "elsewhere", target)
    Path(journal_path(target)).write_text(json.dumps({"conversion": CONVERSION, "published": False}))
    assert not finish_published(target, CONVERSION)
    with staged(target) as stage:  # none of these keeps the lock or throws work away
        assert stage.resumed
        assert stage.holds_work()


def test_beginning_anew_takes_back_that_it_was_published(target: str) -> None:
    killed_after_publishing(target)
    with staged(target, fresh=True) as stage:
        assert stage.read_journal() == (CONVERSION, False)


def test_going_on_takes_back_that_it_was_published(target: str) -> None:
    killed_after_publishing(target)
    os.rmdir(f"{target}/0")
    with staged(target) as stage:
        assert stage.resumed
        assert stage.read_journal() == (CONVERSION, False)


@pytest.mark.parametrize("same", [True, False])
def test_what_a_killed_publication_did_is_undone_whatever_comes_next(same: bool, target: str) -> None:
    with staged(target) as stage:
        work_on(stage)
        (Path(stage.output) / "0").mkdir(parents=True)
        stage.mark_published()
    os.mkdir(target)
    (Path(target) / "maxtext.yml").write_text("new")
    assert not finish_published(target, CONVERSION if same else {**CONVERSION, "step": 200})
    assert os.listdir(target) == []


@pytest.mark.parametrize("repaired", [True, False])
def test_after_a_fault_of_the_source(repaired: bool, target: str) -> None:
    """A source that was repaired is another one: its conversion starts over without being asked to."""
    with staged(target, {**CONVERSION, SOURCE_FILES: "damaged"}) as stage:
        chunk = work_on(stage)
        stage.mark_source_fault()
    with pytest.raises(DestinationError), staged(target, {**CONVERSION, SOURCE_FILES: "x", "store": "ocdbt"}):
        pytest.fail("another conversion is still refused")
    with staged(target, {**CONVERSION, SOURCE_FILES: "repaired" if repaired else "damaged"}) as stage:
        assert stage.resumed != repaired
        assert chunk.exists() != repaired
    with pytest.raises(DestinationError), staged(target, {**CONVERSION, SOURCE_FILES: "changed later"}):
        pytest.fail("the fault is that of one run")


def test_what_cannot_be_removed_is_told(target: str, faulty: FaultyStorage) -> None:
    stage = Stage(target, "files", ())
    stage.begin(CONVERSION, fresh=False)
    chunk = work_on(stage)
    faulty.fail("remove", f"^{stage.root}$", errno.EPERM)
    assert stage.remove() == f"{stage.root}: Operation not permitted"
    assert chunk.exists()
    assert not os.path.exists(journal_path(target))


@pytest.mark.parametrize("operation", ["make_directory", "lock", "write", "names"])
def test_a_work_area_that_cannot_be_begun(operation: str, target: str, faulty: FaultyStorage) -> None:
    faulty.fail(operation, r"\.ax2mt-wip", errno.EROFS)
    with pytest.raises(DestinationError, match="Read-only file system"), staged(target):
        pytest.fail("this must not begin")
    faulty.heal()
    with staged(target) as stage:
        assert not stage.resumed


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("operation", ["remove", "write"])
def test_a_start_that_is_killed_is_made_again(operation: str, fresh: bool, target: str, faulty: FaultyStorage) -> None:
    with staged(target) as stage:
        chunk = work_on(stage)
        (chunk.parent / "0.1.part").write_bytes(b"half")
    faulty.kill(operation)
    with pytest.raises(Kill), staged(target, fresh=fresh):
        pytest.fail("this must not begin")
    with staged(target) as stage:
        assert stage.resumed  # the journal is still the first run's
        assert chunk.exists() or fresh
        assert not (chunk.parent / "0.1.part").exists()


def test_bytes_of_a_tree(tmp_path: Path) -> None:
    (tmp_path / "tree" / "deep").mkdir(parents=True)
    (tmp_path / "tree" / "one").write_bytes(bytes(1000))
    (tmp_path / "tree" / "deep" / "two").write_bytes(bytes(24))
    (tmp_path / "large").write_bytes(bytes(4096))
    link = tmp_path / "tree" / "link"
    link.symlink_to(tmp_path / "large")
    assert tree_bytes(str(tmp_path / "tree")) == 1024 + link.lstat().st_size
    assert tree_bytes(str(tmp_path / "nothing")) == 0
