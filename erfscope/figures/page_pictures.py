"""Images of a page: maps on every scale, over the first input image too, and the drawing that lies on top."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence

import numpy as np
from PIL import Image

from erfscope.figures.draw import default_kind, png_bytes
from erfscope.figures.maps import COVER, field_box, grey, round_length
from erfscope.figures.pixels import colour_map, coloured_png, common_peak, display
from erfscope.figures.style import SCALES, FigureStyle
from erfscope.maps.drawn import CloseUp, close_up
from erfscope.maps.erf_map import ErfMap
from erfscope.printable import number
from erfscope.results.result import Result
from erfscope.view.drawings import Drawing, Drawings, Ring, Shown
from erfscope.view.words import radii

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


def drawings(results: Sequence[Result], style: FigureStyle) -> Drawings:
    """Everything that a page draws of a report's maps.

    Args:
        results: The report's results.
        style: Its scale and range of colours are those that the page opens with, its colour map that of all maps.
    """
    longest = next((pixels for most, pixels in PIXELS if len(results) <= most), FEWEST_PIXELS)
    maps = views(results, longest=longest, cmap=style.cmap)
    kinds = sorted({drawn.signed for drawn in maps if drawn is not None})
    return Drawings(
        maps=tuple(maps),
        positions=tuple(
            png_uri(png_bytes([result], "positions")) if default_kind([result]) == "positions" else None
            for result in results
        ),
        ramps={signed: ramp_uri(style.cmap, signed=signed) for signed in kinds},
        scales=tuple(SCALES),
        scale=style.scale,
        span=style.colours,
    )


def views(
    results: Sequence[Result], *, longest: int, overlaid: bool = True, cmap: str | None = None
) -> list[Drawing | None]:
    """The drawing of each result; None where there is no map.

    Args:
        results: Their maps share one range of colours beside each having its own; signed maps and others have a range
            each.
        longest: Pixels of an image's longer side, at most.
        overlaid: Whether to show the map over the first input image, too.
        cmap: Name of the colour map, as for :func:`erfscope.figures.pixels.colour_map`.
    """
    peaks: dict[tuple[bool, str], float] = {}
    parts = [None if result.map is None else close_up(result.map.plane) for result in results]
    for signed in (False, True):
        for scale in (set(SCALES) - {"share"}) if len(results) - parts.count(None) > 1 else ():
            views_of = (
                display(part.erf, scale, longest=longest)
                for result, part in zip(results, parts, strict=True)
                if part and (result.scale == "signed") is signed
            )
            peaks[signed, scale] = common_peak(views_of)
    return [
        None if part is None else _view(result, part, peaks, longest=longest, overlaid=overlaid, cmap=cmap)
        for result, part in zip(results, parts, strict=True)
    ]


def png_uri(content: bytes) -> str:
    """Bytes of a PNG as an address that holds them."""
    return "data:image/png;base64," + base64.b64encode(content).decode()


def ramp_uri(cmap: str | None, *, signed: bool) -> str:
    """The colours themselves, from the lowest value to the highest."""
    values = np.linspace(-1.0 if signed else 0.0, 1.0, 128)[None, :]
    return png_uri(coloured_png(values, peak=1.0, signed=signed, cmap=cmap))


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
    box = field_box(erf)
    return Drawing(
        width=cols,
        height=max(float(rows), STRIP * cols) if strip else rows,
        row=erf.center_px[0],
        col=erf.center_px[1],
        signed=result.scale == "signed",
        sharp=max(rows, cols) <= SHARP,
        strip=strip,
        images=tuple(_images(result, erf, peaks, longest, cmap)),
        overlaid=tuple(_overlaid(result, part, longest, cmap)) if overlaid else (),
        rings=tuple(Ring(name=name, radius=float(radius)) for name, radius in radii(result).items()),
        field=box,
        field_seen=box is not None,
        bar=round_length(cols / 4),
        zoom="".join(part.words),
    )


def _images(
    result: Result, erf: ErfMap, peaks: dict[tuple[bool, str], float], longest: int, cmap: str | None
) -> Iterator[Shown]:
    signed = result.scale == "signed"
    for scale in SCALES:
        values = display(erf, scale, longest=longest)
        if scale == "share":
            least, most = ("strongest −", "strongest +") if signed else ("100 %", "0 %")
            yield Shown(
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
            yield Shown(uri=png_uri(png), scale=scale, spans=(span,), least=f"−{most}" if signed else "0", peak=most)


def _overlaid(result: Result, part: CloseUp, longest: int, cmap: str | None) -> Iterator[Shown]:
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
        yield Shown(
            uri="data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode(), scale=scale, spans=SPANS
        )
