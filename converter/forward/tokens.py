"""The token sequences that logits are computed for: a user's own, or a built-in set that is the same everywhere."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from converter.errors import UsageError
from converter.location import locate

BUILT_IN_LENGTH = 512
"""Long enough for positions past 400: errors of RoPE grow with the position."""

MAX_TOKENS = 1 << 17
MAX_FILE_BYTES = 64 << 20


@dataclass(frozen=True)
class Tokens:
    """Sequences of token ids, laid end to end.

    Attributes:
      ids: all ids, int32.
      sequences: start and stop of each sequence.
      origin: where they came from, for reports.
    """

    ids: np.ndarray
    sequences: tuple[tuple[int, int], ...]
    origin: str

    @cached_property
    def positions(self) -> np.ndarray:
        """The position of each token in its sequence."""
        return np.concatenate([np.arange(stop - start, dtype=np.int32) for start, stop in self.sequences])

    @property
    def rectangular(self) -> bool:
        """Whether all sequences have the same length."""
        return len({stop - start for start, stop in self.sequences}) == 1


def built_in(vocabulary: int, length: int = BUILT_IN_LENGTH) -> Tokens:
    """One sequence of ids spread over the whole vocabulary by a fixed hash."""
    numbers = np.arange(1, length + 1, dtype=np.uint64)
    for shift in (33, 29, 32):
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(0xFF51AFD7ED558CCD)
    return _tokens([(numbers >> np.uint64(11)) % np.uint64(vocabulary)], vocabulary, "built-in")


def read_tokens(file: str, vocabulary: int) -> Tokens:
    """Reads sequences from a file.

    Args:
      file: `.npz` with `input_ids` [sequences, positions]; or JSON lines, each a list of ids, or an object with
        `tokens` or `input_ids`.
      vocabulary: ids are below this.

    Raises:
      UsageError: the file is missing, or is not of this form.
    """
    try:
        place = locate(file, UsageError, local=True).path
        sequences = _read_npz(file, place) if file.endswith(".npz") else _read_lines(file, place)
    except OSError as error:
        raise UsageError(f"--tokens {file}: cannot be read: {error.strerror or error}") from None
    return _tokens(sequences, vocabulary, file)


def _tokens(sequences: Sequence[np.ndarray], vocabulary: int, origin: str) -> Tokens:
    if not sequences or any(len(sequence) == 0 for sequence in sequences):
        raise UsageError(f"--tokens {origin}: holds an empty sequence, or none")
    ids = np.concatenate(sequences)
    if len(ids) > MAX_TOKENS:
        raise UsageError(f"--tokens {origin}: {len(ids)} tokens, expected at most {MAX_TOKENS}")
    if ids.min() < 0 or ids.max() >= vocabulary:
        raise UsageError(f"--tokens {origin}: ids from {ids.min()} to {ids.max()}; the vocabulary has {vocabulary}")
    edges = np.cumsum([0, *map(len, sequences)])
    bounds = tuple((int(a), int(b)) for a, b in itertools.pairwise(edges))
    return Tokens(ids.astype(np.int32), bounds, origin)


def _read_npz(file: str, place: str) -> list[np.ndarray]:
    import zipfile

    try:
        with np.load(place, allow_pickle=False) as content:
            ids = content.get("input_ids", None)
    except (ValueError, zipfile.BadZipFile) as error:
        raise UsageError(f"--tokens {file}: not an .npz file: {error}") from None
    if ids is None or ids.ndim != 2 or ids.dtype.kind not in "iu":
        raise UsageError(f"--tokens {file}: expected integers input_ids [sequences, positions]")
    return list(ids.astype(np.int64))


def _read_lines(file: str, place: str) -> list[np.ndarray]:
    with open(place, "rb") as stream:
        data = stream.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise UsageError(f"--tokens {file}: larger than {MAX_FILE_BYTES >> 20} MiB")
    sequences: list[np.ndarray] = []
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            raise UsageError(f"--tokens {file}, line {number}: not valid JSON") from None
        if isinstance(value, dict):
            value = value.get("tokens", value.get("input_ids"))
        if not isinstance(value, list) or not all(type(item) is int and abs(item) < 2**31 for item in value):
            raise UsageError(f"--tokens {file}, line {number}: expected a list of ids, or an object with `tokens`")
        sequences.append(np.array(value, np.int64))
    return sequences
