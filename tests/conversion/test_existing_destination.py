"""A destination that exists: filled, replaced, or refused before any work; and what else may lie in it."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from converter.cli.app import run as run_cli
from converter.conversion.destination import JOURNAL_SUFFIX, SUFFIX
from tests.conftest import AXLEARN, Cli
from tests.helpers import mounts
from tests.helpers.compare import assert_same_leaves
from tests.helpers.conversion import run
from tests.helpers.faulty_storage import FaultyStorage
from tests.helpers.refusals import nothing_left, refused
from tests.helpers.restorer import Restorer

SOURCE = AXLEARN / "envy-test"
STORES = ("files", "ocdbt", "zarr2")
Mount = Callable[[Callable[..., bool], Path, Path], Path]


def convert(target: Path, **options: Any) -> None:
    run(SOURCE, target, **options)


@pytest.fixture
def mount() -> Iterator[Mount]:
    """Mounts with a helper of `mounts`; skips where that is not allowed."""
    made: list[Path] = []

    def at(kind: Callable[..., bool], place: Path, other: Path) -> Path:
        if not kind(place, other):
            pytest.skip(f"mounting {kind.__name__} is not possible here")
        made.append(place)
        return place

    yield at
    for place in reversed(made):
        mounts.remove(place)


@pytest.fixture(scope="module")
def cli(in_process: Cli) -> Cli:
    """Commands run in this process: what counts here is what they do to files, and what they say."""
    return in_process


@pytest.mark.parametrize("store", STORES)
def test_an_empty_directory_is_filled(store: str, tmp_path: Path, cli: Cli) -> None:
    target = tmp_path / "out"
    target.mkdir()
    if os.geteuid() == 0:
        os.chown(target, -1, 23456)
    target.chmod(0o2750)
    (target / ".DS_Store").write_text("litter")
    before = target.stat()
    # Who stands in the directory sees the checkpoint arrive.
    done = cli("convert", "-q", SOURCE.absolute(), ".", "--store", store, cwd=target)
    assert done.code == 0, done.err
    after = target.stat()
    assert (after.st_ino, after.st_mode, after.st_gid) == (before.st_ino, before.st_mode, before.st_gid)
    assert sorted(os.listdir(target)) == [".DS_Store", "0", "ax2mt.json", "maxtext.yml"]
    nothing_left(tmp_path, "out")
    groups = {path.stat().st_gid for path in target.rglob("*") if path.name != ".DS_Store"}
    assert groups == {before.st_gid}
    assert cli("verify", "-q", SOURCE, target).code == 0


KILL = """
import os, sys
from converter.storage import STORAGES
from tests.helpers.faulty_storage import FaultyStorage
storage = STORAGES[""] = FaultyStorage()
into = "^" + sys.argv[-1] + os.sep + "(?!.ax2mt-probe)"
storage.before("rename", into, lambda _: os.kill(os.getpid(), 9), nth={moment} + 1)
from converter.cli.app import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize("after", ["the same command", "another conversion"])
@pytest.mark.parametrize("moment", [0, 1, 2])
def test_filling_is_killed_and_resumed(
    moment: int, after: str, tmp_path: Path, cli: Cli, newest_orbax: Restorer, converted: Callable[..., Path]
) -> None:
    target = tmp_path / "out"
    target.mkdir()
    before = target.stat()
    command = [sys.executable, "-c", KILL.format(moment=moment), "convert", "-q", str(SOURCE), str(target)]
    killed = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert killed.returncode == -9, killed.stderr
    assert not (target / "0").exists()
    assert cli("inspect", "--json", target).document["kind"] == "directory"
    options: tuple[str, ...] = ()
    if after == "another conversion":
        options = ("--store", "ocdbt")
        done = cli("convert", "-q", SOURCE, target, *options)
        assert done.code == 5
        assert "--fresh starts over" in done.err
        assert os.listdir(target) == []
        options += ("--fresh",)
    done = cli("convert", "--json", SOURCE, target, *options)
    assert done.code == 0, done.err
    assert done.document["resumed"] == (after == "the same command")
    nothing_left(tmp_path, "out")
    assert target.stat().st_ino == before.st_ino
    assert_same_leaves(newest_orbax.restore(target), newest_orbax.restore(converted("envy-test")))


@pytest.mark.parametrize("umask", [0o002, 0o027, 0o077])
@pytest.mark.parametrize("store", STORES)
def test_modes_follow_the_umask(store: str, umask: int, tmp_path: Path) -> None:
    target = tmp_path / "out"
    before = os.umask(umask)
    try:
        convert(target, store=store)
    finally:
        os.umask(before)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (target, *target.rglob("*"))}
    wrong = {
        str(path.relative_to(target)): oct(mode)
        for path, mode in modes.items()
        if mode != ((0o777 if path.is_dir() else 0o666) & ~umask)
    }
    assert wrong == {}


def test_something_that_appears_meanwhile_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], faulty: FaultyStorage
) -> None:
    target = tmp_path / "out"

    def appear(_: str) -> None:
        target.mkdir()
        (target / "notes.txt").write_text("mine")

    faulty.before("flush", f"^{target}{SUFFIX}", appear)
    assert "exists and is not empty" in refused(capsys, 5, SOURCE, target)
    assert (target / "notes.txt").read_text() == "mine"
    shutil.rmtree(target)
    convert(target)
    nothing_left(tmp_path, "out")


def test_a_lower_layer_of_an_overlay(
    tmp_path: Path, mount: Mount, capsys: pytest.CaptureFixture[str], newest_orbax: Restorer
) -> None:
    lower = tmp_path / "lower"
    lower.mkdir()
    convert(lower / "old")
    (lower / "empty").mkdir()
    top = mount(mounts.overlay, tmp_path / "top", lower)
    old = newest_orbax.restore(top / "old")
    message = refused(capsys, 5, SOURCE, top / "old", "--overwrite", "--store", "ocdbt")
    assert message == (
        f"ax2mt: {top}/old: cannot be replaced: Invalid cross-device link; it is in a lower layer of an overlay file "
        "system; give another directory, or remove it first\n"
    )
    nothing_left(top, "empty", "old")  # refused before work
    assert_same_leaves(newest_orbax.restore(top / "old"), old)
    convert(top / "empty")
    shutil.rmtree(top / "old")
    convert(top / "old", overwrite=True)
    convert(top / "old", overwrite=True, store="ocdbt")  # now it is in the upper layer
    nothing_left(top, "empty", "old")
    for name in ("empty", "old"):
        assert_same_leaves(newest_orbax.restore(top / name), old)


@pytest.mark.parametrize("content", ["empty", "checkpoint"])
def test_a_bind_mount(content: str, tmp_path: Path, mount: Mount, capsys: pytest.CaptureFixture[str]) -> None:
    """A mount point on the same device, which looks like any directory."""
    (tmp_path / "volume").mkdir()
    if content == "checkpoint":
        convert(tmp_path / "volume")
    (tmp_path / "out").mkdir()
    target = mount(mounts.bind, tmp_path / "out", tmp_path / "volume")
    names = os.listdir(target)
    message = refused(capsys, 5, SOURCE, target, "--overwrite")
    assert message == f"ax2mt: {target}: is a mount point, which cannot be replaced; give a directory below it\n"
    assert os.listdir(target) == names
    convert(target / "below")


def test_a_mount_point_inside(tmp_path: Path, mount: Mount, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "out"
    convert(target)
    shutil.copytree(target / "0", tmp_path / "volume")
    mount(mounts.bind, target / "0", tmp_path / "volume")
    message = refused(capsys, 5, SOURCE, target, "--overwrite")
    assert f"{target}/0: is a mount point" in message
    assert (tmp_path / "volume" / "items" / "_METADATA").exists()
    nothing_left(tmp_path, "out", "volume")


def immutable(path: Path, *, wanted: bool) -> bool:
    program = shutil.which("chattr")
    if program is None:
        return False
    done = subprocess.run([program, "+i" if wanted else "-i", str(path)], capture_output=True, check=False)
    return done.returncode == 0


@pytest.mark.parametrize("content", ["empty", "checkpoint"])
def test_an_immutable_directory(
    content: str, mounted: Callable[[str, int], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    target = mounted("ext4", 128 << 20) / "out"
    target.mkdir()
    if content == "checkpoint":
        convert(target)
    if not immutable(target, wanted=True):
        pytest.skip("no immutable files here")
    message = refused(capsys, 5, SOURCE, target, "--overwrite")
    what = "filled" if content == "empty" else "replaced"
    assert f"{target}: cannot be {what}: Operation not permitted; give another directory" in message
    nothing_left(target.parent, "lost+found", "out")
    immutable(target, wanted=False)
    convert(target, overwrite=True)


def test_an_old_file_that_cannot_be_removed(mounted: Callable[[str, int], Path], cli: Cli) -> None:
    target = mounted("ext4", 128 << 20) / "out"
    convert(target)
    held = target / "0" / "items" / "_METADATA"
    if not immutable(held, wanted=True):
        pytest.skip("no immutable files here")
    done = cli("convert", SOURCE, target, "--overwrite", "--store", "ocdbt")
    assert done.code == 0, done.err
    left = Path(f"{target}{SUFFIX}")
    remains = [path for path in left.rglob("*") if path.is_file()]
    assert [path.name for path in remains] == ["_METADATA"]
    line = next(line for line in done.out.splitlines() if line.startswith("Not everything of the work area"))
    assert line.endswith("Operation not permitted")
    assert cli("verify", "-q", SOURCE, target).code == 0
    immutable(remains[0], wanted=False)
    convert(target, overwrite=True)
    nothing_left(target.parent, "lost+found", "out")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")
@pytest.mark.parametrize("case", ["read-only parent", "sticky parent", "sticky parent, replaced", "read-only"])
def test_as_another_user(case: str) -> None:
    """What permissions say, to a user that they bind. The directory is reachable for him, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        home, nobody = Path(name), 65534
        home.chmod(0o755)
        target = home / "out"
        shutil.copytree(SOURCE, home / "source")
        convert(target) if case == "sticky parent, replaced" else target.mkdir()
        owner = 0 if case == "read-only" else nobody
        for path in (target, *target.rglob("*")):
            os.chown(path, owner, owner)
        if case != "read-only parent":
            home.chmod(0o1777)
        if case == "sticky parent, replaced":
            os.chown(target, 0, 0)
            target.chmod(0o777)
        before = sorted(os.listdir(target))
        script = (
            # The first conversion loads all modules, which the other user may not be able to read.
            "import os, shutil, sys; import converter.checkpoints.orbax_commit; from converter.cli.app import run; "
            "command = ['convert', '-q', sys.argv[1]]; "
            "run([*command, sys.argv[2] + '-first']); shutil.rmtree(sys.argv[2] + '-first'); "
            f"os.setgroups([]); os.setgid({nobody}); os.setuid({nobody}); "
            "sys.exit(run([*command, sys.argv[2], '--overwrite']))"
        )
        command = [sys.executable, "-c", script, str(home / "source"), str(target)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if case == "sticky parent":
            assert done.returncode == 0, done.stderr
            assert sorted(os.listdir(target)) == ["0", "ax2mt.json", "maxtext.yml"]
        else:
            assert done.returncode == 5, done.stderr
            expected = {
                "read-only parent": f"{target}{SUFFIX}: cannot be created: Permission denied; the work area is created "
                f"beside the destination: give a directory below {target}",
                "sticky parent, replaced": f"{target}: cannot be replaced: Operation not permitted",
                "read-only": f"{target}: cannot be filled: Permission denied",
            }[case]
            assert f"ax2mt: {expected}" in done.stderr
            assert sorted(os.listdir(target)) == before
        assert sorted(os.listdir(home)) == ["out", "source"]


LITTER = (".DS_Store", "._maxtext.yml", "Thumbs.db", "maxtext.yml~", ".maxtext.yml.swp", ".nfs0000000000a1b2c3")
LITTER_DIRECTORIES = (".ipynb_checkpoints", "lost+found", ".snapshot", ".Trash-1000")


def scatter(top: Path) -> int:
    """Puts litter into a directory and all directories below it; returns how much."""
    count = 0
    for place in [top, *(path for path in top.rglob("*") if path.is_dir())]:
        for name in LITTER:
            (place / name).write_text("litter")
        for name in LITTER_DIRECTORIES:
            (place / name).mkdir()
            (place / name / "content").write_text("litter")
        count += len(LITTER) + len(LITTER_DIRECTORIES)
    return count


@pytest.mark.parametrize("store", STORES)
def test_litter_in_a_checkpoint_is_no_damage(
    store: str, tmp_path: Path, cli: Cli, converted: Callable[..., Path]
) -> None:
    target = tmp_path / "out"
    shutil.copytree(converted("envy-test", store=store), target)
    clean = cli("inspect", "--json", target).document
    scatter(target)
    done = cli("verify", "--json", target)
    assert (done.code, done.document["findings"]) == (0, []), done.out
    (note,) = done.document["notes"]
    assert note.startswith("ignored, left by a system or a tool: ")
    assert note.endswith(", and more")
    assert cli("verify", "-q", SOURCE, target).code == 0
    found = cli("inspect", "--json", target).document
    assert found["facts"].pop("litter") > 100 * (store != "ocdbt")
    assert found == clean
    # What nobody knows remains a finding.
    (target / "0" / "items" / "notes.txt").write_text("mine")
    leaf = target / "0" / "items" / "params.params.token_embedder.embedding"
    if store != "ocdbt":
        (leaf / "9.9.9").write_text("mine")
    done = cli("verify", "--json", target)
    assert done.code == 6
    assert len(done.document["findings"]) == 1 + (store != "ocdbt")


def test_litter_does_not_keep_a_checkpoint_from_being_replaced(tmp_path: Path, cli: Cli) -> None:
    target = tmp_path / "out"
    convert(target)
    scatter(target)
    convert(target, overwrite=True, store="ocdbt")
    assert sorted(os.listdir(target)) == ["0", "ax2mt.json", "maxtext.yml"]  # it goes with the old checkpoint
    (target / "notes.txt").write_text("mine")
    done = cli("convert", "-q", SOURCE, target, "--overwrite")
    assert done.code == 5
    assert "nothing else); found 0, ax2mt.json, maxtext.yml, notes.txt" in done.err
    assert (target / "notes.txt").read_text() == "mine"


def test_litter_in_the_source(tmp_path: Path, faulty: FaultyStorage) -> None:
    """It comes and goes while the source is read, and between a stopped run and the next one."""
    source, target = tmp_path / "trainer", tmp_path / "out"
    shutil.copytree(SOURCE, source)
    (source / "checkpoints" / "._step_00000100").write_text("litter")

    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    faulty.before("missing", f"^{target}{SUFFIX}/leaves/", lambda _: scatter(source))
    faulty.before("flush", f"^{target}{SUFFIX}", interrupt)
    assert run_cli(["convert", "-q", str(source), str(target)]) == 130
    nothing_left(tmp_path, "trainer", f"out{SUFFIX}", f"out{JOURNAL_SUFFIX}")
    scatter(Path(f"{target}{SUFFIX}"))
    assert run_cli(["convert", "-q", str(source), str(target)]) == 0
    nothing_left(tmp_path, "out", "trainer")
    assert not [path for path in target.rglob("*") if path.name in (*LITTER, *LITTER_DIRECTORIES)]
    assert run_cli(["verify", "-q", str(source), str(target)]) == 0
    assert run_cli(["verify", "-q", str(target)]) == 0
