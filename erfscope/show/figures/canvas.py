"""The sheet that figures are drawn on: white, as wide as a paper's column or page, and as high as what stands on it;
matplotlib's constrained layout gives every panel its place."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, SubFigure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from erfscope.core.answer.storage.writing import suffixes, write_bytes
from erfscope.core.values.errors import ErfscopeError
from erfscope.show.figures.lettering import TEXT, TITLE, wrapped
from erfscope.show.figures.lines import legend

#: Inches: around the sheet and every panel, over the keys and the words under all panels, and how high a sheet is
#: before it is cut.
MARGIN, BETWEEN, TALL = 0.07, 0.08, 100.0
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


@contextlib.contextmanager
def drawing(font: str | None = None) -> Iterator[None]:
    """Draw in the project's style, whatever the user's is, and without a word on letters that the font lacks: they are
    drawn as boxes. ``font`` is the name of another font; letters that it lacks are of the default one."""
    family = {"font.family": [font, *STYLE["font.family"]]} if font else {}
    with matplotlib.rc_context(STYLE | family), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from", category=UserWarning)
        yield


def sheet(width: float) -> Figure:
    """An empty sheet, so many inches wide, that :func:`finish` cuts to its height; it belongs to no pyplot state."""
    layout = ConstrainedLayoutEngine(w_pad=MARGIN, h_pad=MARGIN, wspace=0, hspace=0)
    figure = Figure(figsize=(width, TALL), dpi=DPI, layout=layout)
    FigureCanvasAgg(figure)
    return figure


def write_title(part: Figure | SubFigure, title: str, *, size: float = TITLE) -> None:
    """A bold title over all panels of a sheet, or of a part of it that is as wide."""
    part.suptitle(title, x=MARGIN * part.dpi / part.bbox.width, ha="left", fontsize=size, fontweight="bold")


def lay_out(figure: Figure) -> None:
    """Place the axes on a sheet, with room for the text around them."""
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.execute(figure)


def inches(ax: Axes) -> tuple[float, float]:
    """Width and height of axes as they are laid out, inches."""
    place, home = ax.get_position(original=True), ax.figure
    return place.width * home.bbox.width / home.dpi, place.height * home.bbox.height / home.dpi


def finish(
    figure: Figure, rows: Sequence[Axes], heights: Sequence[float], *, words: Sequence[str], **keys: Any
) -> None:
    """Write keys and words under all panels, and cut the sheet to the height that panels and words need.

    Args:
        figure: A :func:`sheet`, whose rows have heights in the proportions that they are to have.
        rows: Axes, one of each row.
        heights: Theirs, inches.
        words: Joined by dots on as many lines as they need; none for none.
        **keys: ``handles`` of a legend, and more options of :func:`erfscope.show.figures.lines.legend`.
    """
    width, whole = figure.get_figwidth() - 2 * MARGIN, figure.get_figheight()
    foot = MARGIN
    if words:
        lines = "\n".join(wrapped(figure, words, width))
        text = figure.text(MARGIN, foot, lines, va="bottom", transform=figure.dpi_scale_trans)
        foot = text.get_window_extent().y1 / figure.dpi + BETWEEN
    if keys.get("handles"):
        corner: dict[str, Any] = {"bbox_to_anchor": (MARGIN, foot), "bbox_transform": figure.dpi_scale_trans}
        drawn = legend(figure, width, loc="lower left", **corner, **keys)
        foot = drawn.get_window_extent().y1 / figure.dpi + BETWEEN
    engine = figure.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)
    engine.set(rect=(0, foot / whole, 1, 1 - foot / whole))
    lay_out(figure)
    short = whole + sum(height - inches(ax)[1] for ax, height in zip(rows, heights, strict=True))
    figure.set_figheight(short)
    engine.set(rect=(0, foot / short, 1, 1 - foot / short))
    figure.draw_without_rendering()
    # What is drawn on the panels leaves their places as they are.
    figure.set_layout_engine("none")


def figure_bytes(figure: Figure, suffix: str) -> bytes:
    """A figure as the bytes of a file of that suffix; the same figure gives the same bytes."""
    kind = suffix.lower().lstrip(".")
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    buffer = io.BytesIO()
    with drawing():
        figure.savefig(buffer, format=kind, dpi=DPI, facecolor="white", edgecolor="white", metadata=undated)
    return buffer.getvalue()


def check_suffix(path: Path) -> None:
    """Refuse a file that is not an image.

    Raises:
        ErfscopeError: its suffix is not that of a figure.
    """
    *others, last = suffixes("figure")
    if path.suffix.lower() not in (*others, last):
        raise ErfscopeError(f"a figure is saved as {', '.join(others)} or {last}, not {path.suffix or path.name!r}")


def write_figure(figure: Figure, path: Path) -> None:
    """Write a figure to a .png, .svg or .pdf file, whole or not at all; a file of that name is replaced.

    Raises:
        ErfscopeError: the file cannot be written.
    """
    write_bytes(path, figure_bytes(figure, path.suffix), force=True)
