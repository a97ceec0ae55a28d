"""MaxText checkpoints in every layout that Orbax writes give the same tensors."""

import json
from pathlib import Path

import numpy as np
import pytest
import tensorstore as ts

from converter.errors import MappingError, SourceError
from converter.forward.run import MAXTEXT, open_model


def opened(path):
    model = open_model(path)
    assert model.kind == MAXTEXT
    return model.weights


PREFIX = "params/params/decoder"
SCANNED = Path(__file__).parents[1] / "data" / "maxtext" / "micro-hybrid" / "scanned"


def rewrite(path: Path, *, unscanned: bool, zarr3: bool) -> Path:
    """Copies the golden as plain directories, with the layers apart if asked."""
    weights = opened(str(SCANNED))
    views = {v.array.path: v.reader for v in weights.top.values()}
    views |= {v.array.path: v.reader for layer in weights.layers for v in layer.values()}
    items, tree = path / "0" / "items", {}
    for name, reader in views.items():
        values = reader.read_whole()
        parts = {name: values}
        if unscanned and "/layers/layers_" in name:
            block, _, rest = name.removeprefix(f"{PREFIX}/layers/layers_").partition("/")
            places = [f"{PREFIX}/layers_{2 * repeat + int(block)}/{rest}" for repeat in range(values.shape[1])]
            parts = dict(zip(places, np.moveaxis(values, 1, 0), strict=True))
        for leaf, part in parts.items():
            keys = leaf.split("/")
            tree[str(tuple(keys))] = {
                "key_metadata": [{"key": key, "key_type": 2} for key in keys],
                "value_metadata": {"value_type": "np.ndarray", "skip_deserialize": False},
            }
            kvstore = {"driver": "file", "path": str(items / ".".join(keys)) + "/"}
            spec = {"driver": "zarr3" if zarr3 else "zarr", "kvstore": kvstore, "dtype": "float32"}
            store = ts.open({**spec, "store_data_equal_to_fill_value": True}, create=True, shape=part.shape).result()
            store.write(part).result()
    metadata = {"tree_metadata": tree, "use_ocdbt": False, "use_zarr3": zarr3}
    (items / "_METADATA").write_text(json.dumps(metadata))
    return path


@pytest.mark.parametrize("unscanned", [True, False])
@pytest.mark.parametrize("zarr3", [True, False])
def test_layouts_agree(unscanned, zarr3, tmp_path):
    wanted = opened(str(SCANNED))
    found = opened(str(rewrite(tmp_path, unscanned=unscanned, zarr3=zarr3)))
    assert len(found.layers) == len(wanted.layers) == 4
    for ours, theirs in zip(found.layers, wanted.layers, strict=True):
        assert set(ours) == set(theirs)
        for name, view in ours.items():
            np.testing.assert_array_equal(view.read(), theirs[name].read(), err_msg=name)


def test_missing_and_contradicting_tensors_are_listed(tmp_path):
    path = rewrite(tmp_path, unscanned=True, zarr3=True)
    file = path / "0" / "items" / "_METADATA"
    content = json.loads(file.read_text())
    gone = "('params', 'params', 'decoder', 'layers_1', 'MoeBlock_0', 'wo')"
    del content["tree_metadata"][gone]
    file.write_text(json.dumps(content))
    with pytest.raises(SourceError) as caught:
        opened(str(path))
    assert caught.value.details == ("layer 1: expert_wo is missing",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "not valid JSON"),
        ("[]", "expected a JSON object"),
        ("{}", "expected Orbax's tree metadata"),
        ('{"tree_metadata": {"x": 1}}', "expected Orbax's tree metadata"),
    ],
)
def test_damaged_metadata_is_named(text, message, tmp_path):
    (tmp_path / "_METADATA").write_text(text)
    with pytest.raises(SourceError, match=message):
        opened(str(tmp_path))


def test_leaves_that_no_table_has_are_named(tmp_path):
    path = rewrite(tmp_path, unscanned=True, zarr3=True)
    file = path / "0" / "items" / "_METADATA"
    content = json.loads(file.read_text())
    tree = content["tree_metadata"]
    old = "('params', 'params', 'decoder', 'layers_1', 'MoeBlock_0', 'wo')"
    tree[old]["key_metadata"][-1]["key"] = "w_o"
    file.write_text(json.dumps(content))
    with pytest.raises(MappingError, match="no mapping has its leaves") as caught:
        opened(str(path))
    assert caught.value.details == ("envy: no row produces params/params/decoder/layers_1/MoeBlock_0/w_o",)


def test_a_checkpoint_without_weights(tmp_path):
    (tmp_path / "_METADATA").write_text(json.dumps({"tree_metadata": {}, "use_ocdbt": False}))
    with pytest.raises(MappingError, match="no mapping has its leaves") as caught:
        opened(str(tmp_path))
    assert "fuji: no row produces params/params/ (nothing is there)" in caught.value.details
    assert "fuji: missing in the checkpoint: token_embedder/embedding" in caught.value.details
