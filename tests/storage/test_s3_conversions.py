"""Conversions from S3, into S3, and inside it: the same bits as between local files, and what goes wrong on the way."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from converter.storage import STORAGES, retries, s3
from converter.storage.s3 import S3Storage
from tests.conftest import Cli
from tests.helpers.axlearn_checkpoint import STACK, dimensions, envy_tensors, write_checkpoint
from tests.helpers.gcs import FakeGcs
from tests.helpers.gcs.client import ROOT
from tests.helpers.s3 import S3
from tests.helpers.s3_proxy import Proxy, Rule
from tests.helpers.trees import local_tree

SOURCE = ROOT / "tests" / "data" / "axlearn" / "micro-hybrid-sharded"
URL, OUT = "s3://bucket/run", "s3://bucket/out"
STEP = "run/checkpoints/step_00000100"
CHUNK = f"{STEP}/gda/{STACK}/layer1/feed_forward/wi_0_weight/0.0.0.0"

UNREAD = "gda/learner/"
"""The learner's state: two thirds of the files, which nothing but `inspect` looks at where parameters are converted."""

CHANGING = ("/_CHECKPOINT_METADATA", "/commit_success.txt", "/ax2mt.json", "/manifest.ocdbt", "/items/d/")
"""Files that hold times, digests of another kind, or random names; `commit_success.txt` is for object stores only."""


@pytest.fixture
def source(moto: S3) -> S3:
    """moto, with a checkpoint."""
    moto.upload_tree(SOURCE, moto.make_bucket("bucket"), "run", without=UNREAD)
    return moto


@pytest.fixture
def checked(seaweedfs: S3) -> S3:
    """SeaweedFS, with a checkpoint."""
    seaweedfs.upload_tree(SOURCE, seaweedfs.make_bucket("bucket"), "run", without=UNREAD)
    return seaweedfs


@pytest.fixture
def front(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[S3], Proxy]]:
    """Puts a proxy before a store; nothing waits between attempts."""
    made: list[Proxy] = []

    def put(server: S3) -> Proxy:
        made.append(Proxy(server.url))
        monkeypatch.setenv("AWS_ENDPOINT_URL", made[-1].url)
        monkeypatch.setitem(STORAGES, "s3", S3Storage())
        return made[-1]

    monkeypatch.setattr(retries, "pause", lambda _: None)
    yield put
    for one in made:
        one.close()


def lasting(tree: Mapping[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in tree.items() if not any(part in f"/{name}" for part in CHANGING)}


@pytest.mark.parametrize("command", ["plan", "params", "inspect"])
def test_reports_are_those_of_the_same_files(command: str, source: S3, in_process: Cli) -> None:
    if command == "inspect":
        source.upload_tree(SOURCE, "bucket", "run")
    there, here = in_process(command, URL, "--json"), in_process(command, SOURCE, "--json")
    assert there.code == here.code == 0, there.err
    found, expected = json.loads(there.out.replace(URL, str(SOURCE))), here.document
    assert found | {"transfer": None} == expected | {"transfer": None}


def test_a_plan_takes_few_requests(
    source: S3, front: Callable[[S3], Proxy], in_process: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = in_process("plan", SOURCE, "--json").document
    arrays = sum(len(task["sources"]) for task in plan["tasks"])
    pages = len(source.names("bucket", "run/")) / 10
    assert pages > 8
    for size, least, most in ((1000, 4, 4), (10, 3 + pages, 3 + 3 * pages)):
        monkeypatch.setattr(s3, "PAGE", size)
        proxy = front(source)
        assert json.loads(in_process("plan", URL, "--json").out.replace(URL, str(SOURCE))) == plan
        lists = proxy.count("GET", "list-type")
        assert least <= lists <= most
        assert len(proxy.requests) == lists + 1 + arrays


@pytest.mark.usefixtures("source")
@pytest.mark.parametrize("options", [(), ("--rewrite", "--store", "files")])
def test_downloads(options: tuple[str, ...], in_process: Cli, converted: Callable[..., Path], tmp_path: Path) -> None:
    done = in_process("convert", URL, tmp_path / "there", *options)
    assert done.code == 0, done.err
    here = converted(SOURCE.name, store="files", rewrite=True) if options else converted(SOURCE.name)
    assert lasting(local_tree(tmp_path / "there")) == lasting(local_tree(here))
    assert in_process("verify", URL, tmp_path / "there").code == 0
    assert in_process("verify", tmp_path / "there").code == 0


@pytest.mark.parametrize(("place", "store"), [(SOURCE, "files"), (URL, "ocdbt")])
def test_uploads_and_copies(
    place: Any, store: str, checked: S3, in_process: Cli, converted: Callable[..., Path], tmp_path: Path
) -> None:
    done = in_process("convert", place, OUT, "--store", store)
    assert done.code == 0, done.err
    assert "Orbax and MaxText cannot read s3:// URLs" in done.out
    assert f"aws s3 sync {OUT} /COPY" in done.out
    assert "load_parameters_path=/COPY/0/items" in done.out
    assert lasting(checked.tree("bucket", "out")) == lasting(local_tree(converted(SOURCE.name, store=store)))
    assert checked.names("bucket", "out.ax2mt") == []
    assert {name for name in checked.names("bucket", "out/") if "commit_success" in name} == {
        "out/0/commit_success.txt",
        "out/0/items/commit_success.txt",
    }
    for arguments in ((SOURCE, OUT), (OUT,)):
        verified = in_process("verify", *arguments)
        assert verified.code == 0, verified.out + verified.err
    checked.download_tree("bucket", "out", tmp_path / "copy")
    assert in_process("verify", SOURCE, tmp_path / "copy").code == 0


LARGE = dimensions(128, 1, 2, 1, 8, 16, 4096, 4, 64)
"""Expert weights of 8 MiB, each in one chunk."""


def test_large_chunks_never_pass_this_machine(
    seaweedfs: S3, front: Callable[[S3], Proxy], in_process: Cli, tmp_path: Path
) -> None:
    write_checkpoint(tmp_path / "step_00000100", envy_tensors(LARGE))
    seaweedfs.upload_tree(tmp_path / "step_00000100", seaweedfs.make_bucket("bucket"), "step_00000100")
    seaweedfs.make_bucket("other")
    proxy = front(seaweedfs)
    done = in_process("convert", "s3://bucket/step_00000100", "s3://other/out")
    assert done.code == 0, done.err
    large = 3 * (8 << 20)
    assert proxy.sent < large / 10
    assert proxy.received < large / 10
    assert proxy.count("POST", r"\?uploads") == 3
    assert in_process("convert", tmp_path / "step_00000100", tmp_path / "here").code == 0
    assert lasting(seaweedfs.tree("other", "out")) == lasting(local_tree(tmp_path / "here"))
    proxy.sent = 0
    assert in_process("verify", "s3://other/out").code == 0
    assert proxy.sent < large / 10
    assert in_process("verify", "s3://bucket/step_00000100", "s3://other/out").code == 0


@pytest.mark.parametrize("there", ["s3", "gs"])
def test_between_providers(there: str, moto: S3, gcs: FakeGcs, in_process: Cli, converted: Callable[..., Path]) -> None:
    stores = {"s3": moto, "gs": gcs}
    for store in stores.values():
        store.make_bucket("bucket")
    source = stores["gs" if there == "s3" else "s3"]
    source.upload_tree(SOURCE, "bucket", "run", without=UNREAD)
    scheme = "gs" if there == "s3" else "s3"
    done = in_process("convert", f"{scheme}://bucket/run", f"{there}://bucket/out", "--store", "files")
    assert done.code == 0, done.err
    here = local_tree(converted(SOURCE.name, store="files"))
    assert lasting(stores[there].tree("bucket", "out")) == lasting(here)


def test_a_flipped_bit_is_found(checked: S3, in_process: Cli) -> None:
    assert in_process("convert", SOURCE, OUT, "--store", "files").code == 0
    name = next(name for name in checked.names("bucket", "out/0/items/") if "/wi_0" in name or ".wi_0" in name)
    data = bytearray(checked.read("bucket", name))
    data[len(data) // 2] ^= 1
    checked.put("bucket", name, bytes(data))
    assert in_process("verify", OUT).code == 6
    assert in_process("verify", SOURCE, OUT).code == 6


FAULTS: list[tuple[Rule, int, str]] = [
    (Rule(method="GET", path=CHUNK, status=403, code="AccessDenied"), 3, "access denied (403)"),
    (Rule(method="GET", path=CHUNK, status=503, code="SlowDown"), 3, "503 SlowDown"),
    (Rule(path="", status=301, code="PermanentRedirect", headers={"x-amz-bucket-region": "eu-west-1"}), 3, "eu-west-1"),
    (Rule(path="list-type", status=403, code="AccessDenied"), 3, "s3:ListBucket"),
    (Rule(path="", status=403, code="RequestTimeTooSkewed"), 3, "the clock of this machine"),
    (Rule(path="list-type", status=404, code="NoSuchBucket"), 3, "there is no bucket bucket"),
]


@pytest.mark.parametrize(
    ("rule", "code", "expected"), FAULTS, ids=[f"{rule.code} {rule.path[-9:]}" for rule, *_ in FAULTS]
)
def test_faults_of_the_source(
    rule: Rule, code: int, expected: str, source: S3, front: Callable[[S3], Proxy], in_process: Cli, tmp_path: Path
) -> None:
    front(source).rules = [Rule(**vars(rule))]
    done = in_process("convert", URL, tmp_path / "out")
    assert (done.code, len(done.err.strip().splitlines())) == (code, 1), done.err
    assert expected in done.err
    assert "s3://bucket/run" in done.err or "chunk 0.0.0.0" in done.err
    assert not (tmp_path / "out").exists()


def test_faults_that_pass(checked: S3, front: Callable[[S3], Proxy], in_process: Cli) -> None:
    proxy = front(checked)
    proxy.rules = [
        Rule(every=7, status=503, code="SlowDown"),
        Rule(every=8, lose=True),
        Rule(every=9, method="GET", path="gda", cut=100),
    ]
    done = in_process("convert", URL, OUT)
    assert done.code == 0, done.err
    assert all(rule.met > rule.every for rule in proxy.rules)
    proxy.rules.clear()
    assert in_process("verify", SOURCE, OUT).code == 0


def test_a_source_that_changes(source: S3, front: Callable[[S3], Proxy], in_process: Cli, tmp_path: Path) -> None:
    """A chunk is written again after it was listed and before it is read."""
    proxy = front(source)
    proxy.rules = [Rule(method="GET", path=CHUNK, count=1, before=lambda: source.put("bucket", CHUNK, b"changed"))]
    done = in_process("convert", URL, tmp_path / "out")
    assert done.code == 3
    assert "was written again while it was read" in done.err
    assert not (tmp_path / "out").exists()


REFUSED: list[tuple[Rule, str]] = [
    (Rule(method="PUT", path="out/0/items", status=403, code="AccessDenied"), "s3:PutObject"),
    (Rule(method="PUT", path="commit_success", status=500, code="InternalError"), "500 InternalError"),
]


@pytest.mark.parametrize(("rule", "expected"), REFUSED, ids=[rule.path for rule, _ in REFUSED])
def test_faults_of_the_destination(
    rule: Rule, expected: str, checked: S3, front: Callable[[S3], Proxy], in_process: Cli
) -> None:
    proxy = front(checked)
    proxy.rules = [Rule(**vars(rule))]
    done = in_process("convert", SOURCE, OUT)
    assert (done.code, len(done.err.strip().splitlines())) == (5, 1), done.err
    assert expected in done.err
    assert not [name for name in checked.names("bucket", "out/") if "commit_success" in name]
    proxy.rules.clear()
    again = in_process("convert", SOURCE, OUT)
    assert again.code == 0, again.err
    assert in_process("verify", SOURCE, OUT).code == 0
    assert checked.names("bucket", "out.ax2mt") == []


def test_another_conversion_is_refused(checked: S3, front: Callable[[S3], Proxy], in_process: Cli) -> None:
    proxy = front(checked)
    proxy.rules = [Rule(method="PUT", path="commit_success", status=403, code="AccessDenied")]
    assert in_process("convert", SOURCE, OUT).code == 5
    proxy.rules.clear()
    other = in_process("convert", SOURCE, OUT, "--untie")
    assert other.code == 5
    assert "--fresh starts over" in other.err
    assert in_process("convert", SOURCE, OUT, "--untie", "--fresh").code == 0
    there = in_process("convert", SOURCE, OUT)
    assert (there.code, "--overwrite" in there.err) == (5, True)
    assert in_process("convert", SOURCE, OUT, "--overwrite").code == 0
    assert in_process("verify", SOURCE, OUT).code == 0
    assert checked.names("bucket", "out.ax2mt") == []


def start(server: S3) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "converter", "convert", URL, OUT], cwd=ROOT, text=True,
        env={**os.environ, **server.environment(), "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_a_killed_run_and_two_at_once(checked: S3, in_process: Cli) -> None:
    first = start(checked)
    while first.poll() is None and not any("/items/" in name for name in checked.names("bucket", "out/")):
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert not [name for name in checked.names("bucket", "out/") if "commit_success" in name]
    both = [start(checked), start(checked)]
    for one in both:
        _, err = one.communicate()
        assert one.returncode == 0, err
    assert in_process("verify", SOURCE, OUT).code == 0
    assert checked.names("bucket", "out.ax2mt") == []
    assert S3Storage().abort_uploads(OUT) == 0


def test_a_missing_extra_is_one_line(in_process: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STORAGES, "s3", S3Storage())
    monkeypatch.setitem(sys.modules, "botocore.config", None)
    done = in_process("plan", URL)
    assert done.code == 2, done.err
    assert done.err.strip() == "ax2mt: s3:// URLs need botocore: pip install 'axlearn2maxtext[s3]'"
