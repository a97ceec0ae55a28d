"""Processes that share a conversion inside S3: chunks that the store copies, kills, and processes that come late."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from converter import convert, verify
from converter.storage import STORAGES
from converter.storage.s3 import S3Storage
from tests.conftest import Cli
from tests.helpers.axlearn_checkpoint import dimensions, envy_tensors, write_checkpoint
from tests.helpers.gcs.client import ROOT
from tests.helpers.s3 import S3
from tests.helpers.s3_proxy import Proxy, Rule

DIMENSIONS = dimensions(128, 1, 2, 1, 8, 16, 4096, 4, 64)
"""Expert weights of 8 MiB, each in one chunk: large enough for `UploadPartCopy`."""

LARGE_BYTES = 3 * (8 << 20)
URL, OUT = "s3://bucket/step_00000100", "s3://bucket/out"
COPIES = r"partNumber=\d"
COMPLETE = r"\?uploadId="


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("source") / "step_00000100"
    write_checkpoint(place, envy_tensors(DIMENSIONS))
    return place


@pytest.fixture(scope="module")
def expected(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The chunks that one process makes in files."""
    place = tmp_path_factory.mktemp("expected") / "out"
    convert(source, place)
    files = (path for path in place.rglob("*") if path.is_file())
    return {name: path.read_bytes() for path in files if is_chunk(name := path.relative_to(place).as_posix())}


@pytest.fixture
def store(seaweedfs: S3, source: Path) -> S3:
    """SeaweedFS, with a checkpoint."""
    seaweedfs.upload_tree(source, seaweedfs.make_bucket("bucket"), source.name)
    return seaweedfs


@pytest.fixture
def proxy(store: S3, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """Stands before the store."""
    made = Proxy(store.url)
    monkeypatch.setenv("AWS_ENDPOINT_URL", made.url)
    monkeypatch.setitem(STORAGES, "s3", S3Storage())
    yield made
    made.close()


def is_chunk(name: str) -> bool:
    return "/c/" in name or name.endswith("/c")


def chunks(store: S3) -> dict[str, bytes]:
    return {name: data for name, data in store.tree("bucket", "out").items() if is_chunk(name)}


def assert_whole(store: S3, expected: dict[str, bytes]) -> None:
    assert chunks(store) == expected
    assert store.names("bucket", "out.ax2mt") == []
    assert S3Storage().abort_uploads(OUT) == 0


def test_four_at_once(proxy: Proxy, store: S3, expected: dict[str, bytes], in_process: Cli) -> None:
    """Whoever finds all done commits; no large chunk passes this machine, and each is copied once."""
    finished: list[bool] = []
    threads = [
        threading.Thread(target=lambda i=i: finished.append(convert(URL, OUT, process=f"{i}/4").finished))
        for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(finished) == 4
    assert any(finished)
    assert max(proxy.sent, proxy.received) < LARGE_BYTES / 10
    assert (proxy.count("POST", r"\?uploads"), proxy.count("PUT", COPIES)) == (3, 6)
    assert_whole(store, expected)
    for index in range(2):
        proof = in_process("verify", URL, OUT, "--process", f"{index}/2")
        assert proof.code == 0, proof.err


def killed_at(proxy: Proxy, method: str, path: str, *options: str) -> int:
    """The exit code of a process that is killed when it sends a request."""
    variables = {**os.environ, "JAX_PLATFORMS": "cpu", "AWS_ENDPOINT_URL": proxy.url}
    process = subprocess.Popen(
        [sys.executable, "-m", "converter", "convert", "-q", URL, OUT, *options],
        cwd=ROOT, env=variables, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    proxy.rules = [Rule(method=method, path=path, count=1, before=process.kill)]
    code = process.wait()
    proxy.rules = []
    return code


def test_killed_processes_cost_no_more_than_their_work(
    proxy: Proxy, store: S3, expected: dict[str, bytes], in_process: Cli
) -> None:
    """One leaves an upload that is nearly complete, the next one a commit that is half done; any other finishes."""
    done = in_process("convert", URL, OUT, "--process", "0/2", "--json").document
    assert (done["finished"], done["awaited"]) == (False, ["1/2"])
    assert killed_at(proxy, "POST", COMPLETE, "--process", "1/2") == -signal.SIGKILL
    found = in_process("status", OUT, "--json").document
    assert (found["state"], found["done"], found["awaited"]) == ("begun", ["0/2"], ["1/2"])
    assert found["command"].endswith(" --process 0/1")
    for options in (("--process", "1/2", "--untie"), ("--untie",)):
        refused = in_process("convert", URL, OUT, *options)
        assert (refused.code, "untie: then False, now True" in refused.err) == (5, True), refused.err
    assert killed_at(proxy, "PUT", r"/items/_METADATA", "--process", "0/1") == -signal.SIGKILL
    assert not any(name.endswith("commit_success.txt") for name in store.names("bucket", "out/"))
    assert in_process("status", OUT, "--json").document["awaited"] == []
    done = in_process("convert", URL, OUT, "--process", "0/2", "--json").document
    assert (done["finished"], done["work"]["encoded"], done["work"]["passed"]) == (True, 0, 0)
    assert in_process("status", OUT, "--json").document["state"] == "finished"
    assert_whole(store, expected)
    assert verify(OUT).ok


@pytest.mark.parametrize("moment", ["an upload", "a record"])
def test_a_process_that_wakes_after_the_commit_changes_nothing(
    moment: str, proxy: Proxy, store: S3, expected: dict[str, bytes]
) -> None:
    """Its upload was ended, or its work area is gone, when it continues."""
    before: dict[str, bytes] = {}

    def others() -> None:
        assert convert(URL, OUT, process="0/1").finished
        before.update(store.tree("bucket", "out"))

    method, path = ("PUT", COPIES) if moment == "an upload" else ("PUT", "2-of-3.json")
    proxy.rules = [Rule(method=method, path=path, count=1, before=others)]
    late = convert(URL, OUT, process="2/3")
    assert before
    assert (late.finished, late.awaited) == (True, ())
    assert store.tree("bucket", "out") == before
    assert_whole(store, expected)
