"""Two runs on one destination: the second is refused while the first lives, and takes over when it is dead."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from converter.cli.app import run as run_cli
from converter.conversion.destination import SUFFIX
from converter.conversion.stage import Stage
from converter.errors import DestinationError
from tests.conftest import Cli, Completed
from tests.helpers.axlearn_checkpoint import envy_tensors, expected_leaves, write_checkpoint
from tests.helpers.compare import assert_same_leaves
from tests.helpers.faulty_storage import FaultyStorage
from tests.helpers.refusals import nothing_left
from tests.helpers.restorer import Restorer

STEP = "step_00000100"


@pytest.fixture(scope="module")
def tensors() -> dict[str, np.ndarray]:
    return envy_tensors()


@pytest.fixture(scope="module")
def source(tensors: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("source") / STEP, tensors)


def test_two_runs_at_once(
    source: Path,
    tensors: dict[str, np.ndarray],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    faulty: FaultyStorage,
    newest_orbax: Restorer,
    cli: Cli,
) -> None:
    target = tmp_path / "out"
    second: list[Completed] = []
    # Where the leaves are looked at once more, before the commit.
    faulty.before(
        "missing", f"^{target}{SUFFIX}/leaves/", lambda _: second.append(cli("convert", "-q", source, target))
    )
    assert run_cli(["convert", "-q", str(source), str(target)]) == 0
    assert [done.code for done in second] == [5]
    assert second[0].err.startswith(f"ax2mt: {target}{SUFFIX}: another ax2mt works on this destination")
    capsys.readouterr()
    nothing_left(tmp_path, "out")
    assert_same_leaves(newest_orbax.restore(target), expected_leaves(tensors))


def test_a_lock_that_was_made_anew_is_not_ours(tmp_path: Path) -> None:
    first = Stage(str(tmp_path / "out"), "files", ())
    shutil.rmtree(first.root)
    second = Stage(str(tmp_path / "out"), "files", ())
    with pytest.raises(DestinationError, match="removed while the conversion ran"):
        first.check_whole(())
    second.check_whole(())
    first.close()
    second.close()


def test_the_lock_of_a_dead_process_is_not_in_the_way(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    script = (
        "import os, signal, sys; from converter.conversion.stage import Stage; Stage(sys.argv[1], 'files', ()); "
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(target)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert (Path(f"{target}{SUFFIX}") / "lock").exists()
    assert run_cli(["convert", "-q", str(source), str(target)]) == 0
    nothing_left(tmp_path, "out")
