"""Faults of a mapping through the command line: exit code 4, file, line, expression and caret, nearest names."""

from pathlib import Path

import pytest

from converter.cli.app import run as run_cli
from converter.mapping.bundled import table_path
from tests.conftest import AXLEARN, Cli
from tests.helpers.refusals import nothing_left, refused

ENVY = Path(table_path("envy")).read_text()
SOURCE = AXLEARN / "micro-hybrid"


def line_of(text: str, part: str) -> int:
    return text[: text.index(part)].count("\n") + 1


def replaced(old: str, new: str) -> str:
    """The bundled table with its first `old` changed."""
    assert old in ENVY
    return ENVY.replace(old, new, 1)


EMBEDDING_AXES = 'axes = "vocab embed -> vocab embed"'
EMBEDDING = 'axlearn = "decoder/emb/token_emb/weight"\nmaxtext = "token_embedder/embedding"'

FILE_FAULTS: dict[str, tuple[str, str, str]] = {
    "TOML syntax": ('name = "envy"', "name = envy", "is not valid TOML: Invalid value (at line"),
    "unknown key": ('group = "embedding"', 'gruop = "embedding"', "'gruop' in [tensor]; did you mean 'group'?"),
    "no parse": (EMBEDDING_AXES, 'axes = "vocab (embed -> vocab embed"', "    vocab (embed -> vocab embed\n"),
    "axis twice": (EMBEDDING_AXES, 'axes = "vocab vocab -> vocab vocab"', "axis vocab is used twice in one tensor"),
    "axis on one side": (EMBEDDING_AXES, 'axes = "vocab embed -> vocab d"', "embed (only on the left), d (only"),
    "character": (EMBEDDING_AXES, 'axes = "vocab % -> vocab"', "unexpected character '%'"),
    "unknown kind": ('when = "dense"', 'when = "dens"', "unknown kind 'dens'; did you mean 'dense'?"),
    "absolute target": ("token_embedder/embedding", "/etc/passwd", "'/etc/passwd' is not a path"),
    "target above": ("token_embedder/embedding", "../../x", "'../../x' is not a path"),
    "the work area": ("token_embedder/embedding", "..", "'..' is not a path"),
    "backslash": ("token_embedder/embedding", "..\\\\x", "is not a path"),
    "dot in a name": ("token_embedder/embedding", "token_embedder.embedding", "r.embedding' is not a path"),
    "control character": ("token_embedder/embedding", "token\\u001b", "is not a path"),
    "format field": ("token_embedder/embedding", "{0.__class__}", "is not a path"),
    "other field": ("token_embedder/embedding", "{x}", "no other field can stand in them"),
    "prefix above": ('prefix = "params/params"', 'prefix = "../params"', "'../params' is not a path"),
    "layout above": ("decoder/layers/layers_{block}", "../layers_{block}", "is not a path"),
    "layout field": ("decoder/layers/layers_{block}", "layers_{block.real}", "is not a path"),
    "a date as constant": ("[config]", "[config]\nday = 2024-01-01", "day must be a number, a text"),
    "infinity as constant": ("[config]", "[config]\nrate = inf", "rate must be a number, a text"),
    "nested constant": ("[config]", "[config]\nlist = [[1]]", "list must be a number, a text"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FILE_FAULTS)
def test_faults_of_the_file(fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new, expected = FILE_FAULTS[fault]
    table = tmp_path / "mine.toml"
    table.write_text(replaced(old, new))
    message = refused(capsys, 4, SOURCE, tmp_path / "out", "--mapping", table)
    assert message.startswith(f"ax2mt: mapping file {table} ")
    assert expected in message
    if fault not in ("TOML syntax", "prefix above", "layout above", "layout field", "nested constant"):
        assert f"{table}:" in message
    nothing_left(tmp_path, "mine.toml")
    assert run_cli(["mappings", "check", str(table)]) == 4


def test_file_line_expression_and_caret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "mine.toml"
    text = replaced(EMBEDDING_AXES, 'axes = "vocab (embed -> vocab embed"')
    table.write_text(text)
    lines = refused(capsys, 4, SOURCE, tmp_path / "out", "--mapping", table).splitlines()
    assert (
        lines[1] == f"  {table}:{line_of(text, 'vocab (embed')}: axes of token_embedder/embedding: ')' is expected here"
    )
    assert lines[2:] == ["      vocab (embed -> vocab embed", "                   ^"]


FIT_FAULTS: dict[str, tuple[str, str, str]] = {
    "contradicting sizes": (EMBEDDING_AXES, 'axes = "embed vocab -> embed vocab"', "which does not fit"),
    "other rank": (  # without its role, whose rank is checked when the file is read
        f'role = "embedding"\n{EMBEDDING_AXES}', 'axes = "vocab embed x -> vocab embed x"',
        "has 2 dimensions, the mapping's",
    ),
    "source missing": ("token_emb/weight", "token_embb/weight", "(nearest: model/decoder/emb/token_emb/weight)"),
    "source unmatched": (
        'axlearn = "decoder/output_norm/scale"', 'axlearn = "decoder/output_nrom/scale"',
        "no row for the checkpoint's model/decoder/output_norm/scale (nearest: model/decoder/output_nrom/scale)",
    ),
    "leaf in a leaf": ("token_embedder/embedding", "decoder/decoder_norm/scale/x", "is inside the target"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FIT_FAULTS)
def test_tables_that_do_not_fit(fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new, expected = FIT_FAULTS[fault]
    table = tmp_path / "mine.toml"
    table.write_text(replaced(old, new))
    message = refused(capsys, 4, SOURCE, tmp_path / "out", "--mapping", table)
    assert message.startswith("ax2mt: mapping 'envy' does not fit the checkpoint\n")
    assert expected in message
    nothing_left(tmp_path, "mine.toml")


def test_a_target_produced_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "mine.toml"
    text = replaced('maxtext = "token_embedder/embedding"', 'maxtext = "decoder/decoder_norm/scale"')
    table.write_text(text)
    message = refused(capsys, 4, SOURCE, tmp_path / "out", "--mapping", table)
    first = line_of(text, "[[tensor]]")
    assert f"target decoder/decoder_norm/scale is also produced by line {first}" in message
    nothing_left(tmp_path, "mine.toml")


def test_a_source_consumed_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "mine.toml"
    table.write_text(f"{ENVY}\n[[tensor]]\n{EMBEDDING.replace('embedding', 'other')}\n{EMBEDDING_AXES}\n")
    message = refused(capsys, 4, SOURCE, tmp_path / "out", "--mapping", table)
    assert "consumed 2 times: model/decoder/emb/token_emb/weight" in message


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('role = "query_scale"', 'role = "query_scal"', "unknown role 'query_scal'; did you mean 'query_scale'?"),
        ('role = "query_scale"', 'role = ["query_scale", "key_scale"]', "2 roles for 1 MaxText tensors"),
        ('role = ["query", "key", "value"]', 'role = "query"', "1 roles for 3 MaxText tensors"),
        ('role = "query_scale"', 'role = "final_norm"', "role 'final_norm' belongs to a tensor outside of the layers"),
        ('role = "embedding"', 'role = "out"', "role 'out' belongs to a tensor in a layer"),
        ('fit = "qk_norm"', 'fit = "qk"', "unknown fit 'qk'; expected qk_norm"),
        ('fit = "qk_norm"', 'fit = "qk_norm"\nscale = 2.0', "a row has a scale or a fit, not both"),
        ('role = "embedding"', 'scale = { size = "pairs", power = -0.5 }', "scale: unknown axis 'pairs'"),
        ('role = "embedding"', "scale = 0", "scale must be finite and not zero, found 0"),
        ('role = "embedding"', "scale = inf", "scale must be finite and not zero, found inf"),
        ('role = "embedding"', "scale = { siz = 2 }", "scale must be a number or { size, times, power, constant }"),
        ('role = "embedding"', "scale = {}", "scale must be a number or { size, times, power, constant }"),
        ('role = "embedding"', "scale = true", "scale must be a number or { size, times, power, constant }"),
    ],
)
def test_roles_and_values_that_do_not_fit(
    old: str, new: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "mine.toml"
    table.write_text(replaced(old, new))
    assert expected in refused(capsys, 4, SOURCE, tmp_path / "out", "--mapping", table)
    nothing_left(tmp_path, "mine.toml")


@pytest.mark.parametrize("what", ["missing", "directory", "binary", "too large"])
def test_files_that_are_no_table(what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "mine.toml"
    if what == "directory":
        table.mkdir()
    elif what == "binary":
        table.write_bytes(b"\xff\xfe")
    elif what == "too large":
        table.write_text("#" * (1 << 21))
    expected = f"no mapping '{table}': bundled are " if what == "missing" else f"mapping file {table} "
    assert expected in refused(capsys, 4, SOURCE, tmp_path / "out", "--mapping", table)


def test_through_a_real_process(tmp_path: Path, cli: Cli) -> None:
    table = tmp_path / "mine.toml"
    table.write_text(replaced(EMBEDDING_AXES, 'axes = "vocab embed"'))
    done = cli("convert", SOURCE, tmp_path / "out", "--mapping", table, "--json")
    assert done.code == 4
    assert done.document["error"]["kind"] == "mapping"
    assert done.document["error"]["details"][1:] == ["    vocab embed", "               ^"]
