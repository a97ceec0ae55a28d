"""The fake of Cloud Storage keeps the contract, as google-cloud-storage sees it; a second fake agrees where it can."""

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from google.api_core.exceptions import BadRequest, Conflict, Forbidden, NotFound, PreconditionFailed
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
from google.cloud.storage.exceptions import InvalidResponse

from tests.helpers.gcs import FakeGcs
from tests.helpers.trees import local_tree

RESIDUE = "SGdLxw=="
"""The CRC-32C of any bytes followed by their own CRC-32C in little-endian."""

OURS, SECOND = "ours", "fake-gcs-server"


@dataclass
class Store:
    """A fake under test. `lenient` are the rules that it does not enforce."""

    client: Any
    bucket: Any
    lenient: frozenset[str] = field(default_factory=frozenset)

    def enforces(self, rule: str) -> bool:
        return rule not in self.lenient


def client_of(url: str) -> Any:
    return storage.Client(project="p", credentials=AnonymousCredentials(), client_options={"api_endpoint": url})


@pytest.fixture(params=[OURS, SECOND])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """Each fake in turn, with an empty bucket."""
    if request.param == OURS:
        gcs: FakeGcs = request.getfixturevalue("gcs")
        client = client_of(gcs.url)
        yield Store(client, client.create_bucket("bucket"))
    else:
        client = client_of(request.getfixturevalue("second_opinion"))
        bucket = client.create_bucket("bucket-" + request.node.name.lower().replace("[", "-")[:40].strip("-]_"))
        yield Store(client, bucket, frozenset({"conditions", "composite md5", "fields", "limits"}))
    client.close()


@pytest.fixture
def ours(gcs: FakeGcs) -> Iterator[Any]:
    """A client of our fake, for what only it has."""
    client = client_of(gcs.url)
    yield client
    client.close()


def put(bucket: Any, name: str, data: bytes = b"data", **options: Any) -> Any:
    blob = bucket.blob(name)
    blob.upload_from_string(data, content_type="application/octet-stream", **options)
    return blob


def test_an_object_is_created_once(store: Store) -> None:
    first = put(store.bucket, "a/b c?d", b"hello", if_generation_match=0)
    with pytest.raises(PreconditionFailed):
        put(store.bucket, "a/b c?d", b"other", if_generation_match=0)
    found = store.bucket.get_blob("a/b c?d")
    assert found is not None
    assert (found.generation, found.size, found.crc32c) == (first.generation, 5, "mnG7TA==")
    assert found.download_as_bytes() == b"hello"
    assert put(store.bucket, "a/b c?d", b"other", if_generation_match=first.generation).generation > first.generation


def test_resumable_uploads_are_created_once(store: Store) -> None:
    data = bytes(range(256)) * 4096 + b"end"

    def write() -> None:
        with store.bucket.blob("large", chunk_size=256 << 10).open("wb", if_generation_match=0) as file:
            file.write(data)

    write()
    if store.enforces("conditions"):
        with pytest.raises(InvalidResponse, match="412"):
            write()
    assert store.bucket.blob("large").download_as_bytes() == data


def test_custom_metadata(store: Store) -> None:
    blob = store.bucket.blob("x")
    blob.metadata = {"conversion": "d1g3st"}
    blob.upload_from_string(b"x")
    [listed] = store.client.list_blobs(store.bucket, fields="items(name,size,crc32c,generation,metadata)")
    assert (listed.metadata, listed.size, listed.crc32c) == ({"conversion": "d1g3st"}, 1, blob.crc32c)
    assert listed.etag is None or not store.enforces("fields")
    listed.metadata = {"conversion": "other"}
    listed.patch()
    again = store.bucket.get_blob("x")
    assert again is not None
    assert again.metadata == {"conversion": "other"}
    if store.enforces("conditions"):
        assert (again.generation, again.metageneration) == (blob.generation, 2)


def test_ranges(store: Store) -> None:
    blob = put(store.bucket, "x", b"0123456789")
    assert blob.download_as_bytes(start=2, end=4) == b"234"
    assert blob.download_as_bytes(start=8, end=100) == b"89"
    assert blob.download_as_bytes(start=-3) == b"789"
    pinned = store.bucket.blob("x", generation=blob.generation)
    put(store.bucket, "x", b"new")
    with pytest.raises(NotFound):
        pinned.download_as_bytes()
    assert store.bucket.blob("x").download_as_bytes() == b"new"


def test_listing(store: Store) -> None:
    for name in ("a", "b/1", "b/2", "b/c/3", "b0", "c"):
        put(store.bucket, name)
    listing = store.client.list_blobs(store.bucket, prefix="b/", delimiter="/")
    assert [blob.name for blob in listing] == ["b/1", "b/2"]
    assert listing.prefixes == {"b/c/"}
    assert [blob.name for blob in store.client.list_blobs(store.bucket, start_offset="b/2", end_offset="c")] == [
        "b/2", "b/c/3", "b0",
    ]  # fmt: skip
    pages = [[blob.name for blob in page] for page in store.client.list_blobs(store.bucket, page_size=4).pages]
    assert [name for page in pages for name in page] == ["a", "b/1", "b/2", "b/c/3", "b0", "c"]
    assert max(map(len, pages)) == 4
    assert list(store.client.list_blobs(store.bucket, prefix="nothing")) == []


def test_a_chunk_composed_with_its_checksum(store: Store) -> None:
    source = put(store.bucket, "source", b"some chunk" * 100)
    tail = put(store.bucket, "tail", base64.b64decode(source.crc32c)[::-1])
    target = store.bucket.blob("target")
    target.content_type = "application/octet-stream"
    target.metadata = {"conversion": "d"}
    target.compose(
        [source, tail], if_generation_match=0, if_source_generation_match=[source.generation, tail.generation]
    )
    target.reload()
    assert (target.crc32c, target.size, target.metadata) == (RESIDUE, source.size + 4, {"conversion": "d"})
    if store.enforces("composite md5"):
        assert (target.md5_hash, target.component_count) == (None, 2)
    if store.enforces("conditions"):
        with pytest.raises(PreconditionFailed):
            target.compose([source, tail], if_generation_match=0)
        with pytest.raises(PreconditionFailed):
            store.bucket.blob("other").compose([source, tail], if_source_generation_match=[1, None])
    if store.enforces("limits"):
        with pytest.raises(BadRequest):
            store.bucket.blob("other").compose([source] * 33)
        with pytest.raises(NotFound):
            store.bucket.blob("other").compose([source, store.bucket.blob("nothing")])


def test_deletion(store: Store) -> None:
    blob = put(store.bucket, "x")
    if store.enforces("conditions"):
        with pytest.raises(PreconditionFailed):
            blob.delete(if_generation_match=blob.generation + 1)
    blob.delete()
    with pytest.raises(NotFound):
        blob.delete()
    assert not blob.exists()


def test_copies(store: Store) -> None:
    source = store.bucket.blob("from")
    source.metadata = {"conversion": "d"}
    source.upload_from_string(b"data")
    target = store.bucket.blob("into")
    assert target.rewrite(source, if_source_generation_match=source.generation) == (None, 4, 4)
    target.reload()
    assert (target.crc32c, target.metadata) == (source.crc32c, {"conversion": "d"})
    assert target.download_as_bytes() == b"data"
    with pytest.raises(NotFound):
        target.rewrite(store.bucket.blob("nothing"))


def test_missing_buckets(store: Store) -> None:
    nowhere = store.client.bucket("nowhere")
    for attempt in (lambda: put(nowhere, "x"), nowhere.reload, lambda: list(store.client.list_blobs(nowhere))):
        with pytest.raises(NotFound):
            attempt()
    with pytest.raises(Conflict):
        store.client.create_bucket(store.bucket.name)


@pytest.mark.parametrize("near", [True, False], ids=["one location", "two locations"])
def test_rewriting_between_buckets(near: bool, gcs: FakeGcs, ours: Any) -> None:
    gcs.make_bucket("from")
    gcs.make_bucket("into", location="US-CENTRAL1" if near else "EUROPE-WEST4")
    gcs.set(rewrite_limit=1000)
    source = put(ours.bucket("from"), "x", b"z" * 2500)
    target, token, calls = ours.bucket("into").blob("y"), None, 0
    while calls == 0 or token:
        done = target.rewrite(
            source, token=token, if_source_generation_match=source.generation, if_generation_match=0
        )  # fmt: skip
        assert done[1:] == (2500 if near else min(2500, 1000 * (calls + 1)), 2500)
        token, calls = done[0], calls + 1
    assert calls == (1 if near else 3)
    assert gcs.read("into", "y") == b"z" * 2500
    assert gcs.counters()["received"]["all"] == 2500
    assert gcs.counters()["requests"]["objects.rewrite"] == calls
    assert gcs.counters()["done"]["objects.rewrite"] == 1
    with pytest.raises(PreconditionFailed):
        target.rewrite(source, if_generation_match=0)
    with pytest.raises(PreconditionFailed):
        ours.bucket("into").blob("z").rewrite(source, if_source_generation_match=source.generation + 1)
    if not near:
        with pytest.raises(BadRequest, match="token"):
            ours.bucket("into").blob("z").rewrite(source, token="token-1")


def test_a_large_listing_comes_in_pages(gcs: FakeGcs, ours: Any) -> None:
    bucket = gcs.make_bucket("many")
    for number in range(2001):
        gcs.put(bucket, f"c/{number:05d}", b"")
    names = [blob.name for blob in ours.list_blobs(bucket, prefix="c/", fields="items(name),nextPageToken")]
    assert names == [f"c/{number:05d}" for number in range(2001)]
    assert gcs.counters()["done"] == {"objects.list": 3}
    prefixes = ours.list_blobs(bucket, delimiter="/", max_results=5000)
    assert (list(prefixes), prefixes.prefixes) == ([], {"c/"})


def test_each_request_may_have_conditions(gcs: FakeGcs, ours: Any) -> None:
    bucket = ours.bucket(gcs.make_bucket("bucket"))
    blob = put(bucket, "x")
    wrong = blob.generation + 1
    for attempt in (
        lambda: blob.reload(if_generation_match=wrong),
        lambda: blob.reload(if_metageneration_match=2),
        lambda: blob.download_as_bytes(if_generation_match=wrong),
        lambda: blob.patch(if_metageneration_match=7),
        lambda: blob.delete(if_generation_match=wrong),
        lambda: blob.delete(if_generation_not_match=blob.generation),
        lambda: put(bucket, "x", if_metageneration_match=2),
        lambda: put(bucket, "x", if_generation_not_match=blob.generation),
        lambda: put(bucket, "new", if_metageneration_match=1),
        lambda: put(bucket, "new", if_generation_not_match=0),
        lambda: bucket.copy_blob(blob, bucket, "y", if_source_generation_match=wrong),
        lambda: bucket.copy_blob(blob, bucket, "x", if_generation_match=0),
    ):
        with pytest.raises(PreconditionFailed):
            attempt()
    assert gcs.read("bucket", "x") == b"data"
    assert list(gcs.objects("bucket")) == ["x"]
    url = f"{gcs.url}/storage/v1/b/bucket/o/x?ifGenerationNotMatch={blob.generation}"
    with pytest.raises(urllib.error.HTTPError, match="304"):
        urllib.request.urlopen(url)


def test_composition_has_rules(gcs: FakeGcs, ours: Any) -> None:
    bucket = ours.bucket(gcs.make_bucket("bucket"))
    cold = bucket.blob("cold")
    cold.storage_class = "NEARLINE"
    cold.upload_from_string(b"cold")
    parts = [put(bucket, f"part{number}", b"%d" % number) for number in range(2)]
    with pytest.raises(BadRequest, match="storage class"):
        bucket.blob("x").compose([cold, parts[0]])
    bucket.blob("x").compose(parts, delete_source_objects=True)
    assert sorted(gcs.objects("bucket")) == ["cold", "x"]
    assert gcs.read("bucket", "x") == b"01"


def test_batches(gcs: FakeGcs, ours: Any) -> None:
    bucket = ours.bucket(gcs.make_bucket("bucket"))
    blobs = [put(bucket, f"x/{number}") for number in range(3)]
    with ours.batch(raise_exception=False):
        blobs[0].delete()
        blobs[1].delete(if_generation_match=1)
        bucket.delete_blob("nothing")
    assert sorted(gcs.objects("bucket")) == ["x/1", "x/2"]
    done, requests = gcs.counters()["done"], gcs.counters()["requests"]
    assert (done["objects.delete"], requests["objects.delete"], requests["batch"]) == (1, 3, 1)


def test_wrong_checksums_and_names(gcs: FakeGcs, ours: Any) -> None:
    bucket = ours.bucket(gcs.make_bucket("bucket"))
    blob = bucket.blob("x")
    blob.crc32c = "AAAAAA=="
    with pytest.raises(BadRequest, match="crc32c"):
        blob.upload_from_string(b"data", checksum=None)
    for name in ("a\nb", "a" * 1025, "."):
        with pytest.raises(BadRequest):
            put(bucket, name)
    with pytest.raises(BadRequest):
        ours.create_bucket("Ab")
    blob = bucket.blob("y")
    blob.metadata = {"long": "x" * 8200}
    with pytest.raises(BadRequest, match="metadata"):
        blob.upload_from_string(b"data")
    assert gcs.objects("bucket") == {}


def test_permissions_and_requester_pays(gcs: FakeGcs, ours: Any) -> None:
    gcs.make_bucket("bucket")
    put(ours.bucket("bucket"), "old")
    gcs.deny("bucket", "storage.objects.delete")
    assert put(ours.bucket("bucket"), "new").size == 4
    with pytest.raises(Forbidden, match=r"storage\.objects\.delete"):
        put(ours.bucket("bucket"), "old")
    asked = ["storage.objects.create", "storage.objects.delete"]
    assert ours.bucket("bucket").test_iam_permissions(asked) == asked[:1]
    gcs.deny("bucket")
    assert ours.bucket("bucket").test_iam_permissions(asked) == asked
    gcs.make_bucket("paid", requester_pays=True)
    with pytest.raises(BadRequest, match="requester pays"):
        put(ours.bucket("paid"), "x")
    put(ours.bucket("paid", user_project="p"), "x")
    assert list(gcs.objects("paid")) == ["x"]


def test_what_is_not_known_is_refused(gcs: FakeGcs) -> None:
    gcs.make_bucket("bucket")
    for path, status in (("b/bucket/o?versions=true", 501), ("b/bucket/acl", 404), ("b/bucket/o?fields=a((", 400)):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{gcs.url}/storage/v1/{path}")
        assert refused.value.code == status
        assert json.loads(refused.value.read())["error"]["code"] == status
        refused.value.close()


def test_md5_can_be_left_out(gcs: FakeGcs, ours: Any) -> None:
    bucket = ours.bucket(gcs.make_bucket("bucket"))
    assert put(bucket, "x").md5_hash == "jXd/OF09/siBXSD3SWAm3A=="
    gcs.set(md5=False)
    assert put(bucket, "y").md5_hash is None
    assert bucket.blob("y").download_as_bytes() == b"data"


def test_trees_and_counters(gcs: FakeGcs, ours: Any, tmp_path: Any) -> None:
    bucket = gcs.make_bucket("bucket")
    gcs.set(patterns={"chunks": r"/c/\d"})
    for name, data in {"a/zarr.json": b"{}", "a/c/0": b"1234", "b": b""}.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(data)
    gcs.upload_tree(tmp_path / "in", bucket, "x/y")
    assert list(gcs.objects(bucket)) == ["x/y/a/c/0", "x/y/a/zarr.json", "x/y/b"]
    assert gcs.tree(bucket, "x/y") == local_tree(tmp_path / "in")
    gcs.download_tree(bucket, "x/y", tmp_path / "out")
    assert local_tree(tmp_path / "out") == local_tree(tmp_path / "in")
    assert gcs.counters()["requests"] == {}
    for name in gcs.objects(bucket):
        ours.bucket(bucket).blob(name).download_as_bytes()
    put(ours.bucket(bucket), "z/c/1", b"12345")
    put(ours.bucket(bucket), "z/d", b"12")
    ours.bucket(bucket).blob("z/d").delete()
    counters = gcs.counters()
    assert counters["sent"] == {"all": 6, "chunks": 4}
    assert counters["received"] == {"all": 7, "chunks": 5}
    assert counters["classes"] == {"A": 2, "B": 3, "free": 1}
    gcs.reset_counters()
    assert gcs.counters()["sent"] == {"all": 0, "chunks": 0}
