"""The command line of the patches: `python -m converter.maxtext_patch`."""

import subprocess
import sys
from pathlib import Path

import pytest

from converter.maxtext_patch.__main__ import main

ROOT = Path(__file__).parents[2]
TRAINER = "maxtext.trainers.pre_train.train"


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "maxtext.yml"
    path.write_text(
        '# patch: {"name": "norm_after_rope", "decoder_block": "envy"}\n'
        '# patch: {"name": "unrounded_tied_logits"}\n'
        '# patch: {"name": "scaled_updates", "leaves": {"params/a/*": 0.5, "params/b": 0.375}}\n'
        "decoder_block: envy\nlogits_via_embedding: true\n"
    )
    return str(path)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """MaxText seems to be there; the names of the patches that would be made are noted instead."""
    applied: list[str] = []
    monkeypatch.setattr("importlib.metadata.version", lambda _: "0.2.5")
    for name in ("norms.NormAfterRope", "logits.UnroundedTiedLogits", "updates.ScaledUpdates"):
        path = f"converter.maxtext_patch.{name}.prepare"
        monkeypatch.setattr(path, lambda self: lambda: applied.append(self.name))
    return applied


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A module that stands for one of MaxText's."""

    def write(source: str) -> str:
        (tmp_path / "stand_in_for_a_trainer.py").write_text(source)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setattr(sys, "argv", [])
        return "stand_in_for_a_trainer"

    return write


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "a module is missing"),
        (["x.yml"], "a module is missing"),
        (["--list"], "a configuration is missing"),
        (["--all", TRAINER], "unknown option --all"),
        (["--list=x", TRAINER], "unknown option --list"),
        (["--only"], "--only needs the name of a patch"),
        (["--only", "mup", TRAINER], "unknown patch 'mup'"),
        (["--without=", TRAINER], "unknown patch ''"),
        (["--without", "scaled_updates,", TRAINER], "unknown patch ''"),
        (["--only=scaled_updates", "--without=scaled_updates", TRAINER], "exclude each other"),
    ],
)
def test_wrong_options(options, message, capsys):
    assert main(options) == 2
    assert message in capsys.readouterr().err


def test_help(capsys):
    assert main(["--without", "scaled_updates", "--help"]) == 0
    assert "usage: python -m converter.maxtext_patch [OPTIONS] MODULE" in capsys.readouterr().out


def test_without_maxtext_the_command_says_so(config, capsys):
    assert main([TRAINER, config]) == 1
    assert "MaxText is not installed" in capsys.readouterr().err


def test_the_list_needs_no_maxtext(config, capsys):
    for command in (["--list", config], ["--list", TRAINER, config, "steps=2"]):
        assert main(command) == 0
        assert capsys.readouterr().out.splitlines() == [
            "needed: norm_after_rope, unrounded_tied_logits, scaled_updates",
            "norm_after_rope: norms q and k after RoPE (decoder block envy)",
            "unrounded_tied_logits: computes tied logits in the dtype of the activations (the table is not rounded to "
            "bfloat16)",
            "scaled_updates: scales the Adam updates of the parameters under 2 paths by 0.375, 0.5",
        ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# patch: none\n", ["needed: nothing",
         "nothing to apply: maxtext.yml says that its checkpoint needs no patch"]),
        ("decoder_block: qwen3\n", ["needed: norm_after_rope", "norm_after_rope: norms q and k after RoPE (decoder "
         "block qwen3)", "the configuration does not list patches; this is the one for older conversions"]),
        ("decoder_block: llama2\n", ["needed: nothing", "the configuration does not list patches; its decoder block "
         "needs none"]),
    ],
)  # fmt: skip
def test_the_list_of_other_configurations(text, expected, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("maxtext.yml").write_text(text)
    assert main(["--list", "maxtext.yml"]) == 0
    assert capsys.readouterr().out.splitlines() == expected


@pytest.mark.parametrize(
    ("options", "arguments", "applied", "said"),
    [
        ([], [], ["norm_after_rope", "unrounded_tied_logits", "scaled_updates"], "norms q and k after RoPE"),
        (["--only", "scaled_updates,norm_after_rope"], [], ["norm_after_rope", "scaled_updates"],
         "unrounded_tied_logits: left out by --only: not exact without it"),
        (["--without", "norm_after_rope", "--without=scaled_updates"], [], ["unrounded_tied_logits"],
         "scaled_updates: left out by --without: not exact without it"),
        ([], ["logits_via_embedding=false"], ["norm_after_rope", "scaled_updates"],
         "unrounded_tied_logits: not needed with logits_via_embedding=false"),
        (["--without=scaled_updates"], ["opt_type=sgd"], ["norm_after_rope", "unrounded_tied_logits"],
         "scaled_updates: left out by --without: not exact without it"),
    ],
)  # fmt: skip
def test_the_module_runs_with_the_patches(options, arguments, applied, said, config, installed, module, capsys):
    name = module("import sys\nprint(__name__, *sys.argv[1:])\n")
    assert main([*options, name, config, *arguments]) == 0
    captured = capsys.readouterr()
    assert captured.out.split() == ["__main__", config, *arguments]
    assert installed == applied
    assert said in captured.err
    assert captured.err.startswith("maxtext_patch: MaxText 0.2.5\n")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["--only=unrounded_tied_logits", TRAINER, "decoder_block=envy"], "does not list this patch"),
        ([TRAINER, "CONFIG", "opt_type=sgd"], "found opt_type=sgd; use adamw, or --without scaled_updates"),
        ([TRAINER, "CONFIG", "decoder_block=llama2"], "decoder_block is llama2"),
        (["maxtext.trainers.post_train.rl.train_rl", "CONFIG"], "does not reach the optimizer of"),
    ],
)
def test_contradictions_are_refused_before_anything_is_patched(command, message, config, installed, capsys):
    assert main([config if word == "CONFIG" else word for word in command]) == 2
    assert message in capsys.readouterr().err
    assert installed == []


def test_a_refusal_while_the_module_runs_is_one_line(config, installed, module, capsys):
    name = module("from converter.maxtext_patch.updates import only_adamw\nonly_adamw('sgd')\n")
    assert main([name, config]) == 1
    assert (
        capsys.readouterr().err.splitlines()[-1].startswith("maxtext_patch: scaled_updates works with opt_type=adamw")
    )
    assert installed


def test_it_imports_nothing_that_maxtext_lacks():
    code = (
        "import sys, converter.maxtext_patch.__main__\n"
        "print(*{n for n in sys.modules if n.startswith('converter.') and 'maxtext_patch' not in n}, 'end')"
    )
    found = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "end"
