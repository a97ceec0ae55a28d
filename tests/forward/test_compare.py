"""Each known mistake is flagged and attributed to what was done wrong."""

from pathlib import Path

import numpy as np
import pytest
import tensorstore as ts

from converter.cli.app import run as cli
from converter.conversion.run import Request, convert
from converter.errors import UsageError, VerificationError
from converter.forward.comparison import LogitsComparison, compare, open_pair
from converter.forward.metrics import Distance, exceeded
from converter.forward.tokens import built_in
from converter.mapping.bundled import table_path
from converter.work import Silent
from tests.helpers.conversion import make_options

DATA = Path(__file__).parents[1] / "data" / "axlearn"
EQUAL_PAIRS, UNEQUAL_PAIRS = "micro-hybrid-qkpair", "micro-hybrid"
QKV = "-> embed heads (2 pair) | embed kv_heads (2 pair) | embed kv_heads (pair 2)"


def verify(name: str, destination: Path, *, settings=(), length: int = 430, **options) -> LogitsComparison:
    models = open_pair(
        str(DATA / name), str(destination), step=None, mapping=None, settings=list(settings), norm_after=False
    )
    tokens = built_in(models[0].weights.vocabulary, length)
    chosen = {"budget": 4 << 30, "limits": [("kl_max", 1e-4)], "explain": True, "progress": Silent()} | options
    return compare(*models, tokens, **chosen)


def make(name: str, path: Path, *replacements: tuple[str, str], untie: bool = True) -> Path:
    """Converts with the bundled table, with mistakes."""
    # Without the option for AXLearn's order: where rows are changed to have it, there is nothing that could be left.
    lines = Path(table_path("envy")).read_text().splitlines(keepends=True)
    text = "".join(line for line in lines if '"interleaved"' not in line)
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    table = path / "table.toml"
    table.write_text(text)
    request = Request(str(DATA / name), str(path / "out"), make_options(untie=untie), mapping=str(table))
    convert(request, Silent())
    return path / "out"


def causes(result: LogitsComparison) -> list[str]:
    assert result.explained
    return [step.name for step in result.steps]


def test_equal_and_rounding_only(tmp_path):
    equal = verify(EQUAL_PAIRS, make(EQUAL_PAIRS, tmp_path))
    assert (equal.verdict, equal.passed, equal.steps, equal.findings) == ("equal", True, (), ())
    (tmp_path / "tied").mkdir()
    rounded = verify(EQUAL_PAIRS, make(EQUAL_PAIRS, tmp_path / "tied", untie=False))
    assert (rounded.verdict, rounded.passed) == ("equal but for the bfloat16 rounding", True)
    assert causes(rounded) == ["tied table rounded to bfloat16"]
    assert 1e-4 < rounded.difference.relative < 1e-2


def test_norm_order_and_rounding_are_both_found(tmp_path):
    result = verify(UNEQUAL_PAIRS, make(UNEQUAL_PAIRS, tmp_path, untie=False))
    assert (result.verdict, result.passed) == ("different", False)
    assert causes(result) == ["q/k norm before RoPE", "tied table rounded to bfloat16"]
    assert max(entry.product for entry in result.mismatches) > 0.1


MISTAKES = {
    "no permutation": (
        [(QKV, QKV.replace("(2 pair)", "(pair 2)")), ('"(pair 2) -> (2 pair)"', '"(pair 2) -> (pair 2)"')],
        "RoPE permutation missing on q, k and both scales",
    ),
    "on q only": (
        [(QKV, QKV.replace("kv_heads (2 pair)", "kv_heads (pair 2)"))],
        "RoPE permutation missing on k",
    ),
    "on k only": (
        [(QKV, QKV.replace("embed heads (2 pair)", "embed heads (pair 2)"))],
        "RoPE permutation missing on q",
    ),
    "scales not permuted": (
        [('"(pair 2) -> (2 pair)"', '"(pair 2) -> (pair 2)"')],
        "q/k norm scales not permuted",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("name", [EQUAL_PAIRS, UNEQUAL_PAIRS])
def test_a_wrong_layout_is_named(mistake, name, tmp_path):
    replacements, cause = MISTAKES[mistake]
    result = verify(name, make(name, tmp_path, *replacements))
    assert not result.passed
    assert cause in causes(result)
    assert set(causes(result)) <= {cause, "q/k norm before RoPE"}
    assert ("q/k norm before RoPE" in causes(result)) == (name == UNEQUAL_PAIRS)
    assert bool(result.findings) == (mistake != "scales not permuted")


@pytest.mark.parametrize(
    ("setting", "cause"),
    [
        ("num_experts_per_tok=1", "experts per token"),
        ("normalize_embedding_logits=true", "logits divided by sqrt(width)"),
        ("rope_max_timescale=10000", "RoPE's base"),
        ("normalization_layer_epsilon=0.01", "the norms' epsilon"),
    ],
)
def test_a_wrong_setting_is_named(setting, cause, tmp_path):
    result = verify(EQUAL_PAIRS, make(EQUAL_PAIRS, tmp_path, untie=False), settings=[setting])
    assert not result.passed
    assert causes(result) == [cause, "tied table rounded to bfloat16"]


def test_heads_split_in_thirds(tmp_path):
    out = make(EQUAL_PAIRS, tmp_path)
    place = DATA / EQUAL_PAIRS / "checkpoints" / "step_00000100" / "gda" / "model/decoder/transformer/repeat/layer"
    for block in (0, 1):
        path = place / f"layer{block}/self_attention/attention/i_proj/i_proj/qkv_proj/weight/"
        store = ts.open({"driver": "zarr", "kvstore": {"driver": "file", "path": str(path)}}).result()
        fused = store.read().result().transpose(1, 0, 2, 3)
        halves = np.concatenate([fused[..., 0::2], fused[..., 1::2]], axis=-1)
        third = fused.shape[2] / 3
        wrong = {"key": halves[:, :, int(third) :], "value": fused[:, :, int(2 * third) :]}
        for name, values in wrong.items():
            key = f"params.params.decoder.layers.layers_{block}.self_attention.{name}.kernel"
            leaf = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(out / "0/items" / key) + "/"}}
            ts.open(leaf, open=True).result().write(values[:, :, :2]).result()
    result = verify(EQUAL_PAIRS, out)
    assert not result.passed
    assert causes(result) == ["q, k and v hold other heads of the fused kernel"]
    assert [line.split(";")[0] for line in result.findings] == [
        "key: heads 2, 3 of AXLearn's qkv_proj, pairs halves",
        "value: heads 5, 6 of AXLearn's qkv_proj, pairs interleaved",
    ]


def test_what_no_known_difference_explains_is_said(tmp_path):
    out = make(EQUAL_PAIRS, tmp_path)
    leaf = out / "0/items/params.params.decoder.layers.layers_0.mlp.wi_0.kernel"
    store = ts.open({"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{leaf}/"}}, open=True).result()
    store.write(store.read().result() * 2).result()
    result = verify(EQUAL_PAIRS, out)
    assert not result.explained
    assert (result.verdict, result.steps) == ("different", ())


def test_errors_of_rope_are_shown_by_position(tmp_path):
    result = verify(UNEQUAL_PAIRS, make(UNEQUAL_PAIRS, tmp_path), explain=False)
    assert [(bucket.first, bucket.last) for bucket in result.buckets] == [
        (0, 15), (16, 63), (64, 255), (256, 399), (400, 429),
    ]  # fmt: skip


def test_another_model_is_refused(tmp_path):
    out = make("envy-test", tmp_path)
    with pytest.raises(VerificationError) as caught:
        verify(EQUAL_PAIRS, out)
    assert "vocabulary: 64 in AXLearn, 32 in MaxText" in caught.value.details


def test_a_small_budget_runs_fewer_variants_at_a_time_or_is_refused(tmp_path):
    out = make(EQUAL_PAIRS, tmp_path, untie=False)
    with pytest.raises(UsageError, match="give more, or fewer tokens"):
        verify(EQUAL_PAIRS, out, budget=600 << 20)
    few, many = (verify(EQUAL_PAIRS, out, budget=size) for size in (1150 << 20, 4 << 30))
    assert few.steps == many.steps


def test_exit_codes_and_json(tmp_path, capsys):
    import json

    arguments = ["verify", str(DATA / UNEQUAL_PAIRS), str(make(UNEQUAL_PAIRS, tmp_path)), "--logits"]
    assert cli([*arguments, "--json"]) == 6
    content = json.loads(capsys.readouterr().out)
    assert content["verdict"] == "different"
    assert [cause["name"] for cause in content["causes"]] == ["q/k norm before RoPE"]
    assert cli([*arguments, "--max-kl", "1"]) == 0
    assert "because of q/k norm before RoPE" in capsys.readouterr().out
    assert cli([*arguments, "--max-kl", "1", "--min-top1", "1", "--no-explain"]) == 6


def test_numbers():
    reference = np.log(np.array([[0.5, 0.5], [0.25, 0.75]]))
    distance = Distance(reference, np.array([0, 20]))
    distance.add(0, reference[:1] + 3)
    distance.add(1, np.log(np.array([[0.75, 0.25]])))
    total = distance.total()
    assert total.max_abs == pytest.approx(3)
    assert total.kl_max == pytest.approx(0.5 * np.log(3))
    assert total.kl_mean == pytest.approx(0.25 * np.log(3))
    assert total.top1 == 0.5
    assert [bucket.difference.top1 for bucket in distance.buckets()] == [1, 0]
    assert exceeded(total, [("kl_max", 1.0), ("max_abs", 2.0)]) == ("max_abs is 3, at most 2 is allowed",)


def test_no_number_is_over_every_limit():
    distance = Distance(np.zeros((1, 2)), np.array([0]))
    distance.add(0, np.array([[np.nan, 0.0]]))
    assert len(exceeded(distance.total(), [("kl_max", 1e9), ("max_abs", 1e9)])) == 2
