"""What S3 and the way to it answer, as `OSError` with one clear line each; and which of it may be tried again."""

import errno
from typing import Any

REPEATED_CODES = frozenset(
    (
        "SlowDown", "ServiceUnavailable", "InternalError", "RequestTimeout", "RequestTimeoutException", "Throttling",
        "ThrottlingException", "RequestLimitExceeded", "TooManyRequests", "ConditionalRequestConflict",
        "OperationAborted",
    )
)  # fmt: skip
"""Codes of S3's list of error responses that its documentation says to repeat."""

REPEATED_STATUSES = frozenset((408, 429, 500, 502, 503, 504))

ABSENT_CODES = frozenset(("NoSuchKey", "NotFound", "404"))

CONDITION_CODES = frozenset(("PreconditionFailed", "412"))

DENIED_CODES = frozenset(("AccessDenied", "403", "Forbidden", "AllAccessDisabled"))

REGION_CODES = frozenset(
    ("PermanentRedirect", "301", "307", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException")
)

_CREDENTIAL_PROBLEMS = {
    "ExpiredToken": "the AWS credentials expired; renew them (`aws sso login`, or new session keys)",
    "TokenRefreshRequired": "the AWS credentials expired; renew them (`aws sso login`, or new session keys)",
    "InvalidAccessKeyId": "the store does not know the access key; check AWS_ACCESS_KEY_ID or AWS_PROFILE",
    "InvalidToken": "the store does not accept the session token; check AWS_SESSION_TOKEN",
    "SignatureDoesNotMatch": "the secret key does not fit the access key; check AWS_SECRET_ACCESS_KEY or AWS_PROFILE",
    "RequestTimeTooSkewed": "the clock of this machine differs from the store's by more than 15 minutes; set it",
}

NO_CREDENTIALS = "no AWS credentials found; set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"


class S3Error(OSError):
    """An operation that failed; `strerror` is the line for a person, without the name.

    Attributes:
      may_pass: whether the same request may succeed later.
    """

    def __init__(self, number: int, text: str, name: str, *, may_pass: bool = False):
        super().__init__(number, text, name)
        self.may_pass = may_pass


def translate(error: Exception, name: str, bucket: str) -> OSError:
    """The error of a request as one of ours.

    Args:
      error: what botocore raised.
      name: the URL that was asked for.
      bucket: its bucket.

    Returns:
      `FileNotFoundError` for an object that is not there, `FileExistsError` for a condition that is not met, else an
      `S3Error`.
    """
    from botocore.exceptions import ClientError

    if isinstance(error, ClientError):
        return _from_answer(error, name, bucket)
    return _from_client(error, name)


def _from_answer(error: Any, name: str, bucket: str) -> OSError:
    answer = error.response
    found = answer.get("Error", {})
    code, text = str(found.get("Code", "")), str(found.get("Message") or "")
    metadata = answer.get("ResponseMetadata", {})
    status = metadata.get("HTTPStatusCode", 0)
    headers = metadata.get("HTTPHeaders", {})
    if code == "NoSuchBucket":
        return S3Error(errno.ENXIO, f"there is no bucket '{bucket}'", name)
    if code in ABSENT_CODES:
        return FileNotFoundError(errno.ENOENT, "is not there", name)
    if code in CONDITION_CODES:
        return FileExistsError(errno.EEXIST, "is there already, or is not what it was", name)
    if code in REPEATED_CODES or status in REPEATED_STATUSES:
        return S3Error(errno.EAGAIN, f"the store is busy or failed ({_shown(status, code, text)})", name, may_pass=True)
    if problem := _CREDENTIAL_PROBLEMS.get(code):
        return S3Error(errno.EACCES, problem, name)
    if code in REGION_CODES:
        region = found.get("Region") or headers.get("x-amz-bucket-region")
        where = f"in region {region}" if region else "in another region"
        advice = f"set AWS_REGION={region}" if region else "set AWS_REGION, and check AWS_ENDPOINT_URL"
        return S3Error(errno.EREMOTE, f"the bucket '{bucket}' is {where}; {advice}", name)
    if code in DENIED_CODES or status == 403:
        action = {"HeadObject": "GetObject", "ListObjectsV2": "ListBucket", "UploadPart": "PutObject"}
        needed = action.get(error.operation_name, error.operation_name)
        return S3Error(
            errno.EACCES, f"access denied (403); the credentials need s3:{needed}, or the bucket's owner has it", name
        )
    return S3Error(errno.EIO, f"the store answered {_shown(status, code, text)}", name)


def _from_client(error: Exception, name: str) -> OSError:
    from botocore import exceptions

    credentials = (
        exceptions.NoCredentialsError,
        exceptions.PartialCredentialsError,
        exceptions.NoAuthTokenError,
    )
    if isinstance(error, credentials):
        return S3Error(errno.EACCES, NO_CREDENTIALS, name)
    others = (
        exceptions.CredentialRetrievalError,
        exceptions.TokenRetrievalError,
        exceptions.SSOError,
        exceptions.ProfileNotFound,
        exceptions.UnknownCredentialError,
    )
    if isinstance(error, others):
        return S3Error(errno.EACCES, f"no AWS credentials: {_first_line(error)}", name)
    if isinstance(error, exceptions.ParamValidationError):
        return S3Error(errno.EINVAL, f"not a name that S3 can have: {_last_line(error)}", name)
    if isinstance(error, exceptions.SSLError):
        return S3Error(errno.EIO, f"no secure connection: {_first_line(error)}", name)
    is_connection = isinstance(error, exceptions.HTTPClientError | exceptions.ConnectionError | OSError)
    what = "the connection failed" if is_connection else "the request failed"
    return S3Error(errno.EIO, f"{what}: {_first_line(error)}", name, may_pass=is_connection)


def _shown(status: int, code: str, text: str) -> str:
    words = " ".join(str(part) for part in (status or "", code) if part)
    return f"{words}: {text[:200]}" if text and text != code else words


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


def _last_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[-1][:300]
