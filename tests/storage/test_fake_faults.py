"""Each fault that the fake of Cloud Storage can have is one that clients meet; the fake also runs as a process."""

import contextlib
import http.client
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import pytest
from google.api_core.exceptions import Forbidden, NotFound, PreconditionFailed, ServiceUnavailable, TooManyRequests
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import InvalidOperation
from google.cloud import storage
from google.cloud.storage.retry import DEFAULT_RETRY
from requests.exceptions import ConnectionError as Disconnected

from tests.helpers.gcs import FakeGcs, Fault, Gcs, ProcessGcs
from tests.helpers.gcs.client import ROOT

# The types of the client's optional arguments are too narrow.
Bucket = Any

QUICK = DEFAULT_RETRY.with_delay(initial=0.001, maximum=0.001)


@pytest.fixture
def bucket(gcs: FakeGcs) -> Iterator[Bucket]:
    """An empty bucket of our fake."""
    gcs.make_bucket("bucket")
    client = storage.Client(project="p", credentials=AnonymousCredentials())
    yield client.bucket("bucket")
    client.close()


def put(bucket: Bucket, name: str, data: bytes = b"data", **options: Any) -> Any:
    blob = bucket.blob(name)
    blob.upload_from_string(data, content_type="application/octet-stream", **{"retry": None, **options})
    return blob


@contextlib.contextmanager
def raw_get(gcs: Gcs, name: str) -> Iterator[http.client.HTTPResponse]:
    with contextlib.closing(http.client.HTTPConnection(urlsplit(gcs.url).netloc)) as connection:
        connection.request("GET", f"/storage/v1/b/bucket/o/{name}?alt=media")
        with connection.getresponse() as answer:
            yield answer


def test_every_third_request_is_refused(gcs: FakeGcs, bucket: Bucket) -> None:
    gcs.inject(Fault(operation="objects.insert", every=3))
    outcomes: list[bool] = []
    for number in range(7):
        try:
            put(bucket, f"x{number}")
            outcomes.append(True)
        except ServiceUnavailable:
            outcomes.append(False)
    assert outcomes == [True, True, False, True, True, False, True]
    assert len(gcs.objects("bucket")) == 5
    gcs.clear_faults()
    for number in range(3):
        put(bucket, f"y{number}")
    assert gcs.counters()["requests"]["objects.insert"] == 10
    assert gcs.counters()["done"]["objects.insert"] == 8


def test_too_many_requests(gcs: FakeGcs, bucket: Bucket) -> None:
    gcs.put("bucket", "x", b"data")
    gcs.inject(Fault(status=429, retry_after=7, operation="objects.media", times=2))
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{gcs.url}/storage/v1/b/bucket/o/x?alt=media")
    refused.value.close()
    assert (refused.value.code, refused.value.headers["Retry-After"]) == (429, "7")
    with pytest.raises(TooManyRequests):
        bucket.blob("x").download_as_bytes(retry=None)
    assert bucket.blob("x").download_as_bytes() == b"data"


def test_a_predicate_chooses(gcs: FakeGcs, bucket: Bucket) -> None:
    gcs.inject(Fault(predicate=lambda operation, place: operation == "objects.insert" and place == "bucket/bad"))
    put(bucket, "good")
    with pytest.raises(ServiceUnavailable):
        put(bucket, "bad")


def test_one_object_is_forbidden(gcs: FakeGcs, bucket: Bucket) -> None:
    for name in ("secret", "open"):
        gcs.put("bucket", name, b"data")
    gcs.inject(Fault(status=403, name="^bucket/secret$"))
    with pytest.raises(Forbidden, match=r"storage\.objects\.get"):
        bucket.blob("secret").download_as_bytes()
    assert bucket.blob("open").download_as_bytes() == b"data"
    gcs.inject(Fault(status=404, name="^bucket/", times=1))
    with pytest.raises(NotFound):
        list(bucket.list_blobs())
    gcs.inject(Fault(status=401, name="^bucket/"))
    with pytest.raises(InvalidOperation, match="Anonymous credentials cannot be refreshed"):
        list(bucket.list_blobs())


def test_a_download_breaks_off(gcs: FakeGcs, bucket: Bucket) -> None:
    gcs.put("bucket", "x", bytes(1000))
    gcs.inject(Fault(kind="drop", operation="objects.media", after=300, times=2))
    with raw_get(gcs, "x") as answer:
        assert answer.headers["Content-Length"] == "1000"
        with pytest.raises(http.client.IncompleteRead) as broken:
            answer.read()
    assert len(broken.value.partial) == 300
    assert gcs.counters()["sent"]["all"] == 300
    assert bucket.blob("x").download_as_bytes(retry=QUICK) == bytes(1000)
    assert gcs.counters()["requests"]["objects.media"] == 3


def test_an_upload_breaks_off(gcs: FakeGcs, bucket: Bucket) -> None:
    gcs.inject(Fault(kind="cut", operation="objects.insert", after=10, times=1))
    with pytest.raises((Disconnected, ConnectionError)):
        put(bucket, "x", bytes(1000))
    assert gcs.objects("bucket") == {}
    assert gcs.counters()["received"]["all"] == 0
    put(bucket, "x", bytes(1000))


@pytest.mark.parametrize("operation", ["insert", "compose", "delete", "patch"])
def test_a_reply_is_lost(operation: str, gcs: FakeGcs, bucket: Bucket) -> None:
    source = put(bucket, "source")
    requests = {
        "insert": lambda: put(bucket, "new", if_generation_match=0),
        "compose": lambda: bucket.blob("new").compose([source], if_generation_match=0, retry=None),
        "delete": lambda: source.delete(retry=None),
        "patch": lambda: source.patch(retry=None, if_metageneration_match=1),
    }
    gcs.inject(Fault(kind="lost", operation=f"objects.{operation}", times=1))
    with pytest.raises((Disconnected, ConnectionError)):
        requests[operation]()
    after = gcs.objects("bucket")
    assert ("new" in after) == (operation in ("insert", "compose"))
    assert ("source" in after) == (operation != "delete")
    assert operation == "delete" or after["source"]["metageneration"] == ("2" if operation == "patch" else "1")


def test_a_retry_after_a_lost_reply_meets_its_own_object(gcs: FakeGcs, bucket: Bucket) -> None:
    gcs.inject(Fault(kind="lost", operation="objects.insert", times=1))
    with pytest.raises(PreconditionFailed):
        put(bucket, "x", if_generation_match=0, retry=QUICK)
    assert gcs.read("bucket", "x") == b"data"


def test_a_lost_reply_of_a_rewrite_leaves_its_token(gcs: FakeGcs, bucket: Bucket) -> None:
    gcs.make_bucket("far", location="EU")
    gcs.set(rewrite_limit=10)
    source, target = put(bucket, "x", bytes(25)), bucket.client.bucket("far").blob("x")
    token, _, _ = target.rewrite(source)
    gcs.inject(Fault(kind="lost", operation="objects.rewrite", times=1))
    token, done, _ = target.rewrite(source, token=token, if_generation_match=0, retry=QUICK)
    assert done == 20
    assert target.rewrite(source, token=token, if_generation_match=0)[0] is None


def test_latency(gcs: FakeGcs, bucket: Bucket) -> None:
    gcs.inject(Fault(kind="wait", seconds=0.05, operation="objects.insert"))
    start = time.monotonic()
    put(bucket, "x")
    assert time.monotonic() - start >= 0.05


def test_the_clock_is_wrong(gcs: FakeGcs, bucket: Bucket) -> None:
    gcs.set(clock_skew=-3600)
    blob = put(bucket, "x")
    assert blob.updated is not None
    assert abs(blob.updated.timestamp() - (time.time() - 3600)) < 300
    with raw_get(gcs, "x") as answer:
        assert answer.read() == b"data"
    assert abs(parsedate_to_datetime(answer.headers["Date"]).timestamp() - (time.time() - 3600)) < 300


def test_a_reset_forgets_everything(gcs: FakeGcs, bucket: Bucket) -> None:
    gcs.inject(Fault())
    gcs.set(clock_skew=5, patterns={"x": "x"})
    gcs.reset()
    gcs.make_bucket("bucket")
    assert gcs.objects("bucket") == {}
    put(bucket, "x")
    assert gcs.counters()["received"] == {"all": 4}
    with pytest.raises(ValueError, match="kind"):
        Fault(kind="nonsense")


def test_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    gcs = ProcessGcs()
    for name, value in gcs.environment().items():
        monkeypatch.setenv(name, value)
    gcs.make_bucket("bucket", denied=["storage.objects.delete"])
    gcs.inject(Fault(operation="objects.insert", times=1))
    client = storage.Client(project="p", credentials=AnonymousCredentials())
    with pytest.raises(ServiceUnavailable):
        put(client.bucket("bucket"), "a/b c")
    blob = put(client.bucket("bucket"), "a/b c")
    with pytest.raises(Forbidden):
        blob.delete()
    assert gcs.tree("bucket", "a") == {"b c": b"data"}
    with contextlib.closing(Gcs(gcs.url)) as other:
        assert other.counters()["requests"] == {"objects.insert": 2, "objects.delete": 1}
    with pytest.raises(ValueError, match="predicate"):
        gcs.inject(Fault(predicate=lambda *_: True))
    with pytest.raises(KeyError):
        gcs.read("bucket", "nothing")
    gcs.close()
    client.close()
    assert gcs.process.returncode == 0


def test_the_process_ends_with_a_killed_parent() -> None:
    code = """
import os
from tests.helpers.gcs import ProcessGcs
print(ProcessGcs().process.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == -9
    process = int(done.stdout)
    for _ in range(1000):
        try:
            with open(f"/proc/{process}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return
        except FileNotFoundError:
            return
        time.sleep(0.02)
    pytest.fail(f"process {process} still runs")
