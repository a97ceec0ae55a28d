"""Cloud Storage as a storage: listings, pinned reads, writes on a condition, copies by the store, errors, retries."""

import errno
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import requests
from crc32c import crc32c

from converter.errors import UsageError
from converter.storage import CONTENT_SUM, CONVERSION, RESIDUE, STORAGES, Mark, ReadError, gcs_writer
from converter.storage.gcs import GcsStorage
from converter.storage.gcs_client import failure
from converter.storage.object_reader import ObjectReader
from converter.storage.retries import POLICY, Policy, Transient, retried
from tests.helpers.gcs import FakeGcs, Fault

MARK = Mark(conversion="mine", work_area="gs://bucket/out.wip")


@pytest.fixture
def store(gcs: FakeGcs, waits: list[float]) -> GcsStorage:
    """A storage of its own, and an empty bucket."""
    assert not waits
    gcs.make_bucket("bucket")
    return GcsStorage()


def fill(gcs: FakeGcs, *names: str) -> None:
    for name in names:
        gcs.put("bucket", name, name.encode())


def test_names_form_directories(gcs: FakeGcs, store: GcsStorage) -> None:
    fill(gcs, "a/b/1", "a/b/2", "a/c", "a", "ab/x", "a/empty/")
    assert sorted(store.names("gs://bucket/a")) == ["b", "c", "empty"]
    assert {(blob.name, blob.kind, blob.size) for blob in store.list("gs://bucket/a/")} >= {
        ("b", "directory", 0),
        ("c", "file", 3),
    }
    assert sorted(blob.name for blob in store.walk("gs://bucket/a")) == ["b/1", "b/2", "c"]
    assert store.stat("gs://bucket/a/b").kind == store.stat("gs://bucket/a/b/.").kind == "directory"
    found = store.stat("gs://bucket/a/c")
    assert (found.kind, found.checksum) == ("file", crc32c(b"a/c").to_bytes(4, "big"))
    assert store.exists("gs://bucket/ab")
    assert not store.exists("gs://bucket/a/b/3")
    assert store.missing(["gs://bucket/a/b", "gs://bucket/a/c", "gs://bucket/x"]) == [
        "gs://bucket/a/b",
        "gs://bucket/x",
    ]
    for look in (store.stat, store.names, store.open):
        with pytest.raises(FileNotFoundError):
            look("gs://bucket/nothing")


def test_listings_have_pages(gcs: FakeGcs, store: GcsStorage) -> None:
    fill(gcs, *(f"d/{number:04}" for number in range(1001)))
    assert len(store.names("gs://bucket/d")) == 1001
    assert gcs.counters()["requests"]["objects.list"] == 2


def test_a_pinned_directory_is_read_as_it_was(gcs: FakeGcs, store: GcsStorage) -> None:
    fill(gcs, "d/x/1", "d/x/2", "d/y", "dd/z")
    store.pin("gs://bucket/d")
    gcs.reset_counters()
    assert sorted(store.names("gs://bucket/d")) == ["x", "y"]
    assert sorted(store.names("gs://bucket/d/x")) == ["1", "2"]
    assert store.is_directory("gs://bucket/d/x")
    assert store.missing(["gs://bucket/d/y", "gs://bucket/d/z"]) == ["gs://bucket/d/z"]
    assert gcs.counters()["requests"] == {}
    assert store.read("gs://bucket/d/y", 100) == b"d/y"
    gcs.put("bucket", "d/y", b"another")
    gcs.remove("bucket", "d/x/1")
    for name in ("d/y", "d/x/1"):
        with pytest.raises(OSError, match="was removed or written again while it was read") as caught:
            store.read(f"gs://bucket/{name}", 100)
        assert caught.value.errno == errno.ESTALE
    store.release("gs://bucket/d/x")
    assert store.read("gs://bucket/d/y", 100) == b"another"


def test_while_browsing_a_directory_is_listed_once(gcs: FakeGcs, store: GcsStorage) -> None:
    fill(gcs, "d", "d/x/1", "d/x/z/2", "d/y", "dd/z", "file")
    with store.browsing("gs://bucket/d"), store.browsing("gs://bucket/d/x"):
        assert store.stat("gs://bucket/d").kind == "directory"
        assert [store.stat(f"gs://bucket/d/{name}").kind for name in ("x", "y", "x/1")] == ["directory", "file", "file"]
        assert store.missing([f"gs://bucket/d/{name}" for name in ("x", "y", "x/1", "x/2", "none/at/all")]) == [
            "gs://bucket/d/x",
            "gs://bucket/d/x/2",
            "gs://bucket/d/none/at/all",
        ]
        assert sorted(store.names("gs://bucket/d/x")) == ["1", "z"]
        assert store.is_directory("gs://bucket/d/x/z")
        assert not store.exists("gs://bucket/d/x/z2")
        assert gcs.counters()["requests"] == {"objects.list": 2}
        assert sorted(blob.name for blob in store.walk("gs://bucket/d")) == ["x/1", "x/z/2", "y"]
        gcs.put("bucket", "d/y", b"another")
        with pytest.raises(OSError, match="was removed or written again while it was read"):
            store.read("gs://bucket/d/y", 100)
        assert store.exists("gs://bucket/dd")
    assert store.read("gs://bucket/d/y", 100) == b"another"
    with store.browsing("gs://bucket/file"), store.browsing("gs://bucket/nothing"):
        assert store.stat("gs://bucket/file").kind == "file"
        assert not store.exists("gs://bucket/nothing")


def test_reads_go_on_where_the_connection_ended(gcs: FakeGcs, store: GcsStorage, waits: list[float]) -> None:
    data = os.urandom(300_000)
    gcs.put("bucket", "x", data)
    gcs.inject(Fault(operation="objects.media", kind="drop", after=100_000, times=3))
    with store.open("gs://bucket/x") as file:
        assert file.read(10) == data[:10]
        assert file.read_range(200_000, 7) == data[200_000:200_007]
        assert file.read() == data[10:]
        assert file.read(10) == b""
    assert len(waits) == 2
    assert gcs.counters()["sent"]["all"] < 2 * len(data)


def test_bytes_damaged_on_the_way_are_found(gcs: FakeGcs, store: GcsStorage) -> None:
    gcs.put("bucket", "x", b"some bytes")
    known = store.stat("gs://bucket/x")
    gcs.put("bucket", "y", b"same bytes")
    other = store.stat("gs://bucket/y")
    wrong = type(known)(name=other.name, kind="file", size=known.size, version=other.version, checksum=known.checksum)
    with pytest.raises(OSError, match="damaged on the way"):
        ObjectReader(store, wrong).read()


def write(store: GcsStorage, name: str, data: bytes, mark: Mark | None = MARK) -> None:
    """Writes a chunk as `ChunkWriter` does: with its checksum behind it."""
    writer = store.create(name, len(data), mark)
    writer.write(data)
    writer.write(crc32c(data).to_bytes(4, "little"))
    writer.commit()


@pytest.mark.parametrize("size", [10, (256 << 10) - 4, 700_000], ids=["small", "one piece", "pieces"])
@pytest.mark.parametrize(
    "fault",
    [
        None,
        Fault(operation="objects.insert|uploads.*", times=2),
        Fault(operation="objects.insert|uploads.finish", kind="lost", times=1),
        Fault(operation="uploads.piece", kind="lost", times=1),
        Fault(operation="objects.insert|uploads.piece", kind="cut", after=1000, times=1),
    ],
    ids=["sound", "503", "lost reply", "lost reply of a piece", "cut"],
)
def test_writes(
    size: int, fault: Fault | None, gcs: FakeGcs, store: GcsStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gcs_writer, "PIECE", 256 << 10)
    data = os.urandom(size)
    if fault:
        gcs.inject(fault)
    write(store, "gs://bucket/x", data)
    made = store.stat("gs://bucket/x")
    assert gcs.read("bucket", "x")[:-4] == data
    assert made.checksum == RESIDUE
    assert made.tags[CONVERSION] == "mine"
    assert made.tags.get(CONTENT_SUM, f"{crc32c(data):08x}") == f"{crc32c(data):08x}"
    first = made.version
    # Written again by another run of the same conversion: nothing happens. By another conversion: refused.
    write(store, "gs://bucket/x", data)
    assert store.stat("gs://bucket/x").version == first
    with pytest.raises(FileExistsError, match="something else was written there"):
        write(store, "gs://bucket/x", data, Mark(conversion="other", work_area="gs://bucket/other"))
    assert store.stat("gs://bucket/x").version == first


def test_nothing_appears_before_it_is_whole(gcs: FakeGcs, store: GcsStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gcs_writer, "PIECE", 256 << 10)
    writer = store.create("gs://bucket/x", 1 << 20, MARK)
    writer.write(bytes(700_000))
    assert not store.exists("gs://bucket/x")
    writer.abort()
    assert gcs.objects("bucket") == {}


@pytest.mark.parametrize("where", ["bucket", "class", "other bucket"])
def test_the_store_copies_by_itself(where: str, gcs: FakeGcs, store: GcsStorage) -> None:
    data = os.urandom(3_000_000)
    gcs.make_bucket("source", location="EU", storage_class="NEARLINE" if where == "class" else "STANDARD")
    bucket = "bucket" if where == "bucket" else "source"
    gcs.put(bucket, "in", data)
    gcs.reset_counters()
    writer = store.create("gs://bucket/out/x", len(data), MARK)
    with store.open(f"gs://{bucket}/in") as source:
        checksum = writer.copy_from(source, lambda _: pytest.fail("bytes were read"))
        assert checksum == crc32c(data)
        writer.write(crc32c(data).to_bytes(4, "little"))
        writer.commit()
    assert gcs.read("bucket", "out/x") == data + crc32c(data).to_bytes(4, "little")
    counters = gcs.counters()
    assert (counters["received"]["all"], counters["sent"]["all"]) == (4, 0)
    made = store.stat("gs://bucket/out/x")
    assert (made.checksum, made.tags) == (RESIDUE, {CONVERSION: "mine", CONTENT_SUM: f"{crc32c(data):08x}"})
    assert [name for name in gcs.objects("bucket") if name.startswith("out.wip")] == []
    assert gcs.read(bucket, "in") == data


@pytest.mark.parametrize("operation", ["objects.insert", "objects.compose", "objects.rewrite"])
@pytest.mark.parametrize("kind", ["status", "lost"])
def test_copies_are_retried(kind: str, operation: str, gcs: FakeGcs, store: GcsStorage) -> None:
    gcs.make_bucket("source")
    gcs.put("source", "in", b"data")
    gcs.inject(Fault(operation=operation, kind=kind, times=1))
    writer = store.create("gs://bucket/x", 4, MARK)
    with store.open("gs://source/in") as source:
        writer.write((writer.copy_from(source, print) or 0).to_bytes(4, "little"))
        writer.commit()
    assert gcs.read("bucket", "x")[:4] == b"data"


def test_a_source_that_changed_is_not_copied(gcs: FakeGcs, store: GcsStorage) -> None:
    gcs.put("bucket", "in", b"data")
    writer = store.create("gs://bucket/x", 4, MARK)
    with store.open("gs://bucket/in") as source:
        writer.write((writer.copy_from(source, print) or 0).to_bytes(4, "little"))
    gcs.put("bucket", "in", b"late")
    with pytest.raises(ReadError, match="was removed or written again"):
        writer.commit()
    assert not store.exists("gs://bucket/x")


NAME = "gs://bucket/x"


@pytest.mark.parametrize(
    ("fault", "kind", "expected"),
    [
        (Fault(status=401), PermissionError, "the credentials cannot be refreshed"),
        (Fault(status=403), PermissionError, "the account needs roles/storage.objectViewer on the bucket"),
        (Fault(status=503), OSError, "503 Backend Error (after 7 attempts)"),
        (Fault(status=429, retry_after=7), OSError, "429 The rate of requests is too high (after 7 attempts)"),
        (Fault(status=429, retry_after=3600), OSError, "(after 1 attempt)"),
        (Fault(kind="drop"), OSError, "the connection"),
    ],
    ids=["401", "403", "503", "429", "429 for an hour", "dropped"],
)
def test_refused_reads(
    fault: Fault, kind: type[OSError], expected: str, gcs: FakeGcs, store: GcsStorage, waits: list[float]
) -> None:
    fill(gcs, "x")
    gcs.inject(fault)
    with pytest.raises(kind) as caught:
        store.read(NAME, 10)
    assert expected in str(caught.value.strerror)
    assert caught.value.filename == NAME
    if fault.retry_after == 7:
        assert waits == [7] * 6


def test_other_refusals(gcs: FakeGcs, store: GcsStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match=r"The specified bucket does not exist \(gs://nowhere\)") as caught:
        store.names("gs://nowhere/x")
    assert not isinstance(caught.value, FileNotFoundError)
    gcs.make_bucket("paid", requester_pays=True)
    gcs.put("paid", "x", b"x")
    with pytest.raises(PermissionError, match="set GOOGLE_CLOUD_QUOTA_PROJECT to the project that is billed"):
        store.read("gs://paid/x", 1)
    monkeypatch.setenv("GOOGLE_CLOUD_QUOTA_PROJECT", "project")
    assert GcsStorage().read("gs://paid/x", 1) == b"x"
    gcs.deny("bucket", "storage.objects.create")
    with pytest.raises(PermissionError, match=r"objects\.create.*needs roles/storage\.objectUser"):
        store.put("gs://bucket/x", b"x")


def test_the_wrong_project_names_the_role_that_is_missing() -> None:
    """The store's words for a project that pays and in which the account may use no services."""
    answer = requests.Response()
    answer.status_code = 403
    text = "Caller does not have required permission to use project p. Grant serviceusage.services.use."
    answer._content = json.dumps({"error": {"code": 403, "message": text}}).encode()
    error = failure(answer, NAME)
    assert isinstance(error, PermissionError)
    assert error.filename == NAME
    assert "roles/serviceusage.serviceUsageConsumer in the project that is billed" in str(error.strerror)


def test_no_credentials(store: GcsStorage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "nothing.json"))
    with pytest.raises(PermissionError, match="no credentials for Cloud Storage"):
        store.read(NAME, 1)


def test_a_refused_token_names_the_clock(store: GcsStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    import google.auth
    from google.auth.credentials import Credentials
    from google.auth.exceptions import RefreshError

    class Skewed(Credentials):
        def refresh(self, request: object) -> None:
            raise RefreshError(f"invalid_grant: token must be in a reasonable timeframe; check iat ({bool(request)})")

    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    monkeypatch.setattr(google.auth, "default", lambda **_: (Skewed(), "project"))
    with pytest.raises(PermissionError, match="is this machine's clock right"):
        store.read(NAME, 1)


def test_a_missing_extra_is_one_line(store: GcsStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.auth.transport.requests", None)
    with pytest.raises(UsageError, match=r"pip install 'axlearn2maxtext\[gcs\]'"):
        store.read(NAME, 1)


def test_local_paths_load_no_client() -> None:
    program = (
        "import sys, converter.api as api; api.plan(sys.argv[1]);"
        "print(*[name for name in ('requests', 'google.auth', 'urllib3', 'obstore', 'boto3') if name in sys.modules])"
    )
    source = Path(__file__).parents[1] / "data" / "axlearn" / "micro-hybrid-sharded"
    done = subprocess.run([sys.executable, "-c", program, source], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_waits_grow_and_are_random() -> None:
    policy = Policy(first=1, longest=8)
    for number, most in enumerate((1, 2, 4, 8, 8), 1):
        found = {policy.wait(number) for _ in range(20)}
        assert most / 2 <= min(found) <= max(found) <= most
        assert len(found) > 1


def test_retries_are_logged(waits: list[float], caplog: pytest.LogCaptureFixture) -> None:
    answers: list[Callable[[], str]] = [lambda: "done"]

    def request() -> str:
        if not waits:
            raise Transient("503 Backend Error")
        return answers[0]()

    with caplog.at_level(logging.INFO, "converter.storage"):
        assert retried(NAME, request) == "done"
    assert f"{NAME}: 503 Backend Error; retry 1 of {POLICY.attempts - 1} in" in caplog.text


def test_the_registry_has_it() -> None:
    assert isinstance(STORAGES["gs"], GcsStorage)
