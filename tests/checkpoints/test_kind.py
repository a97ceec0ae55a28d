"""A format of checkpoints is one entry: it is detected before the others are asked, and opened by its own function."""

import os
from pathlib import Path

import pytest

from converter.checkpoints import kind
from converter.checkpoints.axlearn import Checkpoint
from converter.checkpoints.kind import AXLEARN, FORMATS, MAXTEXT, CheckpointFormat, checkpoint_kind, open_checkpoint
from converter.errors import SourceError
from tests.conftest import AXLEARN as SOURCES
from tests.conftest import MAXTEXT as CHECKPOINTS


def test_the_formats_are_told_apart_by_names(tmp_path: Path) -> None:
    assert checkpoint_kind(str(SOURCES / "micro-hybrid")) == AXLEARN
    assert checkpoint_kind(str(SOURCES / "micro-hybrid" / "checkpoints" / "step_00000100")) == AXLEARN
    assert checkpoint_kind(str(CHECKPOINTS / "micro-hybrid" / "scanned")) == MAXTEXT
    assert checkpoint_kind(str(tmp_path)) == checkpoint_kind(str(tmp_path / "absent")) == ""


def test_a_further_format_is_one_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def open_single_file(path: str, step: int | None) -> Checkpoint:
        return Checkpoint(path, step, {}, ())

    added = CheckpointFormat(
        side=AXLEARN, detect=lambda path: os.path.isfile(os.path.join(path, "weights.bin")), open=open_single_file
    )
    monkeypatch.setattr(kind, "FORMATS", (*FORMATS, added))
    with pytest.raises(SourceError, match="no AXLearn checkpoint here"):
        open_checkpoint(str(tmp_path), 7)
    (tmp_path / "weights.bin").touch()
    assert checkpoint_kind(str(tmp_path)) == AXLEARN
    assert open_checkpoint(str(tmp_path), 7) == Checkpoint(str(tmp_path), 7, {}, ())
    assert open_checkpoint(str(SOURCES / "micro-hybrid"), None).step == 100


def test_a_directory_that_cannot_be_looked_into_has_no_kind(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "checkpoints"):
        (place / "step_00000100").mkdir(parents=True)
    assert checkpoint_kind(str(tmp_path)) == ""
    with pytest.raises(SourceError, match="steps both here and in"):
        open_checkpoint(str(tmp_path), None)
