"""`convert --state` into stores of objects: the state's own directory, its lists and counts, and what proves it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import DATA, Cli
from tests.helpers.conversion import run
from tests.helpers.gcs import FakeGcs
from tests.helpers.restorer import Restorer
from tests.helpers.s3 import S3
from tests.helpers.trees import local_tree

GOLDEN = DATA / "training" / "micro-envy"
SOURCE = GOLDEN / "axlearn"
STEP = 19
"""The directory of a state after 20 updates."""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The local conversion's files."""
    target = tmp_path_factory.mktemp("state") / "out"
    run(SOURCE, target, state=True)
    return dict(local_tree(target))


def verify(in_process: Cli, *places: object) -> None:
    for arguments in (("verify", *places), ("verify", places[-1])):
        done = in_process(*arguments)
        assert done.code == 0, done.out + done.err


def assert_state(tree: dict[str, bytes], here: dict[str, bytes]) -> None:
    """All files of leaves are the local conversion's, in the directory of the step, and so is the tree of lists."""
    leaves = {name for name in here if re.match(rf"{STEP}/items/[^/]+/", name)}
    assert len({name.split("/")[2] for name in leaves}) == 84
    assert {name: tree.get(name) for name in leaves} == {name: here[name] for name in leaves}
    metadata = f"{STEP}/items/_METADATA"
    assert json.loads(tree[metadata])["tree_metadata"] == json.loads(here[metadata])["tree_metadata"]
    golden = json.loads((GOLDEN / "maxtext" / metadata).read_text())
    assert json.loads(tree[metadata])["tree_metadata"] == golden["tree_metadata"]
    assert {name.split("/")[0] for name in tree if "/" in name} == {str(STEP)}
    assert {name for name in tree if name.endswith("commit_success.txt")} == {
        f"{STEP}/commit_success.txt",
        f"{STEP}/items/commit_success.txt",
    }


@pytest.mark.parametrize("place", ["local", "bucket"])
def test_a_state_in_cloud_storage(place: str, gcs: FakeGcs, here: dict[str, bytes], in_process: Cli) -> None:
    import orbax.checkpoint as ocp

    gcs.make_bucket("bucket")
    gcs.upload_tree(SOURCE, "bucket", "run")
    source: Any = SOURCE if place == "local" else "gs://bucket/run"
    done = in_process("convert", source, "gs://bucket/out", "--state", "--store", "files")
    assert done.code == 0, done.err
    assert f"load_full_state_path=gs://bucket/out/{STEP}/items" in done.out
    assert_state(dict(gcs.tree("bucket", "out")), here)
    assert not [name for name in gcs.objects("bucket") if ".ax2mt-wip" in name]
    with ocp.CheckpointManager("gs://bucket/out") as manager:
        assert manager.all_steps() == [STEP]
    state = ocp.PyTreeCheckpointer().restore(f"gs://bucket/out/{STEP}/items")
    assert isinstance(state["opt_state"], list)
    assert (int(state["step"]), int(state["opt_state"][2]["count"])) == (STEP + 1, STEP + 1)
    verify(in_process, source, "gs://bucket/out")


def test_a_state_in_s3(
    seaweedfs: S3, here: dict[str, bytes], in_process: Cli, tmp_path: Path, newest_orbax: Restorer
) -> None:
    seaweedfs.upload_tree(SOURCE, seaweedfs.make_bucket("bucket"), "run")
    done = in_process("convert", "s3://bucket/run", "s3://bucket/out", "--state", "--store", "files")
    assert done.code == 0, done.err
    assert f"load_full_state_path=/COPY/{STEP}/items" in done.out
    assert_state(seaweedfs.tree("bucket", "out"), here)
    assert seaweedfs.names("bucket", "out.ax2mt") == []
    verify(in_process, SOURCE, "s3://bucket/out")
    seaweedfs.download_tree("bucket", "out", tmp_path / "copy")
    copied = in_process("verify", tmp_path / "copy")
    assert copied.code == 0, copied.out + copied.err
    state = newest_orbax.restore(tmp_path / "copy", step=STEP)
    assert (int(state["step"]), int(state["opt_state/2/count"])) == (STEP + 1, STEP + 1)
