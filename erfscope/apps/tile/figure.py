"""A plan of tiles: one tile with what is cropped around it, and what shorter halos cut off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from erfscope.apps.tile.budget import HaloBudget, Seam
from erfscope.apps.tile.shown import budget_headline, errors_note, weights_note
from erfscope.core.run.tiling.plan import Tiling
from erfscope.core.values.errors import ErfscopeError
from erfscope.show import halo_text, listed, plot, sides_text, square_text
from erfscope.show.drawn import brightness

HEIGHT = 2.6
#: What is drawn of a tile, from the outermost on.
CROP: dict[str, Any] = {"facecolor": "#f2f2f2", "edgecolor": "#444444", "linewidth": 0.8}
HALO: dict[str, Any] = {"facecolor": "#f6d999", "edgecolor": plot.COLOURS[1], "linewidth": 0.8}
VALID: dict[str, Any] = {"facecolor": "#b3d5e8", "edgecolor": plot.COLOURS[0], "linewidth": 1.2}
GRID: dict[str, Any] = {"color": "#999999", "linewidth": 0.4}
NUMBER: dict[str, Any] = {
    "ha": "center",
    "va": "center",
    "zorder": 4,
    "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.8},
}
UNIT: dict[str, Any] = {"linestyle": "", "marker": "s", "markersize": 6, "mfc": "black", "mec": "none"}
PREDICTED: dict[str, Any] = {"color": plot.COLOURS[1], "linewidth": 1.2}
TOLERANCE: dict[str, Any] = {"color": "#444444", "linestyle": (0, (1, 1.2)), "linewidth": 1.0}
EXACT: dict[str, Any] = {"color": "#444444", "linewidth": 0.8}
#: Lines that differ by less, relative to their values, cover each other.
COVERED = 0.05
#: Errors below this one are that of float32.
ROUNDING = 1e-7
#: More lines of the alignment grid than this would hide the tile; every second, third, ... is drawn then.
LINES = 40


def tile_figure(
    plan: Tiling, budget: HaloBudget | None = None, tolerance: float | None = None, seams: Sequence[Seam] = ()
) -> Figure:
    """Draw one tile that touches no border, and beside it what shorter halos cut off and the error that they leave.

    Args:
        plan: The plan; of three axes the last two are drawn.
        budget: The shares, and the ERF of the unit at the tile's corner.
        tolerance: The share that is allowed.
        seams: The measured errors.

    Raises:
        ErfscopeError: the plan has no halo.
    """
    if not plan.axes:
        raise ErfscopeError(f"{plan.model} has no halo to draw: {plan.blockers[0]}")
    words = (
        []
        if plan.possible
        else [f"tiles differ from the whole {plan.input_axes.noun}: {plan.blockers[0].partition('; ')[0]}"]
    )
    words += ["halo: of all paths, for any weights"] * (budget is None)
    with plot.drawing():
        count = 1 + (budget is not None) + bool(seams)
        figure = plot.sheet(plot.ONE_COLUMN if count == 1 else plot.TWO_COLUMNS)
        plot.write_title(figure, " · ".join(part for part in (plan.model, plan.layer) if part))
        panels = list(figure.subplots(1, count, squeeze=False)[0])
        keys = _tile(panels[0], plan, budget)
        if budget is not None:
            keys += _shares(panels[1], plan, budget, tolerance)
            bands = errors_note(plan, budget)
            words.append("share: of the unit at the border that loses most" + (f"; bands: {bands}" if bands else ""))
            if tolerance is not None:
                words.append(budget_headline(plan, budget, tolerance))
            words.append(weights_note(budget).text)
        if seams:
            keys += _seams(panels[-1], plan, budget, seams)
            words.append(
                f"error at seams: tiles minus the whole {plan.input_axes.noun}, over the output's standard deviation"
            )
            words.append(
                "crops are whole steps of the alignment, so that a halo between two steps counts as the longer"
            )
        plot.finish(figure, panels[:1], [HEIGHT], words=words, handles=keys)
    return figure


def _tile(ax: Axes, plan: Tiling, budget: HaloBudget | None) -> list[Line2D]:
    """Crop, halo, valid part and alignment grid in input pixels, counted from a multiple of the alignment; over them
    the ERF of the first unit.
    """
    plot.write_over(ax, "one tile")
    axes = list(zip(plan.axes, plan.tile, strict=True))[-2:]
    # One axis is drawn as a strip.
    spans = {name: [(0.0, 1.0)] * (2 - len(axes)) for name in ("crop", "halo", "valid")}
    for axis, tile in axes:
        first = (axis.offset - axis.halo[0]) // axis.alignment * axis.alignment
        spans["crop"].append((first, first + axis.crop))
        spans["halo"].append((axis.offset - axis.halo[0], axis.offset + tile + axis.halo[1]))
        spans["valid"].append((axis.offset, axis.offset + tile))
    for (name, ((top, bottom), (left, right))), look in zip(spans.items(), (CROP, HALO, VALID), strict=True):
        ax.add_patch(Rectangle((left, top), right - left, bottom - top, gid=name, **look))
    middle = [sum(span) / 2 for span in spans["valid"]]
    ax.text(middle[1], middle[0], square_text(plan.tile), **NUMBER)
    every = max(-(-axis.crop // (LINES * axis.alignment)) for axis, _ in axes)
    for number, (axis, _), line in zip((-1, -2), axes[::-1], (ax.axvline, ax.axhline), strict=False):
        for place in np.arange(*spans["crop"][number], every * axis.alignment):
            line(place, gid="alignment", **GRID)
        for edge, sign, halo in zip(spans["valid"][number], (-1, 1), axis.halo, strict=True):
            at = list(middle)
            at[number] = edge + sign * halo / 2
            ax.text(at[1], at[0], str(halo), **NUMBER)
    ax.set(
        xlim=spans["crop"][1],
        ylim=spans["crop"][0][::-1],
        xlabel=f"input {plan.input_axes.cells} from a multiple of the alignment",
    )
    ax.set_aspect("equal" if len(axes) > 1 else "auto", anchor="N")
    ax.tick_params(length=2.5, pad=2, left=len(axes) > 1, labelleft=len(axes) > 1)
    labels = [
        f"valid part {sides_text(plan.input_axes, plan.tile, square=True)}",
        f"halo {halo_text(plan.halo, plan.input_axes)}",
        f"crop {sides_text(plan.input_axes, plan.crop, square=True)}",
    ]
    keys = [
        Line2D(
            [], [], label=label, linestyle="", marker="s", markersize=6, mfc=look["facecolor"], mec=look["edgecolor"]
        )
        for label, look in zip(labels, (VALID, HALO, CROP), strict=True)
    ]
    drawn = f", a line for every {every}" if every > 1 else ""
    keys.append(
        Line2D([], [], label=f"alignment {sides_text(plan.input_axes, plan.alignment, square=True)}{drawn}", **GRID)
    )
    if budget is not None and budget.corner is not None:
        erf = np.atleast_2d(budget.corner.sum(tuple(range(budget.corner.ndim - len(axes)))))
        (top, _), (left, _) = spans["halo"]
        box = (left, left + erf.shape[1], top + erf.shape[0], top)
        keys.append(Line2D([], [], label="ERF of the tile's first unit, dark where strong", **UNIT))
        strength: dict[str, Any] = {
            "alpha": brightness(erf),
            "cmap": "gray",
            "extent": box,
            "aspect": ax.get_aspect(),
            "zorder": 3,
        }
        ax.imshow(np.zeros(erf.shape), gid="ERF", **strength)
    return keys


def _shares(ax: Axes, plan: Tiling, budget: HaloBudget, tolerance: float | None) -> list[Line2D]:
    """The share cut off against the halo, a line for each side that ends before the exact halo, where it is 0; sides
    whose lines cover each other have one key."""
    plot.tidy(ax)
    plot.write_over(ax, "ERF beyond the halo")
    floor, sides = 0.1 * (tolerance or 1e-2), list(np.ndindex(len(plan.axes), 2))
    alike: dict[int, list[str]] = {}
    for row, side in sides:
        share, se, exact = budget.share[row, side], np.nan_to_num(budget.se[row, side]), plan.halo[row][side]
        others = [np.allclose(share, budget.share[other], rtol=COVERED, atol=COVERED * floor) for other in sides]
        number = others.index(True)
        alike.setdefault(number, []).append(f"{plan.input_axes.names[row]} {('before', 'after')[side]}")
        look = plot.line_style(number)
        halos = np.arange(len(share))
        ax.plot(halos[share > 0], share[share > 0], gid=f"share {row} {side}", markevery=(number, 8), **look)
        low, high = np.clip(share - se, floor, None), share + se
        ax.fill_between(halos, low, high, where=share > 0, color=look["color"], alpha=0.2, linewidth=0)
        ax.axvline(exact, gid=f"exact {row} {side}", **EXACT)
    names = {number: "every side" if len(each) == len(sides) > 1 else listed(each) for number, each in alike.items()}
    keys = [Line2D([], [], label=f"ERF cut off, {name}", **plot.line_style(number)) for number, name in names.items()]
    keys.append(Line2D([], [], label=f"exact halo {halo_text(plan.halo, plan.input_axes)}", **EXACT))
    if tolerance is not None:
        ax.axhline(tolerance, gid="tolerance", **TOLERANCE)
        keys.append(Line2D([], [], label=f"tolerance {tolerance:g}", **TOLERANCE))
    plot.scale_axis(ax, "log", max(1.0, float(budget.share.max())), bottom=floor)
    ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True, **plot.ROUND))
    ax.set(
        xlim=(0, 1.04 * max(1, *map(max, plan.halo))),
        xlabel=f"halo ({plan.input_axes.cells})",
        ylabel="share of the ERF cut off, log axis",
    )
    return keys


def _seams(ax: Axes, plan: Tiling, budget: HaloBudget | None, seams: Sequence[Seam]) -> list[Line2D]:
    """The measured error against the halo, root mean square and largest, beside the one that is predicted."""
    plot.tidy(ax)
    plot.write_over(ax, "error at seams")
    keys, halos = [], [seam.halo for seam in seams]
    curves = {"largest": [seam.largest for seam in seams], "RMS": [seam.rms for seam in seams]}
    for number, (name, errors) in enumerate(curves.items()):
        look = {**plot.line_style(number), "linestyle": ""}
        ax.plot(halos, errors, gid=name, **look)
        keys.append(Line2D([], [], label=f"{name} error, measured", **look))
    every = list(range(max(map(max, plan.halo))))
    if budget is not None:
        ax.plot(every, [budget.predicted(halo) for halo in every], gid="predicted", **PREDICTED)
        keys.append(Line2D([], [], label="RMS error, predicted from the shares", **PREDICTED))
    bottom = max(ROUNDING, 0.5 * min(curves["RMS"]))
    plot.scale_axis(ax, "log", 2 * max(1.0, *curves["largest"]), bottom=bottom)
    ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True, **plot.ROUND))
    ax.set(
        xlim=(0, 1.04 * max(1, *map(max, plan.halo))),
        xlabel=f"halo ({plan.input_axes.cells})",
        ylabel="error, log axis",
    )
    return keys
