"""A second family is a mapping table and nothing else: plain layers, scalars, an optional tensor, no experts."""

from pathlib import Path

import numpy as np
import pytest
import tensorstore as ts

from tests.conftest import Cli
from tests.helpers.axlearn_checkpoint import halves, numpy_dtype, write_checkpoint

TABLE = Path(__file__).parents[1] / "data" / "mappings" / "plain.toml"
LAYER = "model/decoder/transformer/repeat/layer"
D, L, N, K, H, F, V = 12, 3, 4, 2, 6, 20, 24


def tensors(*, gated: bool = True) -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    shapes: dict[str, tuple[int, ...]] = {
        "model/decoder/emb/token_emb/weight": (V, D),
        "model/decoder/output_norm/scale": (D,),
        "model/decoder/temperature": (),
        f"{LAYER}/self_attention/norm/scale": (L, D),
        f"{LAYER}/self_attention/attention/i_proj/i_proj/qkv_proj/weight": (L, D, N + 2 * K, H),
        f"{LAYER}/self_attention/attention/o_proj/weight": (L, D, N, H),
        f"{LAYER}/feed_forward/norm/scale": (L, D),
        f"{LAYER}/feed_forward/linear1_0/weight": (L, D, F),
        f"{LAYER}/feed_forward/linear1_1/weight": (L, D, F),
        f"{LAYER}/feed_forward/linear2/weight": (L, F, D),
    }
    if gated:
        shapes[f"{LAYER}/self_attention/value_gate"] = (L,)
    return {path: np.asarray(random.standard_normal(shape), np.float32) for path, shape in shapes.items()}


def expected(source: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """MaxText's leaves by plain numpy."""
    qkv = source[f"{LAYER}/self_attention/attention/i_proj/i_proj/qkv_proj/weight"]
    query, key, value = np.split(qkv, [N, N + K], axis=2)
    moved = {
        "pre_self_attention_layer_norm/scale": source[f"{LAYER}/self_attention/norm/scale"],
        "self_attention/query/kernel": halves(query),
        "self_attention/key/kernel": halves(key),
        "self_attention/value/kernel": value,
        "post_self_attention_layer_norm/scale": source[f"{LAYER}/feed_forward/norm/scale"],
        "mlp/wi_0/kernel": source[f"{LAYER}/feed_forward/linear1_0/weight"],
        "mlp/wi_1/kernel": source[f"{LAYER}/feed_forward/linear1_1/weight"],
        "mlp/wo/kernel": source[f"{LAYER}/feed_forward/linear2/weight"],
    }
    leaves = {f"decoder/layers/{path}": values.swapaxes(0, 1) for path, values in moved.items()}
    out = source[f"{LAYER}/self_attention/attention/o_proj/weight"]
    leaves["decoder/layers/self_attention/out/kernel"] = out.transpose(2, 0, 3, 1)
    if f"{LAYER}/self_attention/value_gate" in source:
        leaves["decoder/layers/self_attention/value_gate"] = source[f"{LAYER}/self_attention/value_gate"]
    leaves["token_embedder/embedding"] = source["model/decoder/emb/token_emb/weight"]
    leaves["decoder/decoder_norm/scale"] = source["model/decoder/output_norm/scale"]
    leaves["decoder/temperature"] = source["model/decoder/temperature"]
    return {f"params/params/{path}": values for path, values in leaves.items()}


def read_leaf(target: Path, path: str, store: str) -> np.ndarray:
    directory = target / "0" / "items" / path.replace("/", ".")
    driver = "zarr" if store == "zarr2" else "zarr3"
    spec = {"driver": driver, "kvstore": {"driver": "file", "path": f"{directory}/"}}
    return np.asarray(ts.open(spec, open=True).result().read().result())


@pytest.mark.parametrize("gated", [True, False], ids=["gated", "plain"])
@pytest.mark.parametrize("options", [(), ("--rewrite",), ("--store", "zarr2"), ("--store", "ocdbt")], ids=str)
def test_convert_and_verify(gated: bool, options: tuple[str, ...], tmp_path: Path, cli: Cli) -> None:
    source = tensors(gated=gated)
    write_checkpoint(tmp_path / "step_00000100", source)
    done = cli("convert", tmp_path / "step_00000100", tmp_path / "out", "--mapping", TABLE, "--json", *options)
    assert done.code == 0, done.err + done.out
    assert done.document["config"]["base_num_decoder_layers"] == L
    assert done.document["config"]["use_value_gate"] == gated
    if "ocdbt" not in options:
        for path, values in expected(source).items():
            np.testing.assert_array_equal(read_leaf(tmp_path / "out", path, options[-1] if options else ""), values)
    verified = cli("verify", tmp_path / "step_00000100", tmp_path / "out", "--mapping", TABLE)
    assert verified.code == 0, verified.out + verified.err
    assert cli("verify", tmp_path / "out").code == 0


def test_reports(tmp_path: Path, cli: Cli) -> None:
    count = sum(values.size for values in tensors().values())
    report = cli("params", "--model", "plain-small", "--mapping", TABLE, "--json")
    assert report.code == 0, report.err + report.out
    assert report.document["totals"]["axlearn"] == report.document["totals"]["maxtext"] == count
    write_checkpoint(tmp_path / "step_00000100", tensors())
    report = cli("params", tmp_path / "step_00000100", "--mapping", TABLE, "--model", "plain-small", "--json")
    assert report.code == 0, report.err + report.out
    assert cli("mappings", "check", TABLE).code == cli("mappings", "show", TABLE).code == 0


@pytest.mark.parametrize("store", ["files", "zarr2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_scale_of_a_row(store: str, dtype: str, tmp_path: Path, cli: Cli) -> None:
    table = tmp_path / "scaled.toml"
    text = TABLE.read_text()
    for role, rule in (("out", '{ size = "pair", times = 2, power = -0.5 }'), ("final_norm", "3.0")):
        text = text.replace(f'role = "{role}"\n', f'role = "{role}"\nscale = {rule}\n')
    table.write_text(text)
    source = {path: values.astype(numpy_dtype(dtype)) for path, values in tensors().items()}
    write_checkpoint(tmp_path / "step_00000100", source)
    arguments = "--mapping", table, "--store", store, "--json"
    planned = cli("plan", tmp_path / "step_00000100", *arguments)
    reasons = {task["leaves"][0]["path"]: task["reason"] for task in planned.document["tasks"]}
    assert reasons["params/params/decoder/decoder_norm/scale"] in (
        "values are scaled",
        "zarr v2 cannot store moved axes",
    )
    done = cli("convert", tmp_path / "step_00000100", tmp_path / "out", *arguments)
    assert done.code == 0, done.err + done.out
    wanted = expected(source)
    for path, factor in (("decoder/layers/self_attention/out/kernel", H**-0.5), ("decoder/decoder_norm/scale", 3.0)):
        exact = wanted[f"params/params/{path}"].astype(np.float64) * factor
        wanted[f"params/params/{path}"] = exact.astype(numpy_dtype(dtype))
    for path, values in wanted.items():
        np.testing.assert_array_equal(read_leaf(tmp_path / "out", path, store), values, err_msg=path)
    verified = cli("verify", tmp_path / "step_00000100", tmp_path / "out", "--mapping", table)
    assert verified.code == 0, verified.out + verified.err
    wrong = cli("verify", tmp_path / "step_00000100", tmp_path / "out", "--mapping", TABLE, "--json")
    assert wrong.code == 6
    assert {finding["place"] for finding in wrong.document["findings"]} == {
        "params/params/decoder/layers/self_attention/out/kernel",
        "params/params/decoder/decoder_norm/scale",
    }
