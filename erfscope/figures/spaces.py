"""The panel of one volume, clip or sequence: slices through the unit, frames around its own, or a curve over time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from erfscope.figures.canvas import finish, inches, lay_out, sheet, write_title
from erfscope.figures.kinds import Drawn
from erfscope.figures.lettering import TEXT, wrapped, write_over
from erfscope.figures.lines import tidy
from erfscope.figures.maps import (
    MARKS,
    Look,
    colour_map,
    common_peak,
    display,
    draw_map,
    draw_ring,
    field_box,
    keys,
    marks,
    shared,
    size_lines,
)
from erfscope.figures.mosaic import TRF
from erfscope.figures.style import ONE_COLUMN, SCALES, SIGNED_SCALES, TWO_COLUMNS, FigureStyle
from erfscope.geometry.axes import DEPTH, MS
from erfscope.maps.drawn import frames_around
from erfscope.maps.erf_map import PER_AXIS, ErfMap
from erfscope.results.result import Result
from erfscope.view.words import error_words, radii, unit_text

#: Inches of a curve's height.
CURVE = 1.3
#: Axes of a volume that a slice keeps: what it runs down and what across.
SLICES = ((1, 2), (0, 2), (0, 1))
COLOURS: dict[str, str] = {"curve": "#35356b", "r50": "#e08a00", "r90": "#5fa8d8", "TRF": "#b04000", "step": "#30a060"}


def slice_of(erf: ErfMap, kept: tuple[int, int]) -> ErfMap:
    """The plane (H, W) of a volume (D, H, W) through the unit's centre cell along two axes, or through its strongest
    cell where it has no place. Its density is relative to the uniform volume."""
    strongest = np.unravel_index(int(np.argmax(np.abs(erf.values))), erf.values.shape)
    centre = erf.center_px or tuple(map(float, strongest))
    (left_out,) = {0, 1, 2} - {*kept}
    count = erf.values.shape[left_out]
    cell = min(max(round(centre[left_out]), 0), count - 1)

    def two(entries: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(entries[axis] for axis in kept) if len(entries) == erf.values.ndim else entries[-2:]

    trf = erf.trf
    fields: dict[str, Any] = {name: two(getattr(trf, name)) for name in PER_AXIS} if trf is not None else {}
    return ErfMap(
        values=erf.values.take(cell, axis=left_out) * count,
        center_px=two(erf.center_px),
        stride_px=two(erf.stride_px),
        scale=erf.scale,
        cell_px=two(erf.cell_px),
        trf=None if trf is None else replace(trf, **fields),
        axes=erf.axes.only(kept),
        provenance=erf.provenance,
    )


def spatial_panel(result: Result, style: FigureStyle) -> Drawn | None:
    """The panel of one result by the kind of its reference; None of an image."""
    assert result.map is not None
    if result.map.values.ndim == 1:
        return _sequence(result, style)
    if result.map.values.ndim == 3:
        return _volume(result, style) if DEPTH in result.axes.names else _clip(result, style)
    return None


def _place(result: Result) -> str:
    return " · ".join(part for part in (result.layer, unit_text(result)) if part)


def _notes(result: Result, scale: str, what: str) -> list[str]:
    shown = (SIGNED_SCALES if result.scale == "signed" else SCALES)[scale]
    return [*shared([result])[0], what, f"colour: {shown}", *error_words([result], "±"), TRF]


def _volume(result: Result, style: FigureStyle) -> Drawn:
    """Three orthogonal slices; a millimetre is as long in all of them."""
    assert result.map is not None
    planes = [slice_of(result.map, kept) for kept in SLICES]
    sides = [np.multiply(plane.values.shape, plane.axes.spacing) for plane in planes]
    views = [display(plane, style.scale) for plane in planes]
    peak = common_peak(views, style.scale)
    look = Look(peak=peak, signed=result.scale == "signed", scale=style.scale, cmap=style.cmap)
    figure = sheet(style.inches(TWO_COLUMNS))
    write_title(figure, result.label)
    grid = figure.add_gridspec(1, 3, width_ratios=[side[1] for side in sides])
    panels = [figure.add_subplot(grid[0, number]) for number in range(3)]
    for ax, plane in zip(panels, planes, strict=True):
        _label_slice(ax, plane)
    lay_out(figure)
    write_over(panels[0], "", [_place(result)])
    heights = [max(inches(ax)[0] * side[0] / side[1] for ax, side in zip(panels, sides, strict=True))]
    notes = _notes(result, style.scale, "slices through the unit")
    found = (marks(replace(result, map=plane, sums=None), look) for plane in planes)
    drawn = set[str]().union(*found) - {"unit", "samples"}
    words = [*size_lines(result), *(notes if style.conditions else [])]
    finish(figure, panels[:1], heights, words=words, handles=keys(drawn), handlelength=1.8)
    for ax, plane, view in zip(panels, planes, views, strict=True):
        draw_slice(ax, result, plane, view, look)
    return Drawn(figure=figure, words=notes)


def _label_slice(ax: Axes, plane: ErfMap) -> None:
    names, units = plane.axes.names, plane.axes.units
    ax.set_xlabel(f"{names[1]} ({units[1]})", labelpad=1)
    ax.set_ylabel(f"{names[0]} ({units[0]})", labelpad=1)
    ax.tick_params(length=2, pad=1.5)
    ax.set_anchor("N")


def draw_slice(ax: Axes, result: Result, plane: ErfMap, view: Any, look: Look) -> None:
    """One slice with the lines of the unit and the rings, its ticks in the units of its axes."""
    height, width = plane.values.shape
    down, across = plane.axes.spacing
    extent = (-0.5, width - 0.5, height - 0.5, -0.5)
    colours: dict[str, Any] = {"cmap": colour_map(look.cmap, signed=look.signed), "norm": look.norm}
    ax.imshow(view, extent=extent, aspect=down / across, interpolation="nearest", **colours)
    if plane.center_px:
        row, col = plane.center_px
        line: dict[str, Any] = {"color": "white", "linewidth": 0.5, "alpha": 0.6}
        ax.axhline(row, gid="unit row", **line)
        ax.axvline(col, gid="unit col", **line)
        for name, radius in radii(result).items():
            draw_ring(ax, plane, float(radius), gid=name, **MARKS[name])
    box = field_box(plane)
    if box is not None:
        ax.add_patch(Rectangle(box[:2], *box[2:], fill=False, gid="TRF", **MARKS["TRF"]))
    for axis, step, count in ((ax.xaxis, across, width), (ax.yaxis, down, height)):
        ends = [0, (count - 1) // 2, count - 1]
        axis.set_ticks(ends, [f"{each * step:g}" for each in ends])
    ax.set(xlim=extent[:2], ylim=extent[2:])


def _clip(result: Result, style: FigureStyle) -> Drawn:
    """Frames around the unit's own, each as its share of the map, and below them the plane summed over time."""
    assert result.map is not None
    erf, plane = result.map, result.map.plane
    shares = erf.magnitude.sum(axis=(1, 2))
    own = erf.center_px[0] if erf.center_px else float(np.argmax(shares))
    frames = frames_around(own, len(shares))
    sums, signed = display(plane, style.scale), result.scale == "signed"
    whole = Look(peak=common_peak([sums], style.scale), signed=signed, scale=style.scale, cmap=style.cmap)
    figure = sheet(style.inches(ONE_COLUMN))
    write_title(figure, result.label)
    ratio = float(np.divide(*plane.values.shape))
    grid = figure.add_gridspec(2, len(frames), height_ratios=[ratio / len(frames), ratio])
    strip = [figure.add_subplot(grid[0, number]) for number in range(len(frames))]
    below = figure.add_subplot(grid[1, :])
    for ax in (*strip, below):
        ax.set_axis_off()
        ax.set_anchor("N")
    peak = max(float(np.abs(erf.values[frames.start : frames.stop]).max()), np.finfo(float).tiny)
    for ax, frame in zip(strip, frames, strict=True):
        lines = [f"{100 * shares[frame]:.0f} %", f"{frame}"]
        if erf.axes.units[0] == MS:
            lines.append(f"{frame * erf.axes.spacing[0]:g} ms")
        # Over, and not as a title: constrained layout leaves titles the room they need.
        ax.set_title("\n".join(lines), fontsize=TEXT, fontweight="bold" if frame == round(own) else "normal", pad=2)
    lay_out(figure)
    notes = _notes(result, style.scale, "frames around the unit's own, then their sum; frames share one linear scale")
    wide, side = inches(strip[0])[0], inches(below)[0]
    words = [_place(result), *size_lines(result), *(notes if style.conditions else [])]
    drawn = marks(replace(result, map=plane, sums=None), whole)
    finish(figure, [strip[0], below], [wide * ratio, side * ratio], words=words, handles=keys(drawn), handlelength=1.8)
    low = -peak if signed else 0.0
    for ax, frame in zip(strip, frames, strict=True):
        ax.imshow(
            erf.values[frame], cmap=colour_map(style.cmap, signed=signed), vmin=low, vmax=peak, gid=f"frame {frame}"
        )
        if frame == round(own):
            edge: dict[str, Any] = {"transform": ax.transAxes, "color": COLOURS["step"], "clip_on": False}
            ax.plot([0, 1, 1, 0, 0], [0, 0, 1, 1, 0], linewidth=1.6, gid="unit frame", **edge)
    draw_map(below, replace(result, map=plane, sums=None), sums, whole)
    return Drawn(figure=figure, words=notes)


def _sequence(result: Result, style: FigureStyle) -> Drawn:
    """Mass per sample over time, the unit and its step, r50 and r90, and the limits of the TRF."""
    assert result.map is not None
    erf, step = result.map, result.axes.spacing[0]
    figure = sheet(style.inches(ONE_COLUMN))
    write_title(figure, result.label)
    ax = figure.add_subplot()
    tidy(ax)
    times, values = np.arange(len(erf.values)) * step, erf.values
    _shade(ax, result)
    ax.fill_between(times, values, color=COLOURS["curve"], alpha=0.45, linewidth=0, zorder=3)
    ax.plot(times, values, color=COLOURS["curve"], linewidth=1.0, gid="curve", zorder=4)
    ax.set_xlim(-0.5 * step, (len(values) - 0.5) * step)
    ax.set_xlabel(f"{result.axes.names[0]} ({result.axes.unit})", labelpad=2)
    ax.set_ylabel(f"share per {result.axes.cell.removesuffix('s')}", labelpad=2)
    if result.scale != "signed":
        ax.set_ylim(bottom=0)
    lay_out(figure)
    width = inches(ax)[0]
    write_over(ax, "", wrapped(figure, [_place(result)], width))
    notes = [*shared([result])[0], "curve: mass per sample", *error_words([result], "±"), TRF]
    words = [*size_lines(result), *(notes if style.conditions else [])]
    handles = ax.get_legend_handles_labels()[0]
    finish(figure, [ax], [CURVE], words=words, handles=handles, handlelength=1.8)
    return Drawn(figure=figure, words=notes)


def _shade(ax: Axes, result: Result) -> None:
    """What a map of a sequence is marked with, in the units of its axis."""
    assert result.map is not None
    erf, step = result.map, result.axes.spacing[0]
    if not erf.center_px:
        return
    centre = erf.center_px[0] * step
    for name, radius in reversed(radii(result).items()):
        strong = 0.45 if name == "r50" else 0.25
        ends = (centre - float(radius), centre + float(radius))
        ax.axvspan(*ends, color=COLOURS[name], alpha=strong, linewidth=0, label=name, gid=name)
    timing = result.timing
    if timing is not None:
        first, last = ((timing.step[0] - 0.5) * step, (timing.step[1] + 0.5) * step)
        ax.axvspan(first, last, color=COLOURS["step"], alpha=0.6, linewidth=0, label="step", gid="step")
    if erf.trf is not None and not erf.trf.is_global:
        for number, (cell, side) in enumerate(zip(erf.trf.box_px[0], (-0.5, 0.5), strict=True)):
            look: dict[str, Any] = {"color": COLOURS["TRF"], "linestyle": (0, (1, 1.5)), "linewidth": 1.2, "gid": "TRF"}
            ax.axvline((cell + side) * step, label="_" if number else "TRF", **look)
    ax.axvline(centre, color="black", linewidth=0.8, label="unit", gid="unit")
