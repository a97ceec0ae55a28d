"""Requests to Cloud Storage's JSON API: credentials, sessions, retries, and errors in clear words.

The API itself instead of google-cloud-storage: half of what that installs and a second less to import, its uploads take
three times the processor time, and one place decides what is retried for control and for bytes alike.
"""

import errno
import json
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from converter.storage.remote import needs_extra
from converter.storage.retries import RETRIED, Transient, retried, wait_of

SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
ENDPOINT = "https://storage.googleapis.com"
TIMEOUT = 120
"""Seconds to connect, and between two bytes."""

LOGIN = "run `gcloud auth application-default login`, set GOOGLE_APPLICATION_CREDENTIALS, or use a service account"


class GcsClient:
    """Sends requests from any thread. Sessions keep their connections, and are taken by one request at a time."""

    def __init__(self) -> None:
        self._idle: list[tuple[str, Any]] = []
        self._lock = threading.Lock()
        self._credentials: Any = None

    def send(
        self,
        method: str,
        path: str,
        name: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        streamed: bool = False,
        accepted: tuple[int, ...] = (),
    ) -> Any:
        """Sends one request once.

        Args:
          method: HTTP's.
          path: below the endpoint, or a whole URL.
          name: the gs:// URL that it is about, for messages.
          params: of the query; None values are left out.
          body: bytes, or JSON values.
          headers: more of them.
          streamed: leave the content for the caller to read and close.
          accepted: statuses that are not failures, beside 200 to 299.

        Returns:
          The response.

        Raises:
          Transient: it is worth being sent again.
          OSError: it was refused; FileNotFoundError without an object, FileExistsError where a precondition fails.
        """
        session = self._take_session(name)
        import google.auth.exceptions as auth
        import requests.exceptions as http

        sent = dict(headers or {})
        if isinstance(body, dict):
            body, sent["Content-Type"] = json.dumps(body).encode(), "application/json"
        url = path if "://" in path else endpoint() + path
        query = {key: value for key, value in (params or {}).items() if value is not None}
        try:
            response = session.request(
                method, url, params=query, data=body, headers=sent, stream=streamed, timeout=TIMEOUT
            )
        except (auth.TransportError, http.ConnectionError, http.Timeout, http.ChunkedEncodingError) as error:
            raise Transient(f"the connection failed: {_line(error)}") from None
        except auth.GoogleAuthError as error:
            text = f"the credentials cannot be refreshed: {_line(error)}; {_clock(error)}{LOGIN}"
            raise refused(name, text) from None
        self._idle.append((endpoint(), session))
        if response.status_code < 300 or response.status_code in accepted:
            return response
        try:
            raise failure(response, name)
        finally:
            response.close()

    def call(self, method: str, path: str, name: str, **request: Any) -> dict[str, Any]:
        """Sends a request until it succeeds or is refused; returns the JSON answer, empty where there is none.

        Raises:
          OSError: see `send`.
        """

        def attempt() -> dict[str, Any]:
            response = self.send(method, path, name, **request)
            try:
                return response.json() if response.content else {}
            except ValueError:
                raise Transient("the answer was cut off") from None

        return retried(name, attempt)

    def _take_session(self, name: str) -> Any:
        """A session that no request is using now; after a request that failed it is not given back."""
        while self._idle:
            with suppress(IndexError):  # another thread was quicker
                address, session = self._idle.pop()
                if address == endpoint():
                    return session
        try:
            from google.auth.transport.requests import AuthorizedSession
        except ImportError as error:
            raise needs_extra("gcs", "gs", error) from None
        session = AuthorizedSession(self._find_credentials(name))
        session.headers["Accept-Encoding"] = "identity"
        if project := os.environ.get("GOOGLE_CLOUD_QUOTA_PROJECT"):
            session.headers["x-goog-user-project"] = project
        return session

    def _find_credentials(self, name: str) -> Any:
        import google.auth
        from google.auth.credentials import AnonymousCredentials
        from google.auth.exceptions import DefaultCredentialsError

        if os.environ.get("STORAGE_EMULATOR_HOST"):
            return AnonymousCredentials()
        with self._lock:
            if self._credentials is None:
                try:
                    self._credentials, _ = google.auth.default(scopes=[SCOPE])
                except DefaultCredentialsError as error:
                    raise refused(name, f"no credentials for Cloud Storage ({_line(error)[:120]}); {LOGIN}") from None
            return self._credentials


def endpoint() -> str:
    """Where the API is; `STORAGE_EMULATOR_HOST` is an emulator's address."""
    host = os.environ.get("STORAGE_EMULATOR_HOST", "").rstrip("/")
    return (host if "://" in host else f"http://{host}") if host else ENDPOINT


def object_path(bucket: str, name: str) -> str:
    """The path of an object in the API."""
    return f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}"


def refused(name: str, text: str) -> PermissionError:
    """An error of credentials or rights."""
    return PermissionError(errno.EACCES, text, name)


def failure(response: Any, name: str) -> Exception:
    """What an unsuccessful response means."""
    status, text = response.status_code, _message(response)
    if status in RETRIED:
        return Transient(f"{status} {text}", wait_of(response.headers.get("Retry-After")))
    if "requester pays" in text.lower():
        return refused(name, f"{text}; set GOOGLE_CLOUD_QUOTA_PROJECT to the project that is billed")
    if status == 401:
        return refused(name, f"401 {text}; {LOGIN}")
    if status == 403:
        return refused(name, f"403 {text}{_role(text)}")
    if status == 404 and "specified bucket" in text:
        return OSError(errno.ENXIO, f"404 {text} (gs://{name.split('/')[2]})", name)
    if status == 404:
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    if status in (409, 412):
        return FileExistsError(errno.EEXIST, f"{status} {text}", name)
    return OSError(errno.EIO, f"{status} {text}", name)


def _message(response: Any) -> str:
    """The store's own words, in one line."""
    try:
        text = str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        text = response.text or str(response.reason)
    return " ".join(text.split())[:300].rstrip(".")


def _role(text: str) -> str:
    """The role that has a permission that is missing."""
    if "serviceusage" in text:
        return "; the account needs roles/serviceusage.serviceUsageConsumer in the project that is billed"
    reading = any(word in text for word in ("objects.get", "objects.list"))
    return f"; the account needs roles/storage.object{'Viewer' if reading else 'User'} on the bucket"


def _clock(error: Exception) -> str:
    """Advice where a token is refused for its times."""
    is_early = any(word in str(error) for word in ("iat", "exp", "timeframe", "clock"))
    return "is this machine's clock right? " if is_early else ""


def _line(error: Exception) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:200]
