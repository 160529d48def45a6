"""Figures of results, by kind, and the figures of a report's folder with their captions."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from erfscope.core.answer.depth import in_depth
from erfscope.core.answer.figure_style import Style
from erfscope.core.answer.maps.erf_map import ErfMap
from erfscope.core.answer.result import Result
from erfscope.core.request.values import AUTO
from erfscope.core.values.axes import NAMES
from erfscope.core.values.errors import ErfscopeError, MeasurementError, unknown
from erfscope.core.values.printable import number
from erfscope.show.drawn import CloseUp
from erfscope.show.figures.canvas import check_suffix, drawing, figure_bytes, write_figure
from erfscope.show.figures.insets import INSET
from erfscope.show.figures.kinds import FIGURES, Drawn, FigureKind, refuse_narrow
from erfscope.show.figures.maps import (
    COVER,
    bar_length,
    cell_ratio,
    colour_map,
    coloured_png,
    common_peak,
    display,
    field_box,
    grey,
)
from erfscope.show.figures.style import ONE_COLUMN, ONE_TEXT, SCALES, FigureStyle
from erfscope.show.view.drawings import Drawing, Drawings, DrawnRing, Inset, MapImage
from erfscope.show.view.tables import latex_figure
from erfscope.show.view.windows import Windowed, inset_corner, window_notes, windows
from erfscope.show.view.words import radii

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
        **style: The fields of :class:`erfscope.show.figures.style.FigureStyle`.

    Returns:
        The figure; it belongs to no pyplot state.

    Raises:
        ErfscopeError: unknown kind or style, results that do not fit the kind, or a file that cannot be written.
        MeasurementError: results of which nothing can be drawn.
    """
    if path is not None:
        check_suffix(Path(path))
    figure = _drawn(results, kind or default_kind(results), FigureStyle(**style)).figure
    if path is not None:
        write_figure(figure, Path(path))
    return figure


def _drawn(results: Sequence[Result], kind: str, style: FigureStyle) -> Drawn:
    """A figure, once nothing is wrong with what was asked for, and what its caption has to say."""
    if kind not in FIGURES:
        raise unknown("figure", kind, FIGURES)
    style.check()
    refuse_unfit(results, kind, width=style.width)
    with drawing(style.font):
        return FIGURES[kind].draw(results, style)


def default_kind(results: Sequence[Result]) -> str:
    """The kind that is drawn where none is named: the sizes of every unit where they were measured, else the maps."""
    return "panel" if FIGURES["positions"].unfit(results) else "positions"


def refuse_unfit(results: Sequence[Result], kind: str, *, width: str | None = None) -> None:
    """Refuse a kind of figure that results do not fit.

    Args:
        results: What is to be drawn.
        kind: A name in ``FIGURES``.
        width: That of the sheet, as for :meth:`erfscope.Report.figure`; as wide as the kind needs if None.

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
        (file name, bytes), each figure as .png and .pdf. A panel is called as its result's id, the others as their
        kind; the captions are ``figure.tex``. Where figures are wider than a text of one column, a panel of one of
        several results is as wide as a column.

    Raises:
        ErfscopeError: results that do not fit ``kind``.
    """
    chosen = [name for name in fitting(results) if FIGURES[name].in_folder and (name != "panel" or len(results) > 1)]
    chosen = [name for name in chosen if FIGURES[name].fits(style.get("width"))]
    taken = {result.id.lower() for result in results}
    together: list[tuple[str, str, Sequence[Result]]] = []
    for name in dict.fromkeys([*chosen, *([] if kind is None else [kind])]):
        # Ids made by erfscope hold a dash; those of a report from elsewhere may be anything.
        free = next(each for each in (name, *(f"{name}_{number}" for number in range(len(taken)))) if each not in taken)
        together.append((free, name, results))
    captions = []
    chosen_style = single = FigureStyle(**style)
    if len(results) > 1 and single.inches(ONE_COLUMN) > ONE_TEXT:
        single = replace(single, width="column")
    alone: list[tuple[str, str, Sequence[Result]]] = [
        (result.id, "panel", [result]) for result in results if result.map is not None
    ]
    for file, name, shown in [*alone, *together]:
        drawn = _drawn(shown, name, chosen_style if shown is results else single)
        for suffix in (".png", ".pdf"):
            yield f"{file}{suffix}", figure_bytes(drawn.figure, suffix)
        captions.append(_caption(shown, FIGURES[name], drawn, f"{file}.pdf"))
    if captions:
        yield CAPTIONS, "\n".join([*captions[len(alone) :], *captions[: len(alone)]]).encode()


def _caption(results: Sequence[Result], kind: FigureKind, drawn: Drawn, file: str) -> str:
    """A figure environment for LaTeX."""
    shown = [result for result in results if result.map is not None] or results
    is_wide = drawn.figure.get_figwidth() > ONE_COLUMN
    return latex_figure(shown, kind.caption, file, words_on=drawn.words, has_maps=kind.maps, is_wide=is_wide)


#: Where maps have this many cells or fewer per side, single cells are shown as sharp squares.
SHARP = 96
#: Ranges of colours that a page offers.
SPANS = ("own", "shared")
#: The narrowest a map is drawn, as a share of its longer side: one-dimensional references become a strip.
STRIP = 0.12


#: Pixels of a map's longer side, for reports of at most so many results: pages of 12 stay below 5 MB, of 60 below 10
#: MB.
PIXELS = ((4, 320), (12, 168), (30, 128), (60, 100))
FEWEST_PIXELS = 80
#: Results of one panel of a page, and curves of its figure by depth, at most.
TOGETHER = 12


def drawings(results: Sequence[Result], style: FigureStyle) -> Drawings:
    """Everything that a page draws of a report's maps.

    Args:
        results: The report's results.
        style: Its scale and range of colours are those that the page opens with, its colour map that of all maps.
    """
    longest = next((pixels for most, pixels in PIXELS if len(results) <= most), FEWEST_PIXELS)
    shown = _windows(results, style.zoom)
    maps = views(results, shown, longest=longest, cmap=style.cmap)
    kinds = sorted({drawn.signed for drawn in maps if drawn is not None})
    return Drawings(
        maps=tuple(maps),
        positions=tuple(
            png_uri(png_bytes([result], "positions")) if default_kind([result]) == "positions" else None
            for result in results
        ),
        spaces=tuple(
            None
            if result.map is None or result.map.values.ndim == 2
            else png_uri(png_bytes([result], scale=style.scale, cmap=style.cmap, zoom=style.zoom))  # type: ignore[arg-type]
            for result in results
        ),
        together=_together(results, style),
        depth=_depth(results),
        ramps={signed: ramp_uri(style.cmap, signed=signed) for signed in kinds},
        scales=tuple(SCALES),
        scale=style.scale,
        span=style.colours,
        shown="; ".join(window_notes(shown)),
    )


def _together(results: Sequence[Result], style: FigureStyle) -> str | None:
    """The panel of results that are all volumes or all sequences."""
    names = {result.map.axes.names for result in results if result.map is not None}
    count = sum(result.map is not None for result in results)
    if not 1 < count <= TOGETHER or names not in ({NAMES["t"]}, {NAMES["dhw"]}):
        return None
    return png_uri(png_bytes(results, scale=style.scale, cmap=style.cmap, zoom=style.zoom))  # type: ignore[arg-type]


def _depth(results: Sequence[Result]) -> str | None:
    """Sizes by layer."""
    if FIGURES["depth"].unfit(results) or len(in_depth(results)) > TOGETHER:
        return None
    return png_uri(png_bytes(results, "depth", width="text"))


def _windows(results: Sequence[Result], zoom: str | float = AUTO) -> list[Windowed | None]:
    """What a page draws of each map, with close-ups in corners."""
    return [each and each.in_corner for each in windows(results, zoom)]


def views(
    results: Sequence[Result],
    shown: Sequence[Windowed | None] | None = None,
    *,
    longest: int,
    overlaid: bool = True,
    cmap: str | None = None,
) -> list[Drawing | None]:
    """The drawing of each result; None where there is no map.

    Args:
        results: Their maps share one range of colours beside each having its own; signed maps and others have a range
            each.
        shown: What is drawn of each, as :func:`erfscope.show.view.windows.windows` finds; by default with its own zoom.
        longest: Pixels of an image's longer side, at most.
        overlaid: Whether to show the map over the first input image, too.
        cmap: Name of the colour map, as for :func:`erfscope.show.figures.maps.colour_map`.
    """
    peaks: dict[tuple[bool, str], float] = {}
    shown = _windows(results) if shown is None else shown
    parts = [None if each is None else each.part for each in shown]
    for signed in (False, True):
        for scale in (set(SCALES) - {"share"}) if len(results) - parts.count(None) > 1 else ():
            views_of = (
                display(part.erf, scale, longest=longest)
                for result, part in zip(results, parts, strict=True)
                if part and (result.scale == "signed") is signed
            )
            peaks[signed, scale] = common_peak(views_of)
    return [
        None if each is None else _with_inset(result, each, peaks, longest=longest, overlaid=overlaid, cmap=cmap)
        for result, each in zip(results, shown, strict=True)
    ]


def png_uri(content: bytes) -> str:
    """Bytes of a PNG as an address that holds them."""
    return "data:image/png;base64," + base64.b64encode(content).decode()


def ramp_uri(cmap: str | None, *, signed: bool) -> str:
    """The colours themselves, from the lowest value to the highest."""
    values = np.linspace(-1.0 if signed else 0.0, 1.0, 128)[None, :]
    return png_uri(coloured_png(values, peak=1.0, signed=signed, cmap=cmap))


def _with_inset(result: Result, shown: Windowed, peaks: dict[tuple[bool, str], float], **options: Any) -> Drawing:
    """The drawing of a map, with that of its close-up where it has one."""
    drawn = _view(result, shown.part, peaks, **options)
    if shown.close is None:
        return drawn
    ((top, bottom), (left, right)), ratio = shown.close.inside(shown.part), cell_ratio(shown.part.erf)
    x, y, width, height = drawn.frame
    side = INSET * min(width, height)
    is_right, is_low = inset_corner(shown)
    at = (x + is_right * (width - side), y + is_low * (height - side), side)
    inner = _view(result, shown.close, peaks, **options)
    of = (left - 0.5, top * ratio - 0.5, right - left, (bottom - top) * ratio)
    return replace(drawn, inset=Inset(drawing=inner, text=shown.close_text, at=at, of=of))


def _view(
    result: Result,
    part: CloseUp,
    peaks: dict[tuple[bool, str], float],
    *,
    longest: int,
    overlaid: bool,
    cmap: str | None,
) -> Drawing:
    erf = part.erf
    rows, cols = erf.values.shape
    strip = rows == 1
    box, ratio, across = field_box(erf), cell_ratio(erf), erf.axes.spacing[1]
    bar, text = (0.0, "") if part.is_narrow else bar_length(erf, 0.25)
    height = max(float(rows), STRIP * cols) if strip else rows if ratio == 1 else rows * ratio
    (left, right), above = part.limits(1), 0.0 if strip else (-0.5 - part.limits(0)[0]) * ratio
    return Drawing(
        width=cols,
        height=height,
        frame=(left, -0.5 - above, right - left, height + 2 * above),
        unit=((erf.center_px[0] + 0.5) * ratio - 0.5, erf.center_px[1]) if erf.center_px else None,
        signed=result.scale == "signed",
        sharp=max(rows, cols) <= SHARP,
        strip=strip,
        images=tuple(_images(result, erf, peaks, longest, cmap)),
        overlaid=tuple(_overlaid(result, part, longest, cmap)) if overlaid else (),
        rings=tuple(DrawnRing(name=name, radius=float(radius) / across) for name, radius in radii(result).items()),
        field=None if box is None else (box[0], (box[1] + 0.5) * ratio - 0.5, box[2], box[3] * ratio),
        field_seen=box is not None,
        bar=bar,
        bar_text=text,
        window="".join(part.words),
    )


def _images(
    result: Result, erf: ErfMap, peaks: dict[tuple[bool, str], float], longest: int, cmap: str | None
) -> Iterator[MapImage]:
    signed = result.scale == "signed"
    for scale in SCALES:
        values = display(erf, scale, longest=longest)
        if scale == "share":
            least, most = ("strongest −", "strongest +") if signed else ("100 %", "0 %")
            yield MapImage(
                uri=png_uri(coloured_png(values, peak=1.0, signed=signed, cmap=cmap)),
                scale=scale,
                spans=SPANS,
                least=least,
                peak=most,
            )
            continue
        spans = {"own": common_peak([values])} | ({"shared": peaks[signed, scale]} if peaks else {})
        for span, peak in spans.items():
            png, most = coloured_png(values, peak=peak, signed=signed, cmap=cmap), number(peak)
            yield MapImage(uri=png_uri(png), scale=scale, spans=(span,), least=f"−{most}" if signed else "0", peak=most)


def _overlaid(result: Result, part: CloseUp, longest: int, cmap: str | None) -> Iterator[MapImage]:
    """The first image in grey under the map, which is transparent where it is weak."""
    if not isinstance(result.picture, np.ndarray) or result.picture.ndim != 3 or result.picture.dtype != np.uint8:
        return
    picture = part.of(result.picture)
    shrink = max(1.0, max(picture.shape[:2]) / longest)
    size = (max(1, round(picture.shape[1] / shrink)), max(1, round(picture.shape[0] / shrink)))
    under = 255 * np.asarray(
        Image.fromarray(grey(picture).astype(np.float32)).resize(size, Image.Resampling.BOX), dtype=np.float64
    )
    signed = result.scale == "signed"
    for scale in SCALES:
        values = display(part.erf, scale, longest=longest)
        strength = np.clip(values / common_peak([values], scale), -1, 1).astype(np.float32)
        enlarged = max(values.shape) < max(size)
        fitted = Image.fromarray(strength).resize(size, Image.Resampling.NEAREST if enlarged else Image.Resampling.BOX)
        levels = np.asarray(fitted, dtype=np.float64)
        colours = 255 * colour_map(cmap, signed=signed)((levels + 1) / 2 if signed else levels)[..., :3]
        cover = COVER * np.abs(levels)[..., None]
        buffer = io.BytesIO()
        pixels = np.rint(under[..., None] * (1 - cover) + colours * cover).astype(np.uint8)
        Image.fromarray(pixels).save(buffer, format="JPEG", quality=80)
        yield MapImage(
            uri="data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode(), scale=scale, spans=SPANS
        )
