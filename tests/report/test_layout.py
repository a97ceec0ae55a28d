"""Tables of paths: columns where they fit, whole paths on lines of their own where they do not."""

import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from rich.console import Console

from converter.report.layout import Column, Row, print_rows
from tests.conftest import AXLEARN, Cli

COLUMNS = (
    Column(name="AXLearn", path=True), Column(name="shape"),
    Column(name="MaxText", path=True), Column(name="size", right=True),
)  # fmt: skip
ROWS = [
    Row(("layer0/", "", "layers_0/"), heading=True),
    Row(("norm/scale", "2 x 32", "pre_norm/scale", "256 B"), indent=2),
    Row(("qkv_proj/weight", "2 x 32 x 8 x 8", "query/kernel", "8.00 KiB"), indent=2),
    Row(("", "", "key/kernel", "64 B"), indent=2),
]


def printed(width: int, rows: list[Row], *, terminal: bool = True) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=terminal, color_system=None, highlight=False, markup=False)
    print_rows(console, COLUMNS, rows)
    return out.getvalue().splitlines()


WIDE_TABLE = [
    "AXLearn            shape           MaxText               size",
    "layer0/                            layers_0/",
    "  norm/scale       2 x 32            pre_norm/scale     256 B",
    "  qkv_proj/weight  2 x 32 x 8 x 8    query/kernel    8.00 KiB",
    "                                     key/kernel          64 B",
]


@pytest.mark.parametrize(("width", "terminal"), [(61, True), (200, True), (20, False)])
def test_columns_where_they_fit_and_where_there_is_no_width(width: int, terminal: bool) -> None:
    assert printed(width, ROWS, terminal=terminal) == WIDE_TABLE


def test_whole_paths_where_columns_do_not_fit() -> None:
    assert printed(60, ROWS) == [
        "AXLearn  shape",
        "  -> MaxText  size",
        "layer0/",
        "  -> layers_0/",
        "  norm/scale  2 x 32",
        "    -> pre_norm/scale  256 B",
        "  qkv_proj/weight  2 x 32 x 8 x 8",
        "    -> query/kernel  8.00 KiB",
        "    -> key/kernel  64 B",
    ]


def test_what_does_not_fit_beside_a_path_goes_below_it() -> None:
    text = "the layer axis moved from the front, and then some"
    row = Row(("a/very/long/path/of/thirty/chars", "2 x 32 x 8 x 8", "b", text))
    assert printed(36, [row])[2:] == [
        "a/very/long/path/of/thirty/chars",
        "  2 x 32 x 8 x 8",
        "  -> b",
        "       the layer axis moved from the",
        "       front, and then some",
    ]


def shown_in_a_terminal(width: int, *arguments: object) -> list[str]:
    """What a command shows in a terminal of a width, without the codes for bold text."""
    primary, secondary = pty.openpty()
    fcntl.ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    variables = {**os.environ, "COLUMNS": str(width), "TERM": "xterm", "NO_COLOR": "1", "JAX_PLATFORMS": "cpu"}
    process = subprocess.Popen(
        [sys.executable, "-m", "converter", *map(str, arguments)],
        stdin=secondary, stdout=secondary, stderr=secondary, env=variables, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    os.close(secondary)
    data = b""
    try:
        while piece := os.read(primary, 1 << 16):
            data += piece
    except OSError:  # the terminal is gone with its last user
        pass
    finally:
        os.close(primary)
    assert process.wait() == 0, data.decode()
    return data.decode().replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("command", ["plan", "params"])
def test_no_path_is_folded_in_a_terminal(command: str, width: int, cli: Cli) -> None:
    document = cli(command, "--json", AXLEARN / "envy-test").document
    if command == "plan":
        places = [(leaf["path"], leaf["shape"]) for task in document["tasks"] for leaf in task["leaves"]]
    else:
        places = [(leaf["path"], leaf["shape"]) for row in document["rows"] for leaf in row["maxtext"]]
    assert len(places) == 25
    lines = shown_in_a_terminal(width, command, AXLEARN / "envy-test")
    text = "\n".join(lines)
    for path, _ in places:
        below = path.removeprefix("params/params/decoder/layers/layers_0/")
        below = below.removeprefix("params/params/decoder/layers/layers_1/")
        assert (path if command == "params" else below) in text
    path_lines = [line for line in lines if "/" not in line and line.startswith("  ")]
    assert all(len(line) <= width for line in path_lines)


def test_no_path_is_folded_in_a_pipe(cli: Cli) -> None:
    done = cli("params", AXLEARN / "envy-test")
    (line,) = [line for line in done.out.splitlines() if "layers_0/self_attention/key/kernel" in line]
    assert line.split()[0] == "params/params/decoder/layers/layers_0/self_attention/key/kernel"
