"""What S3 and the way to it answer: `Transient` where the same request may succeed later, else an `OSError`."""

import errno
from typing import Any

from converter.storage.retries import RETRIED, Transient, wait_of

RETRIED_CODES = frozenset(
    (
        "SlowDown", "ServiceUnavailable", "InternalError", "RequestTimeout", "Throttling", "ThrottlingException",
        "RequestLimitExceeded", "TooManyRequests", "ConditionalRequestConflict", "OperationAborted",
    )
)  # fmt: skip
"""https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html: those that pass by themselves."""

ABSENT = frozenset(("NoSuchKey", "NotFound", "404"))
OTHER_REGION = frozenset(
    ("PermanentRedirect", "301", "307", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException")
)
EXPIRED = "the AWS credentials expired; renew them (aws sso login, or new session keys) and run the same command"
CREDENTIALS = {
    "ExpiredToken": EXPIRED,
    "TokenRefreshRequired": EXPIRED,
    "InvalidAccessKeyId": "the store does not know the access key; check AWS_ACCESS_KEY_ID, or AWS_PROFILE",
    "InvalidToken": "the store does not accept the session token; check AWS_SESSION_TOKEN, or AWS_PROFILE",
    "SignatureDoesNotMatch": "the secret key is wrong; check AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "RequestTimeTooSkewed": "the clock of this machine differs from the store's by more than 15 minutes; set the clock",
}
NO_CREDENTIALS = "no AWS credentials found; set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"

PERMISSIONS = {
    "HeadObject": "s3:GetObject",
    "ListObjectsV2": "s3:ListBucket",
    "HeadBucket": "s3:ListBucket",
    "CreateMultipartUpload": "s3:PutObject",
    "UploadPart": "s3:PutObject",
    "UploadPartCopy": "s3:PutObject, and s3:GetObject on the source",
    "CompleteMultipartUpload": "s3:PutObject",
    "ListMultipartUploads": "s3:ListBucketMultipartUploads",
}
"""What an operation needs where the permission has another name."""

ARCHIVED = "is in an archive class of the store; restore it first (aws s3api restore-object)"


class UploadGone(OSError):
    """The multipart upload was completed or aborted, perhaps by an equal run."""


def translate(error: Exception, name: str) -> Exception:
    """The error of a request as one of ours.

    Args:
      error: what botocore raised.
      name: the URL that was asked for.

    Returns:
      `Transient`; or an `OSError`: `FileNotFoundError` for an object that is not there, `FileExistsError` for a
      condition that is not met.
    """
    from botocore.exceptions import ClientError

    if isinstance(error, ClientError):
        return _of_answer(error, name)
    return _of_client(error, name)


def _of_answer(error: Any, name: str) -> Exception:
    found: dict[str, Any] = error.response.get("Error", {})
    metadata: dict[str, Any] = error.response.get("ResponseMetadata", {})
    code, status = str(found.get("Code", "")), metadata.get("HTTPStatusCode", 0)
    headers = metadata.get("HTTPHeaders", {})
    if code in RETRIED_CODES or status in RETRIED:
        return Transient(f"the store answered {_shown(status, code, found)}", wait_of(headers.get("retry-after")))
    if code == "NoSuchBucket":
        return OSError(errno.ENXIO, f"there is no bucket {_bucket(name)}", name)
    if code == "NoSuchUpload":
        return UploadGone(errno.ENOENT, "its upload was ended by another process; run the same command again", name)
    if code in ABSENT:
        return FileNotFoundError(errno.ENOENT, "is not there", name)
    if status == 412:
        return FileExistsError(errno.EEXIST, "something else is there", name)
    if problem := CREDENTIALS.get(code):
        return OSError(errno.EACCES, problem, name)
    if code == "InvalidObjectState":
        return OSError(errno.EPERM, ARCHIVED, name)
    if code in OTHER_REGION:
        region = found.get("Region") or headers.get("x-amz-bucket-region") or ""
        advice = f"set AWS_REGION={region}" if region else "set AWS_REGION to the bucket's, and check AWS_ENDPOINT_URL"
        return OSError(errno.EREMOTE, f"the bucket is in {region or 'another region'}; {advice}", name)
    if status == 403:
        needed = PERMISSIONS.get(error.operation_name, f"s3:{error.operation_name}")
        advice = "for a bucket whose requester pays, set AWS_REQUEST_PAYER=requester"
        return OSError(errno.EACCES, f"access denied (403); the credentials need {needed}; {advice}", name)
    return OSError(errno.EIO, f"the store answered {_shown(status, code, found)}", name)


def _of_client(error: Exception, name: str) -> Exception:
    from botocore import exceptions as known

    if isinstance(error, known.NoCredentialsError | known.PartialCredentialsError | known.NoAuthTokenError):
        return OSError(errno.EACCES, NO_CREDENTIALS, name)
    credentials = (
        known.CredentialRetrievalError, known.TokenRetrievalError, known.SSOError, known.ProfileNotFound,
        known.UnknownCredentialError,
    )  # fmt: skip
    if isinstance(error, credentials):
        return OSError(errno.EACCES, f"no AWS credentials: {_line(error, 0)}", name)
    if isinstance(error, known.ParamValidationError):
        return OSError(errno.EINVAL, f"not a name that S3 can have: {_line(error, -1)}", name)
    if isinstance(error, known.SSLError):
        return OSError(errno.EIO, f"no secure connection: {_line(error, 0)}", name)
    if isinstance(error, known.HTTPClientError | known.ConnectionError | known.IncompleteReadError | OSError):
        return Transient(f"the connection failed: {_line(error, 0)}")
    return OSError(errno.EIO, f"the request failed: {_line(error, 0)}", name)


def _bucket(name: str) -> str:
    return name.partition("://")[2].partition("/")[0]


def _shown(status: int, code: str, found: dict[str, Any]) -> str:
    text = str(found.get("Message") or "")
    words = " ".join(dict.fromkeys(str(part) for part in (status or "", code) if part))
    return f"{words}: {text[:200]}" if text and text != code else words


def _line(error: Exception, number: int) -> str:
    return (str(error).splitlines() or [type(error).__name__])[number].strip()[:300]
