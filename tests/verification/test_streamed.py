"""Verification where a chunk is larger than the memory budget allows a block to be: slab by slab."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorstore as ts

from converter.checkpoints.maxtext import open_target
from converter.conversion.run import Request, convert
from converter.errors import SourceError, UsageError
from converter.planning.options import Options
from converter.planning.plan import make_plan
from converter.planning.source import open_source
from converter.verification.blocking import Cut, cut_task
from converter.verification.result import Verification
from converter.verification.run import verify
from converter.work import Silent
from tests.helpers.axlearn_checkpoint import STACK, dimensions, envy_tensors, write_checkpoint

MIB = 1 << 20
EXPERTS = tuple(f"{STACK}/layer1/feed_forward/{name}" for name in ("wi_0_weight", "wi_1_weight", "wo_weight"))
LEAF = "params/params/decoder/layers/layers_1/MoeBlock_0/wi_0"
SMALL = 14 * MIB
"""Little more than the 12 MiB that any conversion needs beside its blocks."""

# Repeats, experts, embed, mlp: 12 MiB of float32 an array.
DIMENSIONS = dimensions(96, 2, 4, 2, 6, 20, 2048, 8, 24)
SOURCES = {"one chunk": 8, "two chunks, one padded": 5}
"""Name to experts in a chunk."""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    tensors = envy_tensors(DIMENSIONS)
    place = tmp_path_factory.mktemp("sources")
    result: dict[str, Path] = {}
    for name, experts in SOURCES.items():
        chunks = {path: (2, experts, *tensors[path].shape[2:]) for path in EXPERTS}
        result[name] = write_checkpoint(place / str(experts) / "step_00000100", tensors, chunks=chunks)
    return result


@pytest.fixture(scope="module")
def checkpoints(sources: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """By source, and by the size of the checkpoint's chunks: cut under the small budget, or the source's own."""
    place = tmp_path_factory.mktemp("checkpoints")
    result: dict[tuple[str, str], Path] = {}
    for name, source in sources.items():
        for chunks, options in (("small", Options(max_memory=SMALL, rewrite=True)), ("own", Options())):
            result[name, chunks] = place / f"{SOURCES[name]}-{chunks}"
            convert(Request(str(source), str(result[name, chunks]), options), Silent())
    return result


def compared(source: Path, checkpoint: Path, max_memory: int) -> Verification:
    return verify(str(source), str(checkpoint), decode=True, max_memory=max_memory, progress=Silent())


def cut_of_leaf(source: Path, checkpoint: Path, max_memory: int) -> Cut:
    plan = make_plan(open_source(str(source)), Options())
    (task,) = (task for task in plan.tasks if task.leaves[0].path == LEAF)
    return cut_task(task, [open_target(str(checkpoint)).open(LEAF).array], max_memory)


def add_one(checkpoint: Path, *indices: tuple[int, ...]) -> None:
    kvstore = {"driver": "file", "path": f"{checkpoint / '0' / 'items' / LEAF.replace('/', '.')}/"}
    store = ts.open({"driver": "zarr3", "kvstore": kvstore}).result()
    for index in indices:
        store[index].write(store[index].read().result() + np.float32(1)).result()


@pytest.mark.parametrize(
    ("source", "chunks", "max_memory"),
    [
        ("one chunk", "small", SMALL),
        ("one chunk", "own", 40 * MIB),
        ("two chunks, one padded", "small", SMALL),
        ("two chunks, one padded", "own", 25 * MIB),
    ],
)
def test_a_chunk_over_the_budget_is_streamed_and_compared(
    source: str, chunks: str, max_memory: int, sources, checkpoints, tmp_path: Path
) -> None:
    checkpoint = checkpoints[source, chunks]
    cut = cut_of_leaf(sources[source], checkpoint, max_memory)
    assert cut.blocking.streamed
    assert cut.blocking.block_bytes < cut.memory <= max_memory
    result = compared(sources[source], checkpoint, max_memory)
    assert result.ok
    tensors = envy_tensors(DIMENSIONS)
    assert result.elements == sum(values.size for values in tensors.values())
    for number, index in enumerate([(0, 0, 0, 0), (4, 1, 40, 1001), (7, 1, 95, 2047)]):
        copy = Path(shutil.copytree(checkpoint, tmp_path / str(number)))
        add_one(copy, index)
        (finding,) = compared(sources[source], copy, max_memory).findings
        assert (finding.place, finding.elements, finding.first_index) == (LEAF, 1, index)
        expert, repeat, *rest = index
        value = tensors[EXPERTS[0]][repeat, expert, *rest]
        assert (float(finding.expected), float(finding.found)) == (float(value), float(value + np.float32(1)))


def test_the_first_index_is_the_first_of_the_leaf_not_of_the_stream(sources, checkpoints, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(checkpoints["one chunk", "small"], tmp_path / "copy"))
    # The source's slabs come repeat by repeat, the leaf's elements expert by expert.
    add_one(copy, (7, 0, 3, 4), (1, 1, 5, 6))
    (finding,) = compared(sources["one chunk"], copy, SMALL).findings
    assert (finding.elements, finding.first_index) == (2, (1, 1, 5, 6))


def test_damage_in_a_streamed_chunk_is_the_sources(sources, checkpoints, tmp_path: Path) -> None:
    source = Path(shutil.copytree(sources["one chunk"], tmp_path / "step_00000100"))
    chunk = source / "gda" / EXPERTS[0] / "0.0.0.0"
    chunk.write_bytes(chunk.read_bytes()[:-1000])
    with pytest.raises(SourceError, match=r"wi_0_weight: chunk 0\.0\.0\.0: ends too early"):
        compared(source, checkpoints["one chunk", "small"], SMALL)


def test_the_checkpoints_own_chunks_must_fit(sources, checkpoints) -> None:
    # Three times 12 MiB for a chunk of the checkpoint, and something for the source's slabs.
    with pytest.raises(UsageError, match=r"chunks of .*/wi_0 need \d+ bytes; give --max-memory 37MiB or more"):
        compared(sources["one chunk"], checkpoints["one chunk", "own"], 30 * MIB)
    assert compared(sources["one chunk"], checkpoints["one chunk", "own"], 37 * MIB).ok
