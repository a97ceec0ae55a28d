"""A checkpoint in a storage that is no file system: everything reads it there, and chunks are copied where they are."""

import dataclasses
import errno
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from converter.arrays import LeafStore
from converter.arrays.encoding import Encoding
from converter.checkpoints.records import NO_DIGEST, stored_record
from converter.conversion.copy import copy_chunk
from converter.errors import SourceError
from converter.planning.source import open_source
from converter.storage import STORAGES
from tests.conftest import Cli
from tests.helpers.faulty_storage import FaultyStorage
from tests.helpers.memory_storage import MemoryStorage

SOURCE = Path(__file__).parents[1] / "data" / "axlearn" / "micro-hybrid-sharded"
URL = "memory://bucket/run"
STEP = f"{URL}/checkpoints/step_00000100"
TENSOR = "gda/model/decoder/output_norm/scale"

touched: list[str] = []
"""Names of the storage that were given to the local file system."""


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event.split(".")[0] in ("open", "os", "shutil"):
        touched.extend(argument for argument in arguments if isinstance(argument, str) and "memory:" in argument)


sys.addaudithook(_note)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryStorage]:
    """A storage in memory that holds a checkpoint; fails a test in which the local file system is asked for it."""
    storage = MemoryStorage()
    storage.load(SOURCE, URL)
    monkeypatch.setitem(STORAGES, "memory", storage)  # pyright: ignore[reportArgumentType]
    touched.clear()
    yield storage
    assert touched == []


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("command", ["plan", "params", "inspect"])
def test_reports_are_those_of_the_same_files(command: str, in_process: Cli) -> None:
    there, here = in_process(command, URL, "--json"), in_process(command, SOURCE, "--json")
    assert there.code == here.code == 0, there.err
    assert json.loads(there.out.replace(URL, str(SOURCE))) == here.document


@pytest.mark.usefixtures("memory")
def test_a_conversion_and_its_verification(in_process: Cli, converted: Callable[..., Path], tmp_path: Path) -> None:
    assert in_process("verify", URL, converted(SOURCE.name)).code == 0
    done = in_process("convert", URL, tmp_path / "out")
    assert done.code == 0, done.err
    assert in_process("verify", SOURCE, tmp_path / "out").code == 0
    assert in_process("verify", tmp_path / "out").code == 0
    refused = in_process("convert", URL, tmp_path / "linked", "--link")
    assert refused.code == 2, refused.err
    assert "--link makes hard links, which are between local files" in refused.err


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("index", b"[", "not valid JSON"),
        ("index", None, "has no index file"),
        (f"{TENSOR}/.zarray", None, ".zarray: is missing"),
        (f"{TENSOR}/0", b"", "chunk 0: empty"),
    ],
)
def test_faults_name_the_url(name: str, content: bytes | None, expected: str, memory: MemoryStorage) -> None:
    memory.blobs.pop(f"{STEP}/{name}")
    if content is not None:
        memory.blobs[f"{STEP}/{name}"] = content
    with pytest.raises(SourceError) as caught:
        open_source(STEP)
    assert STEP in str(caught.value)
    assert expected in str(caught.value)


@pytest.mark.parametrize("name", ["index", f"{TENSOR}/.zarray"])
def test_what_the_system_says_is_handed_on(name: str, faulty: FaultyStorage) -> None:
    faulty.fail("read", f"{name}$", errno.ESTALE)
    with pytest.raises(SourceError) as caught:
        open_source(str(SOURCE))
    assert f"{name}: cannot be read: {os.strerror(errno.ESTALE)}" in str(caught.value)


def test_a_storage_copies_by_itself(memory: MemoryStorage, tmp_path: Path) -> None:
    source = open_source(URL)
    array = max(source.arrays.values(), key=lambda array: array.bytes)
    index = (0,) * len(array.shape)
    stored = memory.blobs[array.chunk_file(index)]
    encoding = Encoding.passed("files", tuple(range(len(array.shape))), array.encoding.level, checksum=True)
    leaf = dataclasses.replace(array, path="params/w", encoding=encoding)
    own = LeafStore(leaf, f"{URL}-converted/leaf", database_key=None)
    local = LeafStore(leaf, str(tmp_path / "leaf"), database_key=None)
    for store in (own, local):
        assert copy_chunk(array, index, store) == len(stored)
    whole = stored + crc32c(stored).to_bytes(4, "little")
    key = leaf.encoding.chunk_key(index)
    assert memory.blobs[f"{URL}-converted/leaf/{key}"] == (tmp_path / "leaf" / key).read_bytes() == whole
    assert own.digests == {index: None}
    assert stored_record(own.digests)["kind"] == NO_DIGEST
    assert own.has_chunk(index)
    assert own.digests == local.digests
