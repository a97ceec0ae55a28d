"""The forward pass against AXLearn's and MaxText's own values, and against float64."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import pytest

from converter.forward import model as envy_model
from converter.forward.checkpoint_weights import axlearn_weights
from converter.forward.model import Variant, run, working_memory
from converter.forward.run import INTERPRETER, open_model
from converter.forward.semantics import Semantics, axlearn_semantics
from converter.forward.tokens import Tokens, built_in
from converter.forward.weights import Weights
from converter.mapping.file import find_mapping
from converter.mapping.settings import converted_keys, source_arithmetic
from converter.planning.source import open_source
from tests.conftest import Cli
from tests.helpers.arrays import read_npz
from tests.helpers.axlearn_checkpoint import dimensions, envy_tensors, write_checkpoint
from tests.helpers.envy_float64 import reference_logits

DATA = Path(__file__).parents[1] / "data"
ENVY = find_mapping("envy")
CONVERTED = converted_keys(ENVY, {})
AXLEARN = axlearn_semantics(source_arithmetic(ENVY, CONVERTED), tied=True)


def as_tokens(ids: np.ndarray) -> Tokens:
    count, length = ids.shape
    return Tokens(ids.reshape(-1), tuple((i * length, (i + 1) * length) for i in range(count)), "test")


def logits(weights: Weights, semantics: Semantics, tokens: Tokens, observe=None) -> np.ndarray:
    parts: list[np.ndarray] = []
    run(weights, [Variant(semantics)], tokens, lambda _, values: parts.append(values[0].copy()), observe=observe)
    return np.concatenate(parts)


@dataclass(frozen=True)
class Golden:
    """What AXLearn computed, and the weights that it computed it from."""

    weights: Weights
    ids: np.ndarray
    values: Mapping[str, np.ndarray]


@pytest.fixture(params=["micro-hybrid", "micro-hybrid-qkpair", "micro-hybrid-sharded", "envy-test", "envy-test-bf16"])
def golden(request: pytest.FixtureRequest) -> Golden:
    folder = DATA / "axlearn" / request.param
    weights = open_model(str(folder)).weights
    with np.load(folder / "logits.npz") as end, np.load(folder / "intermediates.npz") as inside:
        return Golden(weights, end["input_ids"], {**inside, "logits": end["logits"]})


def distances(found: Mapping[str, np.ndarray], golden: Golden) -> dict[str, float]:
    """The largest absolute difference of each of AXLearn's values."""
    return {name: np.abs(found[name].reshape(value.shape) - value).max() for name, value in golden.values.items()}


def test_axlearn_logits_and_intermediates(golden):
    seen: dict[str, np.ndarray] = {}
    found = logits(golden.weights, AXLEARN, as_tokens(golden.ids), keep(seen))
    far = distances({**seen, "logits": found}, golden)
    assert far["logits"] < 1e-5
    # Behind four layers the two roundings have drifted apart; the next test has each layer start from AXLearn's values.
    assert max(far.values()) < 2e-5, far


def test_each_layer_from_axlearns_own_values(golden):
    seen: dict[str, np.ndarray] = {}
    tokens = as_tokens(golden.ids)
    with jax.default_matmul_precision("float32"):
        model = envy_model._Forward(golden.weights, [Variant(AXLEARN)], tokens, keep(seen))
        model.embed()
        before = "embedding"
        for number in range(len(golden.weights.layers)):
            model.x[0] = golden.values[before].reshape(model.x[0].shape)
            model.layer(number)
            before = f"layer{number}/out"
        model.x[0] = golden.values[before].reshape(model.x[0].shape)
        model.logits(lambda _, values: seen.update(logits=values[0].copy()))
    far = distances(seen, golden)
    assert max(far.values()) < 1e-5, far


def test_what_is_left_is_rounding(golden):
    """AXLearn's values and ours lie around the same float64 values, and equally close."""
    seen: dict[str, np.ndarray] = {}
    exact: dict[str, np.ndarray] = {}
    found = logits(golden.weights, AXLEARN, as_tokens(golden.ids), keep(seen))
    exact["logits"] = reference_logits(golden.weights, golden.ids, keep(exact))
    for name, theirs in golden.values.items():
        ours = {**seen, "logits": found}[name].reshape(theirs.shape)
        for side, values in (("AXLearn", theirs), ("ax2mt", ours)):
            error = values - exact[name]
            assert np.abs(error).max() < 1.5e-5, (side, name)
            assert np.sqrt(np.square(error).mean()) < 3e-6, (side, name)


def keep(seen: dict[str, np.ndarray]):
    return lambda name, values: seen.update({name: values.copy()})


@pytest.mark.parametrize("name", ["micro-hybrid", "micro-hybrid-qkpair", "envy-test"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("after", [True, False])
def test_maxtext_logits(name, tied, after):
    golden = read_npz(DATA / "maxtext" / name / "logits.npz")
    place = DATA / "maxtext" / name / ("scanned" if tied else "scanned-untied")
    model = open_model(str(place), norm_after_rope=after)
    assert (model.kind, model.semantics.tied, model.semantics.norm_after_rope) == ("MaxText", tied, after)
    found = logits(model.weights, model.semantics, as_tokens(golden["input_ids"]))
    wanted = golden[f"maxtext_{'norm_after_rope' if after else 'stock'}_{'tied' if tied else 'untied'}"]
    np.testing.assert_allclose(found.reshape(wanted.shape), wanted, rtol=0, atol=1e-5)


def test_long_sequence_against_float64():
    weights = open_model(str(DATA / "axlearn" / "micro-hybrid")).weights
    tokens = built_in(weights.vocabulary, 700)
    wanted = reference_logits(weights, tokens.ids[None])[0]
    np.testing.assert_allclose(logits(weights, AXLEARN, tokens), wanted, rtol=0, atol=1e-5)


def test_pieces_do_not_change_the_result(monkeypatch):
    weights = open_model(str(DATA / "axlearn" / "micro-hybrid")).weights
    ids = built_in(weights.vocabulary, 70).ids
    tokens = Tokens(ids, ((0, 50), (50, 51), (51, 70)), "test")
    whole = logits(weights, AXLEARN, tokens)
    alone = [logits(weights, AXLEARN, as_tokens(ids[None, a:b])) for a, b in tokens.sequences]
    np.testing.assert_allclose(np.concatenate(alone), whole, rtol=0, atol=1e-5)
    monkeypatch.setattr(envy_model, "SCORES", 4 * 4 * 50 * 7)
    monkeypatch.setattr(envy_model, "LOGITS", 4 * 64 * 9)
    np.testing.assert_allclose(logits(weights, AXLEARN, tokens), whole, rtol=0, atol=1e-5)


def test_only_the_experts_of_the_tokens_are_read(monkeypatch):
    weights = open_model(str(DATA / "axlearn" / "micro-hybrid")).weights
    read: set[int] = set()
    genuine = envy_model._apply_experts

    def spy(inputs, view):
        read.update(inputs)
        return genuine(inputs, view)

    monkeypatch.setattr(envy_model, "_apply_experts", spy)
    shares = []
    monkeypatch.setattr(envy_model._Forward, "_route", keep_result(envy_model._Forward._route, shares))
    logits(weights, AXLEARN, as_tokens(np.array([[5]], np.int32)))
    assert read == {int(expert) for chosen, _ in shares for expert in chosen.reshape(-1)}
    assert all(chosen.shape == (1, 2) for chosen, _ in shares)


def keep_result(method, results):
    def wrapped(*arguments):
        results.append(method(*arguments))
        return results[-1]

    return wrapped


def test_the_budget_holds_for_long_sequences(process: Cli, tmp_path: Path):
    tensors = envy_tensors(dimensions(64, 1, 8, 8, 64, 2048, 2048, 4, 32768))
    source = str(write_checkpoint(tmp_path / "step_00000100", tensors))
    ids = built_in(32768, 2500).ids
    needed = working_memory(open_model(source).weights, [Variant(AXLEARN)], len(ids)) + INTERPRETER
    (tmp_path / "tokens.jsonl").write_text(json.dumps(ids.tolist()))
    arguments = "logits", source, "--tokens", tmp_path / "tokens.jsonl", "--json", "--max-memory"
    refused = process(*arguments, needed - 1)
    assert (refused.code, refused.document["error"]["kind"]) == (2, "usage")
    done = process(*arguments, needed)
    assert done.code == 0, done.err
    assert done.document["peak_memory"] <= needed


def test_a_table_without_roles_is_refused(tmp_path):
    from converter.errors import MappingError

    lines = Path("mappings/envy.toml").read_text().splitlines()
    (tmp_path / "mine.toml").write_text("\n".join(line for line in lines if not line.startswith("role = ")))
    source = open_source(str(DATA / "axlearn" / "micro-hybrid"), mapping=str(tmp_path / "mine.toml"))
    with pytest.raises(MappingError, match="gives no roles to its tensors"):
        axlearn_weights(source)
