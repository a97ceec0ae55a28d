"""Habits of the command line: help, completion, choices, flags that every command has, options of a table."""

import re
import time
from pathlib import Path

import pytest

from converter.cli.app import app, run
from converter.work import process_seconds
from tests.conftest import AXLEARN, MAXTEXT, Cli

SOURCE = AXLEARN / "micro-hybrid-qkpair"
UNEQUAL = AXLEARN / "micro-hybrid"
GOLDEN = MAXTEXT / "micro-hybrid-qkpair" / "scanned-untied"
ENVY = Path(__file__).parents[2] / "mappings" / "envy.toml"

COMMANDS = {
    "convert": [SOURCE, "out"],
    "plan": [SOURCE],
    "verify": [SOURCE, GOLDEN],
    "report": [SOURCE, GOLDEN],
    "params": [SOURCE],
    "inspect": [SOURCE],
    "status": [GOLDEN],
    "logits": [SOURCE],
    "mappings list": [],
    "mappings show": ["envy"],
    "mappings check": [ENVY],
}


@pytest.mark.parametrize("words", [[], ["mappings"]], ids=["ax2mt", "ax2mt mappings"])
def test_a_missing_command_shows_help(words: list[str], cli: Cli) -> None:
    done = cli(*words)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"Usage: {' '.join(['ax2mt', *words])} ")
    assert "Commands:" in done.err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_completion(shell: str, cli: Cli) -> None:
    offered = cli(
        _AX2MT_COMPLETE=f"complete_{shell}",
        COMP_WORDS="ax2mt con",
        COMP_CWORD="1",
        _TYPER_COMPLETE_ARGS="ax2mt con",
        _TYPER_COMPLETE_FISH_ACTION="get-args",
    )
    assert offered.code == 0, offered.err
    assert "convert" in offered.out
    assert "inspect" not in offered.out


def test_completion_can_be_installed(cli: Cli, tmp_path: Path) -> None:
    shell = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1", "HOME": str(tmp_path)}
    shown = cli("--show-completion", "bash", **shell)
    assert (shown.code, "complete -o default -F" in shown.out) == (0, True), shown.err
    installed = cli("--install-completion", "bash", **shell)
    assert installed.code == 0, installed.err
    (script,) = tmp_path.rglob("ax2mt.sh")
    assert "_AX2MT_COMPLETE=complete_bash" in script.read_text()
    assert str(script) in (tmp_path / ".bashrc").read_text()


@pytest.mark.parametrize(
    ("arguments", "value", "choices"),
    [
        (["plan", SOURCE, "--store", "zarr"], "zarr", ("files", "ocdbt", "zarr2")),
        (["convert", SOURCE, "out", "--qk-norm", "fitt"], "fitt", ("plain", "fit")),
        (["verify", SOURCE, GOLDEN, "--dtype", "bf16"], "bf16", ("bfloat16", "float32")),
    ],
)
def test_choices(arguments: list[object], value: str, choices: tuple[str, ...], cli: Cli) -> None:
    done = cli(*arguments)
    assert done.code == 2
    assert f"'{value}' is not one of" in done.err
    assert all(f"'{choice}'" in done.err for choice in choices)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_the_common_flags(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*name.split(), "--help"]) == 0
    text = capsys.readouterr().out
    for flag in ("--json", "-q, --quiet", "-v, --verbose"):
        assert flag in text


def test_one_spelling_of_every_option() -> None:
    """An option of the same name has the same form everywhere."""
    import typer.main

    forms: dict[str, set[tuple[str, ...]]] = {}
    groups = [typer.main.get_command(app)]
    while groups:
        for command in getattr(groups.pop(), "commands", {}).values():
            groups.append(command)
            for option in command.params:
                for spelling in option.opts:
                    if spelling.startswith("-"):
                        forms.setdefault(spelling, set()).add((*option.opts, option.metavar or ""))
    assert {spelling: found for spelling, found in forms.items() if len(found) > 1} == {}


@pytest.mark.parametrize("name", COMMANDS)
def test_quiet_prints_nothing(name: str, tmp_path: Path, in_process: Cli) -> None:
    done = in_process(*name.split(), *COMMANDS[name], "-q", cwd=tmp_path)
    assert (done.code, done.out, done.err) == (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["verify", UNEQUAL, GOLDEN], "verification failed with 23 findings"),
        (["params", SOURCE, MAXTEXT / "envy-test" / "scanned"], "the parameters are not equivalent"),
        (["verify", UNEQUAL, GOLDEN, "--logits"], "verification failed: kl_max is"),
        (["report", UNEQUAL, GOLDEN], "Not equivalent: 23 findings"),
    ],
    ids=["verify", "params", "logits", "report"],
)
def test_quiet_says_why_a_verification_failed(arguments: list[object], why: str, in_process: Cli) -> None:
    done = in_process(*arguments, "-q")
    assert (done.code, done.out) == (6, "")
    (line,) = done.err.splitlines()
    assert line.startswith("ax2mt: ")
    assert re.sub(r"\d+ findings", "23 findings", line).find(why) > 0
    assert in_process(*arguments, "-q", "--json").document["schema_version"] == 1


@pytest.mark.parametrize(
    ("arguments", "is_json"),
    [
        (["plan", "nowhere", "--json"], True),
        (["plan", "--json", "--bogus", "nowhere"], True),
        (["plan", "nowhere", "--json", "--step", "many"], True),
        (["plan", "nowhere", "--json", "--step"], True),
        (["bogus", "--json"], True),
        (["plan", "nowhere"], False),
        (["plan", "--", "--json"], False),
        (["plan", "nowhere", "--mapping", "--json"], False),
        (["params", "nowhere", "--model", "-v"], False),
    ],
)
def test_flags_are_parsed_and_not_searched(
    arguments: list[str], is_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) in (2, 3, 4)
    out, err = capsys.readouterr()
    assert out.startswith('{\n  "schema_version"') == is_json
    assert err.startswith("ax2mt: ") != is_json


@pytest.mark.parametrize(("flag", "shows"), [("-v", True), ("-qv", True), ("-q", False)])
@pytest.mark.parametrize("name", ["plan", "inspect", "logits", "params"])
def test_verbose_shows_where_an_internal_error_is(
    name: str, flag: str, shows: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("told")

    monkeypatch.setattr("converter.cli.options.call", broken)
    if shows:
        with pytest.raises(ZeroDivisionError):
            run([name, str(SOURCE), flag])
    else:
        assert run([name, str(SOURCE), flag]) == 1
        assert "internal error, please report it (ZeroDivisionError: told" in capsys.readouterr().err


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Envy's table with its option under another name, and one more that adds a second copy."""
    text = (
        ENVY.read_text().replace('option = "untie"', 'option = "copy"').replace('unless = "untie"', 'unless = "copy"')
    )
    row = '[[tensor]]\naxlearn = "decoder/output_norm/scale"\nmaxtext = "decoder/spare/scale"\nrole = "spare"\n'
    row += 'axes = "embed -> embed"\ngroup = "norm"\noption = "spare"\n\n[[drop]]\n'
    file = tmp_path_factory.mktemp("table") / "own.toml"
    file.write_text(text.replace("[[drop]]\n", row, 1).replace('role = "spare"\n', ""))
    return file


def test_options_of_a_table_of_ones_own(table: Path, in_process: Cli, tmp_path: Path) -> None:
    arguments = [SOURCE, "--mapping", table, "--option", "copy", "--option", "spare"]
    planned = in_process("plan", *arguments, "--json").document
    assert planned["options"]["table"] == ["copy", "spare"]
    assert planned["totals"]["added_parameters"] == 2048 + 32
    assert planned["config"]["logits_via_embedding"] is False
    shown = in_process("plan", *arguments).out
    assert "2,080 added by --option copy and --option spare" in shown
    done = in_process("convert", *arguments[:1], tmp_path / "out", *arguments[1:], "--json")
    assert done.code == 0, done.err
    assert done.document["fidelity"]["exact_logits"]
    # What was switched on shows in the checkpoint.
    checked = in_process("verify", SOURCE, tmp_path / "out", "--mapping", table, "--json").document
    assert (checked["ok"], checked["leaves"]) == (True, len(planned["tasks"]) + 4)
    report = in_process("params", SOURCE, tmp_path / "out", "--mapping", table, "--json").document
    assert (report["equivalent"], report["totals"]["added"]) == (True, 2080)
    assert in_process("params", *arguments, "--json").document["totals"]["added"] == 2080


@pytest.mark.parametrize(
    ("short", "name"),
    [(["--untie"], "untie"), (["--qk-norm", "fit"], "qk_norm"), (["--rope", "interleaved"], "interleaved")],
)
def test_short_forms_are_options_like_others(short: list[str], name: str, in_process: Cli) -> None:
    planned = in_process("plan", UNEQUAL, *short, "--json").document
    assert planned == in_process("plan", UNEQUAL, "--option", name, "--json").document
    assert planned["options"]["table"] == [name]


@pytest.mark.parametrize("command", ["plan", "convert", "params"])
def test_an_option_that_no_table_has(command: str, in_process: Cli, tmp_path: Path) -> None:
    destination = [tmp_path / "out"] if command == "convert" else []
    done = in_process(command, SOURCE, *destination, "--option", "unties")
    assert done.code == 4
    assert done.err == (
        "ax2mt: --option unties: no bundled mapping has such an option; expected one of interleaved, qk_norm, untie\n"
    )
    assert not (tmp_path / "out").exists()


def test_seconds_count_from_the_start_of_the_process(cli: Cli, tmp_path: Path) -> None:
    """They hold the imports: far more than what is left of a small conversion."""
    started = time.monotonic()
    assert cli("convert", SOURCE, tmp_path / "out", "-q").code == 0
    done = cli("verify", tmp_path / "out", "--json")
    wall = time.monotonic() - started
    assert 0 < done.document["seconds"] <= wall


def test_the_age_of_this_process() -> None:
    import psutil

    age = time.time() - psutil.Process().create_time()
    assert process_seconds() == pytest.approx(age, abs=1.5)
