"""What systems and tools leave in other people's directories: no part of a checkpoint, and no damage to it either.

One definition for all that looks into directories. A name is litter by itself, wherever it stands; a file of any other
name that does not belong to a checkpoint remains a finding.
"""

import functools
import re
from collections.abc import Iterable

_SYSTEMS = (
    r"\.DS_Store", r"\._.*", r"\.apdisk", r"\.localized", r"\.AppleDouble", r"\.Spotlight-V100", r"\.Trashes",
    r"\.fseventsd", r"\.TemporaryItems", r"__MACOSX",  # macOS
    r"Thumbs\.db", r"ehthumbs\.db", r"desktop\.ini", r"\$RECYCLE\.BIN", r"System Volume Information",  # Windows
    r"\.directory", r"\.Trash-\d+", r"\.Trash",  # Linux desktops
)  # fmt: skip

_FILE_SYSTEMS = (
    r"lost\+found",  # ext2 to ext4
    r"\.nfs[0-9a-fA-F]{4,}",  # a file that was removed while some process had it open
    r"\.snapshots?", r"\.zfs", r"@eaDir",  # NetApp, Btrfs, ZFS, Synology
)  # fmt: skip

_EDITORS = (
    r".+~", r"\..+\.sw[a-p]", r"\.#.+", r"#.+#",  # backups, Vim's swap files, Emacs' locks and autosaves
    r"\.ipynb_checkpoints",
)  # fmt: skip

_CHECKPOINT_FILES = (
    r"(?:index|(?:c[./])?\d+(?:\.\d+)*|c|zarr\.json|\.zarray|\.zattrs|\.zgroup|manifest\.ocdbt|[0-9a-f]{32}"
    r"|_METADATA|_CHECKPOINT_METADATA|_sharding|commit_success\.txt|maxtext\.yml|ax2mt\.json)"
)
"""The names that rsync's names are made of: its pattern alone would take `.notes.secret` for a temporary file."""

_COPIERS = (
    rf"\.{_CHECKPOINT_FILES}\.[A-Za-z0-9]{{6}}", r"\.~tmp~", r"\.rsync-partial",  # rsync
    r".+_\.gstmp",  # gsutil and gcloud storage
    r".+\.[0-9a-f]{8}\.partial",  # rclone
)  # fmt: skip

_LITTER = re.compile("|".join((*_SYSTEMS, *_FILE_SYSTEMS, *_EDITORS, *_COPIERS)), re.DOTALL)

PROBE = ".ax2mt-probe"
"""Our own: an empty directory that a killed run left in its destination, see `publishing`."""


@functools.lru_cache(maxsize=1 << 14)
def is_litter(name: str) -> bool:
    """Whether a file or directory of this name, without its path, is litter of a system or a tool."""
    return name == PROBE or _LITTER.fullmatch(name) is not None


def without_litter(names: Iterable[str]) -> list[str]:
    """The names that are not litter, in their order."""
    return [name for name in names if not is_litter(name)]


def has_litter_in(path: str) -> bool:
    """Whether some part of a relative path is litter: what a litter directory holds is litter too."""
    return bool(litter_in(path))


def litter_in(path: str) -> str:
    """A relative path up to its first part that is litter; empty where none is."""
    parts = path.split("/")
    return next(("/".join(parts[: number + 1]) for number, part in enumerate(parts) if is_litter(part)), "")
