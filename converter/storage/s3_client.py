"""Requests to S3: one client a process, what to repeat, and errors as `OSError`.

botocore signs, finds credentials (environment, profiles, SSO, containers, instances) and follows a bucket to its region.
It alone does all that S3 is needed for here: a body that is read from its raw stream, and parts that come with their
checksum, took less processor time than obstore or boto3's transfers (docs/buckets.md), and no other Python client lets
one put multipart uploads together by hand.
"""

import errno
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from converter.errors import Ax2mtError, UsageError
from converter.storage.s3_errors import S3Error, translate

Answer = TypeVar("Answer")

ATTEMPTS = 8
FIRST_WAIT, LONGEST_WAIT = 0.1, 10.0
"""Seconds between attempts; each wait is about twice the one before."""

CONNECTIONS = 64
DEFAULT_REGION = "us-east-1"
CONNECT_SECONDS, READ_SECONDS = 10, 60

PAYER = "AWS_REQUEST_PAYER"
"""`requester` in this variable pays for requests to buckets of others; obstore and GDAL read it too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """An object as a listing or a HEAD request shows it.

    Attributes:
      key: its name in the bucket; ends in "/" for a common prefix.
      size: bytes.
      etag: its ETag, with quotes.
      metadata: what was stored with it; only from a HEAD request.
    """

    key: str
    size: int = 0
    etag: str = ""
    metadata: "dict[str, str] | None" = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A URL in its parts."""

    url: str
    bucket: str
    key: str


def place_of(url: str) -> Place:
    """The bucket and the key of an s3:// URL; `/.` at its end means the directory itself, as in a path."""
    bucket, _, key = url.removeprefix("s3://").removesuffix("/.").partition("/")
    return Place(url=url, bucket=bucket, key=key)


class S3Client:
    """Requests that are repeated where that may help; safe to use from several threads."""

    def __init__(self, sleep: Callable[[float], None] = time.sleep):
        """Nothing is connected, and no library loaded, before the first request."""
        self._lock = threading.Lock()
        self._made: Any = None
        self._session: Any = None
        self._regions: dict[str, str] = {}
        self._sleep = sleep
        self.repeated = 0

    def request(self, place: Place, operation: str, **arguments: Any) -> Any:
        """One operation of S3's API on a place; `Bucket` is filled in, `Key` too unless the operation is a bucket's.

        Raises:
          OSError: see `s3_errors.translate`.
        """
        return self.repeat(place, lambda: self._call(place, operation, arguments))

    def request_once(self, place: Place, operation: str, **arguments: Any) -> Any:
        """The same without repetitions."""
        try:
            return self._call(place, operation, arguments)
        except Ax2mtError:
            raise
        except Exception as error:
            if _is_ours(error):
                raise
            raise translate(error, place.url, place.bucket) from error

    def _call(self, place: Place, operation: str, arguments: dict[str, Any]) -> Any:
        return getattr(self._client(), operation)(Bucket=place.bucket, **arguments)

    def repeat(self, place: Place, call: Callable[[], Answer]) -> Answer:
        """Calls until it succeeds, as long as its failure may pass."""
        wait = FIRST_WAIT
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return call()
            except Ax2mtError:
                raise
            except Exception as problem:
                error = problem if _is_ours(problem) else translate(problem, place.url, place.bucket)
                if not (isinstance(error, S3Error) and error.may_pass):
                    raise error from None
                if attempt == ATTEMPTS:
                    text = f"{error.strerror}; tried {ATTEMPTS} times"
                    raise S3Error(error.errno or errno.EIO, text, place.url) from None
                self.repeated += 1
                self._sleep(max(_retry_after(problem), wait * random.uniform(0.7, 1.3)))
                wait = min(2 * wait, LONGEST_WAIT)
        raise AssertionError

    def list(self, place: Place, *, prefix: str, delimiter: str = "", limit: int = 0) -> Iterator[Found]:
        """Objects with a prefix, and the common prefixes up to a delimiter, page by page of 1,000."""
        arguments: dict[str, Any] = {"Prefix": prefix}
        if delimiter:
            arguments["Delimiter"] = delimiter
        if limit:
            arguments["MaxKeys"] = limit
        while True:
            page = self.request(place, "list_objects_v2", **arguments)
            for one in page.get("Contents", ()):
                yield Found(key=one["Key"], size=one["Size"], etag=one["ETag"])
            for one in page.get("CommonPrefixes", ()):
                yield Found(key=one["Prefix"])
            if limit or not page.get("IsTruncated"):
                return
            arguments["ContinuationToken"] = page["NextContinuationToken"]

    def head(self, place: Place) -> Found:
        """What an object is."""
        answer = self.request(place, "head_object", Key=place.key)
        return Found(
            key=place.key, size=answer["ContentLength"], etag=answer["ETag"], metadata=answer.get("Metadata", {})
        )

    def region(self, bucket: str) -> str:
        """The region that a bucket is in, as far as the store says."""
        if bucket not in self._regions:
            place = Place(url=f"s3://{bucket}", bucket=bucket, key="")
            answer = self.request(place, "head_bucket")
            self._regions[bucket] = answer.get("BucketRegion") or self._client().meta.region_name or DEFAULT_REGION
        return self._regions[bucket]

    def kvstore(self, place: Place) -> dict[str, Any]:
        """TensorStore's specification: its driver honours neither AWS_ENDPOINT_URL nor redirects to other regions."""
        client = self._client()
        spec: dict[str, Any] = {
            "driver": "s3", "bucket": place.bucket, "path": place.key, "aws_region": self.region(place.bucket),
            "aws_credentials": self._tensorstore_credentials(),
        }  # fmt: skip
        if not client.meta.endpoint_url.endswith(".amazonaws.com"):
            spec["endpoint"] = client.meta.endpoint_url
        if os.environ.get(PAYER):
            spec["requester_pays"] = True
        return spec

    def _tensorstore_credentials(self) -> dict[str, str]:
        """Where TensorStore shall look; what only botocore can get, such as SSO, is put into the environment for it."""
        credentials = self._session.get_credentials()
        if credentials is None:
            return {"type": "default"}
        if credentials.method == "iam-role":
            return {"type": "imds"}
        if credentials.method in ("shared-credentials-file", "config-file"):
            return {"type": "profile", "profile": self._session.profile or "default"}
        if credentials.method != "env":
            frozen = credentials.get_frozen_credentials()
            os.environ.update(AWS_ACCESS_KEY_ID=frozen.access_key, AWS_SECRET_ACCESS_KEY=frozen.secret_key)
            if frozen.token:
                os.environ["AWS_SESSION_TOKEN"] = frozen.token
        return {"type": "environment"}

    def _client(self) -> Any:
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made

    def _make(self) -> Any:
        try:
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError
            from botocore.session import Session
        except ImportError:
            raise UsageError(
                "s3:// needs an optional package: pip install 'axlearn2maxtext[s3]'"
            ) from None
        self._session = Session()
        config = Config(
            connect_timeout=CONNECT_SECONDS,
            max_pool_connections=CONNECTIONS,
            read_timeout=READ_SECONDS,
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            retries={"total_max_attempts": 1, "mode": "standard"},
            # Each body that matters comes with its CRC-32C; TLS does the rest.
            s3={"payload_signing_enabled": False},
        )
        try:
            region = os.environ.get("AWS_REGION") or self._session.get_config_variable("region") or DEFAULT_REGION
            client = self._session.create_client("s3", region_name=region, config=config)
        except (BotoCoreError, ValueError) as error:
            raise translate(error, "s3://", "") from None
        payer = os.environ.get(PAYER, "")
        if payer.lower() in ("requester", "true"):
            client.meta.events.register(
                "before-call.s3", lambda params, **_: params["headers"].update({"x-amz-request-payer": "requester"})
            )
        return client


def _is_ours(error: Exception) -> bool:
    """Whether an error was translated already; some of botocore's are `OSError` too."""
    return isinstance(error, S3Error) or type(error) in (FileNotFoundError, FileExistsError)


def _retry_after(error: Exception) -> float:
    """Seconds that the store asked to wait for; 0 where it did not say."""
    response = getattr(error.__cause__ or error, "response", None)
    if not isinstance(response, dict):
        return 0.0
    value = response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("retry-after", "")
    return min(float(value), LONGEST_WAIT) if value.isdecimal() else 0.0
