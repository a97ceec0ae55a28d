"""Checkpoints and tables made to harm: nothing is written elsewhere, no code run, memory stays bounded."""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from converter.mapping.bundled import table_path
from converter.mapping.path_glob import matches
from tests.conftest import AXLEARN
from tests.helpers.axlearn_checkpoint import SMALL, STACK, envy_shapes, envy_tensors, write_checkpoint, write_metadata
from tests.helpers.refusals import nothing_left, nothing_published

EXPERTS = f"{STACK}/layer1/feed_forward/wi_0_weight"
QKV = f"{STACK}/layer0/self_attention/attention/i_proj/i_proj/qkv_proj/weight"
SCALE = f"{STACK}/layer0/self_attention/attention/scale_query/norm/scale"
EMBEDDING = "model/decoder/emb/token_emb/weight"
STEP = "step_00000100"
ENVY = Path(table_path("envy")).read_text()

MAX_RESIDENT = 400 << 20
"""Bytes. A small conversion takes 200 MiB, nearly all of it the libraries."""

TIMEOUT = 600
"""Seconds; each of these takes one or two on an idle machine, and would take hours if it were unbounded."""


def measured(*arguments: object) -> tuple[int, str, int]:
    """Runs a command in a process; exit code, stderr, and the largest resident set in bytes."""
    # On Linux ru_maxrss starts with the parent's figure; VmHWM is the process's own.
    script = (
        "import os, re, resource, sys; from converter.cli.app import run; code = run(sys.argv[1:]); "
        "status = open('/proc/self/status').read() if os.path.exists('/proc/self/status') else ''; "
        "own = re.search(r'VmHWM:\\s*(\\d+)', status); "
        "peak = int(own[1]) * 1024 if own else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; "
        "print(peak, file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True, text=True, check=False, timeout=TIMEOUT,
    )  # fmt: skip
    *message, peak = done.stderr.splitlines()
    return done.returncode, "\n".join(message), int(peak)


def harmless(code: int, *arguments: object) -> str:
    """Runs a command that must be refused in bounded memory; returns its message."""
    found, message, peak = measured(*arguments)
    assert found == code, message[-2000:]
    assert "Traceback" not in message
    assert peak < MAX_RESIDENT
    assert len(message) < 20_000
    return message


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / STEP, envy_tensors())


def with_index(source: Path, text: str) -> None:
    (source / "index").write_text(text)


def added(source: Path, *entries: Any) -> str:
    return json.dumps([*json.loads((source / "index").read_text()), *entries])


ENTRY = {"dtype": "float32", "shape": "(2, 2)"}

INDEXES: dict[str, tuple[Callable[[Path], str], str]] = {
    "nested lists": (lambda _: "[" * 5_000_000, "not valid JSON"),
    "nested objects": (lambda _: '{"a":' * 2_000_000, "not valid JSON"),
    "nested value": (lambda _: '[["a",' + "[" * 400 + "]" * 400 + "], 1]", "pairs of a path and a value, found 1"),
    "many numbers": (lambda _: "[" + "1," * 7_000_000 + "1]", "pairs of a path and a value, found 1"),
    "one number": (lambda _: "1" * 10_000_000, "not valid JSON"),
    "too large": (lambda _: " " * (17 << 20), "larger than 16 MiB"),
    "a long shape": (
        lambda s: added(s, ["x", {"dtype": "float32", "shape": "(1" + " " * 5_000_000 + "x"}]),
        "x: expected a shape like",
    ),
    "a long dtype": (lambda s: added(s, ["x", {"dtype": "f" * 10_000_000, "shape": "()"}]), "x: unknown dtype"),
    "a deep path": (lambda s: added(s, ["x/" * 4_000_000 + "x", ENTRY]), "is too long"),
    "a shape of code": (
        lambda s: added(s, ["x", {"dtype": "float32", "shape": "(open('x','w'),)"}]),
        "x: expected a shape like",
    ),
}


@pytest.mark.parametrize("index", INDEXES)
def test_indexes(index: str, source: Path, tmp_path: Path) -> None:
    make, expected = INDEXES[index]
    with_index(source, make(source))
    assert expected in harmless(3, "convert", "-q", source, tmp_path / "out")
    nothing_published(tmp_path, STEP)


MANY: dict[str, Callable[[int], str]] = {
    "strangers": lambda n: f"model/decoder/emb/token_emb/weigh{n}",
    "layers": lambda n: f"{STACK}/layer{n % 5_000}/t{n}",
    "deep": lambda n: f"{n}/" + "/".join("d" * 60),
}


@pytest.mark.parametrize("kind", MANY)
def test_tens_of_thousands_of_tensors(kind: str, source: Path, tmp_path: Path) -> None:
    with_index(source, added(source, *([MANY[kind](n), ENTRY] for n in range(30_000))))
    found, message, peak = measured("convert", "-q", source, tmp_path / "out")
    assert found == 4
    assert peak < MAX_RESIDENT
    assert len(message) < 20_000
    assert "no mapping fits" in message
    assert any("more" in line for line in message.splitlines()[-2:])


ZARRAYS: dict[str, tuple[str, str]] = {
    "nested": ("[" * 1_000_000, "not valid JSON"),
    "many dimensions": (
        json.dumps({"zarr_format": 2, "shape": [1] * 100_000, "chunks": [1] * 100_000, "dtype": "<f4"}),
        "100000 dimensions, expected 32 at most",
    ),
    "large numbers": (
        '{"zarr_format": 2, "shape": [' + "9" * 4000 + '], "chunks": [1], "dtype": "<f4"}',
        "expected lists of positive numbers",
    ),
    "nested dtype": (
        '{"zarr_format": 2, "shape": [1], "chunks": [1], "dtype": ' + "[" * 450 + "]" * 450 + "}",
        "unknown dtype",
    ),
    "too large": (" " * (2 << 20), "larger than 1 MiB"),
}


@pytest.mark.parametrize("kind", ZARRAYS)
def test_array_metadata(kind: str, source: Path, tmp_path: Path) -> None:
    text, expected = ZARRAYS[kind]
    (source / "gda" / EXPERTS / ".zarray").write_text(text)
    message = harmless(3, "convert", "-q", source, tmp_path / "out")
    assert EXPERTS in message
    assert expected in message
    nothing_published(tmp_path, STEP)


@pytest.mark.parametrize("chunk", [1, 1 << 20, 1 << 40])
@pytest.mark.parametrize("command", ["convert", "plan"])
def test_a_shape_without_data(command: str, chunk: int, tmp_path: Path) -> None:
    shapes = envy_shapes({**SMALL, "vocab": 1 << 40})
    source = write_metadata(tmp_path / STEP, shapes, chunks={EMBEDDING: (chunk, 12)})
    target = [tmp_path / "out"] if command == "convert" else []
    message = harmless(3, command, source, *target)
    assert "missing" in message
    nothing_published(tmp_path, STEP)


@pytest.mark.parametrize("chunk", [1, 1 << 20, 1 << 40])
@pytest.mark.parametrize("route", [(), ("--rewrite",)], ids=["pass", "rewrite"])
def test_a_plan_of_a_shape_without_data(route: tuple[str, ...], chunk: int, tmp_path: Path) -> None:
    shapes = envy_shapes({**SMALL, "vocab": 1 << 40})
    source = write_metadata(tmp_path / STEP, shapes, chunks={EMBEDDING: (chunk, 12)})
    code, message, peak = measured("plan", "--metadata-only", source, *route)
    assert code == 0, message
    assert peak < MAX_RESIDENT


@functools.cache
def bomb(size: int, content_size: bool) -> bytes:
    """A frame of some kilobytes that expands to `size` zeros."""
    compressor = zstandard.ZstdCompressor(level=1, write_content_size=content_size).compressobj(
        size=size if content_size else -1
    )
    zeros = bytes(1 << 20)
    return b"".join([*(compressor.compress(zeros) for _ in range(size >> 20)), compressor.flush()])


LARGE = {**SMALL, "embed": 128, "moe_mlp": 512, "head_dim": 2048}


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with chunks of some megabytes; shared, so that tests change links to it."""
    return write_checkpoint(tmp_path_factory.mktemp("large") / STEP, envy_tensors(LARGE))


def linked(source: Path, target: Path) -> Path:
    """A copy of a checkpoint that shares its files: one is changed by putting another in its place."""
    return Path(shutil.copytree(source, target, copy_function=os.link))


@pytest.mark.parametrize(
    ("path", "content_size", "option"),
    [
        (EXPERTS, True, "--check"), (EXPERTS, False, "--link"), (EXPERTS, True, ""), (QKV, False, "--check"),
        (QKV, True, "--link"), (QKV, False, ""), (SCALE, True, "--check"), (SCALE, False, ""),
    ],
)  # fmt: skip
def test_a_chunk_that_expands_past_its_size(
    path: str, content_size: bool, option: str, large: Path, tmp_path: Path
) -> None:
    source = linked(large, tmp_path / STEP)
    key = ".".join("0" * len(envy_shapes(LARGE)[path]))
    file = source / "gda" / path / key
    size = file.stat().st_size
    file.unlink()
    file.write_bytes(bomb(1 << 30, content_size)[: size * 2])
    message = harmless(3, "convert", "-q", source, tmp_path / "out", *option.split(), "--max-memory", "64MiB")
    assert f"{path}: chunk {key}" in message
    nothing_published(tmp_path, STEP)


@pytest.mark.parametrize("compressor", ["zstd", "zlib", "bz2"])
def test_a_chunk_of_another_compressor_that_expands(compressor: str, tmp_path: Path) -> None:
    """Element order F and other compressors are TensorStore's work; it decodes a whole chunk before it looks."""
    import bz2
    import zlib

    dims = {**SMALL, "embed": 128, "moe_mlp": 512}
    source = write_checkpoint(tmp_path / STEP, envy_tensors(dims))
    place = source / "gda" / EXPERTS
    content = json.loads((place / ".zarray").read_text())
    content["order"] = "F"
    content["compressor"] = {"id": compressor, "level": 1}
    (place / ".zarray").write_text(json.dumps(content))
    zeros = bytes(512 << 20)  # more than the limit, decoded
    pack = {"zlib": zlib.compress, "bz2": bz2.compress, "zstd": lambda d: bomb(len(d), True)}
    (place / "0.0.0.0").write_bytes(pack[compressor](zeros)[: 2 << 20])
    message = harmless(3, "convert", "-q", source, tmp_path / "out")
    assert EXPERTS in message
    nothing_published(tmp_path, STEP)


def test_sparse_files_that_claim_much(source: Path, tmp_path: Path) -> None:
    file = source / "gda" / EXPERTS / "0.0.0.0"
    os.truncate(file, 1 << 40)
    assert "more than" in harmless(3, "convert", "-q", source, tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "expected"), [(".zarray", "is not a regular file"), ("0.0.0.0", "chunk 0.0.0.0: not a regular file")]
)
def test_endless_files(name: str, expected: str, source: Path, tmp_path: Path) -> None:
    file = source / "gda" / EXPERTS / name
    file.unlink()
    file.symlink_to("/dev/zero")
    assert expected in harmless(3, "convert", "-q", source, tmp_path / "out")


MAPPINGS: dict[str, str] = {
    "nested arrays": "x = " + "[" * 100_000,
    "nested tables": "[" + "a." * 20_000 + "a]",
    "a long expression": ENVY.replace("vocab embed -> vocab embed", "a " * 200_000 + "-> a", 1),
    "a deep expression": ENVY.replace("vocab embed -> vocab embed", "(" * 200_000, 1),
    "large sizes": ENVY.replace("vocab embed -> vocab embed", "vocab embed (999999999 " + "9 " * 400 + ") -> vocab", 1),
    "spaces": ENVY.replace('group = "embedding"', 'note = """\n[' + " " * 500_000 + '\n"""\nwhat = 1', 1),
    "many rows": ENVY + "\n[[tensor]]\naxlearn = 'a'\nmaxtext = 'b'\naxes = 'x -> x'\nwhen = 'y'\n" * 12_000,
    "many kinds": ENVY + "\n[[choice]]\nname = 'c'\n" + "".join(f"k{n} = 'x'\n" for n in range(50_000)),
    "a large number": ENVY.replace("[config]", "[config]\nn = " + "9" * 5000, 1),
}


@pytest.mark.parametrize("kind", MAPPINGS)
def test_tables(kind: str, tmp_path: Path) -> None:
    table = tmp_path / "table.toml"
    table.write_text(MAPPINGS[kind])
    found, message, peak = measured("convert", "-q", AXLEARN / "envy-test", tmp_path / "out", "--mapping", table)
    assert found == 4, message[-2000:]
    expected = "mapping 'envy' does not fit the checkpoint" if kind == "many kinds" else f"mapping file {table} "
    assert message.startswith(f"ax2mt: {expected}")
    assert "Traceback" not in message
    assert peak < MAX_RESIDENT
    nothing_left(tmp_path, "table.toml")


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("learner/**", "learner/a/b", True),
        ("learner/**", "learner", False),
        ("**", "a/b", True),
        ("**/scale", "a/b/scale", True),
        ("**/scale", "scale", False),
        ("a/**/c", "a/b/b/c", True),
        ("a/**/c", "a/c", False),
        ("a/*/c", "a/b/c", True),
        ("a/*/c", "a/b/b/c", False),
        ("prng*", "prng_key", True),
        ("p*k*y", "prng_key", True),
        ("p*k*z", "prng_key", False),
        ("a.c", "abc", False),
        ("(a+)+$", "aaaa", False),
    ],
)
def test_drop_patterns(pattern: str, path: str, expected: bool) -> None:
    assert matches(pattern, path) is expected


def test_drop_patterns_take_no_exponential_time(source: Path, tmp_path: Path) -> None:
    with_index(source, added(source, ["/".join("a" * 200), ENTRY]))
    table = tmp_path / "table.toml"
    assert 'axlearn = "learner/optimizer/**"' in ENVY
    table.write_text(ENVY.replace('axlearn = "learner/optimizer/**"', f'axlearn = "{"**/a/" * 60}b"', 1))
    message = harmless(4, "convert", "-q", source, tmp_path / "out", "--mapping", table)
    assert "no rule for the checkpoint's a/a/a" in message
    assert not matches("*a" * 100 + "b", "a" * 1000)


@pytest.mark.parametrize(
    "setting",
    [
        "num_experts=!!python/object/apply:os.system [id]", "num_experts=nan", "num_experts=inf", "num_experts=1e400",
        "num_experts=1.5", "num_experts=", "num_experts", "=1", "num_experts=2024-01-01", "num_experts=-",
        "num_experts=1\nbase_config: evil.yml", "__class__=1", "{0.__class__}=1", "base_config=evil.yml",
    ],
)  # fmt: skip
def test_settings(setting: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.helpers.refusals import refused

    message = refused(capsys, 2, AXLEARN / "envy-test", tmp_path / "out", "--set", setting)
    assert message.startswith("ax2mt: --set ")
    nothing_left(tmp_path)


def test_texts_of_a_table_stay_texts(tmp_path: Path) -> None:
    """What a table says ends up quoted in maxtext.yml, and is data to everything that reads it."""
    import yaml

    table = tmp_path / "table.toml"
    evil = "x\\nbase_config: evil.yml\\n!!python/object/apply:os.system [id]"
    table.write_text(ENVY.replace("[config]", f'[config]\nnote = "{evil}"', 1).replace('"envy"', '"a\\nb: c"', 1))
    code, message, _ = measured("convert", "-q", AXLEARN / "envy-test", tmp_path / "out", "--mapping", table)
    assert code == 0, message
    config = yaml.safe_load((tmp_path / "out" / "maxtext.yml").read_text())
    assert config["base_config"] == "base.yml"
    assert config["note"].startswith("x\nbase_config")
    assert not any(re.match(r"b: c", line) for line in (tmp_path / "out" / "maxtext.yml").read_text().splitlines())


def test_bomb_is_a_bomb() -> None:
    data = bomb(8 << 20, True)
    assert len(data) < 1 << 16
    assert np.count_nonzero(np.frombuffer(zstandard.ZstdDecompressor().decompress(data), np.uint8)) == 0
