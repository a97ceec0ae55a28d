"""What users do with maxtext.yml after a conversion, and what `verify` says of it; and lost metadata."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from converter.checkpoints.maxtext_config import parse_config, same_value
from tests.conftest import AXLEARN, Cli

SOURCE = AXLEARN / "micro-hybrid-qkpair"


@pytest.fixture
def checkpoint(converted: Callable[..., Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(converted("micro-hybrid-qkpair", untie=True), tmp_path / "out"))


def reordered(text: str) -> str:
    content = yaml.safe_load(text)
    return yaml.dump(dict(reversed(content.items())), sort_keys=False, default_style='"')


SAME_VALUES = {
    "a comment": lambda text: text + "# learning rate is set by the launcher\n",
    "no comments": lambda text: "".join(line for line in text.splitlines(True) if not line.startswith("#")),
    "other quoting": lambda text: text.replace("decoder_block: envy", "decoder_block: 'envy'"),
    "other numbers": lambda text: text.replace("500000", "5e5").replace("1.0e-05", "1e-05").replace("64", "+64"),
    "another order": reordered,
    "line ends": lambda text: text.replace("\n", "\r\n"),
    "blocks": lambda text: text.replace("[silu, linear]", "\n- silu\n- linear"),
}


@pytest.mark.parametrize("edit", SAME_VALUES)
def test_the_same_values_are_a_note(edit: str, checkpoint: Path, cli: Cli) -> None:
    change(checkpoint, SAME_VALUES[edit])
    alone = cli("verify", checkpoint, "--json")
    assert (alone.code, alone.document["findings"]) == (0, [])
    assert alone.document["notes"] == ["maxtext.yml: edited since convert; same values"]
    with_source = cli("verify", SOURCE, checkpoint, "--json")
    assert (with_source.code, with_source.document["notes"]) == (0, [])


def test_keys_of_ones_own_are_a_note(checkpoint: Path, cli: Cli) -> None:
    change(checkpoint, lambda text: text + "steps: 1000\nlearning_rate: 3.e-5\n")
    for arguments in ([checkpoint], [SOURCE, checkpoint]):
        done = cli("verify", *arguments, "--json")
        assert (done.code, done.document["findings"]) == (0, [])
        assert done.document["notes"] == ["maxtext.yml: has keys that convert does not write: learning_rate, steps"]


@pytest.mark.parametrize(
    ("old", "new", "key", "found", "due"),
    [
        ("rope_max_timescale: 500000", "rope_max_timescale: 10000", "rope_max_timescale", "10000", "500000"),
        ("num_experts_per_tok: 2", "num_experts_per_tok: 1", "num_experts_per_tok", "1", "2"),
        ("vocab_size: 64", "vocab_size: 128", "vocab_size", "128", "64"),
        ("mlp_activations: [silu, linear]", "mlp_activations: [gelu]", "mlp_activations", '["gelu"]',
         '["silu", "linear"]'),
        ("use_qk_norm: true", "use_qk_norm: 1", "use_qk_norm", "1", "true"),
        ("model_name: default", "model_name: envy-switch-base", "model_name", '"envy-switch-base"', '"default"'),
        ("vocab_size: 64", "# gone", "vocab_size", None, "64"),
    ],
)  # fmt: skip
def test_a_changed_model_key_is_a_finding(
    old: str, new: str, key: str, found: str | None, due: str, checkpoint: Path, cli: Cli
) -> None:
    change(checkpoint, lambda text: text.replace(old, new) + "steps: 7\n")
    is_now = f"{key} is {found}" if found else f"{key} is missing"
    for arguments, need in (([checkpoint], "convert wrote"), ([SOURCE, checkpoint], "these weights need")):
        done = cli("verify", *arguments, "--json")
        (finding,) = done.document["findings"]
        assert (done.code, finding["check"], finding["place"]) == (6, "config", "maxtext.yml")
        assert finding["message"] == f"{is_now}, {need} {due}"


def test_every_changed_key_is_named(checkpoint: Path, cli: Cli) -> None:
    change(checkpoint, lambda text: text.replace("head_dim: 8", "head_dim: 16").replace("500000", "7"))
    findings = cli("verify", checkpoint, "--json").document["findings"]
    assert [finding["message"] for finding in findings] == [
        "head_dim is 16, convert wrote 8", "rope_max_timescale is 7, convert wrote 500000"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("load_balance_loss_weight: 0.0", "load_balance_loss_weight: 0.01", "load_balance_loss_weight is 0.01"),
        ("enable_dropout: false", "enable_dropout: true", "enable_dropout is true"),
        ("tokenizer_type: huggingface", "tokenizer_type: tiktoken", 'tokenizer_type is "tiktoken"'),
    ],
)
def test_a_changed_training_key_is_a_note(old: str, new: str, text: str, checkpoint: Path, cli: Cli) -> None:
    change(checkpoint, lambda content: content.replace(old, new))
    for arguments in ([checkpoint], [SOURCE, checkpoint]):
        done = cli("verify", *arguments, "--json")
        assert (done.code, done.document["findings"]) == (0, [])
        assert text in done.document["notes"][0]


@pytest.mark.parametrize(
    ("content", "text"), [("a: [", "is not valid YAML"), ("7", "is not a mapping of keys to values")]
)
def test_a_file_that_is_no_configuration(content: str, text: str, checkpoint: Path, cli: Cli) -> None:
    change(checkpoint, lambda _: content)
    for arguments in ([checkpoint], [SOURCE, checkpoint]):
        (finding,) = cli("verify", *arguments, "--json").document["findings"]
        assert text in finding["message"]


def test_a_checkpoint_that_does_not_say_what_was_set(checkpoint: Path, cli: Cli) -> None:
    # Of another program, or of an older version: the table's value may be wrong as well as the file's.
    custom = checkpoint / "0" / "_CHECKPOINT_METADATA"
    content = json.loads(custom.read_text())
    del content["custom_metadata"]["ax2mt"]["settings"]
    custom.write_text(json.dumps(content))
    change(checkpoint, lambda text: text.replace("500000", "10000"))
    done = cli("verify", SOURCE, checkpoint, "--json")
    assert (done.code, done.document["findings"]) == (0, [])
    assert done.document["notes"] == ["maxtext.yml: rope_max_timescale is 10000, the mapping says 500000"]


@pytest.mark.parametrize("how", ["missing", "damaged", "replaced"])
def test_lost_digests_are_the_one_cause(how: str, checkpoint: Path, cli: Cli) -> None:
    custom = checkpoint / "0" / "_CHECKPOINT_METADATA"
    if how == "missing":
        custom.unlink()
    else:
        custom.write_text("{" if how == "damaged" else '{"custom_metadata": {"scan_layers": true}}')
    (finding,) = cli("verify", checkpoint, "--json").document["findings"]
    what = "is missing" if how == "missing" else "is damaged or was replaced: it has no ax2mt digests"
    assert (finding["check"], finding["place"]) == ("metadata", "0/_CHECKPOINT_METADATA")
    assert finding["message"] == (
        f"{what}; chunks were decoded, but their values could not be checked: restore the file from a copy, or compare "
        "with the source: verify SRC DST"
    )


def test_with_lost_digests_other_damage_still_shows(checkpoint: Path, cli: Cli) -> None:
    (checkpoint / "0" / "_CHECKPOINT_METADATA").unlink()
    (checkpoint / "0" / "commit_success.txt").unlink()
    chunk = next(path for path in (checkpoint / "0/items").rglob("0*") if path.is_file())
    chunk.write_bytes(b"")
    findings = cli("verify", checkpoint, "--json").document["findings"]
    assert findings[0]["place"] == "0/_CHECKPOINT_METADATA"
    assert {finding["check"] for finding in findings[1:]} >= {"chunks", "receipt"}


def change(checkpoint: Path, edit: Callable[[str], str]) -> None:
    file = checkpoint / "maxtext.yml"
    data = file.read_bytes()
    file.write_bytes(edit(data.decode()).encode())
    assert file.read_bytes() != data


def test_values_as_maxtext_reads_them() -> None:
    numbers = parse_config("[1e-05, 5e5, 1.5E+3, .5, 1_000.0, +64, -1e-3]")
    assert numbers == [1e-05, 5e5, 1500.0, 0.5, 1000.0, 64, -0.001]
    assert parse_config("[e5, 1e, .e5, '1e5', envy]") == ["e5", "1e", ".e5", "1e5", "envy"]
    assert same_value("500000", 500000)
    assert same_value("true", True)
    assert not same_value(1, True)
    assert not same_value("64x", 64)
    assert not same_value("[", 64)
    assert not same_value(None, 0)
