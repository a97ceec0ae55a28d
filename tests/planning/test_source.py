"""An audited source: which arrays it holds, what they take on disk, and that every finding is told at once."""

from pathlib import Path

import numpy as np
import pytest

from converter.errors import MappingError, SourceError
from converter.mapping.bundled import table_path
from converter.planning.source import open_source
from tests.helpers.axlearn_checkpoint import SMALL, STACK, envy_shapes, envy_tensors, write_checkpoint, write_metadata

EXPERTS = f"{STACK}/layer1/feed_forward/wi_0_weight"
EMBEDDING = "model/decoder/emb/token_emb/weight"


@pytest.fixture
def step(tmp_path: Path) -> Path:
    left_behind = {"learner/optimizer/mu/w": np.ones((3, 2), np.float32), "prng_key": np.ones(4, np.uint32)}
    tensors = {**envy_tensors(), **left_behind}
    return write_checkpoint(tmp_path / "checkpoints" / "step_00000100", tensors, chunks={EXPERTS: (1, 2, 12, 10)})


def test_all_that_is_converted_and_nothing_else(step: Path, tmp_path: Path) -> None:
    source = open_source(str(tmp_path))
    assert source.checkpoint.directory == str(step)
    assert {path: array.shape for path, array in source.arrays.items()} == envy_shapes(SMALL)
    assert source.arrays[EXPERTS].chunks == (1, 2, 12, 10)
    assert set(source.match.dropped) == {"learner/optimizer/mu/w", "prng_key"}
    assert source.stored_bytes == {
        path: sum(file.stat().st_size for file in (step / "gda" / path).iterdir() if file.name != ".zarray")
        for path in envy_shapes(SMALL)
    }


def test_an_embedding_that_is_read_twice_is_one_array(step: Path) -> None:
    source = open_source(str(step), options={"untie"})
    assert sum(EMBEDDING in row.sources for row in source.match.rows) == 2
    assert set(source.arrays) == set(envy_shapes(SMALL))


def test_chunks_of_what_is_left_behind_are_not_missed(step: Path) -> None:
    (step / "gda" / "prng_key" / "0").unlink()
    (step / "gda" / "learner/optimizer/mu/w" / ".zarray").unlink()
    assert len(open_source(str(step)).arrays) == len(envy_shapes(SMALL))


def test_metadata_alone_is_enough_for_a_plan(tmp_path: Path) -> None:
    step = write_metadata(tmp_path / "step_00000007", envy_shapes(SMALL), step=7)
    source = open_source(str(step), metadata_only=True)
    assert source.stored_bytes == {}
    assert {path: array.shape for path, array in source.arrays.items()} == envy_shapes(SMALL)
    with pytest.raises(SourceError) as caught:
        open_source(str(step))
    assert caught.value.message == (
        f"{step}: the chunk files do not fit the arrays; the checkpoint is damaged or was copied incompletely"
    )
    keys = {path: ".".join("0" * len(shape)) for path, shape in envy_shapes(SMALL).items()}
    assert sorted(caught.value.details) == sorted(f"{path}: chunk {key}: missing" for path, key in keys.items())


def test_the_wanted_step(step: Path, tmp_path: Path) -> None:
    write_metadata(step.with_name("step_00000200"), envy_shapes({**SMALL, "vocab": 48}), step=200)
    assert open_source(str(tmp_path), metadata_only=True).arrays[EMBEDDING].shape == (48, 12)
    assert open_source(str(tmp_path), step=100, metadata_only=True).arrays[EMBEDDING].shape == (24, 12)


def test_a_users_own_table(step: Path, tmp_path: Path) -> None:
    table = tmp_path / "mine.toml"
    table.write_text(Path(table_path("envy")).read_text().replace('name = "envy"', 'name = "mine"', 1))
    assert open_source(str(step), mapping=str(table)).match.table.name == "mine"
    table.write_text(table.read_text().replace("decoder/output_norm/scale", "decoder/another_norm/scale"))
    with pytest.raises(MappingError) as caught:
        open_source(str(step), mapping=str(table))
    assert caught.value.message == "mapping 'mine' does not fit the checkpoint"
