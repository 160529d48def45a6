"""Figures of results, by kind, and the figures of a report's folder with their captions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Unpack

from matplotlib.figure import Figure

from erfscope.errors import ErfscopeError, MeasurementError, unknown
from erfscope.figures.canvas import check_suffix, drawing, figure_bytes, write_figure
from erfscope.figures.kinds import FIGURES, refuse_narrow
from erfscope.figures.style import SCALES, SIGNED_SCALES, FigureStyle, Style
from erfscope.results.result import Result
from erfscope.view.captions import latex_figure

#: The file that a folder's captions stand in.
CAPTIONS = "figure.tex"


def figure_of(
    results: Sequence[Result], kind: str | None = None, *, path: str | Path | None = None, **style: Unpack[Style]
) -> Figure:
    """Draw results.

    Args:
        results: What to draw; results that the kind cannot show, such as those without a map, are left out.
        kind: A name in ``FIGURES``; :func:`default_kind` if None.
        path: Where to save, .png, .svg or .pdf; nowhere if None. A file of that name is replaced.
        **style: The fields of :class:`erfscope.figures.style.FigureStyle`.

    Returns:
        The figure; it belongs to no pyplot state.

    Raises:
        ErfscopeError: unknown kind or style, results that do not fit the kind, or a file that cannot be written.
        MeasurementError: results of which nothing can be drawn.
    """
    kind = kind or default_kind(results)
    if kind not in FIGURES:
        raise unknown("figure", kind, FIGURES)
    chosen = FigureStyle(**style)
    chosen.check()
    if path is not None:
        check_suffix(Path(path))
    refuse_unfit(results, kind, width=chosen.width)
    with drawing():
        figure = FIGURES[kind].draw(results, chosen)
    if path is not None:
        write_figure(figure, Path(path))
    return figure


def default_kind(results: Sequence[Result]) -> str:
    """The kind that is drawn where none is named: the sizes of every unit where they were measured, else the maps."""
    return "panel" if FIGURES["positions"].unfit(results) else "positions"


def refuse_unfit(results: Sequence[Result], kind: str, *, width: str | None = None) -> None:
    """Refuse a kind of figure that results do not fit.

    Args:
        results: What is to be drawn.
        kind: A name in ``FIGURES``.
        width: That of the sheet, a name in ``WIDTHS``; as wide as the kind needs if None.

    Raises:
        ErfscopeError: the results lack what the kind shows, or the sheet is too narrow.
        MeasurementError: there is nothing that any kind could show.
    """
    refuse_narrow(kind, width)
    needed = FIGURES[kind].unfit(results)
    if needed is not None:
        others = ", ".join(fitting(results))
        if not others:
            if len(results) == 1 and results[0].error is not None:
                raise results[0].failure("has no map to draw")
            raise MeasurementError("there is no map to draw: no result is usable, or none was stored with its map")
        raise ErfscopeError(f"a figure of kind {kind!r} needs {needed}; kinds that fit these results: {others}")


def fitting(results: Sequence[Result]) -> list[str]:
    """The kinds that can show these results."""
    return [name for name, kind in FIGURES.items() if kind.unfit(results) is None]


def png_bytes(results: Sequence[Result], kind: str = "panel", **style: Unpack[Style]) -> bytes:
    """:func:`figure_of` as a PNG."""
    return figure_bytes(figure_of(results, kind, **style), ".png")


def folder_figures(
    results: Sequence[Result], *, kind: str | None = None, **style: Unpack[Style]
) -> Iterator[tuple[str, bytes]]:
    """The figures of a report's folder: a panel per result, of all results together every kind that fits, and their
    captions for LaTeX.

    Args:
        results: All results of the report.
        kind: A kind that must be among them.
        **style: As for :func:`figure_of`.

    Yields:
        (file name, bytes). A panel is called as its result's id, the others as their kind; the captions are
        ``figure.tex``.

    Raises:
        ErfscopeError: results that do not fit ``kind``.
    """
    captions = []
    for result in results:
        if result.map is not None:
            figure = figure_of([result], "panel", **style)
            yield f"{result.id}.png", figure_bytes(figure, ".png")
            captions.append(_caption([result], "panel", f"{result.id}.png", figure, FigureStyle(**style)))
    chosen = [name for name in fitting(results) if FIGURES[name].in_folder and (name != "panel" or len(results) > 1)]
    chosen = [name for name in chosen if FIGURES[name].fits(style.get("width"))]
    taken = {result.id.lower() for result in results}
    together = []
    for name in dict.fromkeys([*chosen, *([] if kind is None else [kind])]):
        # Ids made by erfscope hold a dash; those of a report from elsewhere may be anything.
        free = next(each for each in (name, *(f"{name}_{number}" for number in range(len(taken)))) if each not in taken)
        figure = figure_of(results, name, **style)
        yield f"{free}.png", figure_bytes(figure, ".png")
        together.append(_caption(results, name, f"{free}.png", figure, FigureStyle(**style)))
    if captions or together:
        yield CAPTIONS, "\n".join([*together, *captions]).encode()


def _caption(results: Sequence[Result], kind: str, file: str, figure: Figure, style: FigureStyle) -> str:
    """A figure environment for LaTeX."""
    drawn = [result for result in results if result.map is not None] or results
    signed = any(result.scale == "signed" for result in drawn)
    colour = (SIGNED_SCALES if signed else SCALES)[style.scale] if FIGURES[kind].maps else ""
    width, shown = 25.4 * figure.get_figwidth(), FIGURES[kind].caption
    return latex_figure(drawn, shown, file, colour=colour, contours=style.outlined, width_mm=width)
