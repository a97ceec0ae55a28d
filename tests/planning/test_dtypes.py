"""Values that are no weights as they stand are refused, unless a table says what they are."""

import json
from pathlib import Path
from typing import Any

import pytest

from converter.mapping.bundled import table_path
from tests.conftest import AXLEARN, Cli
from tests.helpers.axlearn_checkpoint import envy_tensors, write_checkpoint
from tests.helpers.refusals import nothing_left

FLOATS = AXLEARN / "micro-hybrid-qkpair"


@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "int4", "bool", "complex64", "float8_e4m3fn", "float8_e5m2", "int32"]
)
def test_values_that_are_no_weights(dtype: str, cli: Cli, tmp_path: Path) -> None:
    source = with_dtype(tmp_path, dtype)
    for command in (["plan", source], ["convert", source, tmp_path / "out"], ["logits", source]):
        done = cli(*command)
        assert done.code == 4, done.err
        assert done.err.splitlines()[0] == (
            f"ax2mt: mapping 'envy': {GATE} is {dtype}, which needs scales to be read as weights; a table of your own "
            "can name the dtypes of a row (dtypes = [...])"
        )
    nothing_left(tmp_path, "step_00000100")


def test_a_table_can_say_what_the_values_are(cli: Cli, tmp_path: Path) -> None:
    source = with_dtype(tmp_path, "int32")
    text = Path(table_path("envy")).read_text()
    row = 'axes = "embed experts -> embed experts"'
    table = tmp_path / "table.toml"
    table.write_text(text.replace(row, f'{row}\ndtypes = ["int32"]'))
    assert cli("plan", source, "--metadata-only", "--mapping", table).code == 0
    assert cli("plan", FLOATS, "--mapping", table).code == 4
    table.write_text(text.replace(row, f'{row}\ndtypes = ["int31"]'))
    assert "unknown dtype 'int31'" in cli("mappings", "check", table).err


GATE = "model/decoder/transformer/repeat/layer/layer1/feed_forward/gate_weight"
ZARR_DTYPES = {"int8": "|i1", "uint8": "|u1", "bool": "|b1", "complex64": "<c8", "int32": "<i4"}


def with_dtype(directory: Path, dtype: str) -> Path:
    """A checkpoint whose router has another dtype; its chunk has the bytes of that dtype."""
    tensors = envy_tensors()
    source = write_checkpoint(directory / "step_00000100", tensors)
    index = source / "index"
    entries: list[Any] = json.loads(index.read_text())
    next(entry for entry in entries if entry[0] == GATE)[1]["dtype"] = dtype
    index.write_text(json.dumps(entries))
    metadata = source / "gda" / GATE / ".zarray"
    metadata.write_text(json.dumps({**json.loads(metadata.read_text()), "dtype": ZARR_DTYPES.get(dtype, dtype)}))
    return source
