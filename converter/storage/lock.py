"""A lock that one process holds on a file, and that ends with the process."""

import errno
import fcntl
import hashlib
import os

NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)
"""What file systems without locks answer, such as Lustre where it is mounted without `flock`."""

LOCAL = "/tmp"
"""A directory of the machine; not `TMPDIR`, which may differ from one process to the next."""


class FileLock:
    """A lock on a file that is made where it is not there."""

    def __init__(self, path: str):
        """Takes the lock.

        On a file system without locks, a file below `LOCAL` is locked instead: that keeps one user's processes on one
        machine apart.

        Raises:
          BlockingIOError: another process holds it.
          OSError: the file cannot be made.
        """
        self.path = path
        self._descriptors: list[int] = []
        try:
            try:
                self._take(path)
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
                name = hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:32]
                self._take(os.path.join(LOCAL, f"ax2mt-{os.getuid()}-{name}.lock"))
        except BaseException:
            self.close()
            raise

    def is_in_place(self) -> bool:
        """Whether the locked file is still the one at the path: one that was created again is not ours."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._descriptors[0]))
        except OSError:
            return False

    def close(self) -> None:
        """Lets go of the lock; its file stays."""
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _take(self, path: str) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptors.append(os.open(path, flags, 0o644))
        fcntl.flock(self._descriptors[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
