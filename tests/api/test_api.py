"""The public Python interface: as docs/api.md shows it, typed, quiet, and usable many times in one process."""

import inspect
import re
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import typer.main

import converter
from converter import api, errors
from converter.choices import MAX_JOBS, STORES
from converter.cli.app import app, run
from converter.work import Silent
from tests.conftest import AXLEARN

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "api.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SOURCE = AXLEARN / "micro-hybrid-qkpair"
UNEQUAL = AXLEARN / "micro-hybrid"
FUNCTIONS = (
    "plan", "convert", "beam", "status", "verify", "compare_logits", "logits", "parameters", "conform",
    "inspect", "gather_evidence",
)  # fmt: skip


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_the_examples_run_and_print_what_they_print(example: str, tmp_path: Path) -> None:
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{example}"],
        capture_output=True, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.count("\n") >= 1


def test_the_page_names_every_function_and_every_error() -> None:
    assert set(converter.__all__) == {*FUNCTIONS, "errors"}
    assert all(f"`{name}(" in PAGE for name in FUNCTIONS)
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.Ax2mtError)]
    assert len(kinds) == 8
    assert all(f"`{kind.__name__}`" in PAGE for kind in kinds)


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("plan", "plan"),
        ("convert", "convert"),
        ("logits", "logits"),
        ("parameters", "params"),
        ("beam", "beam"),
        ("inspect", "inspect"),
        ("gather_evidence", "report"),
        ("status", "status"),
        ("conform", "conform"),
    ],
)
def test_names_and_defaults_are_the_command_line_s(name: str, command: str) -> None:
    options = {
        option.name: option.default
        for option in typer.main.get_command(app).commands[command].params  # type: ignore[attr-defined]
        if option.name not in ("as_json", "quiet", "verbose", "as_markdown", "html", "junit", "help")
    }
    parameters = inspect.signature(getattr(api, name)).parameters
    assert set(parameters) - {"progress"} == set(options)
    for key, parameter in parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY and key not in ("progress", "set", "option"):
            assert parameter.default == options[key], key
        assert parameter.kind is parameter.KEYWORD_ONLY or key in ("source", "destination", "beam_options", "path")


def test_verify_is_two_functions() -> None:
    options = {option.name for option in typer.main.get_command(app).commands["verify"].params}  # type: ignore[attr-defined]
    both = {*inspect.signature(api.verify).parameters, *inspect.signature(api.compare_logits).parameters}
    assert options - both == {"as_json", "quiet", "verbose", "compare_logits", "junit"}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_argument_is_documented(name: str) -> None:
    function = getattr(converter, name)
    documented = inspect.getdoc(function) or ""
    for key, parameter in inspect.signature(function).parameters.items():
        assert f"\n  {key}: " in documented
        assert parameter.annotation is not parameter.empty
    two = name in ("convert", "beam", "compare_logits", "gather_evidence")
    with pytest.raises(TypeError, match="unexpected keyword argument 'bogus'"):
        function(*[SOURCE] * (1 + two), bogus=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--tokens", "x"), "--tokens cannot be used without --logits"),
        (("--max-kl", "1", "--no-explain"), "--explain, --max-kl cannot be used without --logits"),
        (("--logits", "--dtype", "bfloat16"), "--dtype cannot be used with --logits"),
        (("--logits", "--jobs", "2", "--sample", "1"), "--jobs, --sample cannot be used with --logits"),
    ],
)
def test_verify_refuses_options_without_effect(
    options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["verify", str(SOURCE), str(SOURCE), *options]) == 2
    assert message in capsys.readouterr().err


def test_nothing_is_loaded_before_it_is_used() -> None:
    program = (
        "import sys; before = set(sys.modules); import converter; loaded = set(sys.modules) - before\n"
        "assert loaded == {'converter'}, loaded\n"
        "from converter import convert, errors\n"
        "assert convert.__module__ == 'converter.api'\n"
        "assert not {'numpy', 'jax', 'rich', 'typer', 'tensorstore', 'orbax'} & set(sys.modules)\n"
        "assert {'convert', 'plan'} <= set(dir(converter))\n"
        "assert converter.__version__"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with pytest.raises(AttributeError, match="no attribute 'bogus'"):
        converter.bogus  # type: ignore[attr-defined]  # noqa: B018


def test_threads_side_by_side(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with ThreadPoolExecutor(3) as pool:
        runs = [pool.submit(converter.convert, SOURCE, tmp_path / f"out{n}", untie=bool(n % 2)) for n in range(3)]
        assert [run.result().exact_logits for run in runs] == [False, True, False]
        checks = [pool.submit(converter.verify, SOURCE, tmp_path / f"out{n}") for n in range(3)]
        checks += [pool.submit(converter.verify, tmp_path / f"out{n}") for n in range(3)]
        assert all(check.result().ok for check in checks)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert capfd.readouterr() == ("", "")


def test_a_running_event_loop_as_in_a_notebook(tmp_path: Path) -> None:
    import asyncio

    async def cell() -> bool:
        converter.convert(SOURCE, tmp_path / "out")
        return converter.verify(SOURCE, tmp_path / "out").ok

    assert asyncio.run(cell())


class Told(Silent):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.planned = self.total = self.done = self.leaves = self.closed = 0
        self.said: list[str] = []

    def start(self, leaves: int, total_bytes: int) -> None:
        self.planned, self.total = leaves, total_bytes

    def advance(self, count: int) -> None:
        with self.lock:
            self.done += count

    def leaf_done(self, path: str) -> None:
        with self.lock:
            self.leaves += bool(path)

    def say(self, text: str) -> None:
        self.said.append(text)

    def close(self) -> None:
        self.closed += 1


def test_one_progress_for_all(tmp_path: Path) -> None:
    told = Told()
    converter.convert(SOURCE, tmp_path / "out", untie=True, progress=told)
    assert (told.done, told.leaves, told.planned, told.closed) == (told.total, 28, 28, 1)
    for arguments in ([SOURCE, tmp_path / "out"], [tmp_path / "out"]):
        told = Told()
        converter.verify(*arguments, progress=told)
        assert (told.done, told.leaves, told.planned, told.closed) == (told.total, 28, 28, 1)
    told = Told()
    converter.logits(SOURCE, progress=told)
    assert (told.said, told.closed) == ([f"layer {n} of 4" for n in range(1, 5)] + ["logits"], 1)
    told = Told()
    converter.compare_logits(SOURCE, tmp_path / "out", progress=told)
    assert [line.split(": ")[0] for line in told.said] == ["AXLearn"] * 5 + ["MaxText"] * 5
    assert told.closed == 1


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: converter.plan(SOURCE, store="zarr"), errors.UsageError, "--store zarr: expected one of files"),  # type: ignore[arg-type]
        (lambda: converter.plan(SOURCE, qk_norm="no"), errors.UsageError, "--qk-norm no: expected one of plain"),  # type: ignore[arg-type]
        (lambda: converter.plan(SOURCE, option="untie"), errors.UsageError, "expected a list of names"),
        (lambda: converter.plan(SOURCE, jobs=MAX_JOBS + 1), errors.UsageError, "expected a number from 1 to 256"),
        (lambda: converter.plan(SOURCE, max_memory="much"), errors.UsageError, "'much'"),
        (lambda: converter.plan(SOURCE, set={"vocab_size": 7}), errors.UsageError, "--set vocab_size=7: contradicts"),
        (
            lambda: converter.plan(SOURCE, option=["no"]),
            errors.MappingError,
            "--option no: no bundled mapping has such an option",
        ),
        (lambda: converter.verify(SOURCE, SOURCE, dtype="bf16"), errors.UsageError, "--dtype bf16: expected one of"),  # type: ignore[arg-type]
        (
            lambda: converter.gather_evidence(SOURCE, SOURCE, tokens="x", min_top1=1),
            errors.UsageError,
            "--min-top1, --tokens cannot be used without --logits",
        ),
        (lambda: converter.verify(SOURCE, step=1), errors.UsageError, "need a source"),
        (lambda: converter.convert("/nothing", "/nowhere"), errors.SourceError, "/nothing"),
        (
            lambda: converter.convert(AXLEARN / "micro-hybrid", "out", require_exact=True),
            errors.InexactError,
            "not exact",
        ),
        (converter.parameters, errors.UsageError, "expected SRC, or --model NAME"),
    ],
)
def test_errors(call, kind: type[errors.Ax2mtError], message: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind) as caught:
        call()
    assert message in caught.value.message
    assert not list(tmp_path.iterdir())


def test_settings_as_a_mapping_and_as_texts() -> None:
    given = {"rope_max_timescale": 10000, "normalize_embedding_logits": True, "normalization_layer_epsilon": 1e-6}
    mapped = converter.plan(SOURCE, set=given)
    assert mapped.settings == given
    texts = ["rope_max_timescale=10000", "normalize_embedding_logits=true", "normalization_layer_epsilon=1e-06"]
    assert converter.plan(SOURCE, set=texts).settings == given


def test_stores_are_typed_as_they_are_checked() -> None:
    from converter.planning import Options

    for store in STORES:
        Options(store=store).check()
