"""Every fault of a destination: exit code 5, one line with the path; what was done stays and is gone on with."""

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converter.checkpoints import orbax_commit as commit_module
from converter.cli.app import run as run_cli
from converter.conversion.destination import JOURNAL_SUFFIX, SUFFIX
from tests.helpers.axlearn_checkpoint import SMALL, STACK, envy_tensors, expected_leaves, write_checkpoint
from tests.helpers.compare import assert_same_leaves
from tests.helpers.faulty_storage import FaultyStorage
from tests.helpers.refusals import nothing_left, refused
from tests.helpers.restorer import Restorer

WIDE = {**SMALL, "embed": 128, "moe_mlp": 256, "experts": 8}
"""The experts' weights have 2 MiB each and 256 KiB a chunk."""

EXPERTS = [f"{STACK}/layer1/feed_forward/{name}" for name in ("wi_0_weight", "wi_1_weight", "wo_weight")]
STEP = "step_00000100"
STORES = ["files", "ocdbt", "zarr2"]
each_store = pytest.mark.parametrize("store", STORES)


@pytest.fixture(scope="module")
def tensors() -> dict[str, np.ndarray]:
    return envy_tensors(WIDE)


@pytest.fixture(scope="module")
def source(tensors: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> Path:
    chunks = {path: (2, 1, *tensors[path].shape[2:]) for path in EXPERTS}
    return write_checkpoint(tmp_path_factory.mktemp("source") / STEP, tensors, chunks=chunks)


def limited(source: Path, target: Path, store: str, limit: int | None) -> subprocess.CompletedProcess[str]:
    """A conversion whose files may have `limit` bytes at most, as a quota or an old file system would have it."""
    script = "import resource, sys; from converter.cli.app import main; "
    if limit is not None:
        script += f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit})); "
    return subprocess.run(
        [sys.executable, "-c", script + "main(sys.argv[1:])", "convert", "-q", str(source), str(target),
         "--store", store, "--jobs", "1"],
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="no limit of file sizes here")
@each_store
def test_a_file_size_limit(
    store: str, source: Path, tensors: dict[str, np.ndarray], tmp_path: Path, newest_orbax: Restorer
) -> None:
    target = tmp_path / "out"
    done = limited(source, target, store, 150_000)
    assert (done.returncode, done.stdout) == (5, ""), done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert str(tmp_path) in done.stderr
    assert "too large" in done.stderr
    assert "free)" in done.stderr
    nothing_left(tmp_path, f"out{SUFFIX}", f"out{JOURNAL_SUFFIX}")
    assert staged(target)
    done = limited(source, target, store, None)
    assert done.returncode == 0, done.stderr
    nothing_left(tmp_path, "out")
    assert_same_leaves(newest_orbax.restore(target), expected_leaves(tensors))


def staged(target: Path) -> list[Path]:
    """Files of leaves that a stopped run left to go on with."""
    leaves = Path(f"{target}{SUFFIX}") / "leaves"
    return [path for path in leaves.rglob("*") if path.is_file() and path.name not in ("zarr.json", ".zarray")]


@pytest.mark.parametrize("size", [1 << 20, 4 << 20, 6 << 20])
@each_store
def test_a_full_disk(
    store: str,
    size: int,
    source: Path,
    tensors: dict[str, np.ndarray],
    mounted: Callable[[str, int], Path],
    capsys: pytest.CaptureFixture[str],
    faulty: FaultyStorage,
    newest_orbax: Restorer,
) -> None:
    faulty.free = 1 << 50  # others fill the disk meanwhile
    disk = mounted("tmpfs", size)
    target = disk / "out"
    message = refused(capsys, 5, source, target, "--store", store)
    assert "No space left on device" in message
    assert "free)" in message
    nothing_left(disk, f"out{SUFFIX}", f"out{JOURNAL_SUFFIX}")
    subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
    assert run_cli(["convert", "-q", str(source), str(target), "--store", store]) == 0
    nothing_left(disk, "out")
    assert_same_leaves(newest_orbax.restore(target), expected_leaves(tensors))


@each_store
def test_a_disk_that_fills_up_while_orbax_commits(
    store: str,
    source: Path,
    tensors: dict[str, np.ndarray],
    mounted: Callable[[str, int], Path],
    capsys: pytest.CaptureFixture[str],
    faulty: FaultyStorage,
    newest_orbax: Restorer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    faulty.free = 1 << 50  # others fill the disk meanwhile
    disk = mounted("tmpfs", 32 << 20)
    target, ballast = disk / "out", disk / "ballast"

    def fill(_: str) -> None:
        with open(ballast, "wb", buffering=0) as file:
            while True:
                try:
                    file.write(bytes(4096))
                except OSError:
                    return

    faulty.before("missing", f"^{target}{SUFFIX}/leaves/", fill)
    message = refused(capsys, 5, source, target, "--store", store)
    assert "No space left on device" in message
    assert "Traceback" not in caplog.text
    ballast.unlink()
    nothing_left(disk, f"out{SUFFIX}", f"out{JOURNAL_SUFFIX}")
    assert run_cli(["convert", "-q", str(source), str(target), "--store", store]) == 0
    nothing_left(disk, "out")
    assert_same_leaves(newest_orbax.restore(target), expected_leaves(tensors))


def test_space_is_checked_before_work(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], faulty: FaultyStorage
) -> None:
    faulty.free = 5 << 20
    message = refused(capsys, 5, source, tmp_path / "out")
    assert f"{tmp_path / 'out'}: too little room: " in message
    assert "needed, 5.00 MiB free on" in message
    nothing_left(tmp_path)


def test_a_parent_that_is_a_file(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    message = refused(capsys, 5, source, tmp_path / "file" / "out")
    assert f"{tmp_path / 'file' / 'out'}{SUFFIX}: cannot be created: Not a directory" in message
    assert (tmp_path / "file").read_text() == "mine"


def test_a_name_that_is_too_long(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "the name is too long: 250 bytes, at most 235" in refused(capsys, 5, source, tmp_path / ("x" * 250))
    assert "the name is too long: 256 bytes, at most 255" in refused(capsys, 5, source, tmp_path / ("x" * 256) / "out")
    nothing_left(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes without permission")
def test_no_permission(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tmp_path.chmod(0o500)
    assert "Permission denied" in refused(capsys, 5, source, tmp_path / "out")


def test_a_read_only_file_system(
    source: Path, mounted: Callable[[str, int], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    disk = mounted("tmpfs", 1 << 20)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    assert "Read-only file system" in refused(capsys, 5, source, disk / "out")


def test_a_mount_point(source: Path, mounted: Callable[[str, int], Path], capsys: pytest.CaptureFixture[str]) -> None:
    disk = mounted("tmpfs", 1 << 20)
    assert "is a mount point" in refused(capsys, 5, source, disk)
    nothing_left(disk)


@pytest.mark.parametrize("what", ["dangling link", "file"])
def test_something_else_in_its_place(
    what: str, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out"
    target.write_text("mine") if what == "file" else target.symlink_to("nowhere")
    assert "exists but is not a directory" in refused(capsys, 5, source, target)
    nothing_left(tmp_path, "out")


def test_a_link_to_an_empty_directory_is_followed(
    source: Path, tensors: dict[str, np.ndarray], tmp_path: Path, newest_orbax: Restorer
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert run_cli(["convert", "-q", str(source), str(tmp_path / "link")]) == 0
    nothing_left(tmp_path, "link", "real")
    assert (tmp_path / "link").is_symlink()
    assert_same_leaves(newest_orbax.restore(tmp_path / "real"), expected_leaves(tensors))


def vanish_whole(root: Path) -> None:
    shutil.rmtree(root)


def vanish_finished(root: Path) -> None:
    """The first leaves, which are done; the later ones go on."""
    for leaf in sorted((root / "leaves").iterdir()):
        shutil.rmtree(leaf)


def vanish_index(root: Path) -> None:
    """What says which chunks there are; the chunks stay."""
    for name in ("zarr.json", ".zarray", "manifest.ocdbt"):
        for file in root.rglob(name):
            file.unlink()


VANISHINGS: dict[str, Callable[[Path], None]] = {
    "the work area": vanish_whole,
    "finished leaves": vanish_finished,
    "their metadata": vanish_index,
}


@pytest.mark.parametrize("when", ["during the work", "after the work"])
@pytest.mark.parametrize("vanishing", VANISHINGS)
@each_store
def test_a_work_area_that_vanishes(
    store: str,
    vanishing: str,
    when: str,
    source: Path,
    tensors: dict[str, np.ndarray],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    faulty: FaultyStorage,
    newest_orbax: Restorer,
) -> None:
    target = tmp_path / "out"
    # One leaf after the other: what is finished must be told from what is being written.
    monkeypatch.setattr("converter.conversion.work_area.COPIERS", 0)
    moments = {
        # The twelfth leaf is opened; a database makes two directories.
        "during the work": ("make_directory", rf"/leaves/[^/]+{'/chunks' if store == 'ocdbt' else ''}$"),
        "after the work": ("missing", "/leaves/"),
    }
    operation, pattern = moments[when]
    nth = 12 if store == "ocdbt" or when == "after the work" else 23
    faulty.before(
        operation,
        f"^{target}{SUFFIX}{pattern}",
        lambda _: VANISHINGS[vanishing](Path(f"{target}{SUFFIX}")),
        nth=nth if when == "during the work" else 1,
    )
    message = refused(capsys, 5, source, target, "--store", store, "--jobs", "1")
    assert f"{target}{SUFFIX}" in message
    assert "removed while the conversion ran" in message
    assert not target.exists()
    assert run_cli(["convert", "-q", str(source), str(target), "--store", store]) == 0
    nothing_left(tmp_path, "out")
    assert_same_leaves(newest_orbax.restore(target), expected_leaves(tensors))


def test_the_destinations_parent_vanishes_at_the_end(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove(*_: Any) -> None:
        shutil.rmtree(tmp_path / "parent")

    monkeypatch.setattr(commit_module, "_save", remove)
    message = refused(capsys, 5, source, tmp_path / "parent" / "out")
    assert str(tmp_path / "parent") in message
    nothing_left(tmp_path)


@pytest.mark.parametrize("error", [RuntimeError("a thread failed"), OSError("no number"), OSError(28, "No space left")])
def test_faults_that_orbax_wraps(
    error: Exception, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise error from OSError(28, "No space left on device", "/some/file")

    monkeypatch.setattr(commit_module, "_save", fail)
    message = refused(capsys, 5, source, tmp_path / "out")
    assert "No space left" in message
    nothing_left(tmp_path, f"out{SUFFIX}", f"out{JOURNAL_SUFFIX}")
