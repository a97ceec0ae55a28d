import io
import os


class FileReader(io.FileIO):
    """An open file; reads are system calls, without a buffer of their own."""

    def read_range(self, start: int, count: int) -> bytes:
        return os.pread(self.fileno(), count, start)

    def size(self) -> int:
        return os.fstat(self.fileno()).st_size
