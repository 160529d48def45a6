"""The sheet that figures are drawn on: white, in inches, with letters that stay readable in a paper's column."""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties

from erfscope.errors import ErfscopeError, unknown
from erfscope.storage.files import FIGURES, write_bytes

#: Width of a figure over one and over two columns of a paper, inches. Figures are no wider, so that nobody has to
#: shrink their letters.
ONE_COLUMN, TWO_COLUMNS = 3.5, 7.2
#: What a width is called, in inches: 89 and 183 mm, the column and the page of most journals.
WIDTHS = {"column": ONE_COLUMN, "page": TWO_COLUMNS}
#: Points, and inches from one line of text to the next.
TEXT, TITLE, LINE = 7.0, 8.0, 0.135
PLAIN = FontProperties(size=TEXT)
BOLD = FontProperties(size=TITLE, weight="bold")
#: Lines that a name may take over its panel.
NAME_LINES = 4
DPI = 200
#: What a user's matplotlibrc or notebook theme may not change. Names of models are no TeX.
STYLE: dict[Any, Any] = {
    "text.usetex": False,
    "text.color": "black",
    "text.parse_math": False,
    "font.family": ["sans-serif"],
    "font.size": TEXT,
    "font.weight": "normal",
    "axes.facecolor": "white",
    "axes.edgecolor": "black",
    "axes.labelcolor": "black",
    "axes.labelsize": TEXT,
    "axes.titlesize": TITLE,
    "axes.linewidth": 0.6,
    "axes.grid": False,
    "axes.spines.top": True,
    "axes.spines.right": True,
    "xtick.color": "black",
    "ytick.color": "black",
    "xtick.labelcolor": "inherit",
    "ytick.labelcolor": "inherit",
    "xtick.labelsize": TEXT,
    "ytick.labelsize": TEXT,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.fontsize": TEXT,
    "legend.frameon": False,
    "figure.facecolor": "white",
    "figure.edgecolor": "white",
    # Many journals refuse the outlines of Type 3.
    "pdf.fonttype": 42,
    "svg.hashsalt": "erfscope",
}


class StyleOptions(TypedDict, total=False):
    """The fields of :class:`FigureStyle`."""

    scale: str
    colours: str
    contours: Sequence[float]
    width: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureStyle:
    """How a figure is drawn."""

    #: A name in :data:`erfscope.figures.pixels.SCALES`.
    scale: str = "share"
    #: ``"shared"``, one range of colours for all maps, or ``"own"``.
    colours: str = "shared"
    #: Per cents of the ERF whose highest-density regions are outlined on maps.
    contours: Sequence[float] = ()
    #: A name in ``WIDTHS``; as wide as the kind of figure needs if None.
    width: str | None = None

    @property
    def axis(self) -> str:
        """The scale of a curve's axis: maps alone have shares."""
        return "linear" if self.scale == "share" else self.scale

    def inches(self, needed: float) -> float:
        """Width of the sheet, where the figure needs so much."""
        return needed if self.width is None else WIDTHS[self.width]

    def check(self) -> None:
        """Refuse what does not exist.

        Raises:
            ErfscopeError: an unknown width, or contours that are no per cents between 0 and 100.
        """
        if self.width is not None and self.width not in WIDTHS:
            raise unknown("width", self.width, WIDTHS)
        try:
            wrong = [each for each in self.contours if not 0 < each < 100]
        except TypeError:
            raise ErfscopeError(
                f"contours are several per cents of the ERF, such as (50, 90), not {self.contours!r}"
            ) from None
        if wrong:
            raise ErfscopeError(
                f"contours are per cents of the ERF between 0 and 100, such as 50,90; {wrong[0]:g} is not"
            )

    @property
    def outlined(self) -> tuple[float, ...]:
        """The contours, each once, from the innermost one."""
        return tuple(sorted(set(self.contours)))


@contextlib.contextmanager
def drawing() -> Iterator[None]:
    """Draw in the project's style, whatever the user's is, and without a word on letters that the font lacks: they are
    drawn as boxes."""
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from", category=UserWarning)
        yield


def sheet(width: float, height: float) -> Figure:
    """An empty figure of that size, inches; it belongs to no pyplot state."""
    figure = Figure(figsize=(width, height), dpi=DPI)
    FigureCanvasAgg(figure)
    return figure


def place(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Axes at a place in inches from the figure's upper left corner."""
    whole_width, whole_height = figure.get_size_inches()
    return figure.add_axes(
        (left / whole_width, 1 - (top + height) / whole_height, width / whole_width, height / whole_height)
    )


def write(
    figure: Figure, left: float, top: float, text: str, *, width: float | None = None, size: float = TEXT, **style: Any
) -> None:
    """A line of text whose upper left corner is at a place in inches, cut where it would be wider than ``width``."""
    whole_width, whole_height = figure.get_size_inches()
    shown = (
        text
        if width is None
        else fitted(figure, text, width, FontProperties(size=size, weight=style.get("weight", "normal")))
    )
    figure.text(left / whole_width, 1 - top / whole_height, shown, fontsize=size, va="top", ha="left", **style)


def text_width(figure: Figure, text: str, font: FontProperties = PLAIN) -> float:
    """Width of a line of text, inches."""
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]  # FigureCanvasAgg has one
    return float(renderer.get_text_width_height_descent(text, font, False)[0] / figure.dpi)


def fitted(figure: Figure, text: str, width: float, font: FontProperties = PLAIN) -> str:
    """The text, its middle cut where it is wider than ``width`` inches: names of models differ at their ends."""
    if text_width(figure, text, font) <= width:
        return text
    low, high = 0, len(text) - 1
    while low < high:
        kept = (low + high + 1) // 2
        low, high = (kept, high) if text_width(figure, _without_middle(text, kept), font) <= width else (low, kept - 1)
    return _without_middle(text, low)


def name_lines(figure: Figure, name: str, width: float, font: FontProperties) -> list[str]:
    """A name on lines of at most ``width`` inches, broken after its marks, or between its words; on one line with its
    middle cut where it needs more than :data:`NAME_LINES`."""
    lines = [""]
    for piece in re.findall(r"[^ _./:\-]*[ _./:\-]*", name):
        if text_width(figure, (lines[-1] + piece).rstrip(), font) <= width or not lines[-1]:
            lines[-1] += piece
        else:
            lines.append(piece)
    lines = [line.strip() for line in lines]
    is_broken = len(lines) <= NAME_LINES and all(text_width(figure, line, font) <= width for line in lines)
    return lines if is_broken else [fitted(figure, name, width, font)]


def _without_middle(text: str, kept: int) -> str:
    end = kept // 2
    return f"{text[: kept - end]}…{text[len(text) - end :]}"


def wrapped(figure: Figure, words: Sequence[str], width: float) -> list[str]:
    """Words joined by dots on as many lines as they need; one that is wider than a line is broken at its spaces."""
    lines: list[str] = []
    for word in words:
        pieces = word.split(" ") if text_width(figure, word) > width else [word]
        for number, piece in enumerate(pieces):
            longer = f"{lines[-1]}{' ' if number else ' · '}{piece}" if lines else piece
            if lines and text_width(figure, longer) <= width:
                lines[-1] = longer
            else:
                lines.append(fitted(figure, piece, width))
    return lines


def figure_bytes(figure: Figure, suffix: str) -> bytes:
    """A figure as the bytes of a file of that suffix; the same figure gives the same bytes."""
    kind = suffix.lower().lstrip(".")
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    buffer = io.BytesIO()
    with drawing():
        figure.savefig(buffer, format=kind, dpi=DPI, facecolor="white", edgecolor="white", metadata=undated)
    return buffer.getvalue()


def check_suffix(path: Path) -> None:
    """Refuse a file that is no image.

    Raises:
        ErfscopeError: another suffix than .png, .svg or .pdf.
    """
    if path.suffix.lower() not in FIGURES:
        raise ErfscopeError(f"a figure is saved as .png, .svg or .pdf, not {path.suffix or path.name!r}")


def save(figure: Figure, path: Path) -> None:
    """Write a figure to a .png, .svg or .pdf file, whole or not at all; a file of that name is replaced.

    Raises:
        ErfscopeError: another suffix, or the file cannot be written.
    """
    check_suffix(path)
    write_bytes(path, figure_bytes(figure, path.suffix), force=True)
