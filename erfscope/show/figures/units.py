"""Units of one layer: their maps, each at its unit's place, and the sizes of all of them over positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize, PowerNorm
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from erfscope.core.answer.maps.erf_map import FloatArray
from erfscope.core.answer.positions import MEASURED, Positions
from erfscope.core.answer.result import Result
from erfscope.core.values.printable import number
from erfscope.show.figures.canvas import finish, inches, lay_out, sheet
from erfscope.show.figures.kinds import FIGURES, Drawn
from erfscope.show.figures.lettering import letter, name_lines, wrapped, write_over
from erfscope.show.figures.lines import COLOURS as LINES
from erfscope.show.figures.lines import ROUND, scale_axis, tidy
from erfscope.show.figures.maps import EDGE, shared, size_lines
from erfscope.show.figures.mosaic import Tile
from erfscope.show.figures.panels import with_unit
from erfscope.show.figures.spaces import arranged
from erfscope.show.figures.style import TWO_COLUMNS, FigureStyle
from erfscope.show.view.words import lengths_text, names, unit_text

#: More units than this in a row would be smaller than their letters.
WIDEST = 6
#: Length of the colour bar beside a square panel of positions, of its width.
BAR = 25.0
#: Lightness rises from end to end, and differs from that of maps of contributions. Units without a gradient are grey.
SIZES, NOTHING = "viridis", "#bdbdbd"
#: The line around the units whose TRF the border does not clip.
INSIDE: dict[str, Any] = {"color": "#ffffff", "linestyle": (0, (2, 1.5)), "linewidth": 1.0}
#: Panels are drawn at most this much higher or flatter than wide.
TALLEST, FLATTEST = 1.5, 0.12
#: Height of a curve, of its width.
CURVE = 0.5


def unfit_units(results: Sequence[Result]) -> str | None:
    """The need of a grid of units that these results do not meet; None where it can be drawn."""
    shown = with_unit(results)
    if len({_index(result) for result in shown}) < 2:
        return FIGURES["units"].needs
    if len({(r.label, r.layer, tuple(shared([r])[0])) for r in shown}) > 1:
        return "units of one layer of one model under one setting"
    if len({_index(result)[-1] for result in shown}) > WIDEST:
        return f"at most {WIDEST} units side by side"
    return None


def units(results: Sequence[Result], style: FigureStyle) -> Drawn:
    """The maps of several units, from the top left unit of the layer's map to the bottom right one."""
    shown = with_unit(results)
    at = {_index(result): result for result in shown}
    rows, columns = sorted({index[:-1] for index in at}), sorted({index[-1] for index in at})
    tiles = [
        Tile(result=found, title=unit_text(found), below=tuple(size_lines(found)[:2])) if found is not None else None
        for found in (at.get((*row, column)) for row in rows for column in columns)
    ]
    heading = f"{shown[0].label} · {shown[0].layer}"
    # Units stand at their places on the whole input.
    notes, zoom = shared(shown)[0], style.whole_zoom
    return arranged(tiles, len(columns), style=style, heading=heading, notes=notes, zoom=zoom)


def _index(result: Result) -> tuple[int, ...]:
    assert result.unit is not None
    index: tuple[int, ...] = result.unit.index
    return index


def unfit_positions(results: Sequence[Result]) -> str | None:
    """The need of a figure of positions that these results do not meet; None where it can be drawn."""
    return None if _with_positions(results) else FIGURES["positions"].needs


def positions(results: Sequence[Result], style: FigureStyle) -> Drawn:
    """r50 and context_r50 of all units of a layer, each at its unit's centre; a row per result, each panel on its own
    range of colours."""
    shown, scale = _with_positions(results), style.axis
    rows = [result for result, _ in shown]
    ratios = [_ratio(result) for result in rows]
    figure = sheet(style.inches(TWO_COLUMNS))
    panels = figure.subplots(len(rows), len(MEASURED), squeeze=False, height_ratios=ratios)
    for (result, found), axes, ratio in zip(shown, panels, ratios, strict=True):
        for name, ax in zip(MEASURED, axes, strict=True):
            if found.r50.ndim == 1:
                _curve(ax, result, found, name, scale)
            else:
                _panel(ax, result, found, name, scale)
                _bar(ax, result, name, BAR * ratio)
        if found.r50.ndim > 1:
            axes[-1].set_ylabel("")
    lay_out(figure)
    side = inches(panels[0, 0])[0]
    for (result, found), title, (row, axes) in zip(shown, names(rows), enumerate(panels), strict=True):
        heading = title if result.layer in title.split(" · ") else f"{title} · {result.layer}"
        below = [wrapped(figure, [_median_text(result, found, name)], side) for name in MEASURED]
        most = max(map(len, below))
        for column, (lines, ax) in enumerate(zip(below, axes, strict=True)):
            tag = f"{letter(row * len(MEASURED) + column)}\u00a0{heading}"
            # Titles of a row stand at one height.
            write_over(ax, name_lines(figure, tag, side), [*lines, *[" "] * (most - len(lines))])
    words = [*shared(rows)[0], f"{scale} scale", "each panel on its own range of colours"]
    if any(found.without_gradient for _, found in shown):
        words.append("grey: no gradient")
    in_plane = " along rows and columns" if any(found.r50.ndim == 3 for _, found in shown) else ""
    label = f"inside it the theoretical receptive field is clipped nowhere{in_plane}"
    key = Line2D([], [], label=label, **{**INSIDE, "color": "#555555"})
    keys: dict[str, Any] = {"handles": [key]} if any(_is_bounded(found) for _, found in shown) else {}
    finish(figure, list(panels[:, 0]), [side * ratio for ratio in ratios], words=words * style.conditions, **keys)
    for ax in panels.flat:
        if ax.images:
            ax.set(aspect="equal", anchor="NW")
    return Drawn(figure=figure, words=words)


def _ratio(result: Result) -> float:
    """Height of a panel, of its width."""
    *high, wide = (last - first for first, last in _ends(result))
    return min(max(high[0] / wide, FLATTEST), TALLEST) if high else CURVE


def _median_text(result: Result, found: Positions, name: str) -> str:
    """A measure's median over the units, and how the border changes it."""
    effect = found.border_effect(name)
    text = f"{name}: median {number(effect.median)} {lengths_text(result)}"
    return text + (
        f", clipped / inside {number(effect.clipped_to_inside)}" if effect.clipped_to_inside is not None else ""
    )


def _panel(ax: Axes, result: Result, found: Positions, name: str, scale: str) -> None:
    """One measure as an image whose cells stand at the units' centres, with its outline."""
    plane = _plane(getattr(found, name))
    usable = plane[np.isfinite(plane)]
    low, high = (float(usable.min()), float(usable.max())) if usable.size else (0.0, 1.0)
    norms: dict[str, Any] = {"log": LogNorm, "power": lambda vmin, vmax: PowerNorm(0.3, vmin=vmin, vmax=vmax)}
    is_plain = scale == "linear" or low <= 0 or low == high
    colours = colormaps[SIZES].with_extremes(bad=NOTHING)
    norm: Any = (Normalize if is_plain else norms[scale])(vmin=low, vmax=high)
    (top, bottom), (left, right) = _ends(result)
    extent = (left, right, bottom, top)
    ax.imshow(
        np.ma.masked_invalid(plane),
        cmap=colours,
        norm=norm,
        extent=extent,
        aspect="auto",
    )
    unit = result.axes.units[-1]
    ax.set_xlabel(f"column of the unit's centre ({unit})", labelpad=2)
    ax.set_ylabel(f"row of the unit's centre ({unit})", labelpad=2)
    ax.tick_params(length=2, pad=2)
    # Equal axes get equal ticks.
    ax.xaxis.set_major_locator(MaxNLocator(5, **ROUND))
    ax.yaxis.set_major_locator(MaxNLocator(5, **ROUND))
    _outline(ax, result, found)


def _bar(ax: Axes, result: Result, name: str, aspect: float) -> None:
    """The colours of one measure."""
    bar = ax.figure.colorbar(ax.images[0], ax=ax, pad=0.02, aspect=aspect)
    bar.outline.set_linewidth(0.5)
    over = f", median over {result.axes.names[0]}" if len(result.axes.names) == 3 else ""
    bar.set_label(f"{name} ({lengths_text(result)}){over}", labelpad=2)
    bar.ax.tick_params(length=2, pad=2)


def _curve(ax: Axes, result: Result, found: Positions, name: str, scale: str) -> None:
    """One measure of the units of a sequence against their centres, and lines where the border begins to clip."""
    values, ((first, last),) = getattr(found, name), _ends(result)
    step = (last - first) / len(values)
    tidy(ax)
    ax.plot(first + (np.arange(len(values)) + 0.5) * step, values, linewidth=0.9, color=LINES[0], gid=name)
    ax.set_xlim(first, last)
    usable = values[np.isfinite(values)]
    scale_axis(ax, scale, 1.1 * float(usable.max()), bottom=float(usable[usable > 0].min(initial=1e-9)) / 1.5)
    ax.set_xlabel(f"{result.axes.names[0]} of the unit's centre ({result.axes.unit})", labelpad=2)
    ax.set_ylabel(f"{name} ({lengths_text(result)})", labelpad=2)
    inside = np.flatnonzero(found.inside)
    if _is_bounded(found):
        for place in (inside.min(), inside.max() + 1):
            ax.axvline(first + place * step, gid="inside", **{**INSIDE, "color": "#555555"})


def _outline(ax: Axes, result: Result, found: Positions) -> None:
    """A line around the units whose field lies inside the reference."""
    # A field that the border clips along the first of three axes alone is whole in the plane.
    inside = np.argwhere(found.inside.any(axis=0) if found.inside.ndim == 3 else found.inside)
    if not _is_bounded(found):
        return
    ends = []
    for axis, (first, last) in enumerate(_ends(result)):
        step = (last - first) / _plane(found.r50).shape[axis]
        ends.append((first + inside[:, axis].min() * step, first + (inside[:, axis].max() + 1) * step))
    (top, bottom), (left, right) = ends
    ax.plot(
        [left, right, right, left, left], [top, top, bottom, bottom, top], gid="inside", path_effects=EDGE, **INSIDE
    )


def _is_bounded(found: Positions) -> bool:
    """Whether some fields are clipped and others are not."""
    return bool(found.inside.any() and not found.inside.all())


def _ends(result: Result) -> list[tuple[float, float]]:
    """Where the first unit's cell begins and the last one's ends along the axes of the figure, in their units."""
    assert result.unit is not None
    assert result.positions is not None
    space = result.positions.r50.shape
    ends = []
    for side, index, center, stride, step in zip(
        space, result.unit.index, result.unit.center_px, result.unit.stride_px, result.axes.spacing, strict=False
    ):
        first = (center - index * stride - stride / 2) * step
        ends.append((first, first + side * stride * step))
    return ends[-2:]


def _plane(values: FloatArray) -> FloatArray:
    """Values over the last two axes: the median over the first of three."""
    if values.ndim < 3:
        return values
    lacking = np.isnan(values).all(axis=0)
    return np.where(lacking, np.nan, np.nanmedian(np.where(lacking, 0.0, values), axis=0))


def _with_positions(results: Sequence[Result]) -> list[tuple[Result, Positions]]:
    return [
        (result, result.positions)
        for result in results
        if result.positions is not None
        and result.unit is not None
        and result.positions.without_gradient < result.positions.units
    ]
