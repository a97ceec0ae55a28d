"""Drawing for the plots of a report: inline SVG that takes its colours, fonts and sizes from the page's style sheet.

Nothing but numbers and names of our own becomes an attribute, and no style is inline: the page allows none. drawsvg
escapes texts, and leaves attributes as they are.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import drawsvg

from converter.words import printable

WIDTH = 440
"""Of every plot, in its own units; on a page a unit is about a pixel."""

LONGEST = 52
"""Characters of a name in a plot; its tooltip has all of it."""


class _Description(drawsvg.Title):
    """The description of a picture, for those who hear it."""

    TAG_NAME = "desc"


@dataclass(frozen=True, slots=True)
class Linear:
    """Maps the values 0 to `top` to coordinates."""

    top: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        share = min(max(value / self.top, 0.0), 1.0) if self.top else 0.0
        return round(self.start + share * (self.stop - self.start), 2)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Round values with their labels."""
        if not self.top:
            return [(0.0, "0")]
        step = nice_step(self.top / 4)
        return [(n * step, f"{n * step:.3g}") for n in range(int(self.top / step + 1e-9) + 1)]


@dataclass(frozen=True, slots=True)
class Logarithmic:
    """Maps the powers of ten from `low` to `high` to coordinates; zero, and what is below, is at the start."""

    low: int
    high: int
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        power = math.log10(value) if value > 0 else float(self.low)
        share = min(max((power - self.low) / (self.high - self.low), 0.0), 1.0)
        return round(self.start + share * (self.stop - self.start), 2)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Powers of ten with their labels, at most about six of them."""
        step = -(-(self.high - self.low) // 6)
        return [(10.0**power, f"1e{power}") for power in range(self.low, self.high + 1, step)]


def logarithmic(values: Sequence[float], start: float, stop: float) -> Logarithmic:
    """The powers of ten that hold all positive values."""
    powers = [math.log10(value) for value in values if 0 < value < math.inf]
    low = math.floor(min(powers, default=-1))
    return Logarithmic(low, max(math.ceil(max(powers, default=0)), low + 1), start, stop)


def nice_step(value: float) -> float:
    """The smallest 1, 2 or 5 times a power of ten that is not below a value."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= value * (1 - 1e-9))


class Picture:
    """A picture of fixed width in which marks have tooltips."""

    def __init__(self, name: str, height: float, title: str, description: str):
        """Starts a picture.

        Args:
          name: a word, for ids.
          height: in the picture's units.
          title: what is shown.
          description: what it shows, for those who hear it.
        """
        labels = f"{name}-title {name}-description"
        self._drawing = drawsvg.Drawing(WIDTH, height, id_prefix=name, class_=f"plot plot-{name}", role="img")
        self._drawing.svg_args["aria-labelledby"] = labels
        self._drawing.append(drawsvg.Title(printable(title), id=f"{name}-title"))
        self._drawing.append(_Description(printable(description), id=f"{name}-description"))

    def text(self, text: str, x: float, y: float, kind: str = "label", *, anchor: str = "start") -> None:
        """Writes a text whose baseline is at y."""
        whole = printable(text)
        shown = whole if len(whole) <= LONGEST else whole[: LONGEST - 1] + "…"
        made = drawsvg.Text(shown, 12, x, y, class_=kind, text_anchor=anchor)
        if shown != whole:
            made.append_title(whole)
        self._drawing.append(made)

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str = "grid") -> None:
        """Draws a line."""
        self._drawing.append(drawsvg.Line(x1, y1, x2, y2, class_=kind))

    def path(self, points: Sequence[tuple[float, float]], kind: str) -> None:
        """Draws a line through points."""
        if len(points) > 1:
            flat = [coordinate for point in points for coordinate in point]
            self._drawing.append(drawsvg.Lines(*flat, class_=kind))

    def bar(self, x: float, y: float, width: float, height: float, kind: str, tip: str = "") -> None:
        """Draws a bar; one of no width is drawn as thin as can be seen."""
        self._mark(drawsvg.Rectangle(x, y, max(width, 1), height, class_=kind), tip)

    def dot(self, x: float, y: float, kind: str, tip: str, *, radius: float = 3.5) -> None:
        """Draws a point."""
        self._mark(drawsvg.Circle(x, y, radius, class_=kind), tip)

    def svg(self) -> str:
        """The picture as an element of an HTML page."""
        return str(self._drawing.as_svg(header="", skip_js=True, skip_css=True))

    def _mark(self, mark: drawsvg.DrawingBasicElement, tip: str) -> None:
        if tip:
            mark.append_title(printable(tip))
        self._drawing.append(mark)
