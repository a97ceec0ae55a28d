"""The printed command, by what a shell, MaxText's configuration and MaxText's trainer make of it."""

import json
import math
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from converter.checkpoints.command import cli_value, handoff_note, train_command
from converter.checkpoints.maxtext_config import config_yaml
from converter.conversion.run import Request, convert
from converter.mapping import configure, find_mapping, published_shapes, schedule_count
from converter.planning.options import Options
from converter.work import Silent
from tests.conftest import AXLEARN, Cli
from tests.helpers import environments
from tests.helpers.axlearn_checkpoint import SMALL, envy_tensors, write_checkpoint

PLACES = [
    "/data/out", "/data/run #2", "/data/a: b", "/data/it's", '/data/"x"', "/data/ü 名", "/data/*&!|>%@`",
    "/data/$HOME", "/data/${x}", "/data/\\${x}", "/data/\\\\${oc.env:HOME}", "/data/${", "/data/a,b [c] {d}",
    "/data/~", "/data/null", "/data/a=b", "/data/back\\slash", "/data/tab\there", "/data/new\nline", "/1e3", "/data/$",
    "/data/a ", "/data/?#", "/data/\x85\u2028",
]  # fmt: skip
"""Absolute paths with what YAML, OmegaConf or a shell could take for something else."""


TRAINER = Path(__file__).parents[1] / "helpers" / "maxtext_training.py"


def variables(home: Path) -> dict[str, str]:
    """The environment of a process with MaxText that has nothing of this user's."""
    return {**environments.MAXTEXT_VARIABLES, "PATH": "/usr/bin:/bin", "HOME": str(home), "HF_HUB_OFFLINE": "1"}


def words(command: str) -> list[str]:
    """The command's words as a POSIX shell gives them to the program."""
    script = command.replace("python3 ", "printf '%s\\0' ", 1)
    done = subprocess.run(["sh", "-c", script], capture_output=True, check=True)
    return done.stdout.decode().split("\0")[:-1]


@pytest.mark.parametrize("place", PLACES)
def test_the_command_can_be_pasted(place: str) -> None:
    found = words(train_command(place))
    assert found == [
        "-m", "maxtext.trainers.pre_train.train", f"{place}/maxtext.yml",
        f"load_parameters_path={cli_value(f'{place}/0/items')}", "run_name=RUN", "base_output_directory=OUTPUT",
        "dataset_type=DATASET_TYPE", "dataset_path=DATA", "tokenizer_path=TOKENIZER", "tokenizer_type=TOKENIZER_TYPE",
    ]  # fmt: skip
    patched = words(train_command(place, patched=True))
    assert patched == ["-m", "converter.maxtext_patch", *found[1:]]


@pytest.mark.parametrize("place", ["gs://bucket/out", "gs://bucket/a b/$x"])
def test_a_bucket_needs_its_configuration_here(place: str) -> None:
    """MaxText opens its configuration as a local file."""
    copy = handoff_note(place).splitlines()[-1]
    assert words(copy.replace("gcloud ", "python3 ", 1)) == ["storage", "cp", f"{place}/maxtext.yml", "maxtext.yml"]
    found = words(train_command(place))
    assert found[2:4] == ["maxtext.yml", f"load_parameters_path={cli_value(f'{place}/0/items')}"]


def test_a_plain_path_stays_readable() -> None:
    assert "load_parameters_path=gs://bucket/out_2/0/items \\\n" in train_command("gs://bucket/out_2")
    assert "load_parameters_path=/data/envy-1.0/out_2/0/items \\\n" in train_command("/data/envy-1.0/out_2")


@given(text=st.text(st.characters(codec="utf-8"), max_size=30).map("/".__add__))
def test_values_are_yaml_texts(text: str) -> None:
    # The escapes of OmegaConf come on top where there is a ${.
    assert yaml.safe_load(cli_value(text)) == re.sub(r"(\\*)\$\{", r"\1\1\\${", text)


READ = """
import json, sys
from maxtext.configs import pyconfig
for yml, argument in json.load(sys.stdin):
    machine = {"skip_jax_distributed_system": True, "enable_checkpointing": False}
    config = pyconfig.initialize(["train", yml, *argument], **machine)
    print("FOUND", json.dumps([config.load_parameters_path, config.vocab_size, config.tokenizer_type]))
"""


@pytest.mark.maxtext
def test_maxtext_reads_the_values_back(maxtext_python: str, converted: Callable[..., Path], tmp_path: Path) -> None:
    out = converted("micro-hybrid-qkpair", untie=True)
    arguments = [
        [argument for argument in words(train_command(place)) if argument.startswith("load_parameters_path=")]
        for place in PLACES
    ]
    requests = [[str(out / "maxtext.yml"), argument] for argument in arguments]
    done = subprocess.run(
        [maxtext_python, "-P", "-c", READ], input=json.dumps(requests), capture_output=True, text=True,
        env=variables(tmp_path), cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(line[6:]) for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert found == [[f"{place}/0/items", 64, "huggingface"] for place in PLACES]


SCHEDULE = """
import json, sys
import numpy as np
from maxtext.configs import pyconfig
from maxtext.utils import maxtext_utils
for yml, count, length in json.load(sys.stdin):
    machine = {"skip_jax_distributed_system": True, "enable_checkpointing": False, "dataset_type": "synthetic"}
    config = pyconfig.initialize(["train", yml, "tokenizer_path=unused", "run_name=x"], **machine)
    schedule = maxtext_utils.create_learning_rate_schedule(config)
    flags = [config.adam_weight_decay, config.gradient_clipping_threshold, config.z_loss_multiplier, config.steps,
             config.load_balance_loss_weight, config.mu_dtype, config.opt_type, config.enable_dropout]
    rates = [float(schedule(count + number)) for number in range(0, length, 37)]
    print("FOUND", json.dumps([flags, rates], default=str))
"""


@pytest.mark.maxtext
def test_maxtext_makes_axlearns_schedule_of_the_flags(maxtext_python: str, tmp_path: Path) -> None:
    match, end, warmup, requests = published_shapes(find_mapping("envy"), "envy-test")[0], 3000, 2000, []
    for step in (100, 2500):
        made = configure(match, step=step)
        yml = tmp_path / f"{step}.yml"
        yml.write_text(config_yaml(made.keys, "origin", origins=made.origins, comments=made.comments))
        requests.append((str(yml), schedule_count(made.learner, step), end - step))
    done = subprocess.run(
        [maxtext_python, "-P", "-c", SCHEDULE], input=json.dumps(requests), capture_output=True, text=True,
        env=variables(tmp_path), cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(line[6:]) for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    for step, (flags, rates) in zip((100, 2500), found, strict=True):
        assert flags == [pytest.approx(0.0316), 1.0, 1e-6, end, 0.0, "float32", "adamw", False]
        updates = np.arange(step + 1, end + 1)[::37]
        cosine = 0.005 + 0.995 * (1 + np.cos(np.pi * (updates - warmup) / (end - warmup))) / 2
        due = 0.01 * np.where(updates <= warmup, updates / warmup, cosine)
        np.testing.assert_allclose(rates, due, rtol=0, atol=1e-8)


@pytest.mark.parametrize(("name", "options", "exact"), [
    ("micro-hybrid-qkpair", (), True), ("micro-hybrid", (), False), ("micro-hybrid", ("--qk-norm", "fit"), True),
])  # fmt: skip
def test_the_exact_way_comes_first(name: str, options: tuple[str, ...], exact: bool, cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = cli("convert", AXLEARN / name, out, "--untie", *options)
    assert done.code == 0, done.err
    stock, patched = train_command(str(out)), train_command(str(out), patched=True)
    if exact:  # fitted scales are not for the patch
        assert stock in done.out
        assert "maxtext_patch maxtext.trainers" not in done.out
    else:
        assert 0 < done.out.index(patched) < done.out.index(stock)
        assert done.out.index("To continue in MaxText exactly") < done.out.index("In stock MaxText, which is not exact")
    document = cli("convert", AXLEARN / name, out, "--untie", "--overwrite", "--json", *options).document
    assert (document["command"], document["stock_command"]) == (stock if exact else patched, stock)


MACHINE = (
    "skip_jax_distributed_system=True", "hardware=cpu", "enable_checkpointing=False", "steps=2", "dtype=float32",
    "per_device_batch_size=1", "max_target_length=16", "megablox=False", "sparse_matmul=False",
)  # fmt: skip
"""What this machine needs, beside the printed command, to train at all."""

STEP = re.compile(r"completed step: (\d+).*lm_loss: ([\d.]+)")


FILLED = ("dataset_type=synthetic", "tokenizer_path=unused", "tokenizer_type=huggingface")
RUNS = {
    "placeholders": (False, (), "dataset_type.*'DATASET_TYPE'.*tokenizer_type.*'TOKENIZER_TYPE'"),
    "patched": (True, ("dataset_type=synthetic",), "norms q and k after RoPE.*tokenizer_type.*'TOKENIZER_TYPE'"),
    "no path": (False, ("dataset_type=hf", "tokenizer_type=huggingface"), "hf_path can't be empty"),
    "filled": (False, FILLED, "completed step: 1"),
}
"""Runs of a printed command: whether it is the one for the patch, what a user filled in, and what MaxText says."""


def request(folder: Path, name: str, command: str, changes: tuple[str, ...]) -> dict[str, object]:
    """A run of a printed command; later arguments take the place of earlier ones."""
    keys = {change.partition("=")[0] for change in changes}
    kept = [word for word in shlex.split(command.replace("\\\n", "")) if word.partition("=")[0] not in keys]
    return {
        "name": name, "command": [*kept[1:], *MACHINE, *changes], "path": str(environments.ROOT), "batches": "",
        "out": "", "log": str(folder / f"{name}.log"),
    }  # fmt: skip


@pytest.fixture(scope="module")
def runs(maxtext_python: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """How each of `RUNS` ended and what it said: of a conversion in a difficult place, whose logits are all zero."""
    trains = subprocess.run([maxtext_python, "-c", "import ml_collections"], capture_output=True, check=False)
    if trains.returncode and not environments.in_ci():
        pytest.skip("the linked .venv-maxtext has no ml-collections, which training needs")
    folder = tmp_path_factory.mktemp("train")
    tensors = envy_tensors(SMALL)
    tensors["model/decoder/output_norm/scale"] = np.zeros_like(tensors["model/decoder/output_norm/scale"])
    source = write_checkpoint(folder / "step_00000100", tensors)
    made = convert(Request(str(source), str(folder / "run #2 ${x}"), Options(table=frozenset({"untie"}))), Silent())
    requests = folder / "runs.json"
    commands = {True: made.command, False: made.stock_command}
    requests.write_text(json.dumps(
        [request(folder, name, commands[patched], changes) for name, (patched, changes, _) in RUNS.items()]
    ))  # fmt: skip
    done = subprocess.run(
        [maxtext_python, "-P", str(TRAINER), str(requests)], capture_output=True, text=True, cwd=folder, check=False,
        env=variables(folder),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    codes = dict(re.findall(r"^(.*) ended: (\d+)$", done.stdout, re.MULTILINE))
    return {name: (codes[name], (folder / f"{name}.log").read_text()) for name in RUNS}


@pytest.mark.maxtext
@pytest.mark.parametrize("name", [name for name in RUNS if name != "filled"])
def test_it_does_not_train_while_a_placeholder_is_left(name: str, runs: dict[str, tuple[str, str]]) -> None:
    code, said = runs[name]
    assert code != "0"
    assert not STEP.search(said)
    assert re.search(RUNS[name][-1], said, re.DOTALL), said[-2000:]


@pytest.mark.maxtext
def test_filled_in_it_starts_from_the_converted_weights(runs: dict[str, tuple[str, str]]) -> None:
    code, said = runs["filled"]
    assert code == "0", said[-3000:]
    steps = STEP.findall(said)
    assert [number for number, _ in steps] == ["0", "1"]
    # Logits of zero are a guess among all tokens alike, which no fresh model makes.
    assert float(steps[0][1]) == pytest.approx(math.log(SMALL["vocab"]), abs=6e-4)
