"""When Orbax is asked for its view of the metadata: wherever nothing proves that it has read the same before."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from converter.verification import digests, run
from converter.verification.digests import verify_digests
from converter.verification.run import verify
from converter.work import Silent
from tests.conftest import AXLEARN

SOURCE = str(AXLEARN / "micro-hybrid")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The checkpoints that Orbax is asked for; it sees them all in another shape."""
    targets: list[Any] = []

    def problems(target: Any, _shapes: object) -> list[str]:
        targets.append(target)
        return ["Orbax sees another shape"]

    monkeypatch.setattr(run, "orbax_problems", problems)
    monkeypatch.setattr(digests, "orbax_problems", problems)
    return targets


def lay_out_anew(checkpoint: Path) -> None:
    """The same metadata in other bytes."""
    for file in (checkpoint / "0" / "items" / "_METADATA", *checkpoint.glob("0/items/*/zarr.json")):
        file.write_text(json.dumps(json.loads(file.read_text()), indent=3))


def without_receipt(checkpoint: Path) -> None:
    (checkpoint / "ax2mt.json").unlink()


def with_a_file_of_orbax(checkpoint: Path) -> None:
    (checkpoint / "0" / "items" / "_sharding").write_text("{}")


def edit_training(checkpoint: Path) -> None:
    file = checkpoint / "maxtext.yml"
    file.write_text(file.read_text() + "# A comment\n")


def test_not_where_the_receipt_proves_it(converted: Callable[..., Path], asked: list[Any]) -> None:
    checkpoint = str(converted("micro-hybrid"))
    assert verify(SOURCE, checkpoint, Silent()).ok
    assert verify_digests(checkpoint, Silent()).ok
    assert not asked


def test_whenever_all_is_decoded(converted: Callable[..., Path], asked: list[Any]) -> None:
    checkpoint = str(converted("micro-hybrid"))
    results = verify(SOURCE, checkpoint, Silent(), decode=True), verify_digests(checkpoint, Silent(), decode=True)
    assert [[finding.message for finding in result.findings] for result in results] == [
        ["Orbax sees another shape"]
    ] * 2
    assert len(asked) == 2


@pytest.mark.parametrize("change", [lay_out_anew, without_receipt, with_a_file_of_orbax])
def test_where_the_metadata_may_be_another(
    change: Callable[[Path], None], converted: Callable[..., Path], asked: list[Any], tmp_path: Path
) -> None:
    checkpoint = Path(shutil.copytree(converted("micro-hybrid"), tmp_path / "copy"))
    change(checkpoint)
    (finding,) = verify(SOURCE, str(checkpoint), Silent()).findings
    assert finding.message == "Orbax sees another shape"
    assert len(asked) == 1


def test_not_because_of_a_file_that_it_does_not_read(
    converted: Callable[..., Path], asked: list[Any], tmp_path: Path
) -> None:
    checkpoint = Path(shutil.copytree(converted("micro-hybrid"), tmp_path / "copy"))
    edit_training(checkpoint)
    assert verify(SOURCE, str(checkpoint), Silent()).ok
    assert verify_digests(str(checkpoint), Silent()).ok
    assert not asked


def test_of_a_database(converted: Callable[..., Path], asked: list[Any]) -> None:
    """The arrays' metadata is among its chunks, which the receipt does not know."""
    checkpoint = str(converted("micro-hybrid", store="ocdbt"))
    assert not verify(SOURCE, checkpoint, Silent()).ok
    assert not verify_digests(checkpoint, Silent()).ok
    assert len(asked) == 2
