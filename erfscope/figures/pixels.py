"""Maps as pixels: the values that are shown, their colours, and small images of them."""

from __future__ import annotations

import io
from collections.abc import Iterable

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import Colormap
from PIL import Image

from erfscope.maps.drawn import averaged, brightness
from erfscope.maps.erf_map import ErfMap, FloatArray

#: Values above this quantile are shown as the brightest colour, so that a few pixels do not darken all others.
BRIGHTEST = 0.999
#: Both rise in lightness from end to end, so that they read the same in grey and for colour-blind people. Of signed
#: maps the negative end is dark and the positive one light, and zero lies between.
MAGNITUDE, SIGNED = "inferno", "cividis"


def display(erf: ErfMap, scale: str, *, longest: int | None = None) -> FloatArray:
    """Values as shown, so that maps of different sizes share one scale.

    Args:
        erf: The map.
        scale: ``"share"`` (brightness from 0 to 1 by the share of the ERF in pixels at least as strong, see
            :mod:`erfscope.maps.drawn`), ``"linear"`` (density relative to the uniform map), ``"log"`` (log10
            of 1 + density) or ``"power"`` (its power 0.3), with the sign kept.
        longest: Cells of the drawing's longer side: a larger map (H, W) is averaged over them first.

    Returns:
        Values of the shape of ``erf.values``, or as many as are drawn.
    """
    return scaled(drawn_cells(erf.values * erf.values.size, longest), scale)


def scaled(density: FloatArray, scale: str) -> FloatArray:
    """A density, relative to the uniform map, on one of the scales."""
    if scale == "share":
        return np.sign(density) * brightness(np.abs(density))
    if scale == "log":
        return np.asarray(np.sign(density) * np.log10(1 + np.abs(density)), dtype=np.float64)
    if scale == "power":
        return np.asarray(np.sign(density) * np.abs(density) ** 0.3, dtype=np.float64)
    return density


def drawn_cells(values: FloatArray, longest: int | None) -> FloatArray:
    """A map (H, W) as it is drawn: of one whose longer side has more cells than ``longest``, means over so many."""
    shrink = 1.0 if longest is None or values.ndim != 2 else max(values.shape) / longest
    return averaged(values, [max(1, round(side / shrink)) for side in values.shape]) if shrink > 1 else values


def common_peak(views: Iterable[FloatArray], scale: str = "linear") -> float:
    """The value that several maps show as the end of their common scale: the largest of their 99.9th percentiles.

    Where that is 0, all maps being but a few cells, it is their peak; 1 where they are zero or not finite, and of
    brightness, on the scale ``share``.
    """
    if scale == "share":
        return 1.0
    sizes = [np.abs(view[np.isfinite(view)]) for view in views]
    bright = max((float(np.quantile(size, BRIGHTEST)) for size in sizes if size.size), default=0.0)
    return bright or max((float(size.max()) for size in sizes if size.size), default=0.0) or 1.0


def colour_map(name: str | None = None, *, signed: bool) -> Colormap:
    """The colours of magnitudes, or of signed values around zero; ``name`` is another colour map of matplotlib."""
    return colormaps[name or (SIGNED if signed else MAGNITUDE)]


def coloured_png(values: FloatArray, *, peak: float, signed: bool, cmap: str | None = None) -> bytes:
    """A small paletted PNG of a map.

    Args:
        values: (H, W), as :func:`display` gives them.
        peak: Value of the last colour; what is above it has that colour too. Signed maps run from -peak to peak, others
            from 0.
        signed: Whether there are two signs.
        cmap: Name of the colour map, as for :func:`colour_map`.

    Returns:
        The file's bytes.
    """
    shown = values / peak
    levels = np.nan_to_num(np.clip((shown + 1) / 2 if signed else shown, 0, 1))
    paletted = Image.fromarray(np.rint(levels * 255).astype(np.uint8))
    paletted.putpalette(colour_map(cmap, signed=signed)(np.arange(256), bytes=True)[:, :3].tobytes())
    buffer = io.BytesIO()
    paletted.save(buffer, format="PNG", compress_level=6)
    return buffer.getvalue()
