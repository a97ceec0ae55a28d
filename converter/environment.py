"""The environment variables of our processes: what is computed depends on none of the user's.

A training machine's environment is made for training. JAX_PLATFORMS=tpu, device counts in XLA_FLAGS or a cache on a
full disk would stop a conversion, which needs no accelerator, or change what `logits` computes. So variables that jax,
XLA, Orbax and numpy read are taken out before these are imported, and jax is kept on the CPU.
"""

import os
import sys
from collections.abc import Mapping

OWNERS = (
    "JAX_", "XLA_", "TF_XLA_", "LIBTPU_", "TPU_", "CLOUD_TPU_", "MEGASCALE_", "PJRT_", "ENABLE_PJRT_", "MOSAIC_",
    "TF_CPP_", "ORBAX_", "EXPERIMENTAL_ORBAX_", "ENABLE_PATHWAYS_", "PROMETHEUS_", "NUMPY_", "NPY_",
)  # fmt: skip
"""What the names of variables begin with that these libraries read. XLA ends the process at an unknown flag, jax and
numpy raise at a wrong value, and a metrics library that Orbax imports needs PROMETHEUS_MULTIPROC_DIR to exist."""

PINNED = {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}
"""No accelerator is taken, and no metadata server is asked for one."""

PYTHON = ("PYTHONHOME", "PYTHONPLATLIBDIR", "PYTHONUSERBASE", "PYTHONNOUSERSITE", "PYTHONPYCACHEPREFIX",
          "PYTHONDONTWRITEBYTECODE")  # fmt: skip
"""Variables that say where Python is and where it writes; of Python's variables a child process gets only these."""


LAUNCHERS = ("TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES")
"""Variables of these libraries that also say which of several processes this one is."""

_launched: dict[str, str] = {}


def prepare() -> None:
    """Makes this process independent of the user's variables; before jax, Orbax or numpy is imported."""
    _launched.update((name, os.environ[name]) for name in LAUNCHERS if name in os.environ)
    for name in set(os.environ) - set(pinned(os.environ)):
        del os.environ[name]
    os.environ.update(PINNED)
    if sys.warnoptions:
        _ignore_deprecations()


def pinned(variables: Mapping[str, str]) -> dict[str, str]:
    """Variables with those of jax and the like replaced by ours."""
    return {name: value for name, value in variables.items() if not name.startswith(OWNERS)} | PINNED


def launch_variables() -> dict[str, str]:
    """The environment as whatever started this process made it, as far as it says which process this is."""
    return _launched | os.environ


def child_variables() -> dict[str, str]:
    """The environment of a child process that runs Python: pinned, and with nothing that changes how Python starts."""
    return {
        name: value for name, value in pinned(os.environ).items() if not name.startswith("PYTHON") or name in PYTHON
    }


def _ignore_deprecations() -> None:
    """Undoes `PYTHONWARNINGS=error`, for which libraries that use something deprecated cannot be imported."""
    import warnings

    warnings.resetwarnings()
    for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
        warnings.simplefilter("ignore", category)
