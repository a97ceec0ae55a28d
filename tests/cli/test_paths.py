"""Paths through the whole program: every command takes the same forms, refuses the same ones, and knows its sides."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from converter.cli.app import run
from tests.conftest import AXLEARN, MAXTEXT, Cli
from tests.helpers.refusals import nothing_left, refused
from tests.helpers.restorer import RestoreError, Restorer

STORES = ("files", "ocdbt", "zarr2")
STEP = "checkpoints/step_00000100"
OTHER = MAXTEXT / "micro-hybrid-qkpair" / "scanned-untied"
ORBAX_STEP = AXLEARN / "envy-test-orbax" / STEP


@pytest.fixture
def work(tmp_path: Path, converted: Callable[..., Path]) -> Path:
    """A directory with a space in its name that holds a trainer `G`, its conversion `out`, and links to both."""
    place = tmp_path / "my runs"
    shutil.copytree(AXLEARN / "envy-test", place / "G")
    shutil.copytree(converted("envy-test", untie=True), place / "out")
    (place / "G-link").symlink_to("G")
    (place / "out-link").symlink_to("out")
    (place / "sub").mkdir()
    return place


@pytest.mark.parametrize(
    "arguments",
    [
        ("convert", "./G", "./new"),
        ("plan", "../sub/../G/"),
        ("verify", "./G", "./out"),
        ("verify", "./out/"),
        ("verify", "G-link", "file://{work}/out-link", "--logits", "--max-kl", "1"),
        ("logits", "./G", "--out", "./sub/../l.npz"),
        ("logits", "../my runs/out"),
        ("params", "./G", "sub/../out/0"),
        ("inspect", "./out"),
    ],
    ids=" ".join,
)
def test_every_command_takes_relative_paths(arguments: tuple[str, ...], work: Path, in_process: Cli) -> None:
    words = [word.format(work=str(work).replace(" ", "%20")) for word in arguments]
    cwd = work / "sub" if words[1].startswith("../sub") else work
    done = in_process(*words, cwd=cwd)
    assert done.code == 0, done.err
    # Reports say what the user said.
    shown = {
        "convert": f"./G/{STEP} ",
        "plan": f"../sub/../G/{STEP} ",
        "inspect": "./out: a MaxText",
        "logits": words[1],
    }
    assert shown.get(words[0], "") in done.out
    assert (work / "new" / "0" / "items").is_dir() == (words[0] == "convert")
    assert (work / "l.npz").is_file() == ("--out" in words)


@pytest.mark.parametrize("url", ["az://bucket/x", "HDFS://bucket/x.toml"])
@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        (3, "convert URL new"),
        (5, "convert G URL"),
        (3, "plan URL"),
        (4, "plan G --mapping URL"),
        (5, "verify URL"),
        (3, "verify URL out"),
        (5, "verify G URL"),
        (5, "verify G URL --logits"),
        (3, "params URL"),
        (5, "params G URL"),
        (3, "inspect URL"),
        (3, "logits URL"),
        (2, "logits G --tokens URL"),
        (4, "mappings check URL"),
        (4, "mappings show URL"),
    ],
)
def test_every_command_refuses_urls_alike(
    code: int,
    arguments: str,
    url: str,
    work: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = sorted(os.listdir(work))
    monkeypatch.chdir(work)
    assert run([url if word == "URL" else word for word in arguments.split()]) == code
    scheme = url.partition(":")[0].lower()
    line = f"{url}: {scheme}:// is not supported; copy the checkpoint from or to a local file system, and give the "
    assert capsys.readouterr().err == f"ax2mt: {line}local path\n"
    assert sorted(os.listdir(work)) == before


@pytest.mark.parametrize("url", ["gs://bucket/x", "S3://bucket/x.toml"])
@pytest.mark.parametrize(
    ("code", "arguments"),
    [(4, "plan G --mapping URL"), (2, "logits G --tokens URL"), (4, "mappings check URL"), (4, "mappings show URL")],
)
def test_only_checkpoints_can_be_in_buckets(
    code: int,
    arguments: str,
    url: str,
    work: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(work)
    assert run([url if word == "URL" else word for word in arguments.split()]) == code
    assert capsys.readouterr().err == f"ax2mt: {url}: a local file or directory is needed here\n"


@pytest.mark.parametrize(
    ("code", "arguments", "message"),
    [
        (2, ("verify", "out", "G"), "SRC and DST are swapped: out is a MaxText checkpoint, G an AXLearn"),
        (2, ("verify", "out/0", f"G/{STEP}", "--logits"), "SRC and DST are swapped: out/0 is a MaxText checkpoint"),
        (2, ("params", "./out", "./G"), "give ./G first"),
        (2, ("convert", "out", "G", "--overwrite"), "SRC and DST are swapped"),
        (3, ("convert", "out", "new"), "out: is a MaxText checkpoint; expected SRC to be an AXLearn"),
        (3, ("convert", "out/0/items", "new"), "out/0/items: is a MaxText checkpoint"),
        (3, ("convert", "run", "new"), "run: is a MaxText checkpoint"),
        (3, ("plan", "out/0"), "out/0: is a MaxText checkpoint"),
        (3, ("verify", "out", "out-2"), "out: is a MaxText checkpoint"),
        (2, ("verify", "G", "G-link"), "SRC and DST are the same directory"),
        (2, ("verify", "out", "./out/"), "SRC and DST are the same directory"),
        (2, ("verify", "G"), "G: is an AXLearn checkpoint, which holds no digests; give its conversion too"),
        (5, ("verify", "G", "H"), "H: is an AXLearn checkpoint; expected DST to be the MaxText checkpoint"),
        (5, ("verify", "G", "H", "--logits"), "H: is an AXLearn checkpoint; expected DST"),
        (5, ("params", "G", "orbax"), "orbax: is an AXLearn checkpoint; expected DST"),
        (5, ("convert", "G", "H", "--overwrite"), "micro-hybrid: is an AXLearn checkpoint, which is never replaced"),
        (5, ("convert", "G", "G-link"), "overlaps the source"),
        (2, ("verify", "out", "orbax"), "SRC and DST are swapped"),
    ],
)
def test_a_checkpoint_in_the_others_place(
    code: int,
    arguments: tuple[str, ...],
    message: str,
    work: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(OTHER, work / "out-2")
    shutil.copytree(OTHER, work / "run" / "checkpoints")
    (work / "orbax").symlink_to(ORBAX_STEP)
    (work / "H").symlink_to(AXLEARN / "micro-hybrid")
    before = sorted(os.listdir(work))
    monkeypatch.chdir(work)
    assert run([*arguments]) == code
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert sorted(os.listdir(work)) == before


NAMES = ("layers=[2,4]", "a*b?", "**", "100%20", "run #2", "new\nline", "模型: ☃", "file:", "a|b;$HOME'\"")


@pytest.mark.parametrize("store", STORES)
def test_what_is_committed_below_any_name_restores(
    store: str, tmp_path: Path, any_orbax: Restorer, capfd: pytest.CaptureFixture[str]
) -> None:
    # Each name by itself where Orbax merges databases with glob, all of them at once elsewhere.
    places = [Path(name) for name in NAMES] if store == "ocdbt" else [Path(*NAMES)]
    for place in places:
        target = tmp_path / place / "out"
        assert run(["convert", "-q", str(AXLEARN / "envy-test"), str(target), "--store", store]) == 0, place
        assert "Skipping merge" not in capfd.readouterr().err
        assert len(any_orbax.restore(target)) == 25, place


@pytest.mark.parametrize("name", ["[x]", "x[1]*", "?"])
def test_the_destinations_own_name_may_hold_wildcards(name: str, tmp_path: Path, newest_orbax: Restorer) -> None:
    assert run(["convert", "-q", str(AXLEARN / "envy-test"), str(tmp_path / name), "--store", "ocdbt"]) == 0
    assert len(newest_orbax.restore(tmp_path / name)) == 25
    nothing_left(tmp_path, name)


LONG = "x" * 235
"""The longest name of a destination: the journal of its work area has 20 bytes more."""

UNREADABLE = ("a\\b", "x.__lock", "logs:", "gs:")


@pytest.mark.parametrize("store", STORES)
def test_names_that_are_refused_are_names_that_orbax_cannot_open(
    store: str, tmp_path: Path, any_orbax: Restorer, converted: Callable[..., Path]
) -> None:
    for name in UNREADABLE:
        for target in (tmp_path / name, tmp_path / name / "out"):
            shutil.copytree(converted("envy-test", store=store), target)
            with pytest.raises(RestoreError):
                any_orbax.restore(target)
            shutil.rmtree(target)


@pytest.mark.parametrize("name", UNREADABLE)
@pytest.mark.parametrize("command", [("verify",), ("verify", str(AXLEARN / "envy-test"))], ids=["alone", "pair"])
def test_a_checkpoint_under_such_a_name_is_refused_in_one_line(
    command: tuple[str, ...],
    name: str,
    tmp_path: Path,
    converted: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(converted("envy-test"), tmp_path / name)
    assert run([*command, str(tmp_path / name)]) == 5
    error = capsys.readouterr().err
    assert error.endswith("could not open a checkpoint there; give another name\n")
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize("name", [*UNREADABLE, "\udcff", LONG + "x", "é" * 118], ids=lambda name: ascii(name)[:12])
def test_names_that_are_refused_leave_nothing(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(capsys, 5, AXLEARN / "envy-test", tmp_path / name)
    assert "give another name" in message or "at most 235; give a shorter name" in message
    assert len(message.splitlines()) == 1
    nothing_left(tmp_path)


def test_the_longest_name_that_is_taken(tmp_path: Path) -> None:
    assert run(["convert", "-q", str(AXLEARN / "envy-test"), str(tmp_path / LONG)]) == 0
    deep = tmp_path.joinpath(*["y" * 200] * 40)
    assert run(["convert", "-q", str(AXLEARN / "envy-test"), str(deep)]) == 5


@pytest.mark.parametrize("name", ["a\\b", "x.__lock", "\udcff"], ids=ascii)
@pytest.mark.parametrize("command", ["convert", "plan", "verify", "logits", "params"])
def test_sources_that_no_library_opens(
    command: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], converted: Callable[..., Path]
) -> None:
    # Another checkpoint in the place that TensorStore would take a\b for must not be read instead.
    shutil.copytree(AXLEARN / "envy-test-bf16", tmp_path / "a" / "b")
    shutil.copytree(AXLEARN / "envy-test", tmp_path / name)
    second = {"convert": [str(tmp_path / "out")], "verify": [str(converted("envy-test"))]}.get(command, [])
    assert run([command, str(tmp_path / name), *second]) == 3
    assert "make a symbolic link to it and give the link" in capsys.readouterr().err
    (tmp_path / "link").symlink_to(tmp_path / name)
    assert run([command, str(tmp_path / "link"), *second]) == 0


def test_inspect_says_that_a_name_cannot_be_read(
    tmp_path: Path, converted: Callable[..., Path], in_process: Cli
) -> None:
    shutil.copytree(converted("envy-test", store="ocdbt"), tmp_path / "a\\b")
    done = in_process("inspect", tmp_path / "a\\b", "--json")
    assert done.code == 0, done.err
    assert done.document["kind"] == "maxtext-checkpoint"
    assert done.document["missing"] == [
        r"a name that can be read: TensorStore reads a backslash '\\' in a name as '/' '\' in a name for '/'"
    ]
