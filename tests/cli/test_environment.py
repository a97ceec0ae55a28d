"""Whatever the environment says, work is done on the CPU with the same result."""

import json
import os
from pathlib import Path

import pytest

from converter import environment
from tests.conftest import AXLEARN, Cli

SOURCE = AXLEARN / "micro-hybrid-qkpair"

MACHINES = {
    "a TPU machine": {
        "JAX_PLATFORMS": "tpu", "TPU_LIBRARY_PATH": "/none", "TPU_WORKER_ID": "x", "JAX_NUM_PROCESSES": "4",
        "LIBTPU_INIT_ARGS": "--none", "ENABLE_PATHWAYS_PERSISTENCE": "1", "PROMETHEUS_MULTIPROC_DIR": "/none",
    },
    "other arithmetic": {
        "JAX_PLATFORMS": "", "JAX_PLATFORM_NAME": "gpu", "JAX_ENABLE_X64": "1", "JAX_DISABLE_JIT": "1",
        "JAX_DEFAULT_MATMUL_PRECISION": "bfloat16", "JAX_NUMPY_DTYPE_PROMOTION": "strict", "JAX_DEBUG_NANS": "1",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8 --xla_cpu_enable_fast_math=true",
    },
    "nonsense": {
        "XLA_FLAGS": "--nonsense", "JAX_ENABLE_X64": "maybe", "NUMPY_MADVISE_HUGEPAGE": "abc",
        "NPY_DISABLE_CPU_FEATURES": "SSE2", "JAX_COMPILATION_CACHE_DIR": "/proc/none", "PYTHONWARNINGS": "error",
        "OMP_NUM_THREADS": "abc", "HOME": "/none", "TMPDIR": "/none", "LANG": "xx_YY.UTF-9", "COLUMNS": "abc",
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("tokens") / "tokens.jsonl"
    file.write_text(json.dumps(list(range(20))))
    return file


@pytest.fixture(scope="module")
def plain(cli: Cli, tokens: Path) -> dict[str, float]:
    """The figures of the logits without such variables."""
    document = cli("logits", SOURCE, "--tokens", tokens, "--json").document
    return {name: document[name] for name in ("mean", "deviation")}


@pytest.mark.parametrize("machine", MACHINES)
def test_results_do_not_depend_on_it(
    machine: str, plain: dict[str, float], tokens: Path, tmp_path: Path, cli: Cli
) -> None:
    variables, out = MACHINES[machine], tmp_path / "out"
    for arguments in (["convert", SOURCE, out, "-q"], ["verify", SOURCE, out, "-q"]):
        done = cli(*arguments, **variables)
        assert (done.code, done.err) == (0, "")
    found = cli("logits", SOURCE, "--tokens", tokens, "--json", **variables)
    assert (found.code, found.err) == (0, "")
    assert {name: found.document[name] for name in plain} == plain


def test_a_child_process_starts_python_as_this_one_was_started() -> None:
    kept = {"PATH": "/bin", "PYTHONHOME": "/python"}
    dropped = {"PYTHONPATH": "/x", "PYTHONSTARTUP": "/x", "PYTHONINSPECT": "1", "PYTHONWARNINGS": "error"}
    before = dict(os.environ)
    try:
        os.environ.clear()
        os.environ.update(kept | dropped | {"JAX_PLATFORMS": "tpu"})
        assert environment.child_variables() == kept | environment.PINNED
    finally:
        os.environ.clear()
        os.environ.update(before)
