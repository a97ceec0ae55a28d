"""Mutations of a converted checkpoint: each must be found, at the right leaf, with the right diagnosis."""

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tensorstore as ts

from converter.choices import STORES
from converter.conversion.run import Request, convert
from converter.errors import VerificationError
from converter.planning.options import Options
from converter.verification.result import Verification
from converter.verification.values import sampled
from converter.work import Silent
from tests.helpers.axlearn_checkpoint import dimensions, envy_tensors, write_checkpoint
from tests.helpers.verification import against_digests, both_ways

DATA = Path(__file__).parents[1] / "data"

SOURCE = str(DATA / "axlearn" / "micro-hybrid")
LAYER = "params/params/decoder/layers/layers_"


@pytest.fixture(scope="session")
def converted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("converted")
    result: dict[str, Path] = {}
    for store in STORES:
        result[store] = place / store
        convert(Request(SOURCE, str(result[store]), Options(table=frozenset({"untie"}), store=store)), Silent())
    return result


@pytest.fixture
def checkpoint(converted: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(converted["files"], tmp_path / "copy"))


def against_source(checkpoint: Path, **options) -> Verification:
    return both_ways(SOURCE, checkpoint, **options)


def sound(checkpoint: Path) -> bool:
    """Whether nothing is found and nothing noted; a changed comment in maxtext.yml is a note."""
    try:
        result = against_digests(checkpoint)
        return result.ok and not result.notes
    except VerificationError:
        return False


def array_directory(checkpoint: Path, path: str) -> Path:
    return checkpoint / "0" / "items" / path.replace("/", ".")


def edit(checkpoint: Path, path: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    kvstore = {"driver": "file", "path": f"{array_directory(checkpoint, path)}/"}
    store = ts.open({"driver": "zarr3", "kvstore": kvstore, "store_data_equal_to_fill_value": True}).result()
    values = np.ascontiguousarray(change(store.read().result()))
    store.write(values).result()


def swap(checkpoint: Path, one: str, other: str) -> None:
    first, second = array_directory(checkpoint, one), array_directory(checkpoint, other)
    first.rename(first.with_suffix(".swap"))
    second.rename(first)
    first.with_suffix(".swap").rename(second)


def interleave(values: np.ndarray) -> np.ndarray:
    """Undoes the RoPE permutation of the first axis of a norm scale, or the last of a kernel."""
    axis = 0 if values.ndim == 2 else -1
    moved = np.moveaxis(values, axis, -1)
    pairs = moved.reshape(*moved.shape[:-1], 2, -1).swapaxes(-1, -2).reshape(moved.shape)
    return np.moveaxis(pairs, -1, axis)


@pytest.mark.parametrize("store", STORES)
def test_a_sound_checkpoint_passes_both_ways(converted: dict[str, Path], store: str) -> None:
    for result in (against_source(converted[store]), against_digests(converted[store])):
        assert result.ok
        assert (result.leaves, result.elements, result.notes) == (28, 63_200, ())


def test_a_checkpoint_of_another_writer_passes() -> None:
    golden = DATA / "maxtext" / "micro-hybrid-qkpair" / "scanned-untied"
    result = both_ways(DATA / "axlearn" / "micro-hybrid-qkpair", golden)
    assert result.ok
    assert result.elements == 63_200
    assert any("maxtext.yml" in note for note in result.notes)


@pytest.mark.parametrize(
    ("path", "change", "diagnosis"),
    [
        ("0/self_attention/query/kernel", interleave, "the RoPE permutation was left out"),
        ("1/self_attention/key_norm/scale", interleave, "the RoPE permutation was left out"),
        ("0/self_attention/value/kernel", interleave, "equal after the inverse RoPE permutation"),
        ("1/MoeBlock_0/wi_0", lambda v: v[[0, 2, 1, 3]], "experts 1 and 2 are swapped"),
        ("1/MoeBlock_0/wo", lambda v: v[::-1], "the order of experts is reversed"),
        ("0/mlp/wo/kernel", lambda v: v[:, ::-1], "layers of the cycle 0 and 1 are swapped"),
        ("0/mlp/wi_0/kernel", lambda v: v.astype(ml_dtypes.bfloat16).astype(v.dtype), "rounded to bfloat16 and back"),
        ("0/mlp/wi_1/kernel", np.zeros_like, "all zero"),
        ("1/self_attention/query/kernel", lambda v: v[:, :, [1, 2, 3, 0]], "heads are shuffled (4 of 4 out of place)"),
    ],
)  # fmt: skip
def test_wrong_values_are_recognised(checkpoint: Path, path: str, change, diagnosis: str) -> None:
    edit(checkpoint, LAYER + path, change)
    (finding,) = against_source(checkpoint).findings
    assert (finding.check, finding.place, finding.diagnosis) == ("values", LAYER + path, diagnosis)
    assert finding.elements
    assert finding.expected != finding.found
    assert [f.place for f in against_digests(checkpoint).findings] == [LAYER + path]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("0/mlp/wi_0/kernel", "0/mlp/wi_1/kernel"),
        ("1/MoeBlock_0/wi_0", "1/MoeBlock_0/wi_1"),
        ("0/self_attention/key/kernel", "0/self_attention/value/kernel"),
        ("0/self_attention/query/kernel", "1/self_attention/query/kernel"),
    ],
)
def test_swapped_leaves_are_named(checkpoint: Path, one: str, other: str) -> None:
    swap(checkpoint, LAYER + one, LAYER + other)
    found = {finding.place: finding.diagnosis for finding in against_source(checkpoint).findings}
    assert found == {
        LAYER + one: f"equal to the expected values of {LAYER}{other}; the two are swapped",
        LAYER + other: f"equal to the expected values of {LAYER}{one}; the two are swapped",
    }


def test_one_flipped_bit_of_a_value(checkpoint: Path) -> None:
    path = LAYER + "1/MoeBlock_0/wi_1"

    def flip(values: np.ndarray) -> np.ndarray:
        changed = values.copy()
        changed.view(np.uint32)[2, 1, 5, 7] ^= 1 << 3
        return changed

    edit(checkpoint, path, flip)
    (finding,) = against_source(checkpoint).findings
    assert (finding.elements, finding.first_index) == (1, (2, 1, 5, 7))
    assert finding.diagnosis == "a single bit is flipped (bit 3)"


def test_the_sign_of_zero_counts(tmp_path: Path, checkpoint: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(SOURCE, source)
    zarr = next(source.glob("checkpoints/*/gda/model/decoder/output_norm/scale"))
    spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{zarr}/"}}
    ts.open(spec).result()[3].write(np.float32(0.0)).result()
    path = "params/params/decoder/decoder_norm/scale"

    def negative(values: np.ndarray) -> np.ndarray:
        changed = values.copy()
        changed[3] = -0.0
        return changed

    edit(checkpoint, path, negative)
    (finding,) = both_ways(source, checkpoint).findings
    assert (finding.place, finding.first_index, finding.expected, finding.found) == (path, (3,), "0.0", "-0.0")
    assert "sign of zero" in finding.diagnosis


@pytest.mark.parametrize("store", STORES)
def test_every_flipped_bit_in_any_file_is_found(converted: dict[str, Path], tmp_path: Path, store: str) -> None:
    checkpoint = Path(shutil.copytree(converted[store], tmp_path / "copy"))
    generator = random.Random(7)
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file())
    for number, path in enumerate(files):
        data = path.read_bytes()
        changed = bytearray(data)
        changed[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
        path.write_bytes(changed)
        place = str(path.relative_to(checkpoint))
        assert not sound(checkpoint), place
        if number % 4 == 0 and "/items/params." in place and path.name not in ("zarr.json", ".zarray"):
            (finding,) = against_source(checkpoint).findings
            assert finding.place.replace("/", ".") in place
        path.write_bytes(data)
    assert against_digests(checkpoint).ok


def test_a_missing_chunk_is_found_also_in_a_sample(checkpoint: Path) -> None:
    path = LAYER + "1/MoeBlock_0/wo"
    next(p for p in array_directory(checkpoint, path).rglob("*") if p.is_file() and p.name != "zarr.json").unlink()
    for result in (against_source(checkpoint), against_source(checkpoint, sample=0.01)):
        assert [(f.check, f.place) for f in result.findings] == [("chunks", path)]
    assert [(f.check, f.place) for f in against_digests(checkpoint).findings] == [("chunks", path)]


def test_missing_and_extra_leaves(checkpoint: Path) -> None:
    metadata = checkpoint / "0" / "items" / "_METADATA"
    tree = json.loads(metadata.read_text())
    gone = next(key for key in tree["tree_metadata"] if "'post_ffw_norm'" in key)
    entry = tree["tree_metadata"].pop(gone)
    shutil.copytree(
        array_directory(checkpoint, "params/params/decoder/decoder_norm/scale"),
        array_directory(checkpoint, "params/params/decoder/bonus/scale"),
    )
    keys = [{"key": k, "key_type": 2} for k in ("params", "params", "decoder", "bonus", "scale")]
    tree["tree_metadata"]["bonus"] = {**entry, "key_metadata": keys}
    metadata.write_text(json.dumps(tree))
    found = {(f.check, f.place, f.message.split(":")[0]) for f in against_source(checkpoint).findings}
    assert ("coverage", "params/params/decoder/bonus/scale", "extra leaf") in found
    assert ("coverage", LAYER + "0/post_ffw_norm/scale", "missing in the checkpoint") in found
    assert {f.place for f in against_digests(checkpoint).findings} >= {
        "params/params/decoder/bonus/scale", LAYER + "0/post_ffw_norm/scale", "0/items/_METADATA"
    }  # fmt: skip


def test_metadata_markers_and_configuration(checkpoint: Path) -> None:
    custom = checkpoint / "0" / "_CHECKPOINT_METADATA"
    custom.write_text(custom.read_text().replace('"scan_layers": true', '"scan_layers": false'))
    (checkpoint / "0" / "commit_success.txt").unlink()
    config = checkpoint / "maxtext.yml"
    text = config.read_text()
    config.write_text(text.replace("head_dim: 8", "head_dim: 16").replace("500000", "10000"))
    result = against_source(checkpoint)
    assert sorted(f.check for f in result.findings) == ["config", "config", "markers", "scan_layers"]
    found = {(f.check, f.place) for f in against_digests(checkpoint).findings}
    assert found == {
        ("receipt", "0/_CHECKPOINT_METADATA"), ("receipt", "0/commit_success.txt"), ("config", "maxtext.yml"),
        ("markers", "0/commit_success.txt"),
    }  # fmt: skip


def test_a_sample_is_named_and_spread() -> None:
    spans = [{"layers": (number, number + 1)} for number in range(10)]
    assert sampled(spans, None) == spans
    assert [span["layers"][0] for span in sampled(spans, 0.3)] == [0, 3, 6]
    assert len(sampled(spans, 0.001)) == 1


def test_exit_codes_of_a_real_process(converted: dict[str, Path], checkpoint: Path, tmp_path: Path) -> None:
    edit(checkpoint, LAYER + "1/MoeBlock_0/wo", np.zeros_like)
    program = [os.path.join(os.path.dirname(sys.executable), "ax2mt")]
    good, bad = str(converted["files"]), str(checkpoint)
    expected = {
        0: ["verify", SOURCE, good],
        2: ["verify", good, "--sample", "0.5"],
        3: ["verify", str(tmp_path), good],
        4: ["params", SOURCE, "--model", "envy-test"],
        6: ["verify", SOURCE, bad],
    }
    for code, arguments in expected.items():
        done = subprocess.run(
            [*program, *arguments, "--json"], capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == code, done.stderr
        document = json.loads(done.stdout)
        assert document["schema_version"] == 1
        assert code in (0, 6) or document["error"]["exit_code"] == code


def test_swapped_query_and_key_are_told(tmp_path: Path) -> None:
    # With as many heads for k as for q no shape check can see it.
    tensors = envy_tensors(dimensions(12, 2, 4, 4, 6, 20, 10, 4, 24))
    source = write_checkpoint(tmp_path / "step_00000100", tensors)
    convert(Request(str(source), str(tmp_path / "out"), Options()), Silent())
    query, key = (
        array_directory(tmp_path / "out", f"{LAYER}0/self_attention/{name}/kernel") for name in ("query", "key")
    )
    query.rename(tmp_path / "aside")
    key.rename(query)
    (tmp_path / "aside").rename(key)
    findings = both_ways(source, tmp_path / "out").findings
    told = {finding.place.split("/")[-2]: finding.diagnosis for finding in findings}
    assert set(told) == {"query", "key"}
    assert "key/kernel" in told["query"]
    assert "query/kernel" in told["key"]
