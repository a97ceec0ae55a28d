"""The patch moves two statements where they are what it was made for, and refuses everything else."""

import ast
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from converter import maxtext_patch
from converter.conversion.run import Request, convert
from converter.maxtext_patch import BLOCKS, PatchError, configured_blocks, patch_source
from converter.planning.options import Options
from converter.work import Silent

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data" / "axlearn"

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
    exec(compile(patch_source(METHOD, blocks) if blocks else patch_source(METHOD), "test", "exec"), names)
    return names["__call__"]


def test_envy_norms_after_rope_and_others_before():
    assert patched()(Recorder("envy"), "q", "k") == ("q rope q-norm", "k rope k-norm", "v")
    assert patched()(Recorder("envy"), "q", "k", use_shared_kv=True) == ("q rope q-norm", "k", "v")
    assert patched()(Recorder("llama2"), "q", "k") == ("q q-norm rope", "k k-norm rope", "v")


def test_the_blocks_are_the_callers_choice():
    both = patched("ENVY", "QWEN3")
    assert (
        both(Recorder("qwen3"), "q", "k") == both(Recorder("envy"), "q", "k") == ("q rope q-norm", "k rope k-norm", "v")
    )
    assert both(Recorder("llama2"), "q", "k") == ("q q-norm rope", "k k-norm rope", "v")
    assert patched()(Recorder("qwen3"), "q", "k") == ("q q-norm rope", "k k-norm rope", "v")


@pytest.mark.parametrize(
    ("text", "arguments", "blocks"),
    [
        ("base_config: base.yml\ndecoder_block: qwen3  # plain\n", [], ("QWEN3",)),
        ("decoder_block: 'envy'\n", ["run_name=x"], ("ENVY",)),
        ("decoder_block: envy\n", ["decoder_block=qwen3"], ("QWEN3",)),
        ("base_emb_dim: 8\n", [], BLOCKS),
    ],
)
def test_the_configuration_names_the_block(text, arguments, blocks, tmp_path):
    (tmp_path / "maxtext.yml").write_text(text)
    assert configured_blocks([str(tmp_path / "maxtext.yml"), *arguments]) == blocks


def test_a_configuration_that_cannot_be_read(tmp_path):
    assert configured_blocks([]) == BLOCKS
    with pytest.raises(PatchError, match=r"absent\.yml: cannot be read"):
        configured_blocks([str(tmp_path / "absent.yml")])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("query = self.query_norm(query)", "query = self.query_norm(query) * 2", "q/k norm is expected once"),
        ("if use_rope:", "if use_rope and True:", "RoPE is expected once"),
        ('value = "v"', 'value = "v"; key = key * 2', "changes q or k"),
        ('value = "v"', "query, value = query * 2, 1", "changes q or k"),
    ],
)
def test_other_code_is_refused(old, new, message):
    assert old in METHOD
    with pytest.raises(PatchError, match=message):
        patch_source(METHOD.replace(old, new))


def test_the_order_of_the_two_places_is_checked():
    function = ast.parse(METHOD).body[0]
    assert isinstance(function, ast.FunctionDef)
    function.body[2], function.body[4] = function.body[4], function.body[2]
    with pytest.raises(PatchError, match="changes q or k"):
        patch_source(ast.unparse(function))


@pytest.mark.parametrize("version", ["0.2.4", "0.3.0", "1.0", "unknown"])
def test_other_versions_are_refused(version, monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda _: version)
    with pytest.raises(PatchError, match="up to, but not including"):
        maxtext_patch.apply()


def test_without_maxtext_the_command_says_so(capsys):
    assert maxtext_patch.main(["maxtext.trainers.pre_train.train", "x.yml"]) == 1
    assert "MaxText is not installed" in capsys.readouterr().err
    assert maxtext_patch.main([]) == 2


def test_it_imports_nothing_that_maxtext_lacks():
    code = "import sys, converter.maxtext_patch as m; print([n for n in sys.modules if n.startswith('converter.')])"
    found = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "['converter.maxtext_patch']"


@pytest.mark.maxtext
@pytest.mark.timeout(1800)
def test_patched_maxtext_computes_what_axlearn_does(tmp_path):
    python = ROOT / ".venv-maxtext" / "bin" / "python"
    if not python.exists():
        pytest.skip("no MaxText environment; `make test` sets it up")
    golden = np.load(DATA / "micro-hybrid" / "logits.npz")
    convert(Request(str(DATA / "micro-hybrid"), str(tmp_path / "out"), Options(table=frozenset({"untie"}))), Silent())
    np.save(tmp_path / "ids.npy", golden["input_ids"])
    helper = ROOT / "tests" / "helpers" / "maxtext_patched.py"
    files = [str(tmp_path / name) for name in ("ids.npy", "out", "logits.npz")]
    done = subprocess.run(
        [str(python), str(helper), str(ROOT), *files], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == "['converter.maxtext_patch']"
    found = np.load(files[2])
    assert set(found.files) == {"load_params_from_path", "from_pretrained"}
    for key in found.files:
        np.testing.assert_allclose(found[key], golden["logits"], rtol=0, atol=1e-5)
