"""How tests hold the fake store: filled, looked at and disturbed without any client library or code of ours."""

import dataclasses
import http.client
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from tests.helpers.gcs.faults import Fault
from tests.helpers.gcs.protocol import Reply, Request
from tests.helpers.gcs.server import CONTROL, Server, control
from tests.helpers.trees import Trees

ROOT = Path(__file__).resolve().parents[3]


class Gcs(Trees):
    """A fake store that runs somewhere.

    Attributes:
      url: its address, such as `http://127.0.0.1:4443`.
    """

    def __init__(self, url: str):
        self.url = url
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
        self._lock = threading.Lock()

    def environment(self) -> dict[str, str]:
        """Variables with which google-cloud-storage, gcsfs, TensorStore and etils use this store."""
        return self.variables(self.url)

    @staticmethod
    def variables(url: str) -> dict[str, str]:
        """The same for a store at another address."""
        return {
            "STORAGE_EMULATOR_HOST": url,
            "TENSORSTORE_GCS_HTTP_URL": url,
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "token",
            "GOOGLE_CLOUD_PROJECT": "project",
            "EPATH_USE_TF": "false",
            "NO_GCE_CHECK": "true",
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
            # google-cloud-storage 3.17 else asks for the bucket from a thread at some time, only for its traces.
            "DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA": "true",
            "NO_PROXY": "127.0.0.1",
        }

    def make_bucket(self, name: str, **settings: Any) -> str:
        """A new bucket, with settings of `model.Bucket` (`location`, `storage_class`, `requester_pays`, `denied`)."""
        self._call("POST", "buckets", json.dumps({"name": name, **settings}).encode())
        return name

    def deny(self, bucket: str, *permissions: str) -> None:
        """Takes permissions such as "storage.objects.create" from everybody; without any, gives all back."""
        self._call("POST", f"denied/{bucket}", json.dumps({"denied": permissions}).encode())

    def put(self, bucket: str, name: str, data: bytes) -> dict[str, Any]:
        """Writes an object; returns its resource."""
        return json.loads(self._call("PUT", f"objects/{bucket}/{quote(name)}", data))

    def read(self, bucket: str, name: str) -> bytes:
        """The content of an object. Raises `KeyError` where none is."""
        return self._call("GET", f"objects/{bucket}/{quote(name)}")

    def remove(self, bucket: str, name: str) -> None:
        """Removes an object."""
        self._call("DELETE", f"objects/{bucket}/{quote(name)}")

    def objects(self, bucket: str, prefix: str = "") -> dict[str, dict[str, Any]]:
        """The resources of all objects, by name, in order."""
        found = json.loads(self._call("GET", f"objects/{bucket}"))
        return {one["name"]: one for one in found if one["name"].startswith(prefix)}

    def names(self, bucket: str, prefix: str = "") -> list[str]:
        """The names of all objects, in order."""
        return list(self.objects(bucket, prefix))

    def inject(self, fault: Fault) -> None:
        """Adds a fault, until `clear_faults`."""
        fields = dataclasses.asdict(fault)
        if fields.pop("predicate") is not None:
            raise ValueError("a predicate works only within one process")
        self._call("POST", "faults", json.dumps(fields).encode())

    def clear_faults(self) -> None:
        """Removes all faults."""
        self._call("DELETE", "faults")

    def counters(self) -> dict[str, Any]:
        """`requests` and `done` by operation, `classes` A, B and free, bytes of objects `received` and `sent`."""
        return json.loads(self._call("GET", "counters"))

    def reset_counters(self) -> None:
        """All zero."""
        self._call("DELETE", "counters")

    def set(self, **settings: Any) -> None:
        """Changes a setting.

        `rewrite_limit`: bytes a call; `clock_skew`: seconds; `patterns`: groups of names whose bytes are counted apart;
        `md5`: False for benchmarks, where computing it takes time.
        """
        self._call("POST", "settings", json.dumps(settings).encode())

    def reset(self) -> None:
        """Forgets buckets, faults, counters and settings."""
        self._call("DELETE", "everything")

    def close(self) -> None:
        """Ends the connection, not the store."""
        self._connection.close()

    def _call(self, method: str, path: str, body: bytes = b"") -> bytes:
        with self._lock:
            self._connection.request(method, CONTROL + path, body)
            reply = self._connection.getresponse()
            return _content(Reply(status=reply.status, body=reply.read()), path)


class FakeGcs(Gcs):
    """A fake store in threads of this process."""

    def __init__(self, port: int = 0):
        self.server = Server(port)
        self.server.start()
        super().__init__(f"http://127.0.0.1:{self.server.server_port}")

    def inject(self, fault: Fault) -> None:
        """Adds a fault, which may have a predicate."""
        self.server.api.faults.add(fault)

    def _call(self, method: str, path: str, body: bytes = b"") -> bytes:
        return _content(control(self.server.api, Request.parse(method, CONTROL + path, {}, body, self.url)), path)

    def close(self) -> None:
        """Ends the store."""
        super().close()
        self.server.stop()


class ProcessGcs(Gcs):
    """A fake store in a process of its own, which ends with this one."""

    def __init__(self, port: int = 0):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.helpers.gcs", str(port), "--until-eof"],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout
        super().__init__(self.process.stdout.readline().strip())

    def close(self) -> None:
        """Ends the process."""
        super().close()
        self.process.communicate()


def _content(reply: Reply, path: str) -> bytes:
    if reply.status == 404:
        raise KeyError(path)
    if reply.status != 200:
        raise ValueError(f"{path}: {reply.status} {reply.body.decode()}")
    return reply.body
