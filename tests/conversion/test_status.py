"""`ax2mt status`: what is done, what is missing, and a command that really finishes it; nothing is changed by it."""

import shlex

import pytest

from converter import convert, status
from converter.storage import storage_of
from tests.conftest import Cli
from tests.conversion.test_shares import After, Place, interrupt, local, place  # noqa: F401


def test_shares(place: Place, in_process: Cli) -> None:  # noqa: F811
    assert in_process("status", place.target, "--json").document["state"] == "nothing"
    for process in ("2/3", "0/3"):
        convert(place.source, place.target, process=process, compress="none", set={"load_balance_loss_weight": 0.5})
    before = place.tree(place.target.rpartition("/")[0])
    found = in_process("status", place.target, "--json").document
    assert (found["state"], found["done"], found["awaited"]) == ("begun", ["0/3", "2/3"], ["1/3"])
    assert 0 < found["done_bytes"] < found["total_bytes"]
    assert found["stored_bytes"] > 0
    shown = in_process("status", place.target)
    assert (shown.code, "awaited      1/3" in shown.out) == (0, True)
    assert place.tree(place.target.rpartition("/")[0]) == before
    program, *arguments = shlex.split(found["command"])
    assert (program, arguments[-2:]) == ("ax2mt", ["--process", "0/1"])
    done = in_process(*arguments)
    assert done.code == 0, done.err
    assert in_process("status", place.target, "--json").document["state"] == "finished"
    assert place.left() == []


def test_one_process(local: Place, in_process: Cli) -> None:  # noqa: F811
    with pytest.raises(KeyboardInterrupt):
        convert(local.source, local.target, rewrite=True, option=["untie"], progress=After(3, interrupt))
    found = status(local.target)
    assert (found.state, found.done, found.awaited) == ("begun", (), ())
    assert found.stored_bytes > 0
    assert found.idle_seconds is not None
    assert "--process" not in found.command
    done = in_process(*shlex.split(found.command)[1:])
    assert (done.code, "kept from the interrupted run" in done.out) == (0, True), done.err


def test_a_compressor_that_is_not_the_usual_one(local: Place, in_process: Cli) -> None:  # noqa: F811
    with pytest.raises(KeyboardInterrupt):
        convert(local.source, local.target, layout="unscanned", compress="zstd", progress=After(3, interrupt))
    found = status(local.target)
    assert "--layout unscanned" in found.command
    assert "--compress zstd" in found.command
    done = in_process(*shlex.split(found.command)[1:])
    assert (done.code, "kept from the interrupted run" in done.out) == (0, True), done.err


def test_only_the_commit_is_awaited(
    local: Place,  # noqa: F811
    in_process: Cli,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("converter.conversion.run.commit", lambda *_: interrupt())
    with pytest.raises(KeyboardInterrupt):
        convert(local.source, local.target, process="0/1")
    assert "awaited      only the commit" in in_process("status", local.target).out


def test_a_damaged_journal(place: Place, in_process: Cli) -> None:  # noqa: F811
    storage = storage_of(place.target)
    name = f"{place.target}.ax2mt-wip.json" if storage.renames else f"{place.target}.ax2mt-wip/journal.json"
    storage.write(name, b"{}")
    done = in_process("status", place.target)
    assert (done.code, "is damaged" in done.err) == (5, True)
