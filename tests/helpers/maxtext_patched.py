"""Runs in the MaxText environment: computes logits of checkpoints with the q/k norm after RoPE.

    python maxtext_patched.py PROJECT INPUT_IDS.npy CHECKPOINT LOGITS.npz [CHECKPOINT LOGITS.npz ...]

PROJECT is the directory of this project; prints which of its modules were imported.
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, sys.argv[1])

import maxtext_logits

from converter import maxtext_patch

if __name__ == "__main__":
    maxtext_patch.apply()
    maxtext_patch.apply()
    for checkpoint, out_file in zip(sys.argv[3::2], sys.argv[4::2], strict=True):
        maxtext_logits.logits(checkpoint, sys.argv[2], out_file)
    print(sorted(name for name in sys.modules if name.startswith("converter.")))
