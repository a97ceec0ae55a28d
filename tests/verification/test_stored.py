"""Leaves that are compared by their bytes as they are stored: what is wrong is found as if all were decoded."""

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from converter.conversion.run import Request, convert
from converter.errors import SourceError
from converter.planning.options import Options
from converter.verification.run import verify
from converter.work import Silent
from tests.helpers.axlearn_checkpoint import STACK, dimensions, envy_tensors, write_checkpoint
from tests.helpers.forms import unrolled
from tests.helpers.verification import against_digests, both_ways

LEAVES = 27
REWRITTEN = 2 * 5
"""Query, key, value and the two scales, of both layers of a cycle."""

EXPERTS = "params.params.decoder.layers.layers_1.MoeBlock_0.wi_0"
PASSED = (EXPERTS, "params.params.decoder.layers.layers_0.self_attention.out.kernel")
ORDER = (1, 0, 2, 3)
"""How the experts' source dimensions lie in the leaf."""

Metadata = dict[str, Any]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All axes have 8 elements, so that no shape shows when they change places."""
    place = tmp_path_factory.mktemp("equal") / "step_00000100"
    return write_checkpoint(place, envy_tensors(dimensions(8, 8, 8, 8, 8, 8, 8, 8, 8)), chunks=CHUNKS)


CHUNKS = {f"{STACK}/layer1/feed_forward/{name}_weight": (4, 4, 4, 4) for name in ("wi_0", "wi_1")}


@pytest.fixture(scope="module")
def converted(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("converted") / "out"
    convert(Request(str(source), str(place), Options()), Silent())
    return place


@pytest.fixture
def checkpoint(converted: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(converted, tmp_path / "copy"))


def change_metadata(checkpoint: Path, leaf: str, change: Callable[[Metadata], None]) -> None:
    file = checkpoint / "0" / "items" / leaf / "zarr.json"
    metadata = json.loads(file.read_text())
    change(metadata)
    file.write_text(json.dumps(metadata))


def codecs(metadata: Metadata) -> list[Metadata]:
    return metadata["codecs"]


def chunk(checkpoint: Path, leaf: str, *index: int) -> Path:
    return checkpoint / "0" / "items" / leaf / ".".join(map(str, index))


def test_passed_leaves_are_compared_as_they_are_stored(source: Path, converted: Path) -> None:
    result = both_ways(source, converted)
    assert result.ok
    assert (result.leaves, result.stored_leaves) == (LEAVES, LEAVES - REWRITTEN)
    alone = against_digests(converted)
    assert (alone.ok, alone.stored_leaves) == (True, LEAVES)


@pytest.mark.parametrize("store", ["files", "ocdbt", "zarr2"])
@pytest.mark.parametrize("options", [{}, {"rewrite": True}, {"link": True}], ids=str)
def test_other_ways_to_store_are_decoded(source: Path, tmp_path: Path, store: str, options: dict[str, Any]) -> None:
    if store == "zarr2" and options.get("link"):
        pytest.skip("--link and zarr2 exclude each other")
    convert(Request(str(source), str(tmp_path / "out"), Options(store=store, **options)), Silent())
    result = both_ways(source, tmp_path / "out")
    assert result.ok
    if options.get("link") or store == "zarr2":
        assert result.stored_leaves == 0
    # Linked leaves have no digest.
    assert against_digests(tmp_path / "out").stored_leaves == (REWRITTEN if options.get("link") else LEAVES)


@pytest.mark.parametrize("order", [o for o in itertools.permutations(range(4)) if o != ORDER][::3], ids=str)
def test_axes_that_change_places_in_the_metadata(source: Path, checkpoint: Path, order: tuple[int, ...]) -> None:
    def change(metadata: Metadata) -> None:
        (transpose,) = (codec for codec in codecs(metadata) if codec["name"] == "transpose")
        assert transpose["configuration"]["order"] == list(ORDER)
        transpose["configuration"]["order"] = list(order)

    change_metadata(checkpoint, EXPERTS, change)
    (finding,) = both_ways(source, checkpoint).findings
    assert (finding.check, finding.place) == ("values", EXPERTS.replace(".", "/"))


def drop_transpose(metadata: Metadata) -> None:
    metadata["codecs"] = [codec for codec in codecs(metadata) if codec["name"] != "transpose"]


def big_endian(metadata: Metadata) -> None:
    (data,) = (codec for codec in codecs(metadata) if codec["name"] == "bytes")
    data["configuration"]["endian"] = "big"


def checksum_before_compressor(metadata: Metadata) -> None:
    metadata["codecs"][-2:] = reversed(codecs(metadata)[-2:])


def no_checksum(metadata: Metadata) -> None:
    codecs(metadata).pop()


def no_compressor(metadata: Metadata) -> None:
    metadata["codecs"] = [codec for codec in codecs(metadata) if codec["name"] != "zstd"]


def other_keys(metadata: Metadata) -> None:
    metadata["chunk_key_encoding"] = {"name": "default", "configuration": {"separator": "/"}}


def other_grid(metadata: Metadata) -> None:
    metadata["chunk_grid"]["configuration"]["chunk_shape"][0] //= 2


def other_dtype(metadata: Metadata) -> None:
    metadata.update(data_type="int32", fill_value=0)


HARMFUL = [
    drop_transpose, big_endian, checksum_before_compressor, no_compressor, other_keys, other_grid, other_dtype,
]  # fmt: skip


@pytest.mark.parametrize("leaf", PASSED)
@pytest.mark.parametrize("change", HARMFUL, ids=lambda change: change.__name__)
def test_metadata_that_decodes_otherwise(
    source: Path, checkpoint: Path, leaf: str, change: Callable[[Metadata], None]
) -> None:
    change_metadata(checkpoint, leaf, change)
    result = both_ways(source, checkpoint)
    assert leaf.replace(".", "/") in {finding.place for finding in result.findings}
    assert not against_digests(checkpoint).ok


@pytest.mark.parametrize("change", [lambda metadata: metadata.update(fill_value=1.0), no_checksum])
def test_metadata_that_decodes_alike(source: Path, checkpoint: Path, change: Callable[[Metadata], None]) -> None:
    # zstd ignores what follows its frame, as the checksum then does.
    change_metadata(checkpoint, EXPERTS, change)
    assert both_ways(source, checkpoint).ok


def swap_chunks(checkpoint: Path) -> None:
    one, other, aside = chunk(checkpoint, EXPERTS, 0, 0, 0, 0), chunk(checkpoint, EXPERTS, 1, 0, 0, 0), checkpoint / "x"
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def foreign_chunk(checkpoint: Path) -> None:
    other = EXPERTS.replace("wi_0", "wi_1")
    shutil.copyfile(chunk(checkpoint, other, 0, 0, 0, 0), chunk(checkpoint, EXPERTS, 0, 0, 0, 0))


def flipped_with_a_right_checksum(checkpoint: Path) -> None:
    file = chunk(checkpoint, EXPERTS, 1, 1, 1, 1)
    data = bytearray(file.read_bytes()[:-4])
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data) + crc32c(data).to_bytes(4, "little"))


def wrong_checksum(checkpoint: Path) -> None:
    file = chunk(checkpoint, EXPERTS, 1, 0, 1, 1)
    file.write_bytes(file.read_bytes()[:-1] + b"?")


def one_byte_more(checkpoint: Path) -> None:
    file = chunk(checkpoint, EXPERTS, 1, 0, 0, 1)
    file.write_bytes(file.read_bytes() + b"?")


def cut_short(checkpoint: Path) -> None:
    file = chunk(checkpoint, EXPERTS, 1, 0, 0, 1)
    file.write_bytes(file.read_bytes()[:-5])


def empty(checkpoint: Path) -> None:
    chunk(checkpoint, EXPERTS, 0, 0, 0, 1).write_bytes(b"")


def missing(checkpoint: Path) -> None:
    chunk(checkpoint, EXPERTS, 0, 0, 1, 1).unlink()


def a_directory(checkpoint: Path) -> None:
    missing(checkpoint)
    chunk(checkpoint, EXPERTS, 0, 0, 1, 1).mkdir()


DAMAGE = [
    swap_chunks, foreign_chunk, flipped_with_a_right_checksum, wrong_checksum, one_byte_more, cut_short, empty, missing,
    a_directory,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_damaged_chunks(source: Path, checkpoint: Path, damage: Callable[[Path], None]) -> None:
    damage(checkpoint)
    (finding,) = both_ways(source, checkpoint).findings
    assert finding.place == EXPERTS.replace(".", "/")
    assert not against_digests(checkpoint).ok


def test_the_same_values_in_other_bytes(source: Path, checkpoint: Path, tmp_path: Path) -> None:
    # Another program may have compressed the chunks anew: equal values are no finding.
    rewritten = tmp_path / "rewritten"
    convert(Request(str(source), str(rewritten), Options(rewrite=True)), Silent())
    for leaf in PASSED:
        place = checkpoint / "0" / "items" / leaf
        shutil.rmtree(place)
        shutil.copytree(rewritten / "0" / "items" / leaf, place)
    result = both_ways(source, checkpoint)
    assert result.ok
    assert result.stored_leaves == LEAVES - REWRITTEN - len(PASSED)


def test_damage_of_the_source_is_its_own_fault(source: Path, converted: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(source, tmp_path / source.name))
    (file,) = copy.glob("gda/**/layer1/feed_forward/wi_0_weight/1.1.1.0")
    file.write_bytes(file.read_bytes()[:-3])
    for decode in (False, True):
        with pytest.raises(SourceError, match=r"wi_0_weight: chunk 1\.1\.1\.0"):
            verify(str(copy), str(converted), Silent(), decode=decode)


def layered(tmp_path: Path, *, store: str = "files") -> tuple[Path, Path]:
    """An unrolled source, and leaves for each layer of it."""
    tensors = unrolled(envy_tensors(dimensions(8, 8, 8, 8, 8, 8, 8, 8, 8)))
    source = write_checkpoint(tmp_path / "step_00000100", tensors)
    convert(Request(str(source), str(tmp_path / "out"), Options(layout="unscanned", store=store)), Silent())
    return source, tmp_path / "out"


@pytest.mark.parametrize("store", ["files", "ocdbt"])
def test_leaves_of_one_layer_are_compared_as_they_are_stored(store: str, tmp_path: Path) -> None:
    result = both_ways(*layered(tmp_path, store=store))
    assert result.ok
    # The embedding, the last norm, and of each of 16 layers all but q, k, v and the two scales.
    assert (result.stored_leaves, result.leaves) == (2 + (result.leaves - 2) - 16 * 5, result.leaves)


def test_one_layer_of_a_stack_that_differs(tmp_path: Path) -> None:
    """All of its layers are decoded then, and no element is counted twice."""
    source, checkpoint = layered(tmp_path)
    leaf = "params.params.decoder.layers_5.MoeBlock_0.wo"
    place = checkpoint / "0" / "items"
    shutil.rmtree(place / leaf)
    shutil.copytree(place / leaf.replace("_5", "_7"), place / leaf)
    result = both_ways(source, checkpoint)
    (finding,) = result.findings
    assert (finding.check, finding.place) == ("values", leaf.replace(".", "/"))
    assert finding.elements == 8**3
    assert result.elements == both_ways(*layered(tmp_path / "whole")).elements


def test_a_leaf_of_one_layer_under_other_metadata(tmp_path: Path) -> None:
    source, checkpoint = layered(tmp_path)
    leaf = "params.params.decoder.layers_3.self_attention.out.kernel"

    def change(metadata: Metadata) -> None:
        (transpose,) = (codec for codec in codecs(metadata) if codec["name"] == "transpose")
        transpose["configuration"]["order"] = transpose["configuration"]["order"][::-1]

    change_metadata(checkpoint, leaf, change)
    assert [finding.place for finding in both_ways(source, checkpoint).findings] == [leaf.replace(".", "/")]
