"""Property-based tests over everything that somebody else may have written: only documented exit codes, ever.

`AX2MT_FUZZ=100 pytest tests/faults/test_fuzz.py` tries a hundred times as many cases, and other ones each time.
"""

import contextlib
import io
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from converter.arrays.opened import open_array
from converter.arrays.zarr import read_array
from converter.axes.expression import Expression, ExpressionError
from converter.cli.app import run as run_cli
from converter.errors import UsageError, VerificationError
from converter.mapping.bundled import table_path
from converter.mapping.settings import override_config
from tests.helpers.axlearn_checkpoint import STACK, envy_shapes, envy_tensors, write_checkpoint, write_metadata
from tests.helpers.refusals import DOCUMENTED

TIMES = int(os.environ.get("AX2MT_FUZZ", "0"))
ENVY = Path(table_path("envy")).read_text()
PATH = f"{STACK}/layer1/feed_forward/wi_0_weight"


def cases(count: int) -> Any:
    """So many cases in an ordinary run, always the same ones."""
    return settings(
        max_examples=count * (TIMES or 1),
        derandomize=not TIMES,
        suppress_health_check=[HealthCheck.too_slow],
        database=None,
    )


@pytest.fixture(scope="module")
def source() -> Iterator[Path]:
    """A checkpoint that has metadata only; each case changes one file of it."""
    with tempfile.TemporaryDirectory() as directory:
        yield write_metadata(Path(directory) / "step_00000100", envy_shapes({**DIMENSIONS}))


DIMENSIONS = {
    "embed": 12, "repeats": 2, "heads": 4, "kv_heads": 2, "head_dim": 6, "mlp": 20, "moe_mlp": 10, "experts": 4,
    "vocab": 24,
}  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that is whole and converts; a fault that is found in a case is the case's own."""
    return write_checkpoint(tmp_path_factory.mktemp("whole") / "step_00000100", envy_tensors(DIMENSIONS))


REACHED = 6
"""Exit code of a conversion that got as far as the commit, which takes longer than all of the rest."""


class NoCommit:
    """Stands for the process that commits; says that it was asked to."""

    peak_memory = 0

    def __init__(self, *, at_once: bool = True) -> None: ...

    def __enter__(self) -> "NoCommit":
        return self

    def __exit__(self, *_: object) -> None: ...

    def check(self) -> None: ...

    def commit(self, _: object) -> None:
        raise VerificationError("everything is ready to be committed")


def converts_as_far_as(source: Path, *arguments: object) -> tuple[int, str]:
    """Runs `convert` up to the commit; exit code and message."""
    target = source.parent / "out"
    err = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(err):
        patch.setattr("converter.checkpoints.Committer", NoCommit)
        code = run_cli([*map(str, ("convert", "-q", source, target, *arguments))])
    assert code in DOCUMENTED, err.getvalue()
    assert "Traceback" not in err.getvalue()
    assert not target.exists()
    for left in source.parent.glob("out*"):
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    assert (code == REACHED) == ("everything is ready to be committed" in err.getvalue())
    return code, err.getvalue()


def documented(*arguments: object) -> int:
    """Runs a command in this process; its exit code, which must be one of the documented ones."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_cli([*map(str, arguments)])
    assert code in DOCUMENTED, err.getvalue()
    assert "Traceback" not in err.getvalue()
    assert (code == 0) == (not err.getvalue()) or "--json" in arguments
    return code


@contextlib.contextmanager
def changed(file: Path, data: bytes) -> Iterator[None]:
    before = file.read_bytes()
    file.write_bytes(data)
    try:
        yield
    finally:
        file.write_bytes(before)


numbers = st.one_of(
    st.integers(-3, 40), st.sampled_from([0, -1, 2**31, 2**40, 2**62, 2**63, 2**64, 10**30]), st.floats(), st.booleans()
)
texts = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["(2, 4)", "(2,)", "()", "(2, 4, 12, 10)", "float32", "<f4", "bfloat16"]),
    st.sampled_from([PATH, f"{PATH}/x", "../x", "/x", "a//b"]),
)
json_values = st.recursive(
    st.one_of(st.none(), numbers, texts),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=12,
)
entries = st.one_of(
    st.tuples(texts, st.fixed_dictionaries({"dtype": texts, "shape": texts})).map(list),
    st.tuples(texts, json_values).map(list),
    json_values,
)


@cases(200)
@given(data=st.binary(max_size=60))
def test_index_bytes(source: Path, data: bytes) -> None:
    with changed(source / "index", data):
        assert documented("plan", source, "--metadata-only") == 3


@cases(200)
@given(content=json_values)
def test_index_json(source: Path, content: Any) -> None:
    with changed(source / "index", json.dumps(content).encode()):
        assert documented("plan", source, "--metadata-only") in (3, 4)


@cases(200)
@given(data=st.data())
def test_index_with_changed_entries(source: Path, data: st.DataObject) -> None:
    index = json.loads((source / "index").read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        where = data.draw(st.integers(0, len(index) - 1))
        change = data.draw(st.sampled_from(["insert", "replace", "remove", "field"]))
        if change == "insert":
            index.insert(where, data.draw(entries))
        elif change == "replace":
            index[where] = data.draw(entries)
        elif change == "remove":
            del index[where]
        elif isinstance(index[where], list) and len(index[where]) == 2 and isinstance(index[where][1], dict):
            index[where][1][data.draw(st.sampled_from(["shape", "dtype", "x"]))] = data.draw(json_values)
    with changed(source / "index", json.dumps(index).encode()):
        documented("plan", source, "--metadata-only")


FIELDS = [
    "zarr_format",
    "shape",
    "chunks",
    "dtype",
    "compressor",
    "order",
    "filters",
    "dimension_separator",
    "fill_value",
]


@cases(300)
@given(
    changes=st.dictionaries(st.sampled_from(FIELDS), json_values, min_size=1, max_size=3),
    removed=st.lists(st.sampled_from(FIELDS), max_size=2),
    flags=st.sampled_from([(), ("--rewrite",), ("--store", "zarr2"), ("--untie", "--max-memory", "40MiB")]),
)
def test_array_metadata(whole: Path, changes: dict[str, Any], removed: list[str], flags: tuple[str, ...]) -> None:
    place = whole / "gda" / PATH
    content = {**json.loads((place / ".zarray").read_bytes()), **changes}
    content = {key: value for key, value in content.items() if key not in removed}
    with changed(place / ".zarray", json.dumps(content).encode()):
        code = documented("plan", whole, *flags)
        assert code in (0, 3)
        if code == 0:
            assert stored_shape(place) == envy_shapes(DIMENSIONS)[PATH]


def stored_shape(place: Path) -> tuple[int, ...]:
    """The shape of an array as TensorStore opens it, which is how `verify` reads it."""
    return tuple(open_array(read_array(PATH, str(place))).store.shape)


LEVELS = st.one_of(st.integers(-140_000, 30), json_values)


@cases(40)
@given(
    compressor=st.fixed_dictionaries(
        {"id": st.sampled_from(["zstd", "zstd", "blosc", "zlib", "ZSTD", "x"])},
        optional={"level": LEVELS, "cname": texts, "clevel": numbers, "checksum": json_values, "x": json_values},
    ),
    order=st.sampled_from(["C", "C", "F"]),
)
def test_compressors(whole: Path, compressor: dict[str, Any], order: str) -> None:
    place = whole / "gda" / PATH
    content = {**json.loads((place / ".zarray").read_bytes()), "compressor": compressor, "order": order}
    with changed(place / ".zarray", json.dumps(content).encode()):
        code, message = converts_as_far_as(whole)
        if code == REACHED:  # then it was zstd, whatever the settings, and `verify` can read it too
            assert compressor["id"] == "zstd"
            assert stored_shape(place) == envy_shapes(DIMENSIONS)[PATH]
            return
    assert code == 3
    assert PATH in message
    assert re.search("compressor|level is|chunk 0.0.0.0|a chunk cannot be read", message)


@cases(150)
@given(data=st.data())
def test_mapping_text(source: Path, data: st.DataObject) -> None:
    lines = ENVY.splitlines()
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(lines) - 1))
        change = data.draw(st.sampled_from(["remove", "repeat", "cut", "insert", "swap", "value"]))
        other = data.draw(st.integers(0, len(lines) - 1))
        if change == "remove":
            del lines[at]
        elif change == "repeat":
            lines.insert(other, lines[at])
        elif change == "cut":
            lines[at] = lines[at][: data.draw(st.integers(0, 40))]
        elif change == "insert":
            lines[at] += data.draw(st.text(max_size=8))
        elif change == "swap":
            lines[at], lines[other] = lines[other], lines[at]
        else:
            value = data.draw(
                st.sampled_from(["1", "-1", "[]", "{}", '""', "true", "1.5", "inf", "1979-01-01", '["a"]'])
            )
            lines[at] = lines[at].split("=")[0] + "= " + value
        if not lines:
            return
    table = source.parent / "table.toml"
    table.write_text("\n".join(lines), encoding="utf-8", errors="replace")
    documented("plan", source, "--metadata-only", "--mapping", table)
    documented("plan", source, "--metadata-only", "--mapping", table, "--untie", "--json")


@cases(200)
@given(data=st.one_of(st.binary(max_size=60), st.text(max_size=60).map(lambda text: text.encode(errors="replace"))))
def test_mapping_bytes(source: Path, data: bytes) -> None:
    table = source.parent / "table.toml"
    table.write_bytes(data)
    assert documented("mappings", "check", table) == 4


TOKENS = ["a", "b", "c", "2", "1", "0", "(", ")", "+", "|", "->", " ", "_x"]


@cases(1500)
@given(text=st.one_of(st.text(max_size=30), st.lists(st.sampled_from(TOKENS), max_size=16).map(" ".join)))
def test_expressions(text: str) -> None:
    try:
        expression = Expression.parse(text)
    except ExpressionError as error:
        position = error.position
    else:
        assert Expression.parse(str(expression)) == expression
        assert expression.inverse().inverse() == expression
        return
    assert 0 <= position <= len(text)


KEYS = ["num_experts", "rms_norm_epsilon", "base_emb_dim", "scan_layers", "dtype"]
VALUES = st.one_of(texts, st.text("0123456789.+-_eInfa", max_size=9))


CONFIG_KEYS = ["num_experts", "normalization_layer_epsilon", "base_emb_dim", "scan_layers", "decoder_block"]


@cases(150)
@given(setting=st.one_of(st.text(max_size=12), st.tuples(st.sampled_from(CONFIG_KEYS), VALUES).map("=".join)))
def test_settings(whole: Path, setting: str) -> None:
    code, message = converts_as_far_as(whole, f"--set={setting}")
    if code != REACHED:
        assert code == 2
        assert message.startswith("ax2mt: --set ")


@cases(600)
@given(settings=st.lists(st.tuples(st.sampled_from([*KEYS, "x"]), VALUES).map("=".join), max_size=3))
def test_setting_values(settings: list[str]) -> None:
    config = {"num_experts": 4, "rms_norm_epsilon": 1e-6, "base_emb_dim": 12, "scan_layers": True, "dtype": "bfloat16"}
    with contextlib.suppress(UsageError):
        changed = override_config(config, settings)
        assert {key: type(value) for key, value in changed.items()} == {k: type(v) for k, v in config.items()}
        json.dumps(changed, allow_nan=False)


ARGUMENTS: list[tuple[int, tuple[str, ...]]] = [
    (REACHED, ("--step", "100")), (REACHED, ("--jobs", "1")), (REACHED, ("--store", "ocdbt")), (REACHED, ("--untie",)),
    (REACHED, ("--rewrite",)), (REACHED, ("--max-memory", "1GiB")), (3, ("--step", "7")), (2, ("--step", "-1")),
    (2, ("--jobs", "0")), (2, ("--max-memory", "1")), (2, ("--max-memory", "9" * 30 + "T")), (2, ("--max-memory", "x")),
    (2, ("--store", "x")), (2, ("--set", "a=b")), (2, ("--set", "")), (4, ("--mapping", "/dev/null")), (2, ("x",)),
    (2, ("--nothing",)), (2, ("--qk-norm", "x")), (2, ("--step",)),
]  # fmt: skip
"""Exit codes of `convert` with one argument each."""


@pytest.mark.parametrize(("code", "argument"), ARGUMENTS)
def test_arguments(code: int, argument: tuple[str, ...], whole: Path) -> None:
    assert converts_as_far_as(whole, *argument)[0] == code


@cases(150)
@given(chosen=st.lists(st.sampled_from(ARGUMENTS), max_size=4, unique_by=lambda entry: entry[1][0]))
def test_command_lines(whole: Path, chosen: list[tuple[int, tuple[str, ...]]]) -> None:
    found, _ = converts_as_far_as(whole, *(word for _, argument in chosen for word in argument))
    faults = {code for code, _ in chosen if code != REACHED}
    # "--step" alone takes what follows it for its number.
    assert found in (faults or {REACHED}) or ("--step",) in [argument for _, argument in chosen]
