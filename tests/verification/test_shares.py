"""`verify --process`: each share finds what is wrong in it, and all of them together find everything."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from converter import verify
from tests.conftest import AXLEARN, Cli

NAME = "micro-hybrid-sharded"
SOURCE = AXLEARN / NAME
COUNT = 3


@pytest.fixture
def target(converted: Callable[..., Path], tmp_path: Path) -> Path:
    shutil.copytree(converted(NAME), tmp_path / "out")
    return tmp_path / "out"


def chunks(target: Path) -> list[Path]:
    return sorted(path for path in (target / "0" / "items").rglob("*") if path.is_file() and "/c/" in str(path))


@pytest.mark.parametrize("options", [{}, {"decode": True}, {"sample": 0.5}], ids=str)
def test_shares_compare_every_element_once(options: dict, target: Path) -> None:
    whole = verify(SOURCE, target, **options)
    parts = [verify(SOURCE, target, process=f"{index}/{COUNT}", **options) for index in range(COUNT)]
    assert [part.findings for part in parts] == [()] * COUNT
    assert sum(part.elements for part in parts) == whole.elements
    assert all(0 < part.elements < whole.elements for part in parts)
    assert [str(part.share) for part in parts] == [f"{index}/{COUNT}" for index in range(COUNT)]


def test_shares_of_digests(target: Path) -> None:
    whole = verify(target)
    parts = [verify(target, process=f"{index}/{COUNT}") for index in range(COUNT)]
    assert [part.findings for part in parts] == [()] * COUNT
    assert sum(part.leaves for part in parts) == whole.leaves
    assert sum(part.elements for part in parts) == whole.elements


@pytest.mark.parametrize("with_source", [True, False], ids=["source", "digests"])
def test_damage_is_found_in_its_share(with_source: bool, target: Path) -> None:
    pair = (SOURCE, target) if with_source else (target,)
    for victim in (chunks(target)[0], chunks(target)[-1]):
        before = victim.read_bytes()
        victim.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
        whole = {finding.place for finding in verify(*pair).findings}
        parts = [verify(*pair, process=f"{index}/{COUNT}") for index in range(COUNT)]
        assert {finding.place for part in parts for finding in part.findings} == whole
        assert sum(not part.ok for part in parts) == 1
        victim.write_bytes(before)


@pytest.mark.parametrize("with_source", [True, False], ids=["source", "digests"])
def test_what_is_no_chunk_is_share_0s(with_source: bool, target: Path) -> None:
    pair = (SOURCE, target) if with_source else (target,)
    text = (target / "maxtext.yml").read_text()
    (target / "maxtext.yml").write_text(text.replace("base_emb_dim: ", "base_emb_dim: 9"))
    assert [verify(*pair, process=f"{index}/{COUNT}").ok for index in range(COUNT)] == [False, True, True]


def test_exit_codes_and_combinations(target: Path, in_process: Cli) -> None:
    done = in_process("verify", SOURCE, target, "--process", "1/3")
    assert (done.code, ", share 1/3" in done.out) == (0, True)
    assert in_process("verify", target, "--process", "1/3", "--json").document["process"] == {"index": 1, "count": 3}
    victim = chunks(target)[0]
    victim.unlink()
    assert in_process("verify", SOURCE, target, "--process", "0/3").code == 6
    for arguments in (("--process", "3/3"), ("--process", "auto"), ("--process", "0/2", "--logits")):
        refused = in_process("verify", SOURCE, target, *arguments)
        assert (refused.code, "--process" in refused.err) == (2, True)
