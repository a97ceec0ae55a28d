"""Which patches a command needs, as the configuration says."""

import json
from pathlib import Path

import pytest

from converter.maxtext_patch import PatchError
from converter.maxtext_patch.leaves import match
from converter.maxtext_patch.needs import chosen, parse_lines, read_needs
from converter.maxtext_patch.norms import BLOCKS, NormAfterRope

NORM = '# patch: {"name": "norm_after_rope", "decoder_block": "envy"}'
LOGITS = '# patch: {"name": "unrounded_tied_logits"}'
UPDATES = '# patch: {"name": "scaled_updates", "leaves": {"params/decoder/layers/*/mlp/wo/kernel": 0.5}}'
ALL = f"{NORM}\n{LOGITS}\n{UPDATES}\nbase_config: base.yml\ndecoder_block: envy\nlogits_via_embedding: true\n"


@pytest.fixture
def config(tmp_path: Path):
    def write(text: str, name: str = "maxtext.yml") -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def names(text: str) -> list[str] | None:
    found = parse_lines(text.splitlines(), "f")
    return None if found is None else [patch.name for patch in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ALL, ["norm_after_rope", "unrounded_tied_logits", "scaled_updates"]),
        (f"a: 1\n{UPDATES}\nb: 2\n{NORM}", ["norm_after_rope", "scaled_updates"]),  # also where a user put keys above
        (f"#patch:{LOGITS.partition(':')[2]}  ", ["unrounded_tied_logits"]),
        ("# patch: none\nbase_config: base.yml", []),
        ("# patches are listed elsewhere\na: 1 # patch: none", None),
        ("", None),
    ],
)
def test_lines(text, expected):
    assert names(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# patch: {", "f:1: Expecting"),
        ("# patch:", "f:1: Expecting"),
        ("# patch: []", "unknown patch None"),
        ('# patch: {"name": "other"}', "unknown patch 'other'"),
        (f"{NORM}\n{NORM}", "f:2: a second line for norm_after_rope"),
        (f"{NORM}\n# patch: none", "none` beside the patch norm_after_rope"),
        ('# patch: {"name": "norm_after_rope"}', "has name, expected decoder_block, name"),
        ('# patch: {"name": "norm_after_rope", "decoder_block": 3}', "decoder_block is 3"),
        ('# patch: {"name": "unrounded_tied_logits", "dtype": "f4"}', "has dtype, name, expected name"),
        (UPDATES.replace("0.5", "0"), "is 0, expected a positive number"),
        (UPDATES.replace("0.5", "NaN"), "is nan, expected a positive number"),
        (UPDATES.replace("0.5", "true"), "is True, expected a positive number"),
        (UPDATES.replace("/*/", "//"), "invalid path"),
        ('# patch: {"name": "scaled_updates", "leaves": {}}', "leaves is expected"),
        ('# patch: {"name": "scaled_updates", "leaves": {"a": 1, "a": 2}}', "stands twice"),
        ("# patch: " + "[" * 100000, "recursion"),
    ],
)
def test_wrong_lines(text, message):
    with pytest.raises(PatchError, match=message):
        names(text)


@pytest.mark.parametrize(
    ("text", "arguments", "blocks"),
    [
        ("base_config: base.yml\ndecoder_block: qwen3  # plain\n", [], ("QWEN3",)),
        ("decoder_block: 'envy'\n", ["run_name=x"], ("ENVY",)),
        ("decoder_block: envy\n", ["decoder_block=qwen3"], ("QWEN3",)),
        ("base_emb_dim: 8\n", [], BLOCKS),
    ],
)
def test_a_file_without_lines_needs_the_norm_of_its_block(text, arguments, blocks, config):
    needs = read_needs([config(text), *arguments])
    assert needs.patches == (NormAfterRope(blocks=blocks),)
    assert needs.origin is None
    assert chosen(needs, None, ()) == {"norm_after_rope": None}


def test_a_file_without_lines_whose_block_has_no_qk_norm(config):
    assert read_needs([config("decoder_block: llama2\n")]).patches == ()


def test_a_configuration_that_cannot_be_read(tmp_path):
    assert read_needs([]).patches == (NormAfterRope(),)
    with pytest.raises(PatchError, match=r"absent\.yml: cannot be read"):
        read_needs([str(tmp_path / "absent.yml")])


def test_a_file_of_the_users_needs_what_its_base_needs(config):
    converted = config(ALL)
    own = config("base_config: maxtext.yml\nlogits_via_embedding: false\n", "own.yml")
    needs = read_needs([own])
    assert needs.origin == converted
    assert chosen(needs, None, ())["unrounded_tied_logits"] == "not needed with logits_via_embedding=false"
    assert read_needs([config(f"{LOGITS}\nbase_config: maxtext.yml\n", "own.yml")]).origin == own
    circle = config("base_config: 'circle.yml' # itself\n", "circle.yml")
    assert read_needs([circle]).origin is None


LEFT_OUT = "left out by --{}: not exact without it"


@pytest.mark.parametrize(
    ("arguments", "only", "without", "expected"),
    [
        ([], None, (), (None, None, None)),
        ([], ("scaled_updates",), (), (LEFT_OUT.format("only"), LEFT_OUT.format("only"), None)),
        ([], None, ("scaled_updates",), (None, None, LEFT_OUT.format("without"))),
        (["logits_via_embedding=False"], None, (), (None, "not needed with logits_via_embedding=false", None)),
        (["use_qk_norm=false"], None, (), ("not needed with use_qk_norm=false", None, None)),
        (["opt_type=adamw", "decoder_block='envy'"], None, (), (None, None, None)),
        (["opt_type=sgd"], None, ("scaled_updates",), (None, None, LEFT_OUT.format("without"))),
        (["decoder_block=qwen3"], ("scaled_updates",), (), (LEFT_OUT.format("only"), LEFT_OUT.format("only"), None)),
    ],
)
def test_what_is_applied(arguments, only, without, expected, config):
    assert tuple(chosen(read_needs([config(ALL), *arguments]), only, without).values()) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["decoder_block=qwen3"], "decoder_block is qwen3, but norm_after_rope is needed for envy"),
        (["opt_type=sgd"], "works with opt_type=adamw, found opt_type=sgd"),
        (["opt_type=muon"], "found opt_type=muon"),
    ],
)
def test_arguments_that_contradict_a_patch(arguments, message, config):
    with pytest.raises(PatchError, match=message):
        chosen(read_needs([config(ALL), *arguments]), None, ())


PATHS = [
    tuple(path.split("/")) for path in ("decoder/layers/a/wo/kernel", "decoder/layers/b/wo/kernel", "decoder/norm")
]


@pytest.mark.parametrize(
    ("leaves", "expected"),
    [
        ({"params/decoder/layers/*/wo/kernel": 0.5}, [0.5, 0.5, 1]),
        ({"decoder/layers/b/wo/kernel": 0.5, "params/*/norm": 2}, [1, 0.5, 2]),
    ],
)
def test_patterns(leaves, expected):
    assert match(PATHS, leaves) == expected


@pytest.mark.parametrize(
    ("leaves", "message"),
    [
        ({"params/decoder/layers/*/kernel": 0.5}, r"no parameter of MaxText's matches params/decoder/layers/\*/kernel"),
        ({"decoder/*": 0.5, "decoder/nor*": 0.5}, r"matches decoder/nor\*"),
        ({"decoder/*": 0.5, "*/norm": 0.5}, r"two patterns match decoder/norm: decoder/\* and \*/norm"),
    ],
)
def test_patterns_that_do_not_fit(leaves, message):
    with pytest.raises(PatchError, match=message):
        match(PATHS, leaves)


def test_the_lines_are_json():
    assert [json.loads(line.partition(":")[2])["name"] for line in ALL.splitlines()[:3]] == names(ALL)
