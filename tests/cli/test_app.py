"""The command line as a real process: exit codes, JSON, paths as they come, signals."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import DATA

ROOT = Path(__file__).parents[2]
SOURCE = DATA / "axlearn" / "micro-hybrid"


def ax2mt(*arguments: object, cwd: Path | None = None, env: dict[str, str] | None = None):
    return subprocess.run(
        [sys.executable, "-m", "converter", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200", **(env or {})},
    )


def test_exit_codes(tmp_path: Path) -> None:
    (tmp_path / "table.toml").write_text("name = 3\n")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    out = tmp_path / "out"
    cases = {
        0: ("plan", SOURCE),
        2: ("convert", SOURCE, out, "--jobs", "many"),
        3: ("convert", tmp_path / "nothing", out),
        4: ("convert", SOURCE, out, "--mapping", tmp_path / "table.toml"),
        5: ("convert", SOURCE, tmp_path / "full"),
        7: ("convert", SOURCE, out, "--require-exact"),
    }
    for code, arguments in cases.items():
        done = ax2mt(*arguments)
        assert done.returncode == code, (arguments, done.stderr)
        assert "Traceback" not in done.stderr
        assert code == 0 or done.stderr.startswith("ax2mt: ")
    assert not out.exists()
    assert (tmp_path / "full" / "file").read_text() == "mine"


def test_a_broken_result_exits_6(tmp_path: Path) -> None:
    assert ax2mt("convert", SOURCE, tmp_path / "out").returncode == 0
    leaf = tmp_path / "out/0/items/params.params.decoder.decoder_norm.scale"
    shutil.rmtree(leaf)
    assert ax2mt("verify", SOURCE, tmp_path / "out").returncode == 6


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", SOURCE),
        ("plan", "nowhere"),
        ("convert", SOURCE),
        ("convert", SOURCE, "out", "-q"),
        ("mappings", "list"),
        ("mappings", "show", "envy"),
        ("inspect", SOURCE),
        ("params", "--model", "envy-switch-base"),
    ],
    ids=lambda arguments: " ".join(map(str, arguments))[-40:],
)
def test_json_is_one_document(tmp_path: Path, arguments: tuple) -> None:
    done = ax2mt(*arguments, "--json", cwd=tmp_path)
    document = json.loads(done.stdout)
    assert document["schema_version"] == 1
    assert ("error" in document) == (done.returncode != 0)
    if done.returncode:
        assert document["error"]["exit_code"] == done.returncode


def test_paths_as_they_come(tmp_path: Path) -> None:
    home = tmp_path / "höme with space"
    shutil.copytree(SOURCE, home / "träiner")
    (home / "link").symlink_to(home / "träiner")
    env = {"HOME": str(home)}
    for number, (source, target) in enumerate(
        [("träiner/", "out a/"), ("~/träiner", "~/out b"), (home / "link", "./out c"), ("./link/checkpoints", "d/e/f")]
    ):
        done = ax2mt("convert", source, target, "-q", cwd=home, env=env)
        assert done.returncode == 0, (number, done.stderr)
        place = home / str(target).replace("~/", "")
        assert (place / "0" / "items" / "_METADATA").is_file()
    assert not list(tmp_path.rglob("*ax2mt-wip*"))


def test_progress_and_errors_stay_off_stdout(tmp_path: Path) -> None:
    done = ax2mt("convert", SOURCE, tmp_path / "out", env={"NO_COLOR": "1"})
    assert done.returncode == 0
    assert "\x1b" not in done.stdout + done.stderr
    assert "load_parameters_path=" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_a_clean_stop_and_the_next_run_ends_the_work(
    tmp_path: Path, large_source: Path, number: signal.Signals
) -> None:
    target = tmp_path / "out"
    command = [sys.executable, "-m", "converter", "convert", "-q", str(large_source), str(target), "--rewrite"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    leaves = Path(f"{target}.ax2mt-wip") / "leaves"
    while not leaves.exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(number)
    _, errors = process.communicate()
    assert process.returncode == 130, errors
    assert errors == "ax2mt: interrupted; run the same command again to resume\n"
    assert not target.exists()
    assert ax2mt(*command[3:]).returncode == 0
    assert ax2mt("verify", "-q", large_source, target).returncode == 0


@pytest.fixture(scope="module")
def large_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that takes long enough to convert for a signal to meet it."""
    from tests.helpers.axlearn_checkpoint import dimensions, envy_tensors, write_checkpoint

    tensors = envy_tensors(dimensions(256, 2, 4, 2, 64, 512, 512, 32, 2048))
    return write_checkpoint(tmp_path_factory.mktemp("large") / "step_00000100", tensors)
