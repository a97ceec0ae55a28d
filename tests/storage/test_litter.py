"""What is litter, and that nothing of a checkpoint is."""

from pathlib import Path

import pytest

from converter.storage import find_litter
from converter.storage.litter import has_litter_in, is_litter, without_litter

LITTER = [
    *(".DS_Store", "._index", "._.DS_Store", "Thumbs.db", "desktop.ini", ".directory", "__MACOSX"),
    *(".nfs00000000000a1b2c00000001", "lost+found", ".snapshot", ".Trash-1000", ".Trashes", "$RECYCLE.BIN"),
    *(".ipynb_checkpoints", "maxtext.yml~", ".maxtext.yml.swp", ".index.swo", ".#index", "#index#"),
    *(".0.0.aB3xYz", ".zarr.json.Q1w2E3", ".index.abcdef", "._METADATA.a1b2c3", ".~tmp~", ".rsync-partial"),
    *("0.0_.gstmp", "manifest.ocdbt.1a2b3c4d.partial", ".ax2mt-probe"),
]
NO_LITTER = [
    *("0", "100", "index", "gda", "items", "0.0", "c.0.1", "c", "zarr.json", ".zarray", ".zattrs", ".zgroup"),
    *("_METADATA", "_CHECKPOINT_METADATA", "_sharding", "commit_success.txt", "array_metadatas", "descriptor"),
    *("manifest.ocdbt", "d", "root", "chunks", "ocdbt.process_0", "0123456789abcdef0123456789abcdef"),
    *("maxtext.yml", "ax2mt.json", "params.params.decoder.layers.layers_0.mlp.wi_0.kernel"),
    *("notes.txt", ".notes.secret", ".git", ".gitignore", ".hidden", "0.orbax-checkpoint-tmp-1", "x.tmp", "x.part"),
    *("Thumbs.db.zip", "my desktop.ini", ".nfs", "lost", "~", "swp", "x.swp", ".zarray.backup1", ".partial"),
]


@pytest.mark.parametrize("name", LITTER)
def test_litter(name: str) -> None:
    assert is_litter(name)
    assert has_litter_in(f"a/{name}/b")


@pytest.mark.parametrize("name", NO_LITTER)
def test_no_litter(name: str) -> None:
    assert not is_litter(name)


def test_names_of_real_checkpoints_are_no_litter() -> None:
    """Everything in the bundled checkpoints, which AXLearn, MaxText and Orbax wrote."""
    data = Path(__file__).parents[1] / "data"
    names = {path.name for kind in ("axlearn", "maxtext") for path in (data / kind).rglob("*")}
    assert len(names) > 50
    assert [name for name in sorted(names) if is_litter(name)] == []


def test_lists(tmp_path: Path) -> None:
    assert without_litter(["b", ".DS_Store", "a"]) == ["b", "a"]
    (tmp_path / "a" / ".snapshot").mkdir(parents=True)
    (tmp_path / "a" / ".snapshot" / "._x").touch()
    (tmp_path / "a" / "file~").touch()
    (tmp_path / "a" / "file").touch()
    assert find_litter(str(tmp_path), 10) == ["a/.snapshot", "a/file~"]
    assert find_litter(str(tmp_path), 1) == ["a/.snapshot"]
    assert find_litter(str(tmp_path / "gone"), 10) == []
