"""Makes a child process obey file permissions, also where the tests run as root."""

import ctypes
import os

PR_CAPBSET_DROP = 24
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1, 2


def obey_permissions() -> None:
    """To be called between fork and exec: what is executed then has no capability to read what it may not."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
            if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0):
                raise OSError(ctypes.get_errno(), "cannot drop a capability")
