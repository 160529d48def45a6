"""The kinds of figures by name: what each draws, and what it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from matplotlib.figure import Figure

from erfscope.errors import ErfscopeError, MeasurementError, unknown
from erfscope.figures import panels
from erfscope.figures.canvas import (
    ONE_COLUMN,
    TWO_COLUMNS,
    WIDTHS,
    FigureStyle,
    StyleOptions,
    check_suffix,
    drawing,
    figure_bytes,
    save,
)
from erfscope.figures.curves import ALPHA, SIZES, TRAINING, depth, unfit_depth
from erfscope.figures.pixels import SCALES, SIGNED_SCALES, check_colours, check_scale
from erfscope.figures.profile import profile, unfit_profile
from erfscope.figures.units import positions, unfit_positions, unfit_units, units
from erfscope.results.result import Result
from erfscope.view.captions import latex_figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of figure."""

    #: Draws results that fit.
    draw: Callable[[Sequence[Result], FigureStyle], Figure]
    #: What it needs and the results lack, in words; None where it can be drawn.
    unfit: Callable[[Sequence[Result]], str | None]
    #: Whether it shows maps, which have colours.
    maps: bool = False
    #: Options of which one has to have several values, whatever is measured; () where each result can be drawn.
    several: tuple[str, ...] = ()
    #: The narrowest width that it fits into, a name in ``WIDTHS``.
    narrowest: str = "column"

    def fits(self, width: str | None) -> bool:
        """Whether it can be drawn so wide; None is as wide as it needs."""
        return width is None or WIDTHS[width] >= WIDTHS[self.narrowest]


#: Every kind by its name.
FIGURES: dict[str, Kind] = {
    "panel": Kind(draw=panels.panel, unfit=panels.unfit_panel, maps=True),
    "overlay": Kind(draw=panels.overlay, unfit=panels.unfit_overlay, maps=True),
    "strip": Kind(draw=panels.strip, unfit=panels.unfit_strip, maps=True, several=("layer", "input_size")),
    "profile": Kind(draw=profile, unfit=unfit_profile),
    "depth": Kind(draw=depth, unfit=unfit_depth, several=("layer",)),
    "alpha": Kind(draw=ALPHA.draw, unfit=ALPHA.unfit, several=("alpha",)),
    "sizes": Kind(draw=SIZES.draw, unfit=SIZES.unfit, several=("input_size",)),
    "training": Kind(draw=TRAINING.draw, unfit=TRAINING.unfit, several=("checkpoint",)),
    "units": Kind(draw=units, unfit=unfit_units, maps=True, several=("unit",)),
    "positions": Kind(draw=positions, unfit=unfit_positions, several=("every unit",), narrowest="page"),
}
#: The file that a folder's captions stand in.
CAPTIONS = "figure.tex"
#: What a folder gets besides a panel per result, where it fits.
TOGETHER = ("panel", "strip", "profile", "depth", "alpha", "sizes", "training", "units", "positions")


def figure_of(
    results: Sequence[Result], kind: str | None = None, *, path: str | Path | None = None, **style: Unpack[StyleOptions]
) -> Figure:
    """Draw results.

    Args:
        results: What to draw; results that the kind cannot show, such as those without a map, are left out.
        kind: A name in ``FIGURES``; :func:`default_kind` if None.
        path: Where to save, .png, .svg or .pdf; nowhere if None. A file of that name is replaced.
        **style: The fields of :class:`erfscope.figures.canvas.FigureStyle`: ``scale``, ``colours``, ``contours`` and
            ``width``.

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
    check_scale(chosen.scale)
    check_colours(chosen.colours)
    if path is not None:
        check_suffix(Path(path))
    refuse_unfit(results, kind, width=chosen.width)
    with drawing():
        figure = FIGURES[kind].draw(results, chosen)
    if path is not None:
        save(figure, Path(path))
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
    _refuse_narrow(kind, width)
    needed = FIGURES[kind].unfit(results)
    if needed is not None:
        others = ", ".join(fitting(results))
        if not others:
            if len(results) == 1 and results[0].error is not None:
                raise results[0].failure("has no map to draw")
            raise MeasurementError("there is no map to draw: no result is usable, or none was stored with its map")
        raise ErfscopeError(f"a figure of kind {kind!r} needs {needed}; kinds that fit these results: {others}")


def refuse_unasked(kind: str, several: Mapping[str, bool], *, width: str | None) -> None:
    """Refuse a kind of figure that cannot be drawn of what was asked for.

    Args:
        kind: A name in ``FIGURES``.
        several: Which options have several values.
        width: As for :func:`refuse_unfit`.

    Raises:
        ErfscopeError: it needs several values of an option, or a wider sheet.
    """
    _refuse_narrow(kind, width)
    if FIGURES[kind].several and not any(several[name] for name in FIGURES[kind].several):
        raise ErfscopeError(f"a figure of kind {kind!r} needs {FIGURES[kind].unfit([])}")


def _refuse_narrow(kind: str, width: str | None) -> None:
    if not FIGURES[kind].fits(width):
        raise ErfscopeError(
            f"a figure of kind {kind!r} needs the width of a {FIGURES[kind].narrowest}; add --width page, or leave"
            " it out"
        )


def fitting(results: Sequence[Result]) -> list[str]:
    """The kinds that can show these results."""
    return [name for name, kind in FIGURES.items() if kind.unfit(results) is None]


def panel(results: Sequence[Result], *, path: str | Path | None = None, **style: Unpack[StyleOptions]) -> Figure:
    """:func:`figure_of` of kind ``"panel"``: every map on one colour scale with its marks."""
    return figure_of(results, "panel", path=path, **style)


def png_bytes(results: Sequence[Result], kind: str = "panel", **style: Unpack[StyleOptions]) -> bytes:
    """:func:`figure_of` as a PNG."""
    return figure_bytes(figure_of(results, kind, **style), ".png")


def folder_figures(
    results: Sequence[Result], *, kind: str | None = None, **style: Unpack[StyleOptions]
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
            yield f"{result.id}.png", png_bytes([result], **style)
            captions.append(_caption([result], "panel", f"{result.id}.png", style))
    chosen = [name for name in fitting(results) if name in TOGETHER and (name != "panel" or len(results) > 1)]
    chosen = [name for name in chosen if FIGURES[name].fits(style.get("width"))]
    taken = {result.id.lower() for result in results}
    together = []
    for name in dict.fromkeys([*chosen, *([] if kind is None else [kind])]):
        # Ids made by erfscope hold a dash; those of a report from elsewhere may be anything.
        free = next(each for each in (name, *(f"{name}_{number}" for number in range(len(taken)))) if each not in taken)
        yield f"{free}.png", figure_bytes(figure_of(results, name, **style), ".png")
        together.append(_caption(results, name, f"{free}.png", style))
    if captions or together:
        yield CAPTIONS, "\n".join([*together, *captions]).encode()


def _caption(results: Sequence[Result], kind: str, file: str, options: StyleOptions) -> str:
    """A figure environment for LaTeX."""
    style, drawn = FigureStyle(**options), [result for result in results if result.map is not None] or results
    signed = any(result.scale == "signed" for result in drawn)
    colour = (SIGNED_SCALES if signed else SCALES)[style.scale] if FIGURES[kind].maps else ""
    wide = style.inches(ONE_COLUMN if len(drawn) == 1 else TWO_COLUMNS) > ONE_COLUMN
    return latex_figure(drawn, kind, file, colour=colour, contours=style.outlined, wide=wide)
