"""r50, r90 and the TRF against depth, alpha, the input's size, and the step of a training."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes as PlotAxes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from erfscope.core.answer.depth import by_layer, covered
from erfscope.core.answer.measures.sizes import sides_of
from erfscope.core.answer.result import Result
from erfscope.core.values.names import is_input
from erfscope.core.values.printable import brief
from erfscope.show.figures.canvas import finish, inches, lay_out, sheet
from erfscope.show.figures.kinds import FIGURES, Drawn
from erfscope.show.figures.lettering import text_width
from erfscope.show.figures.lines import ROUND, line_style, scale_axis, tidy
from erfscope.show.figures.maps import condition_words, shared
from erfscope.show.figures.mosaic import TRF
from erfscope.show.figures.style import ONE_COLUMN, TWO_COLUMNS, FigureStyle
from erfscope.show.view.error_bars import error_words
from erfscope.show.view.words import lengths, radii, unit_text

HEIGHT = 2.1
#: How r90 and half the TRF differ from r50 in the same colour.
R90: dict[str, Any] = {"markerfacecolor": "white", "linewidth": 0.9}
FIELD: dict[str, Any] = {"linestyle": (0, (1, 1.2)), "linewidth": 0.9, "marker": "none"}
#: Half the side of the input, and the layers behind one whose TRF covers the input.
SIDE: dict[str, Any] = {"color": "#888888", "linestyle": (0, (8, 3)), "linewidth": 0.9}
SHADE = "#e9e9e9"
#: Degrees by which names are turned that have no room, and inches between these at least.
TILT, APART = 35.0, 0.17


Curves = Callable[[Sequence[Result]], "list[SizeCurve]"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeCurve:
    """One line: results in order, and where each stands on the horizontal axis."""

    name: str
    at: tuple[float, ...]
    results: tuple[Result, ...]


def depth(results: Sequence[Result], style: FigureStyle) -> Drawn:
    """Sizes against the layers in network order; those behind a TRF that covers the input are
    shaded, where all curves say so."""
    curves = _over_depth(results)
    every = [[curve.results[k].layer for curve in curves if k < len(curve.results)] for k in range(_longest(curves))]
    ticks = [
        "\n".join(dict.fromkeys(layers)) if len(set(layers)) <= 3 else str(k + 1) for k, layers in enumerate(every)
    ]
    known = [covered(curve.results) for curve in curves]
    dull = [k for k in range(len(every)) if all(is_dull[k] for is_dull in known if k < len(is_dull))]
    more = ["shaded: the TRF of the layer before covers the input (global operations left out)"] * bool(dull)
    return _draw(curves, style, label="layer, in network order", ticks=ticks, dull=dull, more=more)


def _over(curves: Curves, label: str, results: Sequence[Result], style: FigureStyle) -> Drawn:
    """Sizes against a number that each result has: the curves of more than one point."""
    return _draw([curve for curve in curves(results) if len(curve.at) > 1], style, label=label)


def _unfit(kind: str, curves: Curves, results: Sequence[Result]) -> str | None:
    """The need of the curves that these results do not meet; None where they can be drawn."""
    return None if _longest(curves(results)) > 1 else FIGURES[kind].needs


def _sized(results: Sequence[Result]) -> list[Result]:
    return [r for r in results if r.ok and radii(r)]


def _longest(curves: Sequence[SizeCurve]) -> int:
    return max((len(curve.at) for curve in curves), default=0)


def _grouped(results: Sequence[Result], key: Callable[[Result], dict[str, str]]) -> list[tuple[str, list[Result]]]:
    """Group results by their keys. The name of a group is its label, and how it differs from others of that label."""
    groups: dict[tuple[tuple[str, str], ...], list[Result]] = {}
    for result in results:
        groups.setdefault(tuple({"label": result.label, **key(result)}.items()), []).append(result)
    keys = [dict(entries) for entries in groups]
    names = []
    for mine in keys:
        alike = [other for other in keys if other["label"] == mine["label"]]
        names.append(
            " · ".join(text for k, text in mine.items() if k == "label" or any(other.get(k) != text for other in alike))
        )
    return list(zip(names, groups.values(), strict=True))


def _settings(result: Result) -> dict[str, str]:
    """The conditions that tell curves apart: images that are of no use to one point alone do not."""
    return condition_words(replace(result, input=replace(result.input, n_dead=0)))


def _over_depth(results: Sequence[Result]) -> list[SizeCurve]:
    """A curve per model and setting, and per unit where a layer has several."""
    curves = []
    for name, group in _grouped(_sized(results), _settings):
        units = by_layer(group)
        for number, present in enumerate(units):
            which = f" · unit {number + 1} of {len(units)}" if len(units) > 1 else ""
            curves.append(
                SizeCurve(name=name + which, at=tuple(float(k) for k in range(len(present))), results=present)
            )
    return curves


def _over_alpha(results: Sequence[Result]) -> list[SizeCurve]:
    hosts = {result.id: result for result in results}

    def key(result: Result) -> dict[str, str]:
        # The label of a variant ends with its alpha.
        base = result.label if result.alpha is None else result.label.removesuffix(f", alpha {result.alpha:g}")
        place = {"layer": result.layer, "unit": unit_text(result)}
        return {"label": base, "insert": result.insert or "", **place, **condition_words(result)}

    curves = []
    for name, group in _grouped([result for result in _sized(results) if result.insert], key):
        if all(result.alpha is None for result in group):  # such as edits, which have none
            continue
        points = {1.0 if result.alpha is None else result.alpha: result for result in group}
        host = hosts.get(group[0].host or "")
        if host is not None and _sized([host]):
            points.setdefault(0.0, host)
        curves.append(_curve(name, points))
    return curves


def _over_sizes(results: Sequence[Result]) -> list[SizeCurve]:
    def key(result: Result) -> dict[str, str]:
        return {
            "layer": result.layer,
            **{name: text for name, text in _settings(result).items() if name != "input"},
        }

    grouped = _grouped(_sized(results), key)
    return [_curve(name, {_input_side(r): r for r in group}) for name, group in grouped]


def _input_side(result: Result) -> float:
    own = result.input_axes
    sides = [result.input.size[axis] for axis in own.measured]
    return sides_of(sides, None, own.only(own.measured).spacing).reference


def _over_training(results: Sequence[Result]) -> list[SizeCurve]:
    def key(result: Result) -> dict[str, str]:
        # The label of a step ends with its number.
        base = result.label.removesuffix(f" @ {result.step}")
        weights_apart = {name: text for name, text in condition_words(result).items() if name != "weights"}
        return {"label": base, "layer": result.layer, "unit": unit_text(result), **weights_apart}

    grouped = _grouped([result for result in _sized(results) if result.step is not None], key)
    return [_curve(name, {float(r.step): r for r in group if r.step is not None}) for name, group in grouped]


unfit_depth = partial(_unfit, "depth", _over_depth)
#: The model without its blocks stands at an alpha of 0.
alpha = partial(_over, _over_alpha, "alpha: share of what blocks add")
unfit_alpha = partial(_unfit, "alpha", _over_alpha)


def sizes(results: Sequence[Result], style: FigureStyle) -> Drawn:
    """Sizes against the side of the input."""
    sides = " or ".join(sorted({result.input_axes.unit for result in _sized(results)}, reverse=True))
    return _over(_over_sizes, f"side of the input ({sides})", results, style)


unfit_sizes = partial(_unfit, "sizes", _over_sizes)
#: The step or epoch at which a model was measured.
training = partial(_over, _over_training, "step of the training")
unfit_training = partial(_unfit, "training", _over_training)


def _curve(name: str, points: dict[float, Result]) -> SizeCurve:
    return SizeCurve(name=name, at=tuple(sorted(points)), results=tuple(points[x] for x in sorted(points)))


def _draw(
    curves: Sequence[SizeCurve],
    style: FigureStyle,
    *,
    label: str,
    ticks: Sequence[str] = (),
    dull: Sequence[int] = (),
    more: Sequence[str] = (),
) -> Drawn:
    """The figure.

    Args:
        curves: What to draw.
        style: The style.
        label: That of the horizontal axis.
        ticks: Names of the layers, of curves over depth: these have the side of the input too.
        dull: Places of the layers that are shaded.
        more: What is to be said of it besides.
    """
    every = [result for curve in curves for result in curve.results]
    sides = {result.sides.reference / 2 for result in every if ticks}
    roomy, scale = len(ticks) > 6 or len(curves) > 4, style.axis
    figure = sheet(style.inches(TWO_COLUMNS if roomy else ONE_COLUMN))
    ax = figure.add_subplot()
    tidy(ax)
    for number, curve in enumerate(curves):
        _plot(ax, curve, line_style(number))
    limits = _limits(every, scale, sides)
    scale_axis(ax, scale, limits[1], bottom=limits[0])
    ax.set_ylabel(f"radius ({lengths(every)}), {scale} axis", labelpad=3)
    ax.set_xlabel(label, labelpad=2)
    if ticks:
        _name_layers(figure, ax, ticks)
    else:
        _mark_points(figure, ax, sorted({x for curve in curves for x in curve.at}))
    whole = "input" if all(is_input(result.wrt) for result in every) else "reference"
    keys = [*_keys(curves, limits), *_limit_depth(ax, sides, dull, f"half the side of the {whole}")]
    # Conditions that differ are in the names.
    notes = [*shared(every)[0], f"{scale} scale", *error_words(every, "bars: ±"), *_hidden_trf(curves, limits), *more]
    if any("TRF" in text for text in (*notes, *(str(key.get_label()) for key in keys[len(curves) :]))):
        notes.append(TRF)
    finish(figure, [ax], [HEIGHT], words=notes * style.conditions, handles=keys)
    return Drawn(figure=figure, words=notes)


def _name_layers(figure: Figure, ax: PlotAxes, ticks: Sequence[str]) -> None:
    """Names of layers at 0, 1, 2, ...: turned where they have no room, and then every n-th that has."""
    widest = max(text_width(figure, line) + 0.1 for tick in ticks for line in tick.split("\n"))
    lay_out(figure)
    room = inches(ax)[0] / len(ticks)
    turned: dict[str, Any] = {"rotation": TILT, "ha": "right", "rotation_mode": "anchor"} if widest > room else {}
    every_nth = math.ceil(APART / room) if turned else 1
    ax.set_xticks(range(0, len(ticks), every_nth), ticks[::every_nth], **turned)
    ax.set_xlim(-0.35, len(ticks) - 0.65)


def _limit_depth(ax: PlotAxes, sides: Collection[float], dull: Collection[int], label: str) -> Iterator[Line2D]:
    """Draw half the side of the input, and shade the layers behind a TRF that covers it; the keys of what is seen."""
    for place in dull:
        ax.axvspan(place - 0.5, place + 0.5, color=SHADE, linewidth=0, zorder=0, gid="shaded")
    for side in sides:
        ax.axhline(side, gid="side", **SIDE)
    if any(side <= ax.get_ylim()[1] for side in sides):
        yield Line2D([], [], label=label, **SIDE)
    if dull:
        yield Line2D([], [], label="TRF before covers the input", color=SHADE, linewidth=6)


def _mark_points(figure: Figure, ax: PlotAxes, at: Sequence[float]) -> None:
    """Ticks at the points where their numbers have room, else at round numbers, whole ones where the points are."""
    lay_out(figure)
    low, high = ax.get_xlim()
    numbers = [brief(x) for x in at]
    room = min(after - before for before, after in pairwise(at)) * inches(ax)[0] / (high - low)
    if max(text_width(figure, number) for number in numbers) + 0.1 <= room:
        ax.set_xticks(at, numbers)
    else:
        ax.xaxis.set_major_locator(MaxNLocator("auto", integer=all(x.is_integer() for x in at), **ROUND))


def _keys(curves: Sequence[SizeCurve], limits: tuple[float, float]) -> list[Line2D]:
    keys = [Line2D([], [], label=curve.name, **line_style(number)) for number, curve in enumerate(curves)]
    plain: dict[str, Any] = {"color": "#444444", "marker": "o", "markersize": 3.5}
    keys.append(Line2D([], [], label="r50 (full), r90 (hollow)", **{**plain, **R90, "linestyle": "-"}))
    if any(_field_seen(curve, limits) for curve in curves):
        keys.append(Line2D([], [], label="half the TRF", **{**plain, **FIELD}))
    return keys


def _field_seen(curve: SizeCurve, limits: tuple[float, float]) -> bool:
    """Whether a piece of the field's line lies on the axis: a point alone is no line."""
    halves = [_half(result) for result in curve.results]
    pieces = [pair for pair in pairwise(halves) if all(map(math.isfinite, pair))]
    return any(limits[0] <= half <= limits[1] for pair in pieces for half in pair)


def _hidden_trf(curves: Sequence[SizeCurve], limits: tuple[float, float]) -> list[str]:
    """The reason why the TRF has no line, where that is known, and that lines leave the axis at its top."""
    everything = any(result.trf is not None and result.trf.is_global for curve in curves for result in curve.results)
    hidden = [curve for curve in curves if not _field_seen(curve, limits)]
    beyond = any(_half(result) > limits[1] for curve in hidden for result in curve.results)
    why = [text for text, holds in (("the whole input", everything), ("beyond the axis", beyond)) if holds]
    seen = [result for curve in curves if curve not in hidden for result in curve.results]
    leaves = ["half the TRF goes on beyond the axis"] if any(_half(result) > limits[1] for result in seen) else []
    return [*([f"TRF without a line: {' or '.join(why)}"] if why else []), *leaves]


def _plot(ax: PlotAxes, curve: SizeCurve, look: dict[str, Any]) -> None:
    for name, more in (("r50", {}), ("r90", R90)):
        found = [(x, r.measures[name]) for x, r in zip(curve.at, curve.results, strict=True) if name in radii(r)]
        if found:
            at, measures = zip(*found, strict=True)
            bars = [measure.se or 0.0 for measure in measures]
            line = ax.errorbar(
                at, [measure.value for measure in measures], yerr=bars, capsize=2, elinewidth=0.8, **{**look, **more}
            )
            line.lines[0].set_gid(name)
    ax.plot(curve.at, [_half(result) for result in curve.results], gid="TRF", **{**look, **FIELD})


def _half(result: Result) -> float:
    """Half the side of the TRF, which a radius can be compared with; NaN, and no line, where it is unknown or
    everything."""
    if result.trf is None or result.trf.is_global:
        return math.nan
    side = result.sides.field
    return math.nan if side is None else side / 2


def _limits(results: Sequence[Result], scale: str, sides: Collection[float]) -> tuple[float, float]:
    """The ends of the vertical axis: radii decide how far it reaches; a field or a side that is much larger leaves a
    linear axis at its top."""
    sizes = [float(radius) for result in results for radius in radii(result).values()]
    fields = [*sides, *(half for result in results if math.isfinite(half := _half(result)))]
    top = max(sizes)
    reach = max([top, *(half for half in fields if scale != "linear" or half <= 2 * top)])
    lowest = min([value for value in sizes if value > 0], default=1.0)
    return (lowest / 1.5, reach * 1.3) if scale == "log" else (0.0, reach * 1.12)
