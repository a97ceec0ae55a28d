"""Runs the command line so that it obeys file permissions, also where the tests run as root."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Root without these two capabilities reads only what it may. They are dropped in a process of its own, which then
# becomes the command: to fork this one, which has threads, would not be safe.
_DROP = """
import ctypes, os, sys
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2
for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
    if os.geteuid() == 0 and ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0):
        sys.exit("cannot drop a capability")
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def unprivileged(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs a command that can read only what permissions allow."""
    return subprocess.run(
        [sys.executable, "-c", _DROP, "-m", "converter", *map(str, arguments)],
        capture_output=True, text=True, check=False, timeout=600, cwd=ROOT,
    )  # fmt: skip
