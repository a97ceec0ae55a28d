"""The index of an OCDBT database, as TensorStore reads it."""

import os
from pathlib import Path
from typing import Any

import pytest
import tensorstore as ts
from hypothesis import given
from hypothesis import strategies as st

from converter.arrays.ocdbt import MANIFEST_NAME, write_index

KEY = st.text(min_size=1, max_size=40)


def database(directory: Path) -> Any:
    spec = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{directory}/"}}
    return ts.KvStore.open(spec, context=ts.Context()).result()


def fill(directory: Path, values: dict[str, bytes]) -> None:
    """A database with one file a value, in two directories."""
    paths = {}
    for number, (key, value) in enumerate(values.items()):
        paths[key] = f"{'deep/er' if number % 3 else 'chunks'}/{number}"
        path = directory / paths[key]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(value)
    write_index(os.fspath(directory), "d/root", paths)


@given(values=st.dictionaries(KEY, st.binary(min_size=1, max_size=300), min_size=1, max_size=20))
def test_tensorstore_lists_and_reads_what_was_indexed(
    values: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("database")
    fill(directory, values)
    store = database(directory)
    assert {key.decode(): store.read(key).result().value for key in store.list().result()} == values
    assert store.read("\x00 no such key").result().state == "missing"


def test_thousands_of_keys(tmp_path: Path) -> None:
    values = {f"params.layer.kernel/c/{i}/{j}": f"{i}:{j}".encode() * 100 for i in range(60) for j in range(60)}
    fill(tmp_path, values)
    store = database(tmp_path)
    assert sorted(store.list().result()) == sorted(map(str.encode, values))
    assert store.read("params.layer.kernel/c/17/42").result().value == b"17:42" * 100


def test_another_database_takes_the_values_over_where_they_are(tmp_path: Path) -> None:
    # As Orbax merges the databases of its processes: the values stay in the files they are in.
    values = {"a.b/0.1": b"x" * 1000, "a.b/zarr.json": b"{}" * 100}
    fill(tmp_path / "child", values)
    context = ts.Context()
    base = {"driver": "file", "path": f"{tmp_path}/"}
    parent = ts.KvStore.open({"driver": "ocdbt", "base": base}, context=context).result()
    child_base = {**base, "path": f"{tmp_path}/child/"}
    child = ts.KvStore.open({"driver": "ocdbt", "base": child_base}, context=context).result()
    transaction = ts.Transaction(atomic=True)
    child.experimental_copy_range_to(parent.with_transaction(transaction)).result()
    transaction.commit_async().result()
    own = sum(path.stat().st_size for path in (tmp_path / "d").iterdir())
    assert own < 1000
    assert {key: database(tmp_path).read(key).result().value for key in values} == values


@pytest.mark.parametrize("name", [MANIFEST_NAME, "d/root"])
def test_tensorstore_refuses_every_flipped_byte_of_the_index(name: str, tmp_path: Path) -> None:
    fill(tmp_path, {"a/0": b"one", "a/1": b"two"})
    path = tmp_path / name
    good = path.read_bytes()
    for position in range(len(good)):
        path.write_bytes(good[:position] + bytes([good[position] ^ 1]) + good[position + 1 :])
        with pytest.raises(ValueError, match=r"Error (decoding|reading)"):
            database(tmp_path).read("a/0").result()


def test_a_missing_value_is_an_error_and_leaves_no_index(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="chunks/0"):
        write_index(os.fspath(tmp_path), "d/root", {"a/0": "chunks/0"})
    assert not (tmp_path / MANIFEST_NAME).exists()
