"""Every kind of path is named, and none makes it fail."""

import socket
from pathlib import Path

import pytest

from converter.checkpoints.inspection import inspect
from converter.errors import SourceError

DATA = Path(__file__).parents[1] / "data"


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("axlearn/micro-hybrid", "axlearn-trainer"),
        ("axlearn/micro-hybrid/checkpoints/step_00000100", "axlearn-step"),
        ("axlearn/micro-hybrid-uncommitted/checkpoints/step_00000200", "axlearn-step-uncommitted"),
        ("axlearn/envy-test-orbax/checkpoints/step_00000100", "axlearn-orbax-step"),
        ("maxtext/micro-hybrid-qkpair/scanned-untied", "maxtext-checkpoint"),
        ("axlearn", "directory"),
        ("axlearn/param_tables.json", "no-directory"),
        ("nothing-there", "absent"),
    ],
)
def test_kinds(path: str, kind: str) -> None:
    assert inspect(str(DATA / path)).kind == kind


@pytest.mark.parametrize("path", ["/", "/proc", "/dev/null", "a\\b", "\udcff", "x" * 5000])
def test_odd_paths_do_not_fail(path: str) -> None:
    assert inspect(path).title


@pytest.mark.parametrize("path", ["", "a\0b", "az://bucket/run"])
def test_what_is_no_local_path_is_refused(path: str) -> None:
    with pytest.raises(SourceError):
        inspect(path)


def test_sockets_and_broken_links(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    assert inspect(str(tmp_path / "link")).kind == "no-directory"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        assert inspect(str(tmp_path / "s")).title == "a socket, no directory"
