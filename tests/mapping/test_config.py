"""MaxText's configuration: the published models' keys and values, a user's changes, and that MaxText knows the keys."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from converter.checkpoints.maxtext_config import config_yaml
from converter.checkpoints.names import leaf_key
from converter.errors import MappingError
from converter.mapping.bundled import table_path
from converter.mapping.config import model_config
from converter.mapping.file import find_mapping, load_mapping
from converter.mapping.match import match_table
from converter.mapping.published import published_shapes
from tests.helpers.axlearn_checkpoint import SMALL, STACK, envy_shapes

SWITCH_BASE = {
    "decoder_block": "envy",
    "mlp_activations": ["silu", "linear"],
    "enable_dropout": False,
    "tokenizer_type": "huggingface",
    "logits_via_embedding": True,
    "normalize_embedding_logits": False,
    "base_emb_dim": 1536,
    "base_num_decoder_layers": 12,
    "base_num_query_heads": 12,
    "base_num_kv_heads": 12,
    "head_dim": 128,
    "base_mlp_dim": 6144,
    "base_moe_mlp_dim": 6144,
    "vocab_size": 32768,
    "normalization_layer_epsilon": 1e-05,
    "rope_max_timescale": 500000,
    "num_experts": 128,
    "num_experts_per_tok": 2,
    "use_qk_norm": True,
    "use_post_ffw_norm": True,
    "load_balance_loss_weight": 0.0,
    "interleave_moe_layer_step": 2,
    "inhomogeneous_layer_cycle_interval": 2,
    "scan_layers": True,
}


def config(name: str) -> dict[str, Any]:
    return model_config(published_shapes(find_mapping("envy"), name)[0])


def test_switch_base_by_the_letter() -> None:
    assert config("envy-switch-base") == SWITCH_BASE


def test_what_the_other_sizes_and_options_change() -> None:
    small = config("envy-test")
    assert (small["use_post_ffw_norm"], small["head_dim"], small["base_num_decoder_layers"]) == (False, 2, 4)
    assert config("envy-switch-xxl")["base_num_kv_heads"] == 8
    untied = match_table(find_mapping("envy"), envy_shapes(SMALL), options={"untie"})
    assert model_config(untied)["logits_via_embedding"] is False


def test_layers_that_differ_in_what_maxtext_has_once() -> None:
    shapes = envy_shapes(SMALL)
    layer = f"{STACK}/layer1/feed_forward"
    del shapes[f"{layer}/postnorm/scale"]
    shapes[f"{layer}/norm/scale"] = shapes.pop(f"{layer}/prenorm/scale")
    with pytest.raises(MappingError) as caught:
        model_config(match_table(find_mapping("envy"), shapes))
    assert caught.value.message == (
        "some layers are hybridnorm, others prenorm; MaxText has one use_post_ffw_norm for all layers"
    )


EXTRA = """
[[tensor]]
axlearn = "decoder/output_norm/scale"
maxtext = "decoder/extra"
axes = "width -> width"
group = "norm"
option = "extra"
"""


def test_a_rule_for_a_size_of_rows_that_are_not_there(tmp_path: Path) -> None:
    text = Path(table_path("envy")).read_text()
    table = tmp_path / "table.toml"
    table.write_text(text.replace('head_dim = { size = "pair"', 'head_dim = { size = "width"') + EXTRA)
    shapes = envy_shapes(SMALL)
    assert model_config(match_table(load_mapping(str(table)), shapes, options={"extra"}))["head_dim"] == 2 * 12
    with pytest.raises(MappingError) as caught:
        model_config(match_table(load_mapping(str(table)), shapes))
    assert caught.value.message == "mapping 'envy': config head_dim needs the axis width, unused here"


@pytest.fixture(scope="module")
def base_config(maxtext_python: str) -> dict[str, Any]:
    """The keys that the real MaxText has, with its own values."""
    script = "import importlib.util; print(*importlib.util.find_spec('maxtext').submodule_search_locations)"
    done = subprocess.run([maxtext_python, "-P", "-c", script], capture_output=True, text=True, check=True)
    return yaml.safe_load((Path(done.stdout.strip()) / "configs" / "base.yml").read_text())


@pytest.mark.parametrize("name", ["envy-test", "envy-switch-base"])
def test_maxtext_knows_every_key_and_has_the_same_kind_of_value(name: str, base_config: dict[str, Any]) -> None:
    body = yaml.safe_load(config_yaml(config(name), "origin"))
    assert body.pop("base_config") == "base.yml"
    kinds = {key: type(value) for key, value in body.items()}
    assert kinds == {key: type(base_config.get(key)) for key in body}


values = st.one_of(
    st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=9), st.lists(st.text(max_size=5))
)


@given(body=st.dictionaries(st.from_regex(r"[a-z]\w{0,8}", fullmatch=True), values), origin=st.text(max_size=30))
def test_what_is_written_is_read_again(body: dict[str, Any], origin: str) -> None:
    body = {key: value for key, value in body.items() if key not in ("base_config", "model_name")}
    text = config_yaml(body, origin)
    found = yaml.safe_load(text)
    assert found == {"base_config": "base.yml", "model_name": "default", **body}
    assert list(found)[:2] == ["base_config", "model_name"]
    assert [line[:2] for line in text.splitlines()[:3]] == ["# "] * 3
    assert text.splitlines()[3] == "base_config: base.yml  # a file of its own"


def test_the_origin_cannot_leave_its_comment() -> None:
    text = config_yaml({"head_dim": 8}, "a\nsteps: 3\x1b[31m")
    assert text.splitlines()[2] == "# a?steps: 3?[31m"
    assert yaml.safe_load(text) == {"base_config": "base.yml", "model_name": "default", "head_dim": 8}


def test_names_on_disk() -> None:
    assert leaf_key("params/params/decoder/decoder_norm/scale") == "params.params.decoder.decoder_norm.scale"
