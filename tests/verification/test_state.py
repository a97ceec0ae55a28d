"""verify of a training state: MaxText fills up what is missing with zeros, so nothing of it may go missing unseen."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from converter.verification import verify, verify_digests
from converter.verification.result import Verification
from converter.work import Silent
from tests.conftest import AXLEARN, DATA, Cli
from tests.helpers.arrays import read_npz
from tests.helpers.conversion import run

SOURCE = DATA / "training" / "micro-envy" / "axlearn"
ITEMS = "19/items"
EMBEDDING = "token_embedder/embedding"

KINDS = {
    "step": "step",
    "Adam's count": "opt_state/0/count",
    "the schedule's count": "opt_state/2/count",
    "mu": f"opt_state/0/mu/params/{EMBEDDING}",
    "nu": f"opt_state/0/nu/params/{EMBEDDING}",
    "a parameter": f"params/params/{EMBEDDING}",
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("state") / "out"
    # Inside the warm-up, so that the schedule's count is another one than Adam's.
    run(SOURCE, target, state=True, settings=["learner.warmup_steps=30"])
    return target


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "copy")


def against_source(target: Path, **options: str) -> Verification:
    return verify(str(SOURCE), str(target), **options, progress=Silent())  # pyright: ignore[reportArgumentType]


def against_digests(target: Path) -> Verification:
    return verify_digests(str(target), Silent())


BOTH = pytest.mark.parametrize("check", [against_source, against_digests])
Check = Callable[[Path], Verification]


def edit_tree(target: Path, change: Callable[[dict], object]) -> None:
    """Changes the entries of Orbax's tree."""
    file = target / ITEMS / "_METADATA"
    content = json.loads(file.read_text())
    change(content["tree_metadata"])
    file.write_text(json.dumps(content))


def key_of(path: str) -> str:
    return str(tuple(path.split("/")))


@BOTH
def test_a_whole_state_passes(check: Check, whole: Path) -> None:
    result = check(whole)
    assert result.ok
    assert (result.leaves, result.elements) == (84, 3 * 61152 + 3)


@BOTH
@pytest.mark.parametrize("kind", KINDS)
def test_a_leaf_that_is_gone_from_tree_and_disk_is_found(kind: str, check: Check, copy: Path) -> None:
    path = KINDS[kind]
    shutil.rmtree(copy / ITEMS / path.replace("/", "."))
    edit_tree(copy, lambda tree: tree.pop(key_of(path)))
    assert ("coverage", path) in {(finding.check, finding.place) for finding in check(copy).findings}


@BOTH
@pytest.mark.parametrize("kind", KINDS)
def test_a_leaf_that_is_gone_from_disk_is_found(kind: str, check: Check, copy: Path) -> None:
    path = KINDS[kind]
    shutil.rmtree(copy / ITEMS / path.replace("/", "."))
    assert path in {finding.place for finding in check(copy).findings}


@BOTH
def test_all_of_the_state_gone_is_found(check: Check, copy: Path) -> None:
    for place in (copy / ITEMS).glob("opt_state.*"):
        shutil.rmtree(place)

    def change(tree: dict) -> None:
        for key in [key for key in tree if "opt_state" in key]:
            del tree[key]

    edit_tree(copy, change)
    missing = {finding.place for finding in check(copy).findings if finding.check == "coverage"}
    assert len([path for path in missing if path.startswith("opt_state/")]) >= 56


@BOTH
@pytest.mark.parametrize("kind", ["step", "Adam's count", "the schedule's count"])
def test_another_count_is_found_with_both_values(kind: str, check: Check, copy: Path) -> None:
    path = KINDS[kind]
    other = "step" if kind == "the schedule's count" else "opt_state/2/count"
    # The digest covers the chunk's place and bytes: the other count's chunk is another value.
    shutil.rmtree(copy / ITEMS / path.replace("/", "."))
    shutil.copytree(copy / ITEMS / other.replace("/", "."), copy / ITEMS / path.replace("/", "."))
    (finding,) = [finding for finding in check(copy).findings if finding.place == path]
    if check is against_source:
        assert {finding.expected, finding.found} == {"20", "21"}


@BOTH
def test_swapped_moments_are_found(check: Check, copy: Path) -> None:
    places = [copy / ITEMS / f"opt_state.0.{name}.params.token_embedder.embedding" for name in ("mu", "nu")]
    places[0].rename(copy / "aside")
    places[1].rename(places[0])
    (copy / "aside").rename(places[1])
    found = {finding.place: finding for finding in check(copy).findings}
    assert {KINDS["mu"], KINDS["nu"]} <= set(found)
    if check is against_source:
        assert "equal to the expected values of opt_state/0/nu" in found[KINDS["mu"]].diagnosis


@BOTH
def test_a_dictionary_in_place_of_the_list_is_found(check: Check, copy: Path) -> None:
    def change(tree: dict) -> None:
        for entry in tree.values():
            for part in entry["key_metadata"]:
                part["key_type"] = 2

    edit_tree(copy, change)
    findings = check(copy).findings
    assert findings
    if check is against_source:
        assert any("expected a list" in finding.message for finding in findings)


@BOTH
def test_a_lost_none_is_found(check: Check, copy: Path) -> None:
    edit_tree(copy, lambda tree: tree.pop(key_of("opt_state/1")))
    assert check(copy).findings


def test_another_directory_is_found(copy: Path) -> None:
    (copy / "19").rename(copy / "20")
    (finding,) = against_source(copy).findings
    assert "is step 20, expected 19" in finding.message


def test_the_receipt_tells_of_the_state_where_the_metadata_is_lost(copy: Path) -> None:
    (copy / "19" / "_CHECKPOINT_METADATA").unlink()
    shutil.rmtree(copy / ITEMS / "opt_state.0.count")
    edit_tree(copy, lambda tree: tree.pop(key_of("opt_state/0/count")))
    findings = against_source(copy).findings
    assert "opt_state/0/count" in {finding.place for finding in findings}


def test_an_extra_leaf_of_the_state_is_found(copy: Path) -> None:
    path = "opt_state/0/mu/params/extra"
    shutil.copytree(copy / ITEMS / "step", copy / ITEMS / path.replace("/", "."))
    keys = [{"key": key, "key_type": 1 if key == "0" else 2} for key in path.split("/")]
    value = {"value_type": "np.ndarray", "skip_deserialize": False}
    edit_tree(copy, lambda tree: tree.update({key_of(path): {"key_metadata": keys, "value_metadata": value}}))
    assert path in {finding.place for finding in against_source(copy).findings}


def test_adam_pax_is_verified_with_its_corrections(tmp_path: Path, in_process: Cli) -> None:
    done = in_process("convert", SOURCE, tmp_path / "out", "--state", "--optimizer", "adam_pax", "-q")
    assert done.code == 0, done.err
    assert in_process("verify", SOURCE, tmp_path / "out", "-q").code == 0
    assert in_process("verify", tmp_path / "out", "-q").code == 0


EMA = AXLEARN / "envy-test-ema"


@pytest.fixture(scope="module")
def average(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("ema") / "out"
    run(EMA, target, tree="ema")
    return target


def test_the_average_is_compared_with_the_average(average: Path, in_process: Cli) -> None:
    done = in_process("verify", EMA, average)
    assert done.code == 0
    assert "made with --tree ema" in done.out
    assert in_process("verify", average, "-q").code == 0
    assert in_process("verify", EMA, average, "--tree", "ema", "-q").code == 0


@pytest.mark.parametrize(
    "arguments",
    [("verify", "--tree", "params"), ("verify", "--logits", "--tree", "params"), ("params", "--tree", "params")],
)
def test_another_tree_than_the_one_it_was_made_of_is_refused(
    arguments: tuple[str, ...], average: Path, in_process: Cli
) -> None:
    command, *options = arguments
    done = in_process(command, EMA, average, *options)
    assert done.code == 2
    assert "made of AXLearn's tree 'ema'; drop --tree" in done.err


def test_logits_and_parameters_of_the_average(average: Path, in_process: Cli, tmp_path: Path) -> None:
    assert in_process("verify", EMA, average, "--logits", "-q").code == 0
    assert in_process("params", EMA, average, "-q").code == 0
    tokens = tmp_path / "tokens.jsonl"
    tokens.write_text('{"tokens": [1, 2, 3]}\n')
    found = {}
    for tree in ("params", "ema"):
        out = tmp_path / f"{tree}.npz"
        assert in_process("logits", EMA, "--tree", tree, "--tokens", tokens, "--out", out, "-q").code == 0
        found[tree] = read_npz(out)["logits"]
    assert not np.array_equal(found["params"], found["ema"])
    done = in_process("logits", average, "--tree", "ema")
    assert done.code == 2
    assert "--tree is for AXLearn's" in done.err
