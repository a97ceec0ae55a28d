"""Several processes, one conversion: on a shared file system and in a bucket, in any order, late, twice, or dead."""

import json
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import converter.conversion.run as run_module
from converter import convert
from converter.checkpoints import orbax_commit
from converter.conversion import Result
from converter.conversion.object_stage import ObjectStage
from converter.conversion.shared_stage import SharedStage
from converter.errors import DestinationError
from converter.storage import PART, Blob, retries, storage_of
from converter.work import Silent
from tests.conftest import AXLEARN, Cli
from tests.helpers.gcs import FakeGcs

NAME = "micro-hybrid-sharded"
SOURCE = AXLEARN / NAME


@dataclass
class Place:
    """Where a conversion goes, and how to look at it.

    Attributes:
      source: of the conversion.
      target: its destination.
    """

    source: str
    target: str

    def tree(self, path: str) -> dict[str, bytes]:
        """Name to content of all that is below a path."""
        storage = storage_of(path)
        storage.release(path) if not storage.renames else None
        names = [blob.name for blob in storage.walk(path) if blob.kind == "file"]
        return {name: storage.read(f"{path}/{name}", 1 << 30) for name in names}

    def chunks(self, path: str, step: str = "0") -> dict[str, bytes]:
        """The chunks of a checkpoint."""
        tree = self.tree(f"{path}/{step}/items")
        return {name: data for name, data in tree.items() if "/c/" in name or name[-2:] == "/c"}

    def left(self) -> list[str]:
        """What there is beside the destination, empty directories too."""
        parent, _, name = self.target.rpartition("/")
        if "://" not in parent:
            return [str(path.relative_to(parent)) for path in Path(parent).glob(f"{name}.ax2mt*/**")]
        return [one for one in self.tree(parent) if one.startswith(f"{name}.ax2mt")]


@pytest.fixture(params=["files", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "files":
        (tmp_path / "place").mkdir()
        return Place(str(SOURCE), str(tmp_path / "place" / "out"))
    gcs: FakeGcs = request.getfixturevalue("gcs")
    request.getfixturevalue("monkeypatch").setattr(retries, "pause", lambda _: None)
    gcs.make_bucket("bucket")
    gcs.upload_tree(SOURCE, "bucket", "run")
    return Place("gs://bucket/run", "gs://bucket/place/out")


@pytest.fixture
def local(tmp_path: Path) -> Place:
    return Place(str(SOURCE), str(tmp_path / "out"))


@pytest.fixture(scope="module")
def expected(converted: Callable[..., Path]) -> dict[str, bytes]:
    """The chunks that one process makes."""
    return Place("", "").chunks(str(converted(NAME)))


def share(place: Place, process: str | None, **options: Any) -> Result:
    return convert(place.source, place.target, process=process, **options)


def assert_whole(place: Place, expected: dict[str, bytes], in_process: Cli) -> None:
    assert place.chunks(place.target) == expected
    assert place.left() == []
    proof = in_process("verify", "-q", place.target)
    assert proof.code == 0, proof.err


def test_the_last_of_four_commits(place: Place, expected: dict[str, bytes], in_process: Cli) -> None:
    for number, index in enumerate((2, 0, 3, 1)):
        done = in_process("convert", place.source, place.target, "--process", f"{index}/4", "--json").document
        assert (done["finished"], len(done["awaited"])) == ((False, 3 - number) if number < 3 else (True, 0))
        assert (done["process"]["index"], done["process"]["count"]) == (index, 4)
        assert done["work"]["kept"] == 0
    assert_whole(place, expected, in_process)


def test_four_at_once(place: Place, expected: dict[str, bytes], in_process: Cli) -> None:
    results: list[Result] = []
    threads = [threading.Thread(target=lambda i=i: results.append(share(place, f"{i}/4"))) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert any(result.finished for result in results)
    assert_whole(place, expected, in_process)


@pytest.mark.parametrize("last", ["0/1", None, "1/2"], ids=["0/1", "without --process", "its own command"])
def test_a_dead_process_costs_its_share(
    place: Place, last: str | None, expected: dict[str, bytes], in_process: Cli
) -> None:
    assert not share(place, "0/2").finished
    with pytest.raises(KeyboardInterrupt):
        share(place, "1/2", progress=After(7, interrupt))
    assert place.chunks(place.target) == {} or not storage_of(place.target).renames
    result = share(place, last)
    assert result.finished
    assert result.written.counts.kept > 0
    assert_whole(place, expected, in_process)


def test_the_same_share_twice(place: Place, expected: dict[str, bytes], in_process: Cli) -> None:
    share(place, "0/2", progress=After(3, lambda: share(place, "0/2")))
    assert share(place, "1/2").finished
    assert_whole(place, expected, in_process)


def test_a_record_of_an_earlier_conversion_does_not_count(gcs: FakeGcs) -> None:
    """A process that was suspended may leave one when all was done, and its checkpoint moved away."""
    gcs.make_bucket("bucket")
    place = Place(str(SOURCE), "gs://bucket/out")
    share(place, "1/2")
    for name in [*gcs.objects("bucket", "out/"), "out.ax2mt-wip/journal.json"]:
        gcs.remove("bucket", name)
    assert [str(one) for one in share(place, "0/2").awaited] == ["1/2"]
    assert share(place, "1/2").finished
    assert place.left() == []


def test_a_share_asks_only_for_its_own_chunks(gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many processes only the first and the one that commits list all that is at the destination."""
    gcs.make_bucket("bucket")
    place, original, listed = Place(str(SOURCE), "gs://bucket/out"), ObjectStage._list, 0

    def counting(stage: ObjectStage) -> dict[str, Blob]:
        nonlocal listed
        listed += 1
        return original(stage)

    monkeypatch.setattr(ObjectStage, "_list", counting)
    for index, expected in enumerate((1, 1, 1, 2)):
        share(place, f"{index}/4")
        assert listed == expected


@pytest.mark.parametrize("where", ["elsewhere", "a chunk's place"])
def test_something_else_is_neither_replaced_nor_made_part_of_the_checkpoint(
    where: str, gcs: FakeGcs, in_process: Cli, converted: Callable[..., Path]
) -> None:
    gcs.make_bucket("bucket")
    place = Place(str(SOURCE), "gs://bucket/out")
    share(place, "0/2")
    items = Path(converted(NAME)) / "0" / "items"
    names = [f"out/0/items/{path.relative_to(items)}" for path in items.rglob("c/**/*") if path.is_file()]
    missing = sorted(set(names) - gcs.objects("bucket", "out/").keys())
    name = "out/0/items/notes" if where == "elsewhere" else missing[-1]
    gcs.put("bucket", name, b"mine")
    refused = in_process("convert", place.source, place.target, "--process", "1/2")
    assert (refused.code, "something else was put there while the conversion ran" in refused.err) == (5, True)
    assert name.rpartition("items/")[2] in refused.err
    assert gcs.read("bucket", name) == b"mine"
    gcs.remove("bucket", name)
    assert share(place, "1/2").finished
    assert place.left() == []


class After(Silent):
    """Does something once, when so many units are done."""

    def __init__(self, units: int, action: Callable[[], object]):
        self.units = units
        self.action = action
        self.lock = threading.Lock()

    def advance(self, count: int) -> None:  # noqa: ARG002
        with self.lock:
            self.units -= 1
            due = self.units == 0
        if due:
            self.action()


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("units", [1, 10])
def test_a_process_that_wakes_after_the_commit_changes_nothing(
    place: Place, units: int, expected: dict[str, bytes], in_process: Cli
) -> None:
    before: dict[str, bytes] = {}

    def others() -> None:
        assert share(place, "0/1").finished
        before.update(place.tree(place.target))

    late = share(place, "2/3", progress=After(units, others))
    assert (late.finished, late.awaited) == (True, ())
    assert place.tree(place.target) == before
    assert_whole(place, expected, in_process)


def test_a_process_that_comes_after_all(place: Place, in_process: Cli) -> None:
    share(place, "0/1")
    before = place.tree(place.target)
    for process in ("0/1", "3/4"):
        done = in_process("convert", place.source, place.target, "--process", process)
        assert done.code == 0, done.err
        assert "Other processes had done all of it." in done.out
    assert place.tree(place.target) == before
    assert place.left() == []


@pytest.mark.parametrize("moment", ["_join", "_start"])
def test_a_process_that_is_held_up_before_its_first_step(
    moment: str, local: Place, expected: dict[str, bytes], in_process: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All is done and tidied up between its look at the journal and its own."""
    original = getattr(SharedStage, moment)

    def held_up(stage: SharedStage, *arguments: Any) -> bool:
        monkeypatch.setattr(SharedStage, moment, original)
        if moment == "_start":
            assert share(local, "0/1").finished
        found = original(stage, *arguments)
        if moment == "_join":
            assert share(local, "0/1").finished
        return found

    monkeypatch.setattr(SharedStage, moment, held_up)
    assert share(local, "0/2").finished
    assert_whole(local, expected, in_process)


@pytest.mark.parametrize("moment", ["finish", "commit", "saved"])
def test_two_that_commit(
    place: Place, moment: str, expected: dict[str, bytes], in_process: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process finds all whole, and another one commits before it does, or while it does."""
    module, name = (orbax_commit, "_save") if moment == "saved" else (run_module, moment)
    original = getattr(module, name)

    def meanwhile(*arguments: Any) -> None:
        monkeypatch.setattr(module, name, original)
        if moment == "finish":
            original(*arguments)
        assert share(place, "0/1").finished
        if moment != "finish":
            original(*arguments)

    share(place, "0/2")
    monkeypatch.setattr(module, name, meanwhile)
    assert share(place, "1/2").finished
    assert_whole(place, expected, in_process)


def test_a_late_process_leaves_the_next_conversion_alone(
    local: Place, in_process: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = orbax_commit._save

    def interrupt() -> None:
        raise KeyboardInterrupt

    def meanwhile(*arguments: Any) -> None:
        monkeypatch.setattr(orbax_commit, "_save", original)
        assert share(local, "0/1").finished
        with pytest.raises(KeyboardInterrupt):
            share(local, None, rewrite=True, overwrite=True, progress=After(3, interrupt))
        before.extend(local.left())
        original(*arguments)

    before: list[str] = []
    share(local, "0/2")
    monkeypatch.setattr(orbax_commit, "_save", meanwhile)
    assert share(local, "1/2").finished
    assert len(before) > 2
    assert local.left() == before
    assert share(local, None, rewrite=True, overwrite=True).resumed
    assert local.left() == []
    assert in_process("verify", "-q", local.target).code == 0


@pytest.mark.parametrize("store", ["files", "ocdbt"])
def test_what_a_killed_process_was_writing_is_not_published(local: Place, store: str, in_process: Cli) -> None:
    share(local, "0/2", store=store)
    leaves = Path(f"{local.target}.ax2mt-wip").glob("*/leaves/*")
    parts = [leaf / f"{name}{PART}" for leaf in leaves for name in ("zarr.json.7-00000000", "0.0.7-00000000")]
    assert len(parts) > 20
    for part in parts:
        part.write_bytes(b"half a chunk")
    assert share(local, "1/2", store=store).finished
    assert not list(Path(local.target).rglob(f"*{PART}"))
    assert local.left() == []
    assert in_process("verify", "-q", local.target).code == 0


def test_another_conversion_is_refused(place: Place, expected: dict[str, bytes], in_process: Cli) -> None:
    share(place, "0/2")
    for others in (["--process", "1/2", "--rewrite"], ["--rewrite"]):
        refused = in_process("convert", place.source, place.target, *others)
        assert refused.code == 5
        assert "route: then 'pass', now 'rewrite'" in refused.err
    assert share(place, "1/2").finished
    assert_whole(place, expected, in_process)


def test_fresh_without_a_share_starts_over(local: Place, in_process: Cli) -> None:
    def take_over() -> None:
        share(local, None, rewrite=True, fresh=True)

    with pytest.raises(DestinationError):
        share(local, "0/2", progress=After(3, take_over))
    assert local.left() == []
    assert in_process("verify", "-q", local.target).code == 0


def test_a_conversion_of_one_process_is_not_shared(local: Place, expected: dict[str, bytes], in_process: Cli) -> None:
    with pytest.raises(KeyboardInterrupt):
        share(local, None, progress=After(3, interrupt))
    refused = in_process("convert", local.source, local.target, "--process", "0/2")
    assert refused.code == 5
    assert "a conversion without --process was begun here" in refused.err
    assert share(local, None).written.counts.kept > 0
    assert_whole(local, expected, in_process)


def test_other_units_do_not_complete_the_work(place: Place, in_process: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    share(place, "0/2")
    monkeypatch.setattr("converter.planning.share.FINENESS", 2)
    refused = in_process("convert", place.source, place.target, "--process", "1/2")
    assert refused.code == 5
    assert "share 0/2 was made with other units of work" in refused.err
    assert share(place, "0/1").finished


def test_an_empty_destination_is_filled(local: Place, expected: dict[str, bytes], in_process: Cli) -> None:
    Path(local.target).mkdir()
    node = Path(local.target).stat().st_ino
    for process in ("0/2", "1/2"):
        share(local, process)
    assert Path(local.target).stat().st_ino == node
    assert_whole(local, expected, in_process)


@pytest.mark.parametrize("moved", [(), ("maxtext.yml",)], ids=str)
def test_a_publication_that_was_killed_is_finished(
    local: Place,
    moved: tuple[str, ...],
    expected: dict[str, bytes],
    in_process: Cli,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path(local.target).mkdir()
    share(local, "0/2")

    def killed(stage: SharedStage) -> None:
        for name in moved:
            shutil.move(f"{stage.root}/checkpoint/{name}", local.target)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(SharedStage, "help_publish", killed)
        with pytest.raises(KeyboardInterrupt):
            share(local, "1/2")
    assert share(local, "0/2").finished
    assert_whole(local, expected, in_process)


def chunks_below(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file() and "/c/" in str(path))


def test_a_lost_chunk_is_noticed_and_made_again(local: Place, expected: dict[str, bytes], in_process: Cli) -> None:
    share(local, "0/2")
    chunks_below(Path(f"{local.target}.ax2mt-wip"))[0].unlink()
    with pytest.raises(DestinationError, match="were removed or replaced"):
        share(local, "1/2")
    assert share(local, "0/1").finished
    assert_whole(local, expected, in_process)


def test_a_damaged_chunk_without_a_record_is_made_again(
    local: Place, expected: dict[str, bytes], in_process: Cli
) -> None:
    with pytest.raises(KeyboardInterrupt):
        share(local, "0/1", progress=After(7, interrupt))
    for victim in chunks_below(Path(f"{local.target}.ax2mt-wip")):
        victim.write_bytes(bytes(victim.stat().st_size))
    assert share(local, "0/1").finished
    assert_whole(local, expected, in_process)


def test_a_source_that_changes_is_not_published(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(SOURCE, source)
    place = Place(str(source), str(tmp_path / "out"))
    share(place, "0/2")
    for chunk in source.rglob("gda/model/**/0.0*"):
        chunk.write_bytes(chunk.read_bytes())
    with pytest.raises(DestinationError, match="holds another conversion") as refused:
        share(place, "1/2")
    assert "source files" in "\n".join(refused.value.details)


def test_processes_of_their_own(local: Place, expected: dict[str, bytes], process: Cli, in_process: Cli) -> None:
    """The command line, with the variables of launchers; those of a TPU pod are taken out of our environment."""
    for variables in (
        {"TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": "a,b,c"},
        {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"},
    ):
        done = process("convert", local.source, local.target, "--process", "auto", **variables)
        assert (done.code, "Not finished" in done.out) == (0, True), done.err
    done = process("convert", "--json", local.source, local.target, "--process", "auto/3", JOB_COMPLETION_INDEX="0")
    assert json.loads(done.out)["finished"] is True
    assert_whole(local, expected, in_process)
