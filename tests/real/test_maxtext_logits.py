"""The real MaxText loads what we write, with our maxtext.yml, and computes AXLearn's logits."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from converter.axes import AxisMap
from converter.checkpoints import config_yaml
from converter.mapping import configure, find_published, load_bundled
from tests.conftest import AXLEARN, MAXTEXT, Cli
from tests.helpers import environments
from tests.helpers.families import FAMILIES
from tests.helpers.gcs import FakeGcs

SCRIPT = Path(__file__).parents[1] / "helpers" / "maxtext_logits.py"
LOADERS = ("load_params_from_path", "from_pretrained")
CASES = {
    "pairs-untied": ("micro-hybrid-qkpair", {"untie": True}),
    "pairs-tied": ("micro-hybrid-qkpair", {"store": "ocdbt"}),
    "unequal-untied": ("micro-hybrid", {"untie": True, "store": "ocdbt"}),
    "unequal-tied": ("micro-hybrid", {"store": "zarr2"}),
    "sharded-untied": ("micro-hybrid-sharded", {"untie": True}),
    "prenorm-untied": ("envy-test", {"untie": True}),
    "fuji-mha-tied": ("micro-fuji-mha", {"store": "ocdbt"}),
}
EXACT = {
    name: (
        name, {"untie": family.tied, "qk_norm": "fit" if family.fit else "plain"}
    )
    for name, family in FAMILIES.items()
}  # fmt: skip
"""Goldens of the other families, converted with what makes them exact in stock MaxText."""

CASES |= EXACT

FORMS = {
    "unscanned-fuji": ("micro-fuji-gqa", {"layout": "unscanned"}),
    "unscanned-envy": ("micro-hybrid-qkpair", {"untie": True, "layout": "unscanned"}),
    "unscanned-qwen": ("micro-qwen", {"layout": "unscanned"}),
    "unrolled-orbax-to-scanned": ("micro-fuji-mha-unrolled-orbax", {"untie": True}),
    "unrolled-orbax-to-unscanned": (
        "micro-fuji-mha-unrolled-orbax", {"untie": True, "layout": "unscanned", "store": "ocdbt"}
    ),
}  # fmt: skip
"""Layers with leaves of their own, of sources in several forms."""

CASES |= FORMS

INTERLEAVED = {
    "interleaved-envy": ("micro-hybrid-qkpair", {"untie": True, "rope": "interleaved"}),
    "interleaved-fuji": ("micro-fuji-gqa", {"rope": "interleaved", "layout": "unscanned"}),
    "interleaved-honeycrisp": ("micro-honeycrisp-qkproduct", {"untie": True, "qk_norm": "fit", "rope": "interleaved"}),
    "interleaved-gala": ("micro-gala", {"untie": True, "rope": "interleaved", "store": "ocdbt"}),
    "interleaved-qwen": ("micro-qwen", {"rope": "interleaved"}),
}
"""Each family with its rotated pairs as AXLearn has them, for MaxText's other RoPE."""

CASES |= INTERLEAVED

PUBLISHED = ("fuji-70B-v2", "fuji-1B-v3", "qwen3-30B-A3B")
"""Sizes with and without an output projection, and with experts; test_conform.py has all of them."""

# All of them need one expensive process; `--dist loadfile` keeps a module's tests on one worker. On a busy machine a
# load takes minutes: the limit is for a process that hangs, and each case loads for itself.
pytestmark = [pytest.mark.maxtext, pytest.mark.timeout(1800)]


class MaxTextLogits:
    """A process with the real MaxText, which computes the logits of one case at a time, when they are asked for."""

    def __init__(self, python: str, folder: Path, converted: Callable[..., Path], variables: Mapping[str, str]):
        self.folder = folder
        self.converted = converted
        self.known: dict[str, Mapping[str, np.ndarray]] = {}
        self.log = (folder / "log").open("w+")
        # -P: nothing of the project's directory can be imported.
        self.process = subprocess.Popen(
            [python, "-P", str(SCRIPT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True,
            env={**os.environ, **environments.MAXTEXT_VARIABLES, **variables},
        )  # fmt: skip

    def __getitem__(self, case: str) -> Mapping[str, np.ndarray]:
        """The logits of a case after each of MaxText's two loaders."""
        if case not in self.known:
            name, options = CASES[case]
            checkpoint = self.converted(name, **options)
            self.known[case] = self.load(str(checkpoint), checkpoint / "maxtext.yml", name)
        return self.known[case]

    def load(self, checkpoint: str, config: Path, name: str) -> Mapping[str, np.ndarray]:
        """The logits of any checkpoint of a golden."""
        ids, out = self.folder / "ids.npy", self.folder / "logits.npz"
        np.save(ids, axlearn(name, "input_ids").astype(np.int32))
        self._ask([checkpoint, str(config), str(ids), str(out)])
        with np.load(out) as file:
            return {loader: file[loader] for loader in LOADERS}

    def shapes(self, config: str) -> dict[str, tuple[int, ...]]:
        """The parameters that MaxText makes of the text of a configuration."""
        yml, out = self.folder / "maxtext.yml", self.folder / "shapes.json"
        yml.write_text(config)
        self._ask([str(yml), str(out)])
        return {f"params/params/{path}": tuple(shape) for path, shape in json.loads(out.read_text()).items()}

    def close(self) -> None:
        """Ends the process."""
        self.process.communicate()
        self.log.close()

    def _ask(self, request: list[str]) -> None:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        # MaxText writes on stdout too.
        for line in self.process.stdout:
            if line.strip() in ("logits written", "shapes written"):
                return
        self.log.seek(0)
        pytest.fail(f"the process with MaxText ended: {self.log.read()[-4000:]}")


@pytest.fixture(scope="module")
def logits(
    maxtext_python: str,
    converted: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
    gcs_server: FakeGcs,
) -> Iterator[MaxTextLogits]:
    """What MaxText computes; started once, loads a case when a test asks for it."""
    folder = tmp_path_factory.mktemp("logits")
    process = MaxTextLogits(maxtext_python, folder, converted, gcs_server.environment())
    yield process
    process.close()


def axlearn(name: str, what: str = "logits") -> np.ndarray:
    """AXLearn's own logits, or what it computed them from."""
    with np.load(AXLEARN / name / "logits.npz") as file:
        return file[what]


def difference(found: np.ndarray, expected: np.ndarray) -> float:
    assert found.shape == expected.shape
    assert np.isfinite(found).all()
    return float(np.abs(found - expected).max())


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("case", ["pairs-untied", "sharded-untied"])
def test_exact_where_the_pairs_are_equal(case: str, loader: str, logits: MaxTextLogits) -> None:
    expected = axlearn(CASES[case][0])
    assert expected.std() > 0.5
    assert difference(logits[case][loader], expected) < 1e-5


@pytest.mark.parametrize("store", ["files", "ocdbt"])
def test_a_bucket_gives_the_logits_of_local_files(
    store: str, logits: MaxTextLogits, gcs: FakeGcs, in_process: Cli, tmp_path: Path
) -> None:
    name = CASES["sharded-untied"][0]
    gcs.make_bucket("bucket")
    gcs.upload_tree(AXLEARN / name, "bucket", "run")
    # A name of its own for each: gcsfs keeps listings for as long as its process lives.
    url = f"gs://bucket/{store}"
    done = in_process("convert", "gs://bucket/run", url, "--untie", "--store", store)
    assert done.code == 0, done.err
    config = tmp_path / "maxtext.yml"
    config.write_bytes(gcs.read("bucket", f"{store}/maxtext.yml"))
    gcs.reset_counters()
    found = logits.load(url, config, name)
    assert gcs.counters()["sent"]["all"] > 100_000
    for loader in LOADERS:
        np.testing.assert_array_equal(found[loader], logits["sharded-untied"][loader])
        assert difference(found[loader], axlearn(name)) < 1e-5


@pytest.mark.parametrize("loader", LOADERS)
def test_tied_logits_are_rounded(loader: str, logits: MaxTextLogits) -> None:
    found = difference(logits["pairs-tied"][loader], axlearn("micro-hybrid-qkpair"))
    assert 1e-5 < found < 2e-2


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("kind", ["tied", "untied"])
def test_what_we_say_about_unequal_pairs_is_true(kind: str, loader: str, logits: MaxTextLogits) -> None:
    # Stock MaxText is not exact here, by exactly as much as was measured when MaxText ran its own checkpoint.
    measured = json.loads((MAXTEXT / "micro-hybrid" / "meta.json").read_text())["compare_to_axlearn"]
    stock = measured[f"scanned/{kind}/stock"]["maxabs"]
    found = difference(logits[f"unequal-{kind}"][loader], axlearn("micro-hybrid"))
    assert found == pytest.approx(stock, rel=0.01)
    with np.load(MAXTEXT / "micro-hybrid" / "logits.npz") as file:
        assert difference(logits[f"unequal-{kind}"][loader], file[f"maxtext_stock_{kind}"]) < 1e-4


@pytest.mark.parametrize("loader", LOADERS)
def test_prenorm_with_unequal_pairs(loader: str, logits: MaxTextLogits) -> None:
    with np.load(MAXTEXT / "envy-test" / "logits.npz") as file:
        assert difference(logits["prenorm-untied"][loader], file["maxtext_stock_untied"]) < 1e-4


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("case", EXACT)
def test_every_family_is_exact(case: str, loader: str, logits: MaxTextLogits) -> None:
    expected = axlearn(case)
    assert expected.std() > 0.5
    assert difference(logits[case][loader], expected) < FAMILIES[case].rounding


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("case", [*FORMS, *INTERLEAVED])
def test_every_form_is_exact(case: str, loader: str, logits: MaxTextLogits) -> None:
    limit = 3e-5 if "fuji" in CASES[case][0] else 1e-5
    assert difference(logits[case][loader], axlearn(CASES[case][0])) < limit


@pytest.mark.parametrize("loader", LOADERS)
def test_tied_logits_of_another_family_are_rounded_too(loader: str, logits: MaxTextLogits) -> None:
    assert 3e-5 < difference(logits["fuji-mha-tied"][loader], axlearn("micro-fuji-mha")) < 2e-2


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_size_has_the_leaves_that_maxtext_makes(name: str, logits: MaxTextLogits) -> None:
    match, _ = find_published(load_bundled(), name)
    ours: dict[str, tuple[int, ...]] = {}
    for row in match.rows:
        sizes = {axis: match.sizes[axis] for axis in row.expression.names()}
        ours |= dict(zip(row.targets, AxisMap(row.expression, sizes).target_shapes, strict=True))
    assert logits.shapes(config_yaml(configure(match).keys, name)) == ours
