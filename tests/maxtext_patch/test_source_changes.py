"""The patches change a statement where it is what they were made for, and refuse everything else."""

import ast
import textwrap
import types

import pytest

from converter import maxtext_patch
from converter.maxtext_patch import PatchError, logits, norms, updates

METHOD = """
def __call__(self, query, key, use_shared_kv=False, inputs_positions=None, rope_kwargs=None):
    is_llama4_decoder_block = False
    use_rope = True
    if (self.use_qk_norm and not is_llama4_decoder_block) or self.is_qwen3_hybrid:
        query = self.query_norm(query)
        if not use_shared_kv:
            key = self.key_norm(key)
    value = "v"
    if use_rope:
        query = self.apply_rotary_embedding(query, inputs_positions=inputs_positions, rope_kwargs=rope_kwargs)
        if not use_shared_kv:
            key = self.apply_rotary_embedding(key, inputs_positions=inputs_positions, rope_kwargs=rope_kwargs)
    return query, key, value
"""


class Recorder:
    use_qk_norm = True
    is_qwen3_hybrid = False

    def __init__(self, block: str):
        self.config = types.SimpleNamespace(decoder_block=block)

    def query_norm(self, x):
        return x + " q-norm"

    def key_norm(self, x):
        return x + " k-norm"

    def apply_rotary_embedding(self, x, **_):
        return x + " rope"


def patched(*blocks: str):
    names: dict = {"DecoderBlockType": types.SimpleNamespace(ENVY="envy", QWEN3="qwen3")}
    tree = ast.parse(METHOD)
    norms.patch_source(tree, blocks or norms.BLOCKS)
    exec(compile(tree, "test", "exec"), names)
    return names["__call__"]


def test_envy_norms_after_rope_and_others_before():
    assert patched()(Recorder("envy"), "q", "k") == ("q rope q-norm", "k rope k-norm", "v")
    assert patched()(Recorder("envy"), "q", "k", use_shared_kv=True) == ("q rope q-norm", "k", "v")
    assert patched()(Recorder("llama2"), "q", "k") == ("q q-norm rope", "k k-norm rope", "v")


def test_the_blocks_are_the_callers_choice():
    both, after = patched("ENVY", "QWEN3"), ("q rope q-norm", "k rope k-norm", "v")
    assert both(Recorder("qwen3"), "q", "k") == both(Recorder("envy"), "q", "k") == after
    assert both(Recorder("llama2"), "q", "k") == ("q q-norm rope", "k k-norm rope", "v")
    assert patched()(Recorder("qwen3"), "q", "k") == ("q q-norm rope", "k k-norm rope", "v")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("query = self.query_norm(query)", "query = self.query_norm(query) * 2", "q/k norm is expected once"),
        ("if use_rope:", "if use_rope and True:", "RoPE is expected once"),
        ('value = "v"', 'value = "v"; key = key * 2', "changes q or k"),
        ('value = "v"', "query, value = query * 2, 1", "changes q or k"),
    ],
)
def test_other_attention_is_refused(old, new, message):
    assert old in METHOD
    with pytest.raises(PatchError, match=message):
        norms.patch_source(ast.parse(METHOD.replace(old, new)))


def test_the_order_of_the_two_places_is_checked():
    tree = ast.parse(METHOD)
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    function.body[2], function.body[4] = function.body[4], function.body[2]
    with pytest.raises(PatchError, match="changes q or k"):
        norms.patch_source(tree)


PRODUCT = """
def attend_on_embedding(query, embedding_table, attend_dtype, config, out_sharding=None):
    return jnp.dot(query, jnp.asarray(embedding_table, jnp.bfloat16).T, preferred_element_type=attend_dtype,
                   out_sharding=out_sharding)
"""


def test_the_table_is_taken_in_the_dtype_of_the_query():
    tree = ast.parse(PRODUCT)
    logits.patch_source(tree)
    assert ast.unparse(tree) == ast.unparse(ast.parse(PRODUCT.replace("jnp.bfloat16", "query.dtype")))


@pytest.mark.parametrize(
    ("old", "new"), [("jnp.bfloat16", "attend_dtype"), (".T", ".mT"), ("return jnp.dot", "product = jnp.dot")]
)
def test_another_product_is_refused(old, new):
    assert old in PRODUCT
    with pytest.raises(PatchError, match="bfloat16 table is expected once"):
        logits.patch_source(ast.parse(PRODUCT.replace(old, new)))


OPTIMIZER = (
    'def get_optimizer(config, learning_rate_schedule, model=None, mesh=None):\n    """Text."""\n'
    '    if config.opt_type == "adamw":\n'
    + textwrap.indent(updates.ADAMW.format(adamw="optax.adamw"), " " * 8)
    + '    elif config.opt_type == "sgd":\n        base_opt = optax.sgd(learning_rate_schedule)\n'
    + textwrap.indent(updates.WRAPPERS, " " * 4)
)


def test_adamw_is_replaced_and_other_optimizers_are_refused():
    calls: list[str] = []
    names: dict = {
        "ax2mt_adamw": lambda *_, **keys: calls.append(f"decay {keys['weight_decay']}") or "ours",
        "ax2mt_only_adamw": calls.append,
        "get_adamw_mask": lambda _: None,
        "_get_path_mask_fn": lambda *_, **__: None,
    }
    tree = ast.parse(OPTIMIZER)
    updates.patch_optimizer(tree)
    exec(compile(tree, "test", "exec"), names)
    keys = ("adam_b1", "adam_b2", "adam_eps", "adam_eps_root", "mu_dtype")
    config = types.SimpleNamespace(opt_type="adamw", adam_weight_decay=0.1, **dict.fromkeys(keys))
    assert names["get_optimizer"](config, None) == "ours"
    assert calls == ["adamw", "decay 0.1"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("eps=config.adam_eps,", "eps=1e-8,", "optax.adamw is expected once"),
        ('config.opt_type == "adamw"', 'config.opt_type in ("adamw",)', "expected to begin with"),
        ('    """Text."""\n', "    config = other(config)\n", "expected to begin with"),
        ("    elif ", "        base_opt = wrap(base_opt)\n    elif ", "does more than call optax.adamw"),
        ("return base_opt", "return wrap(base_opt)", "something else with the optimizer"),
        ("interval=config.skip_step_interval,", "interval=8,", "something else with the optimizer"),
    ],
)
def test_another_optimizer_is_refused(old, new, message):
    assert old in OPTIMIZER
    with pytest.raises(PatchError, match=message):
        updates.patch_optimizer(ast.parse(OPTIMIZER.replace(old, new)))


@pytest.mark.parametrize("version", ["0.2.4", "0.3.0", "1.0", "unknown"])
@pytest.mark.parametrize("call", [
    maxtext_patch.apply, maxtext_patch.unround_tied_logits, lambda: maxtext_patch.scale_updates({"a": 0.5}),
])  # fmt: skip
def test_other_versions_are_refused(call, version, monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda _: version)
    with pytest.raises(PatchError, match="up to, but not including"):
        call()
