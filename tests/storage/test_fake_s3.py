"""The servers that stand for S3: conditions, checksums, and part copies with which a chunk gets its tail."""

import base64
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import crc32c
import numpy as np
import pytest
import tensorstore as ts
from botocore.exceptions import ClientError

from tests.helpers.gcs.client import ROOT
from tests.helpers.s3 import S3
from tests.helpers.trees import local_tree

LARGE = 5 << 20
"""The least size of a part that is not the last."""


@pytest.fixture(params=["moto", "seaweedfs"])
def s3(request: pytest.FixtureRequest) -> S3:
    """Each server in turn, empty."""
    return request.getfixturevalue(request.param)


def refusal(error: pytest.ExceptionInfo[ClientError]) -> tuple[int, str]:
    answer: Any = error.value.response
    return answer["ResponseMetadata"]["HTTPStatusCode"], answer["Error"]["Code"]


def checksum(data: bytes) -> str:
    return base64.b64encode(crc32c.crc32c(data).to_bytes(4, "big")).decode()


def test_an_object_is_created_once(s3: S3) -> None:
    bucket = s3.make_bucket("bucket")
    first = s3.client.put_object(Bucket=bucket, Key="a/b c", Body=b"one", IfNoneMatch="*")
    with pytest.raises(ClientError) as refused:
        s3.client.put_object(Bucket=bucket, Key="a/b c", Body=b"two", IfNoneMatch="*")
    assert refusal(refused) == (412, "PreconditionFailed")
    assert s3.read(bucket, "a/b c") == b"one"
    s3.client.put_object(Bucket=bucket, Key="a/b c", Body=b"three", IfMatch=first["ETag"])
    with pytest.raises(ClientError) as refused:
        s3.client.get_object(Bucket=bucket, Key="a/b c", IfMatch=first["ETag"])
    assert refusal(refused)[0] == 412
    assert s3.client.get_object(Bucket=bucket, Key="a/b c", Range="bytes=1-2")["Body"].read() == b"hr"


def test_trees(s3: S3, tmp_path: Path) -> None:
    bucket = s3.make_bucket("bucket")
    for name, data in {"a/zarr.json": b"{}", "a/c/0": b"1234", "b": b"x"}.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(data)
    s3.upload_tree(tmp_path / "in", bucket, "x/y")
    assert s3.names(bucket) == ["x/y/a/c/0", "x/y/a/zarr.json", "x/y/b"]
    assert s3.tree(bucket, "x/y") == local_tree(tmp_path / "in")
    s3.download_tree(bucket, "x/y", tmp_path / "out")
    assert local_tree(tmp_path / "out") == local_tree(tmp_path / "in")


def test_tensorstore(s3: S3) -> None:
    bucket = s3.make_bucket("bucket")
    values = np.arange(24, dtype="f4").reshape(6, 4)
    spec = {"driver": "zarr3", "kvstore": s3.kvstore(bucket, "array/")}
    grid = {"name": "regular", "configuration": {"chunk_shape": (3, 2)}}
    metadata = {"shape": values.shape, "data_type": "float32", "chunk_grid": grid}
    ts.open({**spec, "metadata": metadata}, create=True).result().write(values).result()
    np.testing.assert_array_equal(ts.open(spec).result().read().result(), values)


def test_a_chunk_gets_its_tail_by_a_part_copy(seaweedfs: S3) -> None:
    client, bucket = seaweedfs.client, seaweedfs.make_bucket("bucket")
    data = np.random.default_rng(0).bytes(LARGE + 1)
    etag = client.put_object(Bucket=bucket, Key="source", Body=data)["ETag"]

    def compose(condition: str) -> None:
        upload: Any = client.create_multipart_upload(
            Bucket=bucket, Key="target", ChecksumAlgorithm="CRC32C", ChecksumType="FULL_OBJECT"
        )
        place = {"Bucket": bucket, "Key": "target", "UploadId": upload["UploadId"]}
        source = {"Bucket": bucket, "Key": "source"}
        copied = client.upload_part_copy(**place, PartNumber=1, CopySource=source, CopySourceIfMatch=condition)
        first = {key: copied["CopyPartResult"][key] for key in ("ETag", "ChecksumCRC32C")}
        assert first["ChecksumCRC32C"] == checksum(data)
        tail = base64.b64decode(first["ChecksumCRC32C"])[::-1]
        sent = client.upload_part(**place, PartNumber=2, Body=tail, ChecksumAlgorithm="CRC32C")
        second = {key: sent[key] for key in ("ETag", "ChecksumCRC32C")}
        parts = [{"PartNumber": 1, **first}, {"PartNumber": 2, **second}]
        client.complete_multipart_upload(**place, MultipartUpload={"Parts": parts}, IfNoneMatch="*")

    compose(etag)
    assert seaweedfs.read(bucket, "target") == data + crc32c.crc32c(data).to_bytes(4, "little")
    with pytest.raises(ClientError) as refused:
        compose(etag)
    assert refusal(refused)[0] in (409, 412)
    with pytest.raises(ClientError) as refused:
        compose('"another"')
    assert refusal(refused)[0] == 412


def test_a_wrong_checksum_is_refused(seaweedfs: S3) -> None:
    bucket = seaweedfs.make_bucket("bucket")
    with pytest.raises(ClientError) as refused:
        seaweedfs.client.put_object(Bucket=bucket, Key="x", Body=b"data", ChecksumCRC32C=checksum(b"other"))
    assert refusal(refused)[0] == 400
    assert seaweedfs.names(bucket) == []


def test_seaweedfs_ends_with_a_killed_parent(seaweedfs: S3, tmp_path: Path) -> None:
    """The fixture's server goes on; one of a process that is killed does not."""
    code = """
import os, sys
from pathlib import Path
from tests.helpers.s3 import SeaweedFs
SeaweedFs._wait = lambda *_: None
SeaweedFs(Path(sys.argv[1]))
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=False)
    assert done.returncode == -9
    deadline = time.monotonic() + 60
    while servers_of(tmp_path):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert seaweedfs.client.list_buckets()["Buckets"] == []


def servers_of(directory: Path) -> list[int]:
    found: list[int] = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = Path("/proc", process, "cmdline").read_bytes()
        except OSError:
            continue
        if f"-dir={directory / 'data'}".encode() in command:
            found.append(int(process))
    return found
