"""Builds AXLearn-layout Envy checkpoints: random ones of about a size, and ones whose every element is known."""

import json
import os
import shutil
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import zstandard

Box = tuple[tuple[int, int], ...]
CACHE = Path("build/bench")
ROW_PERIOD = 6144
SLAB_BYTES = 64 << 20
STEP = 100
MODEL = "model"
ADAM = "learner/optimizer/1/0"
MOMENTS = {"mu": f"{ADAM}/mu", "nu": f"{ADAM}/nu"}
COUNTS = (f"{ADAM}/count", "learner/optimizer/1/2/count", "learner/optimizer/1/4/count")
"""AXLearn's state of the published learner: the moments' trees, and all counts."""
RANDOM_PIECE = 32 << 20
"""Elements that are made at a time: more than a usual chunk has, and little memory."""


@dataclass(frozen=True)
class Sizes:
    """Envy's dimensions and shards; the defaults are Switch-Base under 16-way expert and fsdp sharding."""

    embed: int = 1536
    experts: int = 128
    repeats: int = 6
    heads: int = 12
    head_dim: int = 128
    mlp: int = 6144
    moe_mlp: int = 6144
    vocab: int = 32768
    expert_shard: int = 8
    embed_shard: int = 96


@dataclass(frozen=True)
class Array:
    """One tensor of the source; `name` is its path below its tree.

    A moment with a `turn` has the values of its parameter, turned by so many chunks along the turned axis: its
    chunks are links to those of the parameter, which takes no time to make.
    """

    name: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    tree: str = MODEL
    turn: int = 0

    @property
    def key(self) -> str:
        """What its values are made from: a parameter and its moments have different ones."""
        return self.name if self.tree == MODEL or self.turn else f"{self.tree}/{self.name}"

    @property
    def turned_axis(self) -> int | None:
        """The first axis but the last one with three chunks or more: for the parameter and both moments."""
        lengths = list(zip(self.shape, self.chunks, strict=True))[:-1]
        return next(
            (axis for axis, (size, chunk) in enumerate(lengths) if size >= 3 * chunk and size % chunk == 0), None
        )

    def block(self, box: Box) -> np.ndarray:
        """The values of a block of a formula source."""
        axis = self.turned_axis if self.turn else None
        turned = None if axis is None else (axis, self.turn * self.chunks[axis])
        return expected_block(self.key, self.shape, box, turned)

    @property
    def parameters(self) -> int:
        return int(np.prod(self.shape))


def envy_arrays(sizes: Sizes) -> list[Array]:
    """Every tensor of a hybridnorm Envy of these sizes, with its chunk shape."""
    s, r, d, e = sizes, sizes.repeats, sizes.embed, sizes.experts
    cut, group = min(s.embed_shard, d), min(s.expert_shard, e)
    result = [
        Array("decoder/emb/token_emb/weight", (s.vocab, d), (s.vocab, cut)),
        Array("decoder/output_norm/scale", (d,), (d,)),
    ]

    def add(layer: int, name: str, shape: tuple[int, ...], chunks: tuple[int, ...]) -> None:
        path = f"decoder/transformer/repeat/layer/layer{layer}/{name}"
        result.append(Array(path, (r, *shape), (r, *chunks)))

    for layer in range(2):
        for norm in ("self_attention/norm", "feed_forward/prenorm", "feed_forward/postnorm"):
            add(layer, f"{norm}/scale", (d,), (d,))
        for norm in ("scale_query", "scale_key"):
            add(layer, f"self_attention/attention/{norm}/norm/scale", (s.head_dim,), (s.head_dim,))
        qkv = "self_attention/attention/i_proj/i_proj/qkv_proj/weight"
        add(layer, qkv, (d, 3 * s.heads, s.head_dim), (cut, 3 * s.heads, s.head_dim))
        add(layer, "self_attention/attention/o_proj/weight", (d, s.heads, s.head_dim), (cut, s.heads, s.head_dim))
    for name in ("linear1_0", "linear1_1"):
        add(0, f"feed_forward/{name}/weight", (d, s.mlp), (cut, s.mlp))
    add(0, "feed_forward/linear2/weight", (s.mlp, d), (s.mlp, cut))
    add(1, "feed_forward/gate_weight", (d, e), (cut, e))
    for name in ("wi_0_weight", "wi_1_weight"):
        add(1, f"feed_forward/{name}", (e, d, s.moe_mlp), (group, cut, s.moe_mlp))
    add(1, "feed_forward/wo_weight", (e, s.moe_mlp, d), (group, s.moe_mlp, cut))
    return result


def sizes_near(total_bytes: int) -> Sizes:
    """The sizes whose float32 total is nearest to `total_bytes`, with expert chunks of 113 MB."""
    candidates = [Sizes(embed=96 * k, experts=8 * g) for g in range(1, 17) for k in range(1, 17)]
    return min(candidates, key=lambda s: abs(4 * sum(a.parameters for a in envy_arrays(s)) - total_bytes))


def random_source(path: Path, total_bytes: int, seed: int = 0) -> Path:
    """Writes, or finds, a source of about `total_bytes` of incompressible normal float32; returns its directory."""
    return sized_source(path, sizes_near(total_bytes), seed)


def sized_source(path: Path, sizes: Sizes, seed: int = 0) -> Path:
    """Writes, or finds, a source of these sizes, of incompressible normal float32; returns its directory."""
    return _build(path, sizes, f"random-{seed}")


def formula_source(path: Path, sizes: Sizes | None = None, *, state: bool = False) -> Path:
    """Writes, or finds, a source of known elements (see `expected_block`); true Switch-Base without `sizes`.

    With `state` it holds Adam's moments and the counts too.
    """
    return _build(path, sizes or Sizes(), "formula", state=state)


def with_moments(arrays: list[Array]) -> list[Array]:
    """The tensors, and a moment of either kind for each."""
    return [
        replace(array, tree=tree, turn=turn if array.turned_axis is not None else 0)
        for turn, tree in enumerate((MODEL, *MOMENTS.values()))
        for array in arrays
    ]


def memory_source(path: Path, array_bytes: int, *, one_chunk: bool, random: bool) -> Path:
    """A source whose three expert arrays have `array_bytes` each, in chunks of 128 MiB or in one; the rest is tiny.

    The axes of the three are shared, so that none can be large alone. `array_bytes` is a multiple of 1 GiB. The values
    are those of `formula_source`, which compress well, or `random` ones, which do not.
    """
    gib = array_bytes >> 30
    # 2 repeats x 64 experts x 256 embed x 8192 float32 is 1 GiB.
    sizes = Sizes(embed=256, experts=64 * gib, repeats=2, heads=2, mlp=64, moe_mlp=8192, vocab=64)
    shard = (sizes.experts, sizes.embed) if one_chunk else (16, 128)
    sizes = replace(sizes, expert_shard=shard[0], embed_shard=shard[1])
    return sized_source(path, sizes) if random else formula_source(path, sizes)


def layered_source(path: Path, array_bytes: int) -> Path:
    """A source of 12 layers in chunks of 108 MiB that hold all of them; random values, the rest is tiny.

    Its three expert arrays have about `array_bytes` each.
    """
    # 12 repeats x 16 experts x 256 embed x 1152 float32 are two such chunks.
    groups = max(1, round(array_bytes / (2 * 108 << 20)))
    sizes = Sizes(embed=256, experts=16 * groups, repeats=12, heads=2, mlp=64, moe_mlp=1152, vocab=64)
    return sized_source(path, replace(sizes, expert_shard=16, embed_shard=128))


def expected_block(name: str, shape: tuple[int, ...], box: Box, turned: tuple[int, int] | None = None) -> np.ndarray:
    """The values of a block of a formula source.

    Each array has one random row; a leading index takes a window of it that starts at a hash of that index. Elements
    differ nearly everywhere where a row or chunk is misplaced, and zstd still finds the repetitions.

    Args:
      name: the tensor's `key`.
      shape: shape of the whole tensor.
      box: start and stop of the block in each dimension.
      turned: an axis, and the elements that all values are turned by along it.
    """
    period, row = _row(name, shape[-1])
    leading = np.zeros((1,) * (len(shape) - 1), np.uint64)
    for axis, ((start, stop), size) in enumerate(zip(box[:-1], shape[:-1], strict=True)):
        index = np.arange(start, stop, dtype=np.uint64)
        if turned is not None and turned[0] == axis:
            index = (index + np.uint64(turned[1])) % np.uint64(size)
        index = index.reshape([-1 if i == axis else 1 for i in range(len(shape) - 1)])
        leading = leading * np.uint64(size) + index
    mixed = (leading + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    offsets = ((mixed ^ (mixed >> np.uint64(29))) % np.uint64(period)).astype(np.intp)
    start, stop = box[-1]
    return np.lib.stride_tricks.sliding_window_view(row[start:], stop - start)[offsets]


@cache
def _row(name: str, length: int) -> tuple[int, np.ndarray]:
    period = max(length, ROW_PERIOD)
    row = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(period, np.float32)
    return period, np.concatenate([row, row])


@cache
def _normals(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(count, np.float32).view(np.uint32)


def _build(path: Path, sizes: Sizes, values: str, *, state: bool = False) -> Path:
    stamp = json.dumps({"sizes": sizes.__dict__, "values": values, **({"state": True} if state else {})})
    marker = path / "stamp.json"
    step = path / "checkpoints" / "step_00000100"
    if marker.is_file() and marker.read_text() == stamp:
        return step
    shutil.rmtree(path, ignore_errors=True)
    arrays = with_moments(envy_arrays(sizes)) if state else envy_arrays(sizes)
    jobs: list[tuple[Path, Array, Box, str]] = []
    links: list[tuple[Path, Path]] = []
    for array in arrays:
        directory = step / "gda" / array.tree / array.name
        directory.mkdir(parents=True)
        (directory / ".zarray").write_text(json.dumps(zarray(array)))
        grid = (range(-(-n // c)) for n, c in zip(array.shape, array.chunks, strict=True))
        for key in product(*grid):
            if array.turn:
                links.append((step / "gda" / MODEL / array.name / _turned(array, key), directory / _key(key)))
                continue
            box = tuple((k * c, (k + 1) * c) for k, c in zip(key, array.chunks, strict=True))
            jobs.append((directory / _key(key), array, box, values))
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        list(pool.map(_write_chunk, jobs))
    for source, target in links:
        os.link(source, target)
    entries = [[f"{a.tree}/{a.name}", {"dtype": "float32", "shape": str(a.shape)}] for a in arrays]
    for name in COUNTS if state else ():
        _write_count(step / "gda" / name)
        entries.append([name, {"dtype": "int32", "shape": "()"}])
    (step / "index").write_text(json.dumps([["step", STEP], *sorted(entries, key=lambda entry: str(entry[0]))]))
    marker.write_text(stamp)
    return step


def _key(place: Iterable[int]) -> str:
    return ".".join(map(str, place))


def _turned(array: Array, place: tuple[int, ...]) -> str:
    """The parameter's chunk that a chunk of its moment is."""
    axis = array.turned_axis
    assert axis is not None
    count = array.shape[axis] // array.chunks[axis]
    return _key((number + array.turn) % count if dim == axis else number for dim, number in enumerate(place))


def _write_count(directory: Path) -> None:
    directory.mkdir(parents=True)
    (directory / ".zarray").write_text(json.dumps(zarray(Array("", (), ()), "<i4")))
    (directory / "0").write_bytes(zstandard.ZstdCompressor(level=1).compress(np.int32(STEP).tobytes()))


def zarray(array: Array, dtype: str = "<f4") -> dict[str, object]:
    """The `.zarray` of a tensor."""
    return {
        "chunks": list(array.chunks),
        "compressor": {"id": "zstd", "level": 1},
        "dimension_separator": ".",
        "dtype": dtype,
        "fill_value": None,
        "filters": None,
        "order": "C",
        "shape": list(array.shape),
        "zarr_format": 2,
    }


def _write_chunk(job: tuple[Path, Array, Box, str]) -> None:
    path, array, box, values = job
    count = int(np.prod(array.chunks))
    with path.open("wb") as file:
        compressor = zstandard.ZstdCompressor(level=1).compressobj(size=4 * count)
        if values == "formula":
            for part in _slabs(box):
                file.write(compressor.compress(array.block(part).data.cast("B")))
        else:
            seed = int(values.removeprefix("random-"))
            for start in range(0, count, RANDOM_PIECE):
                # Other mantissa bits in each piece: normals of the same magnitude, yet no piece repeats another.
                mask = np.uint32(zlib.crc32(f"{array.key}/{path.name}".encode(), start) & 0x7FFFFF)
                normals = _normals(seed, min(RANDOM_PIECE, count - start))
                file.write(compressor.compress((normals ^ mask).data.cast("B")))
        file.write(compressor.flush())


def _slabs(box: Box) -> Iterator[Box]:
    """Cuts a block, in C order, into blocks of at most `SLAB_BYTES` where its rows allow."""
    size = 4 * int(np.prod([stop - start for start, stop in box]))
    axis = next((i for i, (start, stop) in enumerate(box[:-1]) if stop - start > 1), None)
    if size <= SLAB_BYTES or axis is None:
        yield box
        return
    start, stop = box[axis]
    step = max(1, (stop - start) * SLAB_BYTES // size)
    for low in range(start, stop, step):
        yield from _slabs((*box[:axis], (low, min(low + step, stop)), *box[axis + 1 :]))
