"""A whole conversion on fake-gcs-server, which others wrote: our own fake agrees with our own code too easily.

It enforces conditions only where objects are uploaded at once, so that nothing is tried here that depends on them.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest

from tests.conftest import AXLEARN, Cli
from tests.helpers.gcs import Gcs
from tests.helpers.trees import local_tree

NAME = "micro-hybrid-sharded"
URL = "gs://bucket/run"
UNREAD = "gda/learner/"


class SecondGcs:
    """As much of a client as this needs."""

    def __init__(self, url: str):
        self.url = url

    def send(self, method: str, path: str, data: bytes | None = None, **headers: str) -> bytes:
        with urlopen(Request(f"{self.url}{path}", data, headers, method=method), timeout=60) as answer:
            return answer.read()

    def objects(self, bucket: str, prefix: str) -> dict[str, Any]:
        found = json.loads(self.send("GET", f"/storage/v1/b/{bucket}/o?prefix={prefix}&maxResults=1000"))
        return {one["name"]: one for one in found.get("items", ())}


@pytest.fixture
def second(second_opinion: str, monkeypatch: pytest.MonkeyPatch) -> SecondGcs:
    for name, value in Gcs.variables(second_opinion).items():
        monkeypatch.setenv(name, value)
    store = SecondGcs(second_opinion)
    for bucket in ("bucket", "other"):
        settings = {"Content-Type": "application/json"}
        store.send("POST", "/storage/v1/b?project=p", json.dumps({"name": bucket}).encode(), **settings)
    for name, data in local_tree(AXLEARN / NAME).items():
        if UNREAD not in name:
            place = f"/upload/storage/v1/b/bucket/o?uploadType=media&name={quote(f'run/{name}', safe='')}"
            store.send("POST", place, data)
    return store


def test_a_conversion(second: SecondGcs, in_process: Cli, process: Cli, converted: Callable[..., Path]) -> None:
    here = {name for name in local_tree(converted(NAME, store="files")) if "/c/" in name or name.endswith("zarr.json")}
    for target in ("bucket", "other"):
        done = in_process("convert", URL, f"gs://{target}/out", "--store", "files")
        assert done.code == 0, done.err
        there = second.objects(target, "out/")
        chunks = [one for name, one in there.items() if "/c/" in name]
        assert here <= {name.removeprefix("out/") for name in there}
        assert {one["crc32c"] for one in chunks} == {"SGdLxw=="}
        assert not second.objects(target, "out.ax2mt-wip")
        # TensorStore keeps the first address that a process sees.
        proof = process("verify", URL, f"gs://{target}/out", "--decode")
        assert proof.code == 0, proof.out + proof.err
