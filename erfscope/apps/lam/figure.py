"""Local attribution maps as papers draw them: the image with the window, and of each model the map, the map over the
image, and the restored window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from erfscope.apps.lam.records import LamMap
from erfscope.apps.lam.sizes import SIZES
from erfscope.core import ErfscopeError, FloatArray
from erfscope.show import number, plot

#: Outlines of the window, and of the box of receptive fields.
WINDOW: dict[str, Any] = {"edgecolor": "#ff4040", "fill": False, "linewidth": 1.0, "gid": "window"}
FIELD: dict[str, Any] = {
    "edgecolor": "#ffb000", "fill": False, "linewidth": 1.0, "linestyle": (0, (1, 1.5)), "gid": "TRF"
}  # fmt: skip
#: How much of the image the strongest part of a map hides, and how many models have room.
COVER, MOST = 0.92, 7


def lam_figure(maps: Sequence[LamMap]) -> Figure:
    """Draw one window's maps, a column for each model.

    Args:
        maps: Of one window of one image. Of volumes the map is summed along the depth, over the window's own slice.

    Raises:
        ErfscopeError: of sequences, more models than have room, or none.
    """
    if not maps:
        raise ErfscopeError("stored maps are numbers alone; name the model itself to draw its maps")
    first, count = maps[0], len(maps)
    if first.values.ndim == 1 or count > MOST:
        raise ErfscopeError(f"a figure has room for images or volumes of up to {MOST} models; write .csv or .tex")
    with plot.drawing():
        figure = plot.sheet(plot.ONE_COLUMN if count < 3 else plot.TWO_COLUMNS)
        panels, width = figure.subplots(3, 1 + count, squeeze=False), figure.get_figwidth() / (1 + count)
        for ax in panels.flat:
            ax.set(xticks=[], yticks=[])
        picture, empty, true = panels[:, 0]
        _show(picture, "input", _colours(first.picture, first), first, WINDOW)
        empty.set_axis_off()
        if first.target is None:
            true.set_axis_off()
        else:
            _show(true, "true", _colours(first.target, first))
        for (alone, over, restored), each in zip(panels.T[1:], maps, strict=True):
            bright = plot.brightness(_plane(each.values, each, summed=True))
            grey = _colours(each.picture, each).mean(-1, keepdims=True).repeat(3, -1)
            _show(alone, plot.name_lines(figure, each.model, 0.9 * width), None, each, WINDOW, FIELD, bright=bright)
            _show(over, "", grey, each, WINDOW, FIELD, bright=bright)
            _show(restored, "", _colours(each.restored, each))
            restored.set_xlabel("\n".join(_lines(each)), loc="left")
        flat = width * first.values.shape[-2] / first.values.shape[-1]
        words = ["rows: map, map over the input, restored window", "bright: pixels that hold most of the attribution"]
        words += ["red: window", "dots: all that it can see"]
        plot.finish(figure, list(panels[:, -1]), [flat, flat, width], words=[*filter(None, [first.note]), *words])
    return figure


def _lines(each: LamMap) -> list[str]:
    """The sizes of a map, for below its panels."""
    di, r50, r90, area = (number(getattr(each, name)) for name in SIZES)
    return [f"DI {di}", f"r50 {r50} px", f"r90 {r90} px", f"area {area} px", f"TRF {each.trf}"]


def _plane(values: FloatArray, each: LamMap, *, summed: bool = False) -> FloatArray:
    """A map or a picture (*space) as (H, W): summed along the depth, or its slice nearest to the window's centre."""
    if values.ndim == 2:
        return values
    share = each.place.centre[0] / each.values.shape[0] if values.shape == each.values.shape else 0.5
    return np.asarray(values.sum(0) if summed else values[int(share * len(values))], dtype=np.float64)


def _colours(values: FloatArray, each: LamMap) -> FloatArray:
    """An input or output (C, *space) as (H, W, 3) in [0, 1]; of an input that has other values, from its lowest to its
    highest."""
    is_plain = each.picture.min() >= 0 and each.picture.max() <= 1
    low, high = (0.0, 1.0) if is_plain else (float(values.min()), float(values.max()))
    bands = values[:3] if len(values) >= 3 else values[:1].repeat(3, axis=0)
    scaled = np.clip((bands - low) / ((high - low) or 1.0), 0, 1)
    return np.stack([_plane(band, each) for band in scaled], axis=-1)


def _show(
    ax: Axes,
    title: str,
    colours: FloatArray | None,
    each: LamMap | None = None,
    *outlines: dict[str, Any],
    bright: FloatArray | None = None,
) -> None:
    """A picture (H, W, 3), a map (H, W) of brightness, or the map over the picture; and outlines of the window and of
    the box of receptive fields."""
    plot.write_over(ax, title)
    if colours is not None:
        ax.imshow(colours)
    if bright is not None:
        cover = None if colours is None else COVER * bright
        ax.imshow(bright, cmap=plot.colour_map(signed=False), vmin=0, vmax=1, alpha=cover)
    for sides, style in zip((each.place.sides, each.place.field) if each else (), outlines, strict=False):
        (top, bottom), (left, right) = sides[-2:]
        ax.add_patch(Rectangle((left - 0.5, top - 0.5), right - left + 1, bottom - top + 1, **style))
