"""What a user's path means, in every form that a shell, a script or a browser gives it."""

import os
from pathlib import Path

import pytest
from etils import epath

from converter.errors import DestinationError, SourceError, UsageError
from converter.location import check_committable, check_readable, locate


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, which is the home directory too; `link` leads out of it."""
    (tmp_path / "here" / "a").mkdir(parents=True)
    (tmp_path / "far" / "away").mkdir(parents=True)
    (tmp_path / "here" / "link").symlink_to("../far/away")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path / "here"))
    return tmp_path / "here"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x", "x"), ("./x", "x"), ("x/", "x"), ("x//", "x"), (".//a/./x", "a/x"), (".", ""), ("./", ""),
        ("../x", "../x"), ("..", ".."), ("a/..", ""), ("a/../x", "x"), ("nothing/../x", "x"), ("a/../../x", "../x"),
        ("link", "link"), ("link/", "link"), ("link/x", "link/x"),
        ("link/..", "../far"), ("link/../x", "../far/x"), ("link/../away/./x/", "../far/away/x"),
        ("~", ""), ("~/x y", "x y"), ("./~", "~"), ("a/~", "a/~"),
        ("gs:", "gs:"), ("gs:x", "gs:x"), ("./gs:/x", "gs:/x"), ("x:/y", "x:/y"), ("file:x", "file:x"),
        ("100%20#?*[x]", "100%20#?*[x]"), (" x ", " x "), ("-q", "-q"), ("$HOME", "$HOME"), ("a\nb", "a\nb"),
        ("a\\b", "a\\b"), ("\udcff", "\udcff"),
    ],
)  # fmt: skip
def test_relative_paths(text: str, expected: str, place: Path) -> None:
    found = locate(text, SourceError)
    assert found.path == os.path.normpath(place / expected)
    assert found.given == text
    # The same place again, and by the system's own rules where it exists.
    assert locate(found.path, SourceError).path == found.path
    if os.path.exists(text):
        assert os.path.samefile(text, found.path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/", "/"), ("//data//x/", "/data/x"), ("/data/../x", "/x"), ("/..", "/"),
        ("file:///data/x", "/data/x"), ("FILE:///data/x/", "/data/x"), ("file:/data/x", "/data/x"),
        ("file://localhost/data/x", "/data/x"), ("file:////data/x", "/data/x"),
        ("file:///a%20b/%23%3f%5B", "/a b/#?["), ("file:///~/x", "/~/x"), ("file:///%ff", "/\udcff"),
    ],
)  # fmt: skip
def test_absolute_paths_and_file_urls(text: str, expected: str) -> None:
    assert locate(text, SourceError).path == expected


def test_urls_of_stores() -> None:
    found = locate("GS://bucket/run/", SourceError)
    assert (found.given, found.path) == ("GS://bucket/run/", "gs://bucket/run")
    with pytest.raises(SourceError, match="a local file or directory is needed here"):
        locate("gs://bucket/table.toml", SourceError, local=True)


REMOTE = "x+y:// is not supported; copy the checkpoint from or to a local file system, and give the local path"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty path: expected a file or directory; is a shell variable unset?"),
        ("x+y://h", REMOTE),
        ("gs:/b/x", "a URL has two slashes, gs://b/x; write ./gs:/b/x for a local directory of that name"),
        ("S3:/b", "a URL has two slashes, s3://b; write ./S3:/b for a local directory of that name"),
        ("file://host/x", "a file URL with the host 'host'; a local one has three slashes: file:///path"),
        ("file://", "a file URL without a path; expected file:///path"),
        ("file:///", "a file URL without a path; expected file:///path"),
        ("file:///x#2", "'#' must be written %23 in a file URL; or give the plain path"),
        ("file:///x?y", "'?' must be written %3F in a file URL; or give the plain path"),
        ("file:///a%00b", "invalid path: it contains a zero byte"),
        ("~no-such-user-here/x", "no such user; write ./~no-such-user-here/x for a name that begins with '~'"),
    ],
)  # fmt: skip
def test_what_is_no_local_path(text: str, message: str) -> None:
    for kind in (SourceError, DestinationError):
        with pytest.raises(kind) as caught:
            locate(text, kind)
        assert caught.value.message == (f"{text}: {message}" if text else message)


def test_a_current_directory_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(UsageError, match="the current directory was removed"):
        locate("x", SourceError)


def test_reports_keep_the_users_words() -> None:
    for given in ("runs/x", "./runs/x/", "file:///runs/x"):
        found = locate(given, SourceError)
        assert found.shown(found.path) == given
        assert found.shown(found.path + "/step_1") == given.rstrip("/") + "/step_1"


@pytest.mark.parametrize("path", ["/a/\udcff/x", "/a\\b", "/x.__lock/y", "/.__lock"])
def test_names_that_no_library_opens(path: str) -> None:
    with pytest.raises(SourceError, match="rename the directory, or make a symbolic link"):
        check_readable(path, SourceError)
    with pytest.raises(DestinationError, match="give another name"):
        check_committable(path, DestinationError)


@pytest.mark.parametrize("path", ["/a/gs:/x", "/a/logs:", "/gs", "/gs/b/x", "/s3/b", "/az/b", "/hf/b"])
def test_names_that_only_orbax_does_not_open(path: str) -> None:
    check_readable(path, SourceError)
    with pytest.raises(DestinationError, match="could not open a checkpoint there; give another name"):
        check_committable(path, DestinationError)


@pytest.mark.parametrize("path", ["/a[1]/b*?", "/a b/#%20\n", "/a/gs", "/gsx/b", "/a/gs:x", "/x.lock", "/模型/☃"])
def test_names_that_are_fine(path: str) -> None:
    check_readable(path, SourceError)
    check_committable(path, DestinationError)


def test_epath_takes_some_roots_for_buckets() -> None:
    # The fact behind `_EPATH_ROOTS`; one that is not in the list would be a directory like any other.
    assert [os.fspath(epath.Path(f"/{name}/b")) for name in ("gs", "s3", "az", "hf", "gcs")] == [
        "gs://b", "s3://b", "az://b", "hf://b", "/gcs/b",
    ]  # fmt: skip
