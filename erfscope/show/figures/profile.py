"""The radial profile: density and enclosed mass against the distance to the unit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from erfscope.core.answer.measures.radial_curve import RadialProfile, radial_profile
from erfscope.core.answer.measures.shapes import MIN_R2
from erfscope.core.answer.result import Result
from erfscope.core.values.printable import listed_up_to
from erfscope.show.figures.canvas import finish, sheet
from erfscope.show.figures.kinds import FIGURES, Drawn
from erfscope.show.figures.lettering import letter, write_over
from erfscope.show.figures.lines import line_style, scale_axis, tidy
from erfscope.show.figures.maps import shared
from erfscope.show.figures.style import TWO_COLUMNS, FigureStyle
from erfscope.show.view.error_bars import error_words
from erfscope.show.view.words import lengths, names

#: Inches: height of a panel, and the narrowest one beside another.
HEIGHT, PANEL = 2.15, 2.4
FIT: dict[str, Any] = {"linestyle": (0, (1, 1.2)), "linewidth": 1.0}
UNIFORM: dict[str, Any] = {"color": "#888888", "linestyle": "-", "linewidth": 0.7}
#: The horizontal axis ends where every map has given this share of its mass.
SHOWN = 0.999
#: With more lines than this, those of their fits would hide them.
FITTED = 4
#: Where peaks differ by more than this, the axis is logarithmic unless another is asked for.
UNLIKE = 5.0
#: A log axis reaches so far below the highest density.
DEPTH = 1e-4


def unfit_profile(results: Sequence[Result]) -> str | None:
    """The need of a profile that these results do not meet; None where it can be drawn."""
    return None if _with_mass(results) else FIGURES["profile"].needs


def profile(results: Sequence[Result], style: FigureStyle) -> Drawn:
    """Density per ring, with the Gaussian fit where there is one, and the enclosed mass with r50 and r90; a line per
    result."""
    shown = _with_mass(results)
    with_fit = len(shown) <= FITTED
    found = [radial_profile(result.map, with_fit=with_fit) for result in shown if result.map is not None]
    peaks = [float(each.density.max()) for each in found]
    # On a linear axis a map that is so much more concentrated leaves nothing to see of the others.
    scale = "log" if style.scale == "share" and max(peaks) > UNLIKE * min(peaks) else style.axis
    keys = [Line2D([], [], label=label, **line_style(number)) for number, label in enumerate(names(shown))]
    if any(each.fit is not None for each in found):
        keys.append(Line2D([], [], label="Gaussian fit, in its line's colour", color="#444444", **FIT))
    keys.append(Line2D([], [], label="uniform map", **UNIFORM))
    figure, is_wide = sheet(style.inches(TWO_COLUMNS)), style.side_by_side(PANEL) > 1
    panels = list(figure.subplots(1, 2) if is_wide else figure.subplots(2, 1))
    ends = [(each.radius_px, int(np.searchsorted(each.enclosed, SHOWN))) for each in found]
    last = max(2.0, *(float(radii[min(end, len(radii) - 1)]) for radii, end in ends))
    for number, ax in enumerate(panels):
        tidy(ax)
        write_over(ax, letter(number))
        ax.set_xlim(0, last)
        ax.set_xlabel(f"distance to the unit ({lengths(shown)})", labelpad=2)
    _densities(panels[0], found, scale)
    _enclosed(panels[1], shown, found)
    rows = panels[:1] if is_wide else panels
    unfitted = [name for name, each in zip(names(shown), found, strict=True) if each.fit is None]
    lacking = (
        [f"no Gaussian fit to {listed_up_to(3, unfitted)}: R² below {MIN_R2}, or less than half of the mass"]
        if unfitted
        else []
    )
    words = [*shared(shown)[0], *error_words(shown, "bands: r50 and r90 ±"), *(lacking if with_fit else [])]
    finish(figure, rows, [HEIGHT] * len(rows), words=words * style.conditions, handles=keys)
    return Drawn(figure=figure, words=words)


def _with_mass(results: Sequence[Result]) -> list[Result]:
    placed = [result for result in results if result.map is not None and result.map.center_px]
    return [r for r in placed if r.map and np.isfinite(r.map.values).all() and np.any(r.map.plane.values)]


def _densities(ax: Axes, found: Sequence[RadialProfile], scale: str) -> None:
    for number, each in enumerate(found):
        look = line_style(number)
        ax.plot(each.radius_px, each.density, markevery=(0.02 + 0.013 * number, 0.12), **look)
        if each.fit is not None:
            ax.plot(each.radius_px, each.fit, color=look["color"], gid="fit", **FIT)
    ax.axhline(1.0, zorder=1, **UNIFORM)
    top = max(float(each.density.max()) for each in found)
    lowest = min(float(each.density[each.density > 0].min()) for each in found)
    scale_axis(ax, scale, 1.5 * top if scale == "log" else 1.05 * top, bottom=max(DEPTH * top, min(0.5 * lowest, 0.5)))
    ax.set_ylabel(f"density (uniform = 1), {scale} axis", labelpad=3)


def _enclosed(ax: Axes, results: Sequence[Result], found: Sequence[RadialProfile]) -> None:
    for number, (result, each) in enumerate(zip(results, found, strict=True)):
        look = line_style(number)
        ax.plot(each.radius_px, each.enclosed, **{**look, "marker": "none"})
        for name, share in (("r50", 0.5), ("r90", 0.9)):
            measure = result.measures.get(name)
            if measure is None or not isinstance(measure.value, float):
                continue
            radius = measure.value
            ax.plot([radius], [share], gid=name, **{**look, "linestyle": "none"})
            ax.plot([radius, radius], [0, share], color=look["color"], linewidth=0.5)
            if measure.se:
                ax.fill_betweenx(
                    [0, share], radius - measure.se, radius + measure.se, color=look["color"], alpha=0.25, linewidth=0
                )
    ax.set_ylim(0, 1.02)
    ax.set_yticks([0, 0.25, 0.5, 0.75, 0.9, 1.0])
    ax.set_ylabel("enclosed share of the ERF, linear axis", labelpad=3)
