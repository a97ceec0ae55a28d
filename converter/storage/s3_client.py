"""The client of S3: how it is set up, and its errors as ours.

botocore signs, finds credentials (environment, profiles, SSO, containers, instances) and follows a bucket to its
region. It alone is enough here: bodies that are read from their streams, and parts that come with their checksum, took
less processor time than obstore (docs/buckets.md), and no lighter client lets one put multipart uploads together.
"""

import os
import threading
from typing import Any

from converter.errors import Ax2mtError
from converter.storage.remote import needs_extra, split_url
from converter.storage.retries import Transient, retried
from converter.storage.s3_errors import translate

CONNECTIONS = 64
CONNECT_SECONDS, READ_SECONDS = 10, 60
DEFAULT_REGION = "us-east-1"

PAYER = "AWS_REQUEST_PAYER"
"""`requester` in this variable pays for requests to other people's buckets; GDAL and object_store read it too."""

_OWN = (Transient, FileNotFoundError, FileExistsError, Ax2mtError)


class S3Client:
    """Requests by the names of S3's API; safe to use from several threads."""

    def __init__(self) -> None:
        """No library is loaded before the first request."""
        self._lock = threading.Lock()
        self._made: Any = None
        self._session: Any = None
        self._regions: dict[str, str] = {}

    def once(self, name: str, operation: str, **arguments: Any) -> Any:
        """Sends a request.

        Args:
          name: the URL that it is about; bucket and key are taken from it.
          operation: such as `get_object`.
          arguments: those of the operation, beside bucket and key.

        Raises:
          Transient: it is worth being sent again.
          OSError: see `s3_errors.translate`.
        """
        bucket, key = split_url(name)
        try:
            client = self.client()
            place = {"Bucket": bucket} if operation in BUCKET_OPERATIONS else {"Bucket": bucket, "Key": key}
            return getattr(client, operation)(**place, **arguments)
        except _OWN:
            raise
        except Exception as error:
            raise translate(error, name) from None

    def call(self, name: str, operation: str, **arguments: Any) -> Any:
        """The same, sent again where that helps.

        Raises:
          OSError: see `s3_errors.translate`.
        """
        return retried(name, lambda: self.once(name, operation, **arguments))

    def kvstore(self, directory: str) -> dict[str, Any]:
        """TensorStore's specification of a directory: its driver honours neither AWS_ENDPOINT_URL nor redirects."""
        bucket, key = split_url(directory)
        spec: dict[str, Any] = {
            "driver": "s3", "bucket": bucket, "path": key, "aws_region": self._region(directory, bucket),
            "aws_credentials": self._credentials(),
        }  # fmt: skip
        endpoint = self.client().meta.endpoint_url
        if not endpoint.endswith((".amazonaws.com", ".amazonaws.com.cn")):
            spec["endpoint"] = endpoint
        if _requester_pays():
            spec["requester_pays"] = True
        return spec

    def client(self) -> Any:
        """botocore's client.

        Raises:
          UsageError: botocore is not installed.
        """
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made

    def _region(self, name: str, bucket: str) -> str:
        if bucket not in self._regions:
            answer = self.call(name, "head_bucket")
            self._regions[bucket] = answer.get("BucketRegion") or self.client().meta.region_name
        return self._regions[bucket]

    def _credentials(self) -> dict[str, str]:
        """Where TensorStore finds credentials; those that only botocore can get, as of SSO: in the environment."""
        found = self._session.get_credentials()
        if found is None:
            return {"type": "default"}
        if found.method == "iam-role":
            return {"type": "imds"}
        if found.method in ("shared-credentials-file", "config-file"):
            return {"type": "profile", "profile": self._session.profile or "default"}
        if found.method != "env":
            frozen = found.get_frozen_credentials()
            os.environ.update(AWS_ACCESS_KEY_ID=frozen.access_key, AWS_SECRET_ACCESS_KEY=frozen.secret_key)
            if frozen.token:
                os.environ["AWS_SESSION_TOKEN"] = frozen.token
        return {"type": "environment"}

    def _make(self) -> Any:
        try:
            from botocore.config import Config
            from botocore.session import Session
        except ImportError as error:
            raise needs_extra("s3", "s3", error) from None
        self._session = Session()
        # To understand the dates of a listing, which nobody reads, would take a third of its time.
        self._session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=str)
        config = Config(
            connect_timeout=CONNECT_SECONDS,
            max_pool_connections=CONNECTIONS,
            read_timeout=READ_SECONDS,
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            retries={"total_max_attempts": 1, "mode": "standard"},
            # All content is sent with its CRC-32C; to hash it again for the signature would cost as much as all else.
            s3={"payload_signing_enabled": False},
        )
        region = os.environ.get("AWS_REGION") or self._session.get_config_variable("region") or DEFAULT_REGION
        client = self._session.create_client("s3", region_name=region, config=config)
        if _requester_pays():
            client.meta.events.register("before-call.s3", _pay)
        return client


class BytesFile:
    """Bytes as a file that botocore can read, and read again, without a copy of them."""

    def __init__(self, data: memoryview):
        self._data = data
        self._at = 0

    def __len__(self) -> int:
        return len(self._data)

    def read(self, size: int = -1) -> memoryview:
        stop = len(self._data) if size is None or size < 0 else self._at + size
        piece = self._data[self._at : stop]
        self._at += len(piece)
        return piece

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, len(self._data))[whence]
        return self._at


BUCKET_OPERATIONS = frozenset(("list_objects_v2", "list_multipart_uploads", "head_bucket"))


def _requester_pays() -> bool:
    return os.environ.get(PAYER, "").lower() in ("requester", "true")


def _pay(params: dict[str, Any], **_: Any) -> None:
    params["headers"]["x-amz-request-payer"] = "requester"
