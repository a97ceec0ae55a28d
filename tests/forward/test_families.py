"""Logits of every bundled family against AXLearn's own, of source and conversion; and wrong flags by name."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorstore as ts

from converter.conversion.run import Request, convert
from converter.errors import MappingError, UsageError
from converter.forward.comparison import LogitsComparison, compare, open_pair
from converter.forward.run import logits, open_model
from converter.forward.tokens import read_tokens
from converter.work import Silent
from tests.conftest import AXLEARN
from tests.helpers.arrays import read_npz
from tests.helpers.conversion import make_options
from tests.helpers.families import FAMILIES, golden

LEAVES = "0/items/params.params.decoder.layers"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A golden converted with what makes it exact; shared, so it must not be changed."""
    known: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in known:
            family, target = FAMILIES[name], tmp_path_factory.mktemp("made") / "out"
            options = make_options(untie=family.tied, qk_norm="fit" if family.fit else "plain")
            convert(Request(str(AXLEARN / name), str(target), options), Silent())
            known[name] = target
        return known[name]

    return make


@pytest.fixture
def changed(made: Callable[[str], Path], tmp_path: Path) -> Callable[..., Path]:
    """A copy of such a conversion with another text in its `maxtext.yml`."""

    def change(name: str, *replacements: tuple[str, str]) -> Path:
        target = tmp_path / "changed"
        shutil.copytree(made(name), target)
        text = (target / "maxtext.yml").read_text()
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        (target / "maxtext.yml").write_text(text)
        return target

    return change


def computed(path: Path, name: str, work: Path, **options) -> np.ndarray:
    """Our logits of a checkpoint, for the tokens of a golden."""
    tokens = read_tokens(str(AXLEARN / name / "logits.npz"), golden(name).shape[-1])
    logits(open_model(str(path), **options), tokens, str(work / "logits.npz"), 4 << 30, Silent())
    return read_npz(work / "logits.npz")["logits"]


def difference(found: np.ndarray, name: str) -> float:
    expected = golden(name)
    assert found.shape == expected.shape
    assert expected.std() > 0.5
    return float(np.abs(found - expected).max())


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_axlearn(name: str, made: Callable[[str], Path], tmp_path: Path) -> None:
    family = FAMILIES[name]
    source = computed(AXLEARN / name, name, tmp_path)
    assert difference(source, name) < family.rounding
    assert difference(computed(made(name), name, tmp_path), name) < family.rounding


def test_unequal_pairs_need_the_norm_after_rope(converted: Callable[..., Path], tmp_path: Path) -> None:
    name = "micro-honeycrisp"
    target = converted(name, untie=True)
    assert difference(computed(AXLEARN / name, name, tmp_path), name) < 1e-5
    assert 0.3 < difference(computed(target, name, tmp_path), name) < 0.6
    assert difference(computed(target, name, tmp_path, norm_after_rope=True), name) < 1e-5


def compared(source: str, target: Path, settings: tuple[str, ...] = ()) -> LogitsComparison:
    pair = open_pair(str(AXLEARN / source), str(target), step=None, mapping=None, settings=settings, norm_after=False)
    tokens = read_tokens(str(AXLEARN / source / "logits.npz"), pair[0].weights.vocabulary)
    return compare(*pair, tokens, budget=4 << 30, limits=[("kl_max", 1e-4)], explain=True, progress=Silent())


def causes(result: LogitsComparison) -> list[str]:
    assert not result.passed
    assert result.explained
    return [step.name for step in result.steps]


@pytest.mark.parametrize(
    ("name", "setting", "cause"),
    [
        ("micro-fuji-gqa", "rope_max_timescale=10000", "RoPE's base"),
        ("micro-fuji-gqa", "normalization_layer_epsilon=1e-06", "the norms' epsilon"),
        ("micro-fuji-gqa", "decoder_block=llama2", "scores not divided by sqrt(head dimension)"),
        ("micro-qwen", "num_experts_per_tok=2", "experts per token"),
    ],
)
def test_a_wrong_setting_is_named(name: str, setting: str, cause: str, made: Callable[[str], Path]) -> None:
    result = compared(name, made(name), (setting,))
    assert (result.verdict, [step.name for step in result.steps], result.explained) == ("different", [cause], True)
    assert result.passed == ("epsilon" in setting)  # which moves logits by 5e-3, and a divergence below its limit
    if "decoder_block" in setting:
        assert "set decoder_block=qwen3 in maxtext.yml" in result.steps[0].advice


def test_divided_logits_are_named(converted: Callable[..., Path]) -> None:
    """Only logits from the table are divided."""
    result = compared("micro-fuji-mha", converted("micro-fuji-mha"), ("normalize_embedding_logits=true",))
    assert causes(result) == ["logits divided by sqrt(width)", "tied table rounded to bfloat16"]


def rewritten(target: Path, leaf: str, change: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Changes a leaf in place, and returns what it was."""
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{target}/{LEAVES}.{leaf}/"}}
    store = ts.open(spec, open=True).result()
    before = store.read().result()
    store.write(change(before)).result()
    return before


@pytest.mark.parametrize("block", ["qwen2", "qwen3"])
def test_a_factor_folded_into_the_query_is_named(block: str, changed: Callable[..., Path]) -> None:
    """As for llama2, which would compute the same from these weights."""
    target = changed("micro-fuji-gqa", ("decoder_block: qwen3", f"decoder_block: {block}"))
    rewritten(target, "self_attention.query.kernel", lambda values: values * values.shape[-1] ** -0.5)
    assert causes(compared("micro-fuji-gqa", target)) == ["scores divided by sqrt(head dimension) twice"]
    assert compared("micro-fuji-gqa", target, ("decoder_block=llama2",)).verdict == "equal"


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [("micro-fuji-gqa", "mlp.wi_0.kernel", "mlp.wi_1.kernel"), ("micro-qwen", "moe_block.wi_0", "moe_block.wi_1")],
)
def test_projections_in_each_others_place_are_named(
    name: str, first: str, second: str, changed: Callable[..., Path]
) -> None:
    target = changed(name)
    one = rewritten(target, first, np.zeros_like)
    other = rewritten(target, second, lambda _: one)
    rewritten(target, first, lambda _: other)
    assert causes(compared(name, target)) == ["wi_0 and wi_1 changed places"]


@pytest.mark.parametrize(
    ("leaves", "cause"),
    [(("query", "key"), "RoPE permutation missing on q and k"), (("key",), "RoPE permutation missing on k")],
)
@pytest.mark.parametrize("name", ["micro-fuji-gqa", "micro-fuji-mha"])
def test_a_missing_permutation_is_named(
    name: str, leaves: tuple[str, ...], cause: str, changed: Callable[..., Path]
) -> None:
    target = changed(name)
    for leaf in leaves:
        rewritten(
            target,
            f"self_attention.{leaf}.kernel",
            lambda values: values.reshape(*values.shape[:-1], 2, -1).swapaxes(-1, -2).reshape(values.shape),
        )
    assert causes(compared(name, target)) == [cause]


def test_blocks_of_another_tree_are_refused(changed: Callable[..., Path]) -> None:
    target = changed("micro-fuji-gqa", ("decoder_block: qwen3", "decoder_block: qwen3_moe"))
    with pytest.raises(UsageError, match="decoder_block is 'qwen3_moe'; the checkpoint's tensors need"):
        open_model(str(target))


def test_blocks_without_norms_of_q_and_k_are_refused(changed: Callable[..., Path]) -> None:
    target = changed("micro-gala", ("decoder_block: qwen3", "decoder_block: qwen2"))
    with pytest.raises(UsageError, match="decoder_block is 'qwen2', which has no q/k norms"):
        open_model(str(target))


def test_what_the_training_said_is_known_without_a_configuration(changed: Callable[..., Path], tmp_path: Path) -> None:
    name = "micro-fuji-mha"
    target = changed(name)
    (target / "maxtext.yml").unlink()
    assert difference(computed(target, name, tmp_path), name) < 3e-5


def test_without_either_the_base_of_rope_is_open(tmp_path: Path) -> None:
    name = "micro-fuji-mha"
    source, target = tmp_path / "source", tmp_path / "out"
    shutil.copytree(AXLEARN / name / "checkpoints", source / "checkpoints")
    convert(Request(str(source), str(target), make_options(untie=True)), Silent())
    (target / "maxtext.yml").unlink()
    with pytest.raises(UsageError, match=r"has no maxtext\.yml beside it, and mapping 'fuji' has several"):
        open_model(str(target))
    assert difference(computed(target, name, tmp_path, settings=["rope_max_timescale=10000"]), name) < 3e-5


@pytest.mark.parametrize(("name", "theta"), [("micro-gala", 10000), ("micro-honeycrisp-qkproduct", 500000)])
def test_the_configuration_decides_between_tables_with_the_same_leaves(
    name: str, theta: int, changed: Callable[..., Path], tmp_path: Path
) -> None:
    target = changed(name)
    (target / "ax2mt.json").unlink()
    model = open_model(str(target))
    assert model.table.name == FAMILIES[name].table
    note = (
        f"the mappings gala, honeycrisp have these leaves; maxtext.yml decided for {model.table.name}: rope_max_timesc"
    )
    assert any(line.startswith(note) and line.endswith(f"is {theta}") for line in model.weights.notes)
    assert difference(computed(target, name, tmp_path), name) < 1e-5
    (target / "maxtext.yml").unlink()
    with pytest.raises(MappingError, match="several mappings have its leaves: gala, honeycrisp; name one with"):
        open_model(str(target))
