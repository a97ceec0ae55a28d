"""What Orbax committed is looked at before it is published: Orbax says some failures in its log alone."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from converter.checkpoints import orbax_commit as orbax
from converter.checkpoints.commit import Commit
from converter.cli.app import run
from tests.checkpoints.test_committer import CLI
from tests.conftest import AXLEARN
from tests.helpers.damage import cut_to, edit
from tests.helpers.restorer import Restorer

SOURCE = AXLEARN / "envy-test"
LEAF = "params.params.token_embedder.embedding"
REFUSED = (
    "what Orbax committed cannot be read back; nothing was put at the destination, and the finished leaves are kept"
)


def broken_save(damage: Callable[[Path], object]) -> Callable[[Commit, str], None]:
    """Orbax's commit, after which something is wrong with `0/items`."""
    save = orbax._save

    def broken(work: Commit, directory: str) -> None:
        save(work, directory)
        damage(Path(work.output) / "0" / "items")

    return broken


def a_chunk(leaf: Path) -> Path:
    return next(path for path in leaf.iterdir() if path.name != "zarr.json")


DAMAGES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "no metadata of a leaf": ("files", lambda items: (items / LEAF / "zarr.json").unlink(), "cannot be opened"),
    "metadata cut": ("zarr2", lambda items: cut_to(20)(items / LEAF / ".zarray"), "cannot be opened"),
    "another shape": (
        "files",
        lambda items: edit(items / LEAF / "zarr.json", shape=[64, 9]),
        "expected float32[32, 8], found float32[64, 9]",
    ),
    "another dtype": ("zarr2", lambda items: edit(items / LEAF / ".zarray", dtype="<i4"), "found int32[32, 8]"),
    "no chunk": ("files", lambda items: a_chunk(items / LEAF).unlink(), "missing chunks: 1, the first is 0"),
    "no leaf": ("zarr2", lambda items: shutil.rmtree(items / LEAF), "cannot be opened"),
    "no database": ("ocdbt", lambda items: (items / "manifest.ocdbt").unlink(), "cannot be opened"),
    "no nodes": ("ocdbt", lambda items: shutil.rmtree(items / "d"), "cannot be opened"),
    "no tree": ("files", lambda items: (items / "_METADATA").unlink(), "_METADATA: is missing"),
    "no marker": ("files", lambda items: (items / "commit_success.txt").unlink(), "commit_success.txt is missing"),
    "no step metadata": (
        "ocdbt",
        lambda items: (items.parent / "_CHECKPOINT_METADATA").unlink(),
        "_CHECKPOINT_METADATA: is missing",
    ),
    "a leaf not in the tree": (
        "files",
        lambda items: edit(items / "_METADATA", tree_metadata={}),
        "missing in _METADATA",
    ),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_a_commit_that_cannot_be_read_is_not_published(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store, damage, found = DAMAGES[what]
    command = ["convert", "-q", str(SOURCE), str(tmp_path / "out"), "--store", store]
    with monkeypatch.context() as patch:
        patch.setattr(orbax, "_save", broken_save(damage))
        assert run(command) == 5
    first, *details = capsys.readouterr().err.splitlines()
    assert REFUSED in first
    assert any(found in line for line in details), details
    assert sorted(os.listdir(tmp_path)) == ["out.ax2mt-wip", "out.ax2mt-wip.json"]
    # The same command goes on from the finished leaves.
    assert run([*command, "--json"]) == 0
    assert '"resumed": true' in capsys.readouterr().out
    assert sorted(os.listdir(tmp_path)) == ["out"]


def test_what_was_at_the_destination_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["convert", "-q", str(SOURCE), str(tmp_path / "out")]
    assert run(command) == 0
    before = sorted(path for path in (tmp_path / "out").rglob("*"))
    monkeypatch.setattr(orbax, "_save", broken_save(lambda items: shutil.rmtree(items / LEAF)))
    assert run([*command, "--overwrite"]) == 5
    assert sorted(path for path in (tmp_path / "out").rglob("*")) == before


UNLINKED = """
import subprocess
program = '''
import contextlib, sys
sys.path.insert(0, {root!r})
from converter.checkpoints import orbax_commit as orbax
orbax._without_wildcards = contextlib.nullcontext
from converter.checkpoints.commit_process import main
main()
'''
def start():
    return subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
committer._start = start
"""


def test_a_database_that_orbax_did_not_merge(tmp_path: Path, newest_orbax: Restorer) -> None:
    # Orbax under the real name of such a directory: it finds no database, says so in its log, and commits all the same.
    target = tmp_path / "layers=[2,4]" / "out"
    command = ["convert", "-q", str(SOURCE), str(target), "--store", "ocdbt"]
    hook = UNLINKED.format(root=str(Path(__file__).parents[2]))
    done = subprocess.run(
        [sys.executable, "-c", CLI.format(hook=hook), *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 5, done.stderr
    assert REFUSED in done.stderr
    assert "Traceback" not in done.stderr
    # What Orbax logs about it is shown, for here it is the cause.
    assert "Skipping merge of OCDBT" in done.stderr
    assert not target.exists()
    assert run(command) == 0
    assert len(newest_orbax.restore(target)) == 25


@pytest.mark.parametrize("place", ["missing", "t[1]"])
def test_no_place_for_the_link(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t[1]").mkdir()
    command = ["convert", "-q", str(SOURCE), str(tmp_path / "[x]"), "--store", "ocdbt"]
    with monkeypatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(tmp_path / place))
        assert run(command) == 5
    error = capsys.readouterr().err
    assert "set TMPDIR to" in error
    assert len(error.splitlines()) == 1
    assert run(command) == 0
    assert os.listdir(tmp_path / "t[1]") == []
