"""Verification of a checkpoint whose leaves were cast: exactly the rounding to nearest even, with its errors told."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import jsonschema
import ml_dtypes
import numpy as np
import pytest
import tensorstore as ts

from converter import gather_evidence
from converter.conversion.run import Request, convert
from converter.planning.options import Options
from converter.report.documents import DOCUMENTS
from converter.verification.result import Verification
from converter.verification.run import verify
from converter.work import Silent
from tests.conftest import AXLEARN, Cli
from tests.helpers.axlearn_checkpoint import envy_tensors, write_checkpoint

NORM = "model/decoder/output_norm/scale"
LEAF = "params/params/decoder/decoder_norm/scale"


@dataclass(frozen=True)
class Format:
    """A narrower dtype, as far as the test needs it: precision in bits, and the exponent of its largest binade."""

    dtype: type
    precision: int
    top: int

    @property
    def half(self) -> float:
        """Half the distance of neighbours in the largest binade."""
        return 2.0 ** (self.top - self.precision)


FORMATS = {"bfloat16": Format(ml_dtypes.bfloat16, 8, 127), "float16": Format(np.float16, 11, 15)}


def cast_leaves(checkpoint: Path, dtype: type, instead: Mapping[str, np.ndarray] | None = None) -> None:
    """Stores every leaf in another dtype; `instead` gives the values of some, by path."""
    given = {path.replace("/", "."): values for path, values in (instead or {}).items()}
    for directory in (checkpoint / "0" / "items").glob("params.*"):
        kvstore = {"driver": "file", "path": f"{directory}/"}
        values = ts.open({"driver": "zarr3", "kvstore": kvstore}).result().read().result()
        shutil.rmtree(directory)
        with np.errstate(over="ignore", invalid="ignore"):
            cast = given.get(directory.name, values.astype(dtype))
        spec = {"driver": "zarr3", "kvstore": kvstore, "create": True, "store_data_equal_to_fill_value": True}
        ts.open(spec, dtype=cast.dtype, shape=cast.shape).result().write(cast).result()


def compared(source: Path, checkpoint: Path, dtype: str | None) -> Verification:
    return verify(str(source), str(checkpoint), dtype=dtype, progress=Silent())


def test_a_cast_must_be_the_rounding_to_nearest_even(tmp_path: Path) -> None:
    source, checkpoint = AXLEARN / "micro-hybrid", tmp_path / "out"
    convert(Request(str(source), str(checkpoint), Options()), Silent())
    cast_leaves(checkpoint, ml_dtypes.bfloat16)
    result = compared(source, checkpoint, "bfloat16")
    assert result.ok
    assert result.cast is not None
    assert 0 < result.cast.max_relative <= 2**-8
    assert {f.check for f in compared(source, checkpoint, None).findings} == {"dtype"}
    cast_leaves(checkpoint, ml_dtypes.bfloat16, {LEAF: np.full(32, np.inf, ml_dtypes.bfloat16)})
    (finding,) = compared(source, checkpoint, "bfloat16").findings
    assert (finding.check, finding.place, finding.elements, finding.found) == ("values", LEAF, 32, "inf")


@pytest.mark.parametrize("dtype", FORMATS)
def test_overflow_is_reported_and_fails(dtype: str, tmp_path: Path, cli: Cli) -> None:
    form = FORMATS[dtype]
    largest = 2.0 ** (form.top + 1) - 2 * form.half
    below = np.nextafter(np.float32(largest + form.half), np.float32(0))
    values = np.zeros(12, np.float32)
    # Half way above the largest number is a tie, and goes to the even neighbour, which is infinity.
    values[:4] = largest + form.half, -np.finfo(np.float32).max, below, -below
    # A tie right above a power of two has the largest relative error there is: half a unit in the last place.
    values[4:6] = 2.0**form.top + form.half, 1 + 2.0**-form.precision
    values[6:] = np.inf, -np.inf, np.nan, 0.0, -0.0, 1.0
    # All other tensors are exact in the narrower dtype, so that the errors are those of the values above.
    tensors = {path: v.astype(form.dtype).astype(np.float32) for path, v in envy_tensors().items()} | {NORM: values}
    source = write_checkpoint(tmp_path / "step_00000100", tensors)
    checkpoint = tmp_path / "out"
    convert(Request(str(source), str(checkpoint), Options()), Silent())
    assert compared(source, checkpoint, None).ok
    cast_leaves(checkpoint, form.dtype)

    result = compared(source, checkpoint, dtype)
    (finding,) = result.findings
    assert (finding.check, finding.place, finding.elements) == ("cast", LEAF, 2)
    assert finding.message == "2 finite elements became infinite in the cast"
    assert result.cast is not None
    assert (result.cast.dtype, result.cast.overflows) == (dtype, 2)
    assert result.cast.max_absolute == form.half
    assert result.cast.max_relative == 1 / (2**form.precision + 1)

    done = cli("verify", source, checkpoint, "--dtype", dtype, "--json")
    assert done.code == 6
    jsonschema.validate(done.document, DOCUMENTS["verify"].schema)
    assert done.document["cast"] == {
        "dtype": dtype,
        "max_absolute_error": form.half,
        "max_relative_error": 1 / (2**form.precision + 1),
        "overflows": 2,
    }
    assert [found["check"] for found in done.document["findings"]] == ["cast"]
    assert "2 overflows to infinity" in cli("verify", source, checkpoint, "--dtype", dtype).out


def test_a_finite_value_in_place_of_an_overflow_is_another_value(tmp_path: Path) -> None:
    # A cast that saturates instead is not the rounding to nearest even.
    values = np.full(12, 1e6, np.float32)
    source = write_checkpoint(tmp_path / "step_00000100", envy_tensors() | {NORM: values})
    convert(Request(str(source), str(tmp_path / "out"), Options()), Silent())
    cast_leaves(tmp_path / "out", np.float16, {LEAF: np.full(12, 65504, np.float16)})
    findings = {f.check: f for f in compared(source, tmp_path / "out", "float16").findings}
    assert set(findings) == {"values", "cast"}
    assert (findings["values"].elements, findings["values"].expected, findings["values"].found) == (
        12,
        "inf",
        "65504.0",
    )


def test_the_receipt_names_the_dtype(tmp_path: Path, in_process: Cli) -> None:
    source, checkpoint = AXLEARN / "micro-hybrid", tmp_path / "out"
    convert(Request(str(source), str(checkpoint), Options(dtype="bfloat16")), Silent())
    result, given = compared(source, checkpoint, None), compared(source, checkpoint, "bfloat16")
    assert (result.ok, result.cast) == (True, given.cast)
    note = "made with --dtype bfloat16: compared with AXLearn's values, rounded to it"
    assert (result.notes, given.notes) == ((note,), ())
    assert note in in_process("verify", source, checkpoint).out
    assert gather_evidence(source, checkpoint).passed
    # A contradiction is a finding at every leaf.
    assert {finding.check for finding in compared(source, checkpoint, "float16").findings} == {"dtype"}
    # Without the receipt only the user knows.
    (checkpoint / "ax2mt.json").unlink()
    findings = compared(source, checkpoint, None).findings
    assert {finding.check for finding in findings} == {"dtype"}
    assert findings[0].message.endswith("is bfloat16, expected float32; if it was cast, pass --dtype bfloat16")
    assert compared(source, checkpoint, "bfloat16").ok


def test_a_receipt_that_names_a_dtype_proves_no_rounding(tmp_path: Path) -> None:
    """A leaf that was rounded otherwise is a finding, whoever says that it was cast."""
    source, checkpoint = AXLEARN / "micro-hybrid", tmp_path / "out"
    convert(Request(str(source), str(checkpoint), Options(dtype="bfloat16")), Silent())
    directory = checkpoint / "0" / "items" / LEAF.replace("/", ".")
    store = ts.open({"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{directory}/"}}).result()
    values = store.read().result()
    store.write(np.nextafter(values, np.array(9, values.dtype))).result()
    (finding,) = compared(source, checkpoint, None).findings
    assert (finding.check, finding.place) == ("values", LEAF)
