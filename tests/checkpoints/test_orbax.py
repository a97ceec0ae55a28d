"""What Orbax wrote and refuses: metadata, commit markers, and that a damaged chunk does not restore."""

import json
import random
from pathlib import Path

import pytest

from converter.conversion.run import Request, convert
from converter.planning.options import Options
from converter.work import Silent
from tests.conftest import DATA
from tests.helpers.conversion import make_options
from tests.helpers.restorer import RestoreError, Restorer

SOURCE = str(DATA / "axlearn" / "micro-hybrid-sharded")


def converted(path: Path, **options) -> Path:
    convert(Request(SOURCE, str(path), make_options(**options)), Silent())
    return path


@pytest.mark.parametrize("store", ["files", "ocdbt", "zarr2"])
def test_metadata_and_commit_markers(tmp_path: Path, store: str) -> None:
    step = converted(tmp_path / "out", store=store) / "0"
    assert json.loads((step / "_CHECKPOINT_METADATA").read_text())["custom_metadata"]["scan_layers"] is True
    assert (step / "commit_success.txt").is_file()
    assert (step / "items" / "commit_success.txt").is_file()
    metadata = json.loads((step / "items" / "_METADATA").read_text())
    assert metadata["use_ocdbt"] == (store == "ocdbt")
    assert metadata["use_zarr3"] == (store != "zarr2")
    kinds = {entry["value_metadata"]["value_type"] for entry in metadata["tree_metadata"].values()}
    assert kinds == {"np.ndarray"}
    assert len(metadata["tree_metadata"]) == 27


@pytest.mark.parametrize("options", [{}, {"rewrite": True}, {"store": "zarr2"}], ids=["pass", "rewrite", "zarr2"])
def test_a_flipped_bit_in_a_chunk_does_not_restore(tmp_path: Path, options: dict, newest_orbax: Restorer) -> None:
    items = converted(tmp_path / "out", **options) / "0" / "items"
    metadata_names = ("zarr.json", ".zarray")
    chunks = sorted(path for path in items.glob("params.*/**/*") if path.is_file() and path.name not in metadata_names)
    generator = random.Random(3)
    for path in generator.sample(chunks, 12):
        data = bytearray(path.read_bytes())
        data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
        original = path.read_bytes()
        path.write_bytes(data)
        with pytest.raises(RestoreError):
            newest_orbax.restore(tmp_path / "out")
        path.write_bytes(original)
    assert len(newest_orbax.restore(tmp_path / "out")) == 27


def test_a_linked_chunk_is_the_sources_file(tmp_path: Path) -> None:
    import shutil

    source = tmp_path / "source"
    shutil.copytree(SOURCE, source)
    out = tmp_path / "out"
    convert(Request(str(source), str(out), Options(link=True)), Silent())
    leaf = out / "0" / "items" / "params.params.decoder.layers.layers_1.MoeBlock_0.wo"
    chunks = [path for path in leaf.iterdir() if path.name != "zarr.json"]
    inodes = {path.stat().st_ino for path in source.rglob("*") if path.is_file()}
    assert chunks
    assert {path.stat().st_ino for path in chunks} <= inodes
