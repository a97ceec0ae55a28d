"""Turns what a user wrote for a path into an absolute path, or the URL of a storage: once, and alike for every command.

Everything behind this door works with absolute paths: TensorStore takes no others, and reads some characters in its own
way. What the user wrote is kept beside it, for reports.
"""

import os
import re
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from converter.errors import Ax2mtError, UsageError
from converter.storage import STORAGES

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(/+)")

REMOTE_SCHEMES = frozenset(("abfs", "abfss", "az", "gcs", "gs", "hdfs", "hf", "http", "https", "s3", "s3a", "wasbs"))
"""Schemes that are recognised with a single slash as well: a directory named `gs:` is rarely what was meant."""

_LOCK = ".__lock"
"""TensorStore's file driver takes such a name for one of its lock files, and refuses the path."""

_EPATH_ROOTS = ("/gs/", "/s3/", "/az/", "/hf/")
"""Roots that etils' epath, and Orbax with it, takes for buckets (etils/epath/gpath.py)."""

_GCS_PREFIX = "gs:/"
"""Orbax turns this into gs:// wherever it stands in a path (`_normalize_path` of its tensorstore_utils)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Location:
    """A place in a storage.

    Attributes:
      given: as the user wrote it.
      path: its URL, without trailing slashes; or its absolute path, without `.`, `..`, doubled or trailing slashes.
        Symbolic links are not followed, except before a `..`, which leads to the parent of what the link points to.
    """

    given: str
    path: str

    def shown(self, path: str) -> str:
        """A path at or below this place, in the user's words."""
        below = path.removeprefix(self.path).lstrip("/")
        return os.path.join(self.given, below) if below else self.given


def locate(text: str, error: type[Ax2mtError], *, local: bool = False) -> Location:
    """Finds the place that a user's path means; nothing needs to be there.

    Args:
      text: a path, relative or absolute, where a leading `~` is a home directory; a `file://` URL, or one of a storage.
      error: what to raise; the exit code belongs to it.
      local: it has to be on a local file system, as everything but a checkpoint is.

    Raises:
      Ax2mtError: the path is empty, of an unknown user, in no storage or no bucket, or there is no current directory.
    """
    if not text:
        raise error("empty path: expected a file or directory; is a shell variable unset?")
    scheme, mark, name = text.partition("://")
    if mark and not local and scheme.lower() in STORAGES:
        if not name.partition("/")[0]:
            raise error(f"{text}: names no bucket; expected {scheme.lower()}://BUCKET/PATH; is a shell variable unset?")
        return Location(given=text, path=f"{scheme.lower()}://{name.rstrip('/')}")
    path = _from_url(text, error)
    if path is None:
        path = os.path.expanduser(text)
        if path.startswith("~"):
            raise error(f"{text}: no such user; write ./{text} for a name that begins with '~'")
    if "\0" in path:
        raise error(f"{text}: invalid path: it contains a zero byte")
    if not os.path.isabs(path):
        path = os.path.join(_current_directory(text), path)
    # Only the file system knows where `..` leads from a symbolic link; "/." makes a `..` at the end one in the middle.
    head, parent, tail = f"{path}/.".rpartition("/../")
    path = os.path.join(os.path.realpath(head + "/.."), tail) if parent else path
    # normpath keeps two leading slashes, which mean nothing on Linux and macOS.
    return Location(given=text, path=re.sub("^//+", "/", os.path.normpath(path)))


def _current_directory(text: str) -> str:
    try:
        return os.getcwd()
    except OSError:
        raise UsageError(
            f"{text}: the current directory was removed; change to another one, or give absolute paths"
        ) from None


def check_readable(path: str, error: type[Ax2mtError]) -> None:
    """Refuses names that the libraries which read and write arrays cannot open, or take for another path.

    Args:
      path: an absolute path.
      error: what to raise.

    Raises:
      Ax2mtError: with the character, and what to do.
    """
    problem = unreadable_name(path)
    if problem:
        raise error(f"{path}: {problem}; rename the directory, or make a symbolic link to it and give the link")


def check_committable(path: str, error: type[Ax2mtError]) -> None:
    """Refuses names below which Orbax could never open a checkpoint.

    Args:
      path: the checkpoint's absolute path.
      error: what to raise.

    Raises:
      Ax2mtError: with the part of the name, and what to do.
    """
    problem = unreadable_name(path)
    if "://" in path:
        root = None
        path = path.partition("://")[2]
    root = next((root for root in _EPATH_ROOTS if f"{path}/".startswith(root)), None)
    if not problem and root:
        problem = f"Orbax reads a path that begins with {root} as {root[1:-1]}://"
    if not problem and _GCS_PREFIX in f"{path}/":
        problem = f"Orbax takes {_GCS_PREFIX} inside a path as gs://"
    if problem:
        raise error(f"{path}: {problem}, and could not open a checkpoint there; give another name")


def unreadable_name(path: str) -> str:
    """Why TensorStore cannot open arrays below an absolute path; empty where it can."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return "the name is not valid UTF-8, which TensorStore and Orbax need"
    if "\\" in path:
        return r"TensorStore reads a backslash '\\' in a name as '/' '\' in a name for '/'"
    if any(part.endswith(_LOCK) for part in path.split("/")):
        return f"TensorStore keeps names that end in '{_LOCK}' to itself"
    return ""


def _from_url(text: str, error: type[Ax2mtError]) -> str | None:
    """The path of a file URL, None for what is not a URL."""
    match = _SCHEME.match(text)
    if match is None:
        return None
    scheme, slashes = match[1].lower(), len(match[2])
    if scheme != "file":
        if slashes >= 2:
            if scheme in STORAGES:
                raise error(f"{text}: a local file or directory is needed here")
            raise error(
                f"{text}: {scheme}:// is not supported; copy the checkpoint from or to a local file system, "
                "and give the local path"
            )
        if scheme in REMOTE_SCHEMES:
            raise error(
                f"{text}: a URL has two slashes, {scheme}://{text[match.end() :]}; write ./{text} for a local "
                "directory of that name"
            )
        return None
    host, path = "", text[len("file:") :]
    if slashes >= 2:
        host, slash, path = path[2:].partition("/")
        path = slash + path
    if host.lower() not in ("", "localhost"):
        raise error(f"{text}: a file URL with the host {host!r}; a local one has three slashes: file:///path")
    if not path.strip("/"):
        raise error(f"{text}: a file URL without a path; expected file:///path")
    if mark := re.search("[?#]", path):
        code = f"%{ord(mark[0]):02X}"
        raise error(f"{text}: '{mark[0]}' must be written {code} in a file URL; or give the plain path")
    return os.fsdecode(unquote_to_bytes(os.fsencode(path)))
