"""Maps as pixels: the values that are shown, their colours, and small pictures of them."""

from __future__ import annotations

import io
from collections.abc import Iterable

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import Colormap
from PIL import Image

from erfscope.errors import unknown
from erfscope.maps.erf_map import ErfMap, FloatArray

#: What is shown for every scale, in words for a figure; of signed maps the sign is kept beside it.
SCALES = {"linear": "density, uniform map = 1", "log": "log10(1 + density)", "power": "density to the power 0.3"}
SIGNED_SCALES = {**SCALES, "log": "sign × log10(1 + |density|)", "power": "sign × |density| to the power 0.3"}
#: Ranges of colours, in words for a figure.
COLOURS = {"shared": "one range for all maps", "own": "each map on its own range"}
#: Values above this quantile are shown as the brightest colour, so that a few pixels do not darken all others.
BRIGHTEST = 0.999
#: Both rise in lightness from end to end, so that they read the same in grey and for colour-blind people. Of signed maps the negative
#: end is dark and the positive one light, and zero lies between.
MAGNITUDE, SIGNED = "inferno", "cividis"


def check_scale(scale: str) -> None:
    """Refuse a scale that does not exist.

    Raises:
        ErfscopeError: names the scales there are.
    """
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)


def check_colours(colours: str) -> None:
    """Refuse a range of colours that does not exist.

    Raises:
        ErfscopeError: names those there are.
    """
    if colours not in COLOURS:
        raise unknown("range of colours", colours, COLOURS)


def display(erf: ErfMap, scale: str) -> FloatArray:
    """Values as shown: density relative to the uniform map, so that maps of different sizes share one scale.

    Args:
        erf: The map.
        scale: ``"linear"``, ``"log"`` (log10 of 1 + density) or ``"power"`` (exponent 0.3), both with the sign kept.

    Returns:
        Values of the shape of ``erf.values``.

    Raises:
        ErfscopeError: unknown scale.
    """
    check_scale(scale)
    density = erf.values * erf.values.size
    if scale == "log":
        return np.asarray(np.sign(density) * np.log10(1 + np.abs(density)), dtype=np.float64)
    if scale == "power":
        return np.asarray(np.sign(density) * np.abs(density) ** 0.3, dtype=np.float64)
    return density


def common_peak(views: Iterable[FloatArray]) -> float:
    """The value that several maps show as the end of their common scale: the largest of their 99.9th percentiles.

    Where that is 0, all maps being but a few cells, it is their peak; 1 where they are zero or not finite.
    """
    sizes = [np.abs(view[np.isfinite(view)]) for view in views]
    bright = max((float(np.quantile(size, BRIGHTEST)) for size in sizes if size.size), default=0.0)
    return bright or max((float(size.max()) for size in sizes if size.size), default=0.0) or 1.0


def colour_map(*, signed: bool) -> Colormap:
    """The colours of magnitudes, or of signed values around zero."""
    return colormaps[SIGNED if signed else MAGNITUDE]


def coloured_png(values: FloatArray, *, peak: float, signed: bool, longest: int) -> bytes:
    """A small paletted PNG of a map.

    Args:
        values: (H, W), as :func:`display` gives them.
        peak: Value of the last colour; what is above it has that colour too. Signed maps run from -peak to peak, others from 0.
        signed: Whether there are two signs.
        longest: The picture has at most this many pixels per side; larger maps are averaged down, smaller ones stay as they are.

    Returns:
        The file's bytes.
    """
    image = Image.fromarray(values.astype(np.float32))
    shrink = max(1.0, max(values.shape) / longest)
    if shrink > 1:
        height, width = (max(1, round(side / shrink)) for side in values.shape)
        image = image.resize((width, height), Image.Resampling.BOX)
    shown = np.asarray(image, dtype=np.float64) / peak
    levels = np.clip((shown + 1) / 2 if signed else shown, 0, 1)
    paletted = Image.fromarray(np.rint(levels * 255).astype(np.uint8))
    paletted.putpalette(colour_map(signed=signed)(np.arange(256), bytes=True)[:, :3].tobytes())
    buffer = io.BytesIO()
    paletted.save(buffer, format="PNG", compress_level=6)
    return buffer.getvalue()
