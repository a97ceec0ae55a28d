"""Reads every file below some directories and does nothing with it: `python -m benchmarks.read_files DIRECTORY ...`.

What any check of stored bytes has to do at least: each file once, front to back, two files at a time.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

THREADS = 2
BLOCK = 1 << 20


def read(path: Path) -> int:
    """The bytes that were read of a file."""
    block, total = bytearray(BLOCK), 0
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(block):
            total += count
    return total


if __name__ == "__main__":
    found = [path for argument in sys.argv[1:] for path in Path(argument).rglob("*") if path.is_file()]
    with ThreadPoolExecutor(THREADS) as pool:
        print(sum(pool.map(read, found)))
