"""`--process` beside each other option of `convert`: the bits of one process, or a refusal in one line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from converter import convert, verify
from converter.arguments import arguments
from tests.conftest import AXLEARN, DATA, Cli
from tests.conversion.test_shares import Place
from tests.helpers.axlearn_checkpoint import dimensions, envy_tensors, write_checkpoint

SHARDED = AXLEARN / "micro-hybrid-sharded"
STATE = DATA / "training" / "micro-envy" / "axlearn"

SHARED: dict[str, tuple[Path, dict[str, Any]]] = {
    "unscanned, cast, compressed": (SHARDED, {"layout": "unscanned", "dtype": "bfloat16", "compress": "zstd"}),
    "untied, interleaved": (SHARDED, {"untie": True, "rope": "interleaved", "jobs": 1}),
    "untied by its option, every chunk rewritten": (
        SHARDED,
        {"option": ["untie"], "rewrite": True, "compress": "none", "set": {"load_balance_loss_weight": 0.5}},
    ),
    "linked": (SHARDED, {"link": True, "check": True}),
    "a database": (SHARDED, {"store": "ocdbt", "step": 100, "mapping": "envy", "max_memory": "16MiB"}),
    "fitted scales": (AXLEARN / "micro-honeycrisp-qkproduct", {"qk_norm": "fit", "require_exact": True}),
    "moving average": (AXLEARN / "envy-test-ema", {"tree": "ema"}),
    "training state": (STATE, {"state": True, "optimizer": "adam_pax", "force": True, "untie": True}),
}

REFUSED = {
    "overwrite": ("--overwrite",),
    "fresh": ("--fresh",),
    "store": ("--store", "zarr2"),
}

OTHERS = (
    ("--layout", "unscanned"),
    ("--dtype", "bfloat16"),
    ("--store", "ocdbt"),
    ("--compress", "none"),
    ("--untie",),
    ("--rope", "interleaved"),
    ("--rewrite",),
    ("--link",),
    ("--set", "load_balance_loss_weight=0.5"),
)
"""What makes another conversion of it."""


def test_each_option_has_a_case() -> None:
    options = {one.name for one in arguments(convert)} - {"source", "destination", "process", "progress"}
    assert options == {name for _, chosen in SHARED.values() for name in chosen} | REFUSED.keys()


@pytest.mark.parametrize("case", SHARED)
def test_the_bits_of_one_process(case: str, tmp_path: Path, nearby: Callable[[Path], Path]) -> None:
    golden, options = SHARED[case]
    source = nearby(golden)
    alone, shared = (Place(str(source), str(tmp_path / name)) for name in ("alone", "shared"))
    convert(source, alone.target, **options)
    assert not convert(source, shared.target, process="1/2", **options).finished
    # How many threads a process has is its own matter.
    more_threads: dict[str, Any] = {**options, "jobs": 3}
    assert convert(source, shared.target, process="0/2", **more_threads).finished
    step = next(path.name for path in Path(alone.target).iterdir() if path.is_dir())
    expected, found = (
        {**place.chunks(place.target, step), "maxtext.yml": place.tree(place.target)["maxtext.yml"]}
        for place in (alone, shared)
    )
    assert len(expected) > 5
    assert found == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alone", "shared"]
    assert (tmp_path / "shared" / step / "items" / "_METADATA").is_file()
    assert verify(shared.target).ok


@pytest.mark.parametrize("option", REFUSED)
def test_what_cannot_be_shared_is_refused(option: str, in_process: Cli, tmp_path: Path) -> None:
    refused = in_process("convert", SHARDED, tmp_path / "out", "--process", "0/2", *REFUSED[option])
    assert (refused.code, len(refused.err.splitlines())) == (2, 1)
    assert f"--process 0/2 and {' '.join(REFUSED[option])}" in refused.err
    assert list(tmp_path.iterdir()) == []


def test_all_processes_have_the_same_options(in_process: Cli, tmp_path: Path) -> None:
    target = tmp_path / "out"
    convert(SHARDED, target, process="0/2")
    for options in OTHERS:
        other = in_process("convert", SHARDED, target, "--process", "1/2", *options)
        assert (other.code, "holds another conversion" in other.err) == (5, True), options
    assert convert(SHARDED, target, process="1/2").finished


@pytest.mark.parametrize(
    ("chunk", "reason"),
    [((2, 512, 32, 64), "chunks of the leaves: then"), ((1, 64, 32, 64), "made with other units of work")],
    ids=["other chunks", "other units"],
)
def test_all_processes_have_the_same_memory(
    chunk: tuple[int, ...], reason: str, in_process: Cli, tmp_path: Path
) -> None:
    """It shapes chunks where the source's are large, and how many of them are read at once where they are small."""
    tensors = envy_tensors(dimensions(512, 2, 16, 8, 64, 8, 8, 2, 8))
    joint = [path for path in tensors if path.endswith("qkv_proj/weight")]
    source = write_checkpoint(tmp_path / "step_00000100", tensors, chunks=dict.fromkeys(joint, chunk))
    target = tmp_path / "out"
    convert(source, target, process="0/2")
    other = in_process("convert", source, target, "--process", "1/2", "--max-memory", "20MiB")
    assert (other.code, reason in other.err) == (5, True), other.err


def test_how_much_is_said(in_process: Cli, tmp_path: Path) -> None:
    quiet, loud = (
        in_process("convert", SHARDED, tmp_path / "out", "--process", f"{index}/2", option)
        for index, option in enumerate(("-q", "-v"))
    )
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")
    assert (loud.code, loud.out.startswith(f"{SHARDED}")) == (0, True), loud.err


def test_weights_that_are_not_exact_stop_each_process(in_process: Cli, tmp_path: Path) -> None:
    source = AXLEARN / "micro-honeycrisp-qkproduct"
    for index in range(2):
        done = in_process("convert", source, tmp_path / "out", "--process", f"{index}/2", "--require-exact")
        assert (done.code, "--qk-norm fit makes it exact" in done.err) == (7, True)
    assert list(tmp_path.iterdir()) == []
