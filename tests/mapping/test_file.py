"""Mapping files: each class of fault, with its line, and what the bundled table says."""

from pathlib import Path

import pytest

from converter.errors import MappingError
from converter.mapping.bundled import table_names, table_path
from converter.mapping.file import MAX_BYTES, find_mapping, load_bundled, load_mapping, parse_mapping
from converter.mapping.toml import suggestion

VALID = """\
name = "tiny"
title = "A table for tests"
[axlearn]
prefix = "model"
cycle = ["dense"]
layers.scanned = { path = "layer/layer{block}", axis = 0 }
[maxtext]
prefix = "params"
layers.scanned = { path = "layers_{block}", axis = 1 }
[[choice]]
name = "ffn"
dense = "wide/weight"
moe = "gate/weight"
[[tensor]]
axlearn = "{layer}/wide/weight"
maxtext = "{layer}/wide/kernel"
axes = "embed mlp -> mlp embed"
when = "dense"
group = "ffn"
[[drop]]
axlearn = "learner/**"
reason = "state"
[config]
width = { size = "mlp" }
"""


def faults(text: str) -> tuple[str, ...]:
    with pytest.raises(MappingError) as caught:
        parse_mapping(text, "t.toml")
    assert caught.value.exit_code == 4
    return caught.value.details


def test_a_valid_table() -> None:
    table = parse_mapping(VALID, "t.toml")
    assert (table.name, table.title, table.path) == ("tiny", "A table for tests", "t.toml")
    (row,) = table.rows
    assert (row.axlearn, row.maxtext) == (("{layer}/wide/weight",), ("{layer}/wide/kernel",))
    assert (row.when, row.option, row.line, row.in_layer) == ("dense", "", 14, True)
    assert (table.axlearn.layers[0].axis, table.maxtext.layers[0].axis) == (0, 1)
    assert table.digest != parse_mapping(VALID + "\n# changed", "t.toml").digest


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('when = "dense"', 'whem = "dense"', ["t.toml:18: unknown key 'whem' in [tensor]; did you mean 'when'?"]),
        ('title = "A', 'titel = "A', ["t.toml:2: unknown key 'titel' in the file; did you mean 'title'?"]),
        (
            "embed mlp -> mlp embed",
            "embed (mlp -> mlp embed",
            [
                "t.toml:17: axes of {layer}/wide/kernel: ')' is expected here",
                "    embed (mlp -> mlp embed",
                "               ^",
            ],
        ),
        (
            "embed mlp -> mlp embed",
            "embed mlp -> mlp | embed",
            [
                "t.toml:17: axes of {layer}/wide/kernel: 2 tensors need one sum of 2 terms on the other side, "
                "found no sum",
                "    embed mlp -> mlp | embed",
                "              ^",
            ],
        ),
        ('when = "dense"', 'when = "densee"', ["t.toml:14: unknown kind 'densee'; did you mean 'dense'?"]),
        ('cycle = ["dense"]', 'cycle = ["thick"]', ["t.toml:5: unknown kind 'thick'"]),
        ('size = "mlp"', 'size = "mlq"', ["t.toml:24: unknown axis 'mlq'; did you mean 'mlp'?"]),
        ('{ size = "mlp" }', '{ has = "mo" }', ["t.toml:24: unknown kind 'mo'; did you mean 'moe'?"]),
        ('{ size = "mlp" }', '{ unless = "x" }', ["t.toml:24: unknown option 'x'"]),
        ('{ size = "mlp" }', '{ value = 1, option = "x" }', ["t.toml:24: unknown option 'x'"]),
        ('{ size = "mlp" }', '{ size = "mlp", option = "x" }', ["t.toml:24: width: option goes with a value, without"]),
        ('when = "dense"', 'unpermuted = "x"', ["t.toml:18: unpermuted: the axes of {layer}/wide/kernel are in the"]),
        (
            '{ size = "mlp" }',
            '{ siz = "mlp" }',
            ["t.toml:24: width must be a value or one rule of size, has, unless, layout, value; found {'siz': 'mlp'}"],
        ),
        ('reason = "state"', "", ["t.toml:20: [drop] lacks 'reason', a text"]),
        ('reason = "state"', "reason = 7", ["t.toml:22: reason must be a text, found 7"]),
        (
            'dense = "wide/weight"\nmoe = "gate/weight"',
            "",
            ["t.toml:10: choice 'ffn' has no kinds; expected one or more, each with the tensor that shows it"],
        ),
        (
            'maxtext = "{layer}/wide/kernel"',
            'maxtext = ["{layer}/a", "{layer}/b"]',
            ["t.toml:17: maxtext names 2 tensors, its side of axes has 1", "    embed mlp -> mlp embed"],
        ),
        (
            'maxtext = "{layer}/wide/kernel"',
            'maxtext = "wide/kernel"',
            ["t.toml:14: either all paths of a row start with {layer}/, or none; no other field can stand in them"],
        ),
        ('maxtext = "{layer}/wide/kernel"', "maxtext = []", ["t.toml:16: maxtext must be a text or a list of texts"]),
        ("axis = 1", "axis = 9", ["t.toml:9: layers.scanned: path must be a text and axis a number from 0 to 8"]),
        ("layers_{block}", "layers_{n}", ["t.toml:9: layers.scanned: unknown field in 'layers_{n}'"]),
        ('name = "tiny"', "", ["t.toml: the file lacks 'name', a text"]),
        ('title = "A', 'groups = 3\ntitle = "A', ["t.toml:2: groups must be a text or a list of texts, found 3"]),
        ('title = "A', 'groups = ["fnn"]\ntitle = "A', ["t.toml:2: unknown group 'fnn'; did you mean 'ffn'?"]),
        ('when = "dense"', 'role = "out"', ["t.toml:18: role 'out' belongs to a tensor of 3 dimensions, axes has 2"]),
        ('when = "dense"', 'role = "final_norm"', ["t.toml:18: role 'final_norm' belongs to a tensor outside of the"]),
        ('[maxtext]\nprefix = "params"', "[[maxtext]]", ["t.toml: the file needs a table [maxtext]"]),
        ('name = "ffn"', 'name = "ffn"\nof = "head"', ["t.toml:12: of must be 'layer' or 'model', found 'head'"]),
        ('"gate/weight"', '{ tensor = "gate/weight", dims = -1 }', ["t.toml:13: moe must be a tensor's path, "]),
        ('"gate/weight"', '{ absent = "gate/weight", dims = 1 }', ["t.toml:13: moe must be a tensor's path, "]),
        ('{ size = "mlp" }', '{ size = "mlp", otherwise = "x" }', ["t.toml:24: unknown axis 'x'"]),
        ('{ size = "mlp" }', '{ value = 1, otherwise = "mlp" }', ["t.toml:24: width: otherwise needs a size"]),
        ('{ size = "mlp" }', '{ size = "mlp", why = "x" }', ["t.toml:24: width: cases and why need a value"]),
        ('{ size = "mlp" }', '{ value = 1, cases = [{ when = "dense" }] }', ["t.toml:24: width: a case must be"]),
        ('{ size = "mlp" }', "{ value = 1, cases = [{ value = 2 }] }", ["t.toml:24: width: a case must be"]),
        ('{ size = "mlp" }', '{ value = 1, cases = [{ when = "dense", value = "a" }] }', ["t.toml:24: width: a case"]),
        ('{ size = "mlp" }', '{ value = 1, cases = [{ when = "thin", value = 2 }] }', ["t.toml:24: unknown kind"]),
        (
            '{ size = "mlp" }',
            "{ value = 1, cases = [{ sizes = { mlq = 1 }, value = 2 }] }",
            ["t.toml:24: unknown axis 'mlq'; did you mean 'mlp'?"],
        ),
        (
            "[config]\n",
            '[[refuse]]\naxlearn = "model/x"\nmodel = "x"\n[config]\n',
            ["t.toml:23: [refuse] lacks 'reason'"],
        ),
        ("[config]\n", '[[model]]\nname = "m"\nkinds = ["thin"]\nsizes = {}\n[config]\n', ["t.toml:25: unknown kind"]),
        (
            'axlearn = "{layer}/wide/weight"\nmaxtext = "{layer}/wide/kernel"',
            'axlearn = "wide/weight"\nmaxtext = "wide/kernel"',
            ["t.toml:14: 'when' names 'dense', a kind of layer, but the row is not of a layer"],
        ),
    ],
)
def test_faults(old: str, new: str, expected: list[str]) -> None:
    assert VALID.count(old) == 1
    found = faults(VALID.replace(old, new))
    assert len(found) >= len(expected)
    for line, start in zip(found, expected, strict=False):
        assert line.startswith(start)


def test_all_faults_are_listed() -> None:
    text = VALID.replace("embed mlp -> mlp embed", "embed ->").replace('reason = "state"', "")
    assert [line.split(":")[1] for line in faults(text) if line.startswith("t.toml")] == ["17", "20"]


@pytest.mark.parametrize(
    ("first", "second", "refused"),
    [("dense", "moe", False), ("dense", "dense", True), ("dense", "", True), ("", "", True), ("dense", "thin", True)],
)
def test_a_layer_has_a_role_once(first: str, second: str, refused: bool) -> None:
    """Only kinds of one choice exclude each other; kinds of two choices can meet in a layer."""
    row = VALID[VALID.index("[[tensor]]") : VALID.index("[[drop]]")].replace("axes", 'role = "wi_0"\naxes')
    rows = [
        row.replace("wide", name).replace('when = "dense"', f'when = "{when}"' if when else "")
        for name, when in (("a", first), ("b", second))
    ]
    width = '[[choice]]\nname = "width"\nthin = "x"\nthick = "y"\n'
    text = VALID.split("[[tensor]]")[0] + width + "".join(rows) + VALID[VALID.index("[[drop]]") :]
    if not refused:
        assert parse_mapping(text, "t.toml")
        return
    assert any("role 'wi_0' is also that of line" in line for line in faults(text))


def test_a_target_that_two_rows_produce() -> None:
    row = VALID[VALID.index("[[tensor]]") : VALID.index("[[drop]]")]
    (found,) = faults(VALID + row)
    assert found == "t.toml:25: target {layer}/wide/kernel is also produced by line 14"


@pytest.mark.parametrize(
    ("text", "reason"),
    [("name = \n", "not valid TOML: Invalid value (at line 1, column 8)"), ("[" * 5000, "not valid TOML")],
)
def test_no_toml(text: str, reason: str) -> None:
    with pytest.raises(MappingError) as caught:
        parse_mapping(text, "t.toml")
    assert reason in caught.value.message


def test_no_rows() -> None:
    assert faults(VALID[: VALID.index("[[tensor]]")]) == ("t.toml: no [[tensor]] rows",)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    (tmp_path / "huge.toml").write_bytes(b"#" * (MAX_BYTES + 1))
    for name, reason in [
        ("absent.toml", "No such file"),
        (".", "Is a directory"),
        ("binary.toml", "can't decode"),
        ("huge.toml", "larger than 1 MiB"),
    ]:
        with pytest.raises(MappingError, match=reason):
            load_mapping(str(tmp_path / name))


def test_find_mapping(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(VALID)
    assert find_mapping("envy").path == table_path("envy")
    assert find_mapping(str(tmp_path / "own.toml")).name == "tiny"
    with pytest.raises(MappingError, match=r"no mapping 'enyv': bundled are .*envy"):
        find_mapping("enyv")


def test_bundled_tables_are_named_after_their_file() -> None:
    assert [table.name for table in load_bundled()] == list(table_names())


def test_suggestion() -> None:
    assert suggestion("haeds", ["heads", "embed"]) == "; did you mean 'heads'?"
    assert suggestion("zzz", ["heads"]) == ""


def test_a_fault_counts_once_however_many_lines_explain_it() -> None:
    with pytest.raises(MappingError) as caught:
        parse_mapping(VALID.replace("embed mlp -> mlp embed", "embed (mlp -> mlp embed"), "t.toml")
    assert len(caught.value.details) == 3
    assert caught.value.message == "mapping file t.toml has 1 fault"


@pytest.mark.parametrize("name", ["fuji", "honeycrisp"])
def test_one_option_leaves_all_that_rope_rotates(name: str) -> None:
    text = Path(table_path(name)).read_text()
    first = text.index('unpermuted = "interleaved"\n')
    with pytest.raises(MappingError) as raised:
        parse_mapping(text[:first] + text[first:].replace('unpermuted = "interleaved"\n', "", 1), "t.toml")
    (fault,) = raised.value.details
    assert fault.endswith("unpermuted: expected 'interleaved', which other rows that RoPE rotates have")
