"""S3 as a storage: what is written and copied, on a server that checks everything; and what goes wrong on the way."""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from crc32c import crc32c

from converter.storage import ReadError, retries, s3, s3_writer
from converter.storage.base import CONTENT_SUM, CONVERSION, FILE, Mark, Writer
from converter.storage.s3 import S3Storage
from tests.helpers.gcs.client import ROOT
from tests.helpers.s3 import S3
from tests.helpers.s3_proxy import Proxy, Rule

LARGE = 5 << 20
OURS, THEIRS = (Mark(conversion=name, work_area="s3://bucket/out.ax2mt-wip") for name in ("1234", "5678"))


@pytest.fixture
def bucket(seaweedfs: S3) -> str:
    return seaweedfs.make_bucket("bucket")


@pytest.fixture
def proxy(moto: S3, monkeypatch: pytest.MonkeyPatch, waits: list[float]) -> Iterator[Proxy]:
    """A bucket of moto behind a proxy, with one object."""
    assert waits == []
    moto.put(moto.make_bucket("bucket"), "run/x", BYTES)
    made = Proxy(moto.url)
    monkeypatch.setenv("AWS_ENDPOINT_URL", made.url)
    yield made
    made.close()


BYTES = os.urandom(3 << 20)


def never(_: memoryview) -> None:
    pytest.fail("a byte passed this machine")


def written(writer: Writer, data: bytes, piece: int = 1 << 20) -> None:
    for start in range(0, len(data), piece):
        writer.write(data[start : start + piece])
    writer.commit()


@pytest.mark.parametrize("size", [0, 1, 4097, LARGE, LARGE + 1, 2 * LARGE + 77])
def test_what_is_written_is_there(size: int, bucket: str, seaweedfs: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_writer, "PART_SIZE", LARGE)
    storage, data, name = S3Storage(), os.urandom(size), f"s3://{bucket}/a b/ä+%25"
    writer = storage.create(name, size, OURS)
    written(writer, data)
    assert seaweedfs.read(bucket, "a b/ä+%25") == data
    found = storage.head(name)
    assert (found.kind, found.size, found.tags[CONVERSION]) == (FILE, size, "1234")
    if 4 <= size < LARGE:
        assert int(found.tags[CONTENT_SUM], 16).to_bytes(4, "little") == data[-4:]
    assert found.checksum in (None, crc32c(data).to_bytes(4, "big"))
    (listed,) = storage.walk(f"s3://{bucket}/a b")
    assert (listed.name, listed.size, listed.version) == ("ä+%25", size, found.version)
    with storage.open(name) as reader:
        assert reader.read() == data


@pytest.mark.parametrize("size", [10, 2 * LARGE])
def test_an_equal_run_may_be_quicker_and_another_one_not(size: int, bucket: str, seaweedfs: S3) -> None:
    storage, data, name = S3Storage(), os.urandom(size), f"s3://{bucket}/chunk"
    first, twin, other = (storage.create(name, size, mark) for mark in (OURS, OURS, THEIRS))
    written(first, data)
    written(twin, data)
    with pytest.raises(FileExistsError):
        written(other, data)
    other.abort()
    assert seaweedfs.read(bucket, "chunk") == data
    assert storage.abort_uploads(f"s3://{bucket}") == 0


@pytest.mark.parametrize("copied", [True, False])
def test_a_twin_that_ends_may_tidy_up(copied: bool, bucket: str, seaweedfs: S3) -> None:
    storage, data = S3Storage(), os.urandom(21 << 20)
    seaweedfs.put(bucket, "source", data)
    slow, quick = (storage.create(f"s3://{bucket}/out/x", len(data), OURS) for _ in range(2))
    with storage.open(f"s3://{bucket}/source") as source:
        if copied:
            assert slow.copy_from(source, never) == crc32c(data)
        else:
            slow.write(data[: 9 << 20])
        written(quick, data)
        assert storage.abort_uploads(f"s3://{bucket}/out") == 1
        if not copied:
            slow.write(data[9 << 20 :])
        slow.commit()
    assert seaweedfs.read(bucket, "out/x") == data


def test_what_was_begun_can_be_cleared(bucket: str, seaweedfs: S3) -> None:
    storage = S3Storage()
    for number in range(3):
        storage.create(f"s3://{bucket}/out/{number}", 20 << 20, OURS).write(bytes(9 << 20))
    assert storage.abort_uploads(f"s3://{bucket}/out") == 3
    assert storage.abort_uploads(f"s3://{bucket}/out") == 0
    assert seaweedfs.names(bucket) == []


@pytest.mark.parametrize("largest", [5 << 30, LARGE + (1 << 20)])
def test_the_store_copies_and_no_byte_passes(
    largest: int, bucket: str, seaweedfs: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_writer, "LARGEST_COPY", largest)
    data, other = os.urandom(2 * LARGE + 12345), seaweedfs.make_bucket("other")
    seaweedfs.put(bucket, "source", data)
    front = Proxy(seaweedfs.url)
    monkeypatch.setenv("AWS_ENDPOINT_URL", front.url)
    storage = S3Storage()
    with storage.open(f"s3://{bucket}/source") as source:
        writer = storage.create(f"s3://{other}/target", len(data), OURS)
        checksum = writer.copy_from(source, never)
        assert checksum is not None
        assert checksum == crc32c(data)
        writer.write(checksum.to_bytes(4, "little"))
        writer.commit()
    assert seaweedfs.read(other, "target") == data + crc32c(data).to_bytes(4, "little")
    assert front.sent < 10_000
    assert front.received < 10_000
    assert front.count("PUT", "partNumber") == (2 if largest == 5 << 30 else 3)
    front.close()


@pytest.mark.parametrize("change", ["written again", "removed"])
def test_a_source_that_changes_is_not_copied(change: str, bucket: str, seaweedfs: S3) -> None:
    storage = S3Storage()
    seaweedfs.put(bucket, "source", bytes(LARGE))
    reader = storage.open(f"s3://{bucket}/source")
    if change == "removed":
        seaweedfs.client.delete_object(Bucket=bucket, Key="source")
    else:
        seaweedfs.put(bucket, "source", bytes(LARGE + 1))
    writer = storage.create(f"s3://{bucket}/target", LARGE, OURS)
    with pytest.raises(ReadError, match=change):
        writer.copy_from(reader, never)
    writer.abort()
    assert storage.abort_uploads(f"s3://{bucket}") == 0
    with pytest.raises(OSError, match=change):
        reader.read(1)


def test_small_chunks_and_stores_that_tell_no_checksum_are_streamed(moto: S3) -> None:
    storage, bucket = S3Storage(), moto.make_bucket("bucket")
    for size in (1000, LARGE, LARGE + 1):
        data, seen = os.urandom(size), list[bytes]()
        moto.put(bucket, "source", data)
        with storage.open(f"s3://{bucket}/source") as source:
            writer = storage.create(f"s3://{bucket}/{size}", size)
            assert writer.copy_from(source, lambda piece, seen=seen: seen.append(bytes(piece))) is None
            writer.commit()
        assert b"".join(seen) == data == moto.read(bucket, str(size))
    assert not storage.copies_with_sums
    assert storage.abort_uploads(f"s3://{bucket}") == 0


def test_small_objects_and_conditions(bucket: str) -> None:
    storage, name = S3Storage(), f"s3://{bucket}/journal"
    first = storage.put(name, b"one", version=0)
    with pytest.raises(FileExistsError):
        storage.put(name, b"two", version=0)
    second = storage.put(name, b"three", version=first.version)
    with pytest.raises(FileExistsError):
        storage.put(name, b"four", version=first.version)
    assert storage.read(name, 100) == b"three"
    assert storage.stat(name).version == second.version
    assert storage.put(name + "2", b"x", mark=OURS).version == storage.put(name + "2", b"x", mark=OURS).version
    with pytest.raises(FileExistsError):
        storage.put(name + "2", b"x", mark=THEIRS)
    storage.delete(name)
    storage.delete(name)
    assert storage.missing([name, name + "2"]) == [name]


def test_listings_of_many_pages(moto: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "PAGE", 2)
    bucket = moto.make_bucket("bucket")
    names = ["a", "a-b", "a/1", "a/2/x", "a/2/y", "a/3", "b/", "b/1"]
    for name in names:
        moto.put(bucket, name, b"x")
    storage = S3Storage()
    assert sorted(storage.names(f"s3://{bucket}")) == ["a", "a", "a-b", "b"]
    assert sorted(storage.names(f"s3://{bucket}/a")) == ["1", "2", "3"]
    assert sorted(blob.name for blob in storage.walk(f"s3://{bucket}/a")) == ["1", "2/x", "2/y", "3"]
    assert [blob.name for blob in storage.walk(f"s3://{bucket}/b")] == ["1"]


BUSY: list[Rule] = [
    Rule(status=503, code="SlowDown"),
    Rule(status=429, code="TooManyRequests"),
    Rule(status=500, code="InternalError"),
    Rule(lose=True),
    Rule(method="GET", cut=1000),
]


@pytest.mark.parametrize("rule", BUSY, ids=lambda rule: rule.code or "dropped")
def test_what_passes_is_tried_again(rule: Rule, proxy: Proxy, waits: list[float]) -> None:
    proxy.rules = [Rule(**{**vars(rule), "path": "run/x", "count": 2})]
    storage = S3Storage()
    with storage.open("s3://bucket/run/x") as reader:
        assert reader.read_range(5, 2000) == BYTES[5:2005]
        assert reader.read() == BYTES
    assert len(waits) == 2
    assert all(0 < wait < 2 for wait in waits)


def test_the_store_says_how_long_to_wait(proxy: Proxy, waits: list[float]) -> None:
    proxy.rules = [Rule(path="run/x", count=1, status=503, code="SlowDown", headers={"Retry-After": "7"})]
    S3Storage().head("s3://bucket/run/x")
    assert waits == [7]


def test_a_body_is_taken_up_where_it_broke_off(proxy: Proxy, waits: list[float]) -> None:
    proxy.rules = [Rule(method="GET", path="run/x", count=3, cut=900_000)]
    with S3Storage().open("s3://bucket/run/x") as reader:
        assert reader.read() == BYTES
    assert len(waits) == 3
    assert proxy.count("GET", "run/x") == 4
    assert proxy.sent < 2.5 * len(BYTES)


def test_a_body_is_of_one_version(proxy: Proxy, moto: S3) -> None:
    proxy.rules = [Rule(method="GET", path="run/x", count=1, cut=900_000)]
    with S3Storage().open("s3://bucket/run/x") as reader:
        assert reader.read(1000) == BYTES[:1000]
        moto.put("bucket", "run/x", BYTES[::-1])
        with pytest.raises(OSError, match="was written again while it was read"):
            reader.read()


FINAL: list[tuple[Rule, str]] = [
    (Rule(status=503, code="SlowDown"), "503 SlowDown: as asked .after 7 attempts."),
    (Rule(status=403, code="AccessDenied"), "access denied .403.; the credentials need s3:GetObject"),
    (Rule(status=403, code="RequestTimeTooSkewed"), "the clock of this machine differs"),
    (Rule(status=400, code="ExpiredToken"), "the AWS credentials expired"),
    (Rule(status=403, code="InvalidAccessKeyId"), "does not know the access key"),
    (Rule(status=403, code="SignatureDoesNotMatch"), "the secret key is wrong"),
    (Rule(status=403, code="InvalidObjectState"), "archive class"),
    (Rule(status=404, code="NoSuchBucket"), "there is no bucket bucket"),
    (Rule(status=404, code="NoSuchKey"), "was removed while it was read"),
    (Rule(status=301, code="PermanentRedirect", headers={"x-amz-bucket-region": "eu-west-1"}), "AWS_REGION=eu-west-1"),
    (Rule(status=400, code="AuthorizationHeaderMalformed", body="<Region>eu-west-1</Region>"), "AWS_REGION=eu-west-1"),
    (Rule(status=400, code="Strange"), "the store answered 400 Strange: as asked"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "expected"), FINAL, ids=[rule.code for rule, _ in FINAL])
def test_what_does_not_pass_is_one_line(rule: Rule, expected: str, proxy: Proxy) -> None:
    rule = Rule(**{**vars(rule), "path": "run/x", "method": "GET"})
    reader = S3Storage().open("s3://bucket/run/x")
    proxy.rules = [rule]
    with pytest.raises(OSError, match=expected) as caught:
        reader.read()
    assert "\n" not in (caught.value.strerror or "")
    assert caught.value.filename == "s3://bucket/run/x"


LOST = {"begin": ("POST", r"\?uploads"), "part": ("PUT", "partNumber=2"), "end": ("POST", "uploadId=")}


@pytest.mark.parametrize("step", LOST)
def test_answers_to_writes_may_be_lost(step: str, bucket: str, seaweedfs: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """An upload that was completed is not completed again: S3 would not know it any more."""
    front = Proxy(seaweedfs.url)
    monkeypatch.setenv("AWS_ENDPOINT_URL", front.url)
    monkeypatch.setattr(retries, "pause", lambda _: None)
    method, path = LOST[step]
    front.rules = [Rule(method=method, path=path, count=1, lose=True)]
    storage, data = S3Storage(), os.urandom(3 * LARGE + 1)
    written(storage.create(f"s3://{bucket}/x", len(data), OURS), data)
    assert seaweedfs.read(bucket, "x") == data
    assert front.count(method, path) == (1 if step == "end" else 2)
    front.close()


def test_no_credentials(moto: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    moto.make_bucket("bucket")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(OSError, match="no AWS credentials found; set AWS_PROFILE"):
        S3Storage().stat("s3://bucket/x")


def test_profiles(moto: S3, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    moto.put(moto.make_bucket("bucket"), "x", b"1")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    (tmp_path / "credentials").write_text("[lab]\naws_access_key_id = test\naws_secret_access_key = testtest\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_PROFILE", "lab")
    storage = S3Storage()
    assert storage.read("s3://bucket/x", 9) == b"1"
    spec = storage.kvstore("s3://bucket/dir")
    assert spec["aws_credentials"] == {"type": "profile", "profile": "lab"}
    assert (spec["endpoint"], spec["path"], spec["aws_region"]) == (moto.url, "dir/", "us-east-1")
    monkeypatch.setenv("AWS_PROFILE", "other")
    with pytest.raises(OSError, match="other"):
        S3Storage().read("s3://bucket/x", 9)


def test_web_identity(moto: S3, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """As on EKS: temporary credentials, whose time runs out."""
    moto.put(moto.make_bucket("bucket"), "x", b"1")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    (tmp_path / "token").write_text("token")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/converter")
    storage = S3Storage()
    assert storage.read("s3://bucket/x", 9) == b"1"
    assert [blob.name for blob in storage.walk("s3://bucket")] == ["x"]


def test_who_requests_pays_only_if_asked(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(Proxy, "rule", lambda self, method, path: seen.append(method))  # noqa: ARG005
    monkeypatch.setenv("AWS_REQUEST_PAYER", "requester")
    assert S3Storage().kvstore("s3://bucket/x")["requester_pays"]
    monkeypatch.delenv("AWS_REQUEST_PAYER")
    assert "requester_pays" not in S3Storage().kvstore("s3://bucket/x")
    assert proxy.url
    assert seen


def test_nothing_is_loaded_for_local_paths() -> None:
    code = "import sys, converter.storage; print([name for name in sys.modules if 'boto' in name])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
