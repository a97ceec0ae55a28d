"""Logits of families that only a table describes, against a float64 forward pass that shares no code with ours."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converter.conversion.run import Request, convert
from converter.errors import MappingError
from converter.forward.comparison import LogitsComparison, compare, open_pair
from converter.forward.run import logits, open_model
from converter.forward.tokens import built_in
from converter.mapping.bundled import table_path
from converter.work import Silent
from tests.conftest import AXLEARN, Cli
from tests.helpers.arrays import read_npz
from tests.helpers.axlearn_checkpoint import write_checkpoint
from tests.helpers.conversion import make_options
from tests.helpers.maxtext_checkpoint import unscanned, write_maxtext
from tests.helpers.plain_float64 import plain_logits
from tests.mapping.test_plain_family import LAYER, TABLE, H, K, N, expected, tensors

QKV = "self_attention/attention/i_proj/i_proj/qkv_proj/weight"
ROUNDING = 2e-5
"""Largest difference relative to the logits' deviation that float32 may make."""


def layers_of(source: dict[str, np.ndarray], place: str = LAYER) -> list[dict[str, np.ndarray]]:
    """The tensors of each layer of a stack by role."""
    names = {
        "attention_norm": "self_attention/norm/scale",
        "out": "self_attention/attention/o_proj/weight",
        "ffn_norm": "feed_forward/norm/scale",
        "wi_0": "feed_forward/linear1_0/weight",
        "wi_1": "feed_forward/linear1_1/weight",
        "wo": "feed_forward/linear2/weight",
    }
    stacked = {role: source[f"{place}/{name}"] for role, name in names.items()}
    stacked |= dict(zip(("query", "key", "value"), np.split(source[f"{place}/{QKV}"], [N, N + K], axis=2), strict=True))
    assert stacked["query"].shape[-1] == H
    return [{role: values[number] for role, values in stacked.items()} for number in range(len(stacked["out"]))]


def reference(source: dict[str, np.ndarray], layers: Sequence[dict[str, np.ndarray]], ids: np.ndarray) -> np.ndarray:
    embedding = source["model/decoder/emb/token_emb/weight"]
    head = source.get("model/decoder/lm_head/weight")
    return plain_logits(ids, embedding, layers, source["model/decoder/output_norm/scale"], head)


def computed(path: Path, table: Path, out: Path, **options: Any) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Ids, logits and notes of a checkpoint."""
    model = open_model(str(path), mapping=str(table), **options)
    logits(model, built_in(model.weights.vocabulary, 40), str(out), 4 << 30, Silent())
    file = read_npz(out)
    return file["input_ids"][0], file["logits"][0], model.weights.notes


def compared(source: Path, destination: Path, table: Path) -> LogitsComparison:
    pair = open_pair(str(source), str(destination), step=None, mapping=str(table), settings=[], norm_after=False)
    tokens = built_in(pair[0].weights.vocabulary, 40)
    return compare(*pair, tokens, budget=4 << 30, limits=[("kl_max", 1e-4)], explain=True, progress=Silent())


def converted(source: Path, table: Path, target: Path, *, untie: bool = False) -> Path:
    convert(Request(str(source), str(target), make_options(untie=untie), mapping=str(table)), Silent())
    return target


def changed(path: Path, *replacements: tuple[str, str], table: Path = TABLE) -> Path:
    text = table.read_text()
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    return path


def assert_same_function(found: np.ndarray, wanted: np.ndarray) -> None:
    assert np.abs(found - wanted).max() / wanted.std() < ROUNDING


def check_both_sides(source: Path, table: Path, wanted: Callable[[np.ndarray], np.ndarray], work: Path) -> Path:
    """Logits of the source and of what an untied conversion makes of it, and their comparison."""
    target = converted(source, table, work / "out", untie='option = "untie"' in table.read_text())
    for path in (source, target):
        ids, found, _ = computed(path, table, work / "logits.npz")
        assert_same_function(found, wanted(ids))
    assert compared(source, target, table).verdict == "equal"
    return target


@pytest.mark.parametrize("gated", [True, False], ids=["optional tensor", "without it"])
def test_a_plain_family(gated: bool, tmp_path: Path) -> None:
    values = tensors(gated=gated)
    source = write_checkpoint(tmp_path / "step_00000100", values)
    target = check_both_sides(source, TABLE, lambda ids: reference(values, layers_of(values), ids), tmp_path)
    for path, gate in ((source, f"{LAYER}/self_attention/value_gate"), (target, "layers/self_attention/value_gate")):
        _, _, notes = computed(path, TABLE, tmp_path / "logits.npz")
        assert len(notes) == 1
        assert "decoder/temperature" in notes[0]
        assert (gate in notes[0]) == gated


def test_tied_logits_differ_by_rounding_alone(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "step_00000100", tensors())
    result = compared(source, converted(source, TABLE, tmp_path / "out"), TABLE)
    assert [step.name for step in result.steps] == ["tied table rounded to bfloat16"]
    assert result.verdict == "equal but for the bfloat16 rounding"
    # Without experts and q/k norms there is nothing to undo about them.
    assert not any("expert" in cause.name or "norm " in cause.name for cause in result.switched)


def test_an_output_projection_in_the_source(tmp_path: Path) -> None:
    values = tensors()
    values["model/decoder/lm_head/weight"] = np.random.default_rng(5).standard_normal((24, 12)).astype(np.float32)
    row = 'axlearn = "decoder/emb/token_emb/weight"\nmaxtext = "decoder/logits_dense/kernel"'
    table = changed(
        tmp_path / "untied.toml",
        (row, row.replace("emb/token_emb", "lm_head")),
        ('option = "untie"\n', ""),
        ('{ unless = "untie" }', "false"),
    )
    source = write_checkpoint(tmp_path / "step_00000100", values)
    check_both_sides(source, table, lambda ids: reference(values, layers_of(values), ids), tmp_path)


@pytest.mark.parametrize(
    "config", ["", "decoder_block: qwen3\nnormalize_embedding_logits: false\nrope_max_timescale: 5e5\n"]
)
def test_layers_in_names(config: str, tmp_path: Path) -> None:
    values = tensors()
    leaves = expected(values) | {
        "params/params/decoder/logits_dense/kernel": values["model/decoder/emb/token_emb/weight"].T
    }
    path = write_maxtext(
        tmp_path / "out",
        unscanned(leaves, "params/params/decoder/layers", "params/params/decoder/layers_{layer}"),
        config,
    )
    ids, found, _ = computed(path, TABLE, tmp_path / "logits.npz")
    assert_same_function(found, reference(values, layers_of(values), ids))
    source = write_checkpoint(tmp_path / "step_00000100", values)
    assert compared(source, path, TABLE).verdict == "equal"


def test_three_kinds_of_layer_in_a_cycle(tmp_path: Path) -> None:
    """Each kind calls its gate otherwise; layer 3 r + b is repeat r of block b."""
    gates = {"plain": "linear1_0/weight", "second": "gate_proj/weight", "third": "wi_zero"}
    row = TABLE.read_text().split("[[tensor]]")[9]
    assert "linear1_0" in row
    rows = "[[tensor]]".join(
        row.replace("linear1_0/weight", name).rstrip() + f'\nwhen = "{kind}"\n\n' for kind, name in gates.items()
    )
    choice = '[[choice]]\nname = "gate"\n' + "".join(
        f'{kind} = "feed_forward/{name}"\n' for kind, name in gates.items()
    )
    table = changed(
        tmp_path / "kinds.toml",
        (row, rows),
        ("[[choice]]\n", f"{choice}\n[[choice]]\n"),
        ('repeat/layer", axis = 0 }', 'repeat/layer/layer{block}", axis = 0 }\ncycle = ["plain", "second", "third"]'),
        ('"decoder/layers", axis = 1', '"decoder/layers/layers_{block}", axis = 1'),
    )
    values = {path: array for path, array in tensors(gated=False).items() if not path.startswith(LAYER)}
    blocks: list[list[dict[str, np.ndarray]]] = []
    for block, name in enumerate(gates.values()):
        own = {path: array + 0.1 * block for path, array in tensors(gated=False).items() if path.startswith(LAYER)}
        blocks.append(layers_of(own))
        own[f"{LAYER}/feed_forward/{name}"] = own.pop(f"{LAYER}/feed_forward/linear1_0/weight")
        values |= {path.replace(LAYER, f"{LAYER}/layer{block}"): array for path, array in own.items()}
    layers = [blocks[block][repeat] for repeat in range(len(blocks[0])) for block in range(3)]
    source = write_checkpoint(tmp_path / "step_00000100", values)
    check_both_sides(source, table, lambda ids: reference(values, layers, ids), tmp_path)


def test_an_option_of_its_own_name(tmp_path: Path) -> None:
    """Whether a checkpoint was made with an option shows in its leaves, whatever the option is called."""
    values = tensors()
    source = write_checkpoint(tmp_path / "step_00000100", values)
    target = converted(source, TABLE, tmp_path / "out", untie=True)
    table = changed(tmp_path / "head.toml", ('"untie"', '"separate_head"'))
    assert compared(source, target, table).verdict == "equal"
    ids, found, _ = computed(target, table, tmp_path / "logits.npz")
    assert_same_function(found, reference(values, layers_of(values), ids))


def test_verify_says_equal(cli: Cli, tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "step_00000100", tensors())
    target = converted(source, TABLE, tmp_path / "out", untie=True)
    done = cli("verify", source, target, "--mapping", TABLE, "--logits")
    assert done.code == 0, done.out + done.err
    assert "EQUAL" in done.out
    assert "have no role in the mapping table" in done.out


def test_the_receipt_says_which_table_decides(cli: Cli, tmp_path: Path) -> None:
    """A user's copy of a bundled table fits the same leaves: the name in the receipt decides, never the leaves."""
    source = AXLEARN / "micro-hybrid-qkpair"
    bundled = Path(table_path("envy"))
    mine = changed(tmp_path / "mine.toml", ('name = "envy"\n', 'name = "mine"\n'), table=bundled)
    target = converted(source, mine, tmp_path / "out", untie=True)
    refused = cli("logits", target)
    assert refused.code == MappingError.exit_code
    assert "converted with mapping 'mine'" in refused.err
    assert "--mapping FILE" in refused.err
    assert cli("logits", target, "--mapping", mine).code == 0
    assert compared(source, target, mine).verdict == "equal"
    (target / "ax2mt.json").unlink()
    assert open_model(str(target)).table.name == "envy"


def test_a_changed_table_of_the_same_name_is_noted(tmp_path: Path) -> None:
    source = AXLEARN / "micro-hybrid-qkpair"
    mine = changed(tmp_path / "mine.toml", ('title = "', 'title = "My '), table=Path(table_path("envy")))
    target = converted(source, mine, tmp_path / "out")
    assert any("another text of mapping 'envy'" in note for note in open_model(str(target)).weights.notes)
    assert open_model(str(target), mapping=str(mine)).weights.notes == ()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('decoder_block = "qwen3"', 'decoder_block = "gemma"', "decoder_block is 'gemma'"),
        ('["silu", "linear"]', '["gelu", "linear"]', r"mlp_activations is \['gelu', 'linear'\]"),
    ],
)
def test_models_that_we_do_not_compute(old: str, new: str, message: str, tmp_path: Path) -> None:
    from converter.errors import UsageError

    source = write_checkpoint(tmp_path / "step_00000100", tensors())
    table = changed(tmp_path / "other.toml", (old, new))
    target = converted(source, table, tmp_path / "out")
    with pytest.raises(UsageError, match=message):
        open_model(str(target), mapping=str(table))
