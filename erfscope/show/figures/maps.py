"""One map on its axes: the image under it, the unit, the r50 and r90 rings, the TRF and a scale bar."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, Normalize
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, Ellipse, Rectangle
from matplotlib.path import Path
from matplotlib.patheffects import Normal, Stroke, withStroke
from PIL import Image
from scipy.ndimage import gaussian_filter

from erfscope.core.answer.maps.erf_map import ErfMap, FloatArray
from erfscope.core.answer.result import Result
from erfscope.core.values.names import is_input
from erfscope.show.drawn import CloseUp, averaged, brightness, close_up, shares
from erfscope.show.figures.lettering import TEXT
from erfscope.show.view.cells import measure_cell, share_text
from erfscope.show.view.windows import bar_is_right
from erfscope.show.view.words import conditions, field_lines, lengths_text, main_radii, radii

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
            :mod:`erfscope.show.drawn`), ``"linear"`` (density relative to the uniform map), ``"log"``
            (log10 of 1 + density) or ``"power"`` (its power 0.3), with the sign kept.
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


#: Style of each mark. They differ by dashes as well as by colour.
MARKS: dict[str, dict[str, Any]] = {
    "r50": {"color": "#ffffff", "linestyle": "-", "linewidth": 1.1},
    "r90": {"color": "#8fd8ff", "linestyle": (0, (5, 2)), "linewidth": 1.1},
    "TRF": {"color": "#ffb000", "linestyle": (0, (1, 1.5)), "linewidth": 1.3},
    "samples": {"color": "#ff7ad9", "linestyle": "none", "marker": ".", "markersize": 3.5},
    "unit": {"color": "#ffffff", "linestyle": "none", "marker": "+", "markersize": 5, "markeredgewidth": 0.9},
}
#: Outlines of highest-density regions, and the width of the Gaussian that a map is smoothed by, as a share of that
#: region's radius.
CONTOUR: dict[str, Any] = {"colors": "#7dffb0", "linewidths": 0.9, "linestyles": "-"}
SMOOTHED = 0.125
#: A dark edge keeps marks visible on light parts of a map or picture.
DARK = "#00000090"
EDGE = [withStroke(linewidth=2.2, foreground=DARK)]
#: A dark edge without gaps, under the dots of the TRF's box, which on light parts are no line without it.
CASING = [Stroke(linewidth=2.2, foreground="#000000b0", dashes={"dash_offset": 0, "dash_list": None}), Normal()]
#: Points: marks that reach less far from the unit would hide under its cross. Four ticks around them, as long and so
#: far away, replace it.
HIDDEN, TICK, TICK_GAP = 5.0, 2.5, 1.0
#: Width of such marks' lines, as a share of how far they reach.
THIN = 0.3
#: How much of an image the strongest part of a map hides.
COVER = 0.92


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The colours of the maps of one figure."""

    peak: float
    signed: bool
    scale: str
    #: Per cents of the ERF whose highest-density regions are outlined.
    contours: Sequence[float] = ()
    #: Name of the colour map; None for the one that suits the signs.
    cmap: str | None = None

    @property
    def norm(self) -> Normalize:
        """Values to the range of colours."""
        return Normalize(vmin=-self.peak if self.signed else 0.0, vmax=self.peak)


def draw_map(
    ax: Axes,
    result: Result,
    view: FloatArray,
    look: Look,
    *,
    picture: FloatArray | None = None,
    bar: bool = True,
    part: CloseUp | None = None,
) -> None:
    """Draw one result's map.

    Args:
        ax: Where, with their size.
        result: The result; it has a map.
        view: (H, W), the values as shown.
        look: Colours.
        picture: (H', W') grey in [0, 1] to show under the map, which is transparent where it is weak.
        bar: Whether to draw a scale bar.
        part: The part that the map is of a larger one, for how much its panel shows; None for just the map.
    """
    assert result.map is not None
    plane = result.map.plane
    part = part or close_up(plane)
    height, width = plane.values.shape
    # A one-dimensional map is one row, drawn as high as its panel.
    shared: dict[str, Any] = {
        "extent": (-0.5, width - 0.5, height - 0.5, -0.5),
        "aspect": "auto" if height == 1 else cell_ratio(plane),
    }
    cover: Any = None
    if picture is not None:
        ax.imshow(picture, cmap="gray", vmin=0, vmax=1, **shared)
        cover = cover_of(view, look)
    ax.imshow(view, cmap=colour_map(look.cmap, signed=look.signed), norm=look.norm, alpha=cover, **shared)
    ax.set(xlim=part.limits(1), ylim=part.limits(0)[::-1])
    reached = {**_rings(ax, result, plane), **_field(ax, plane)}
    if look.contours:
        outline(ax, region_shares(np.abs(plane.values)), look.contours)
    for each in result.sampling_points or ():
        assert result.unit is not None
        # A map that is shown in part begins elsewhere.
        moved = np.subtract(plane.center_px, result.unit.center_px[-2:]) if plane.center_px else 0.0
        points = np.array(each.points_px)[:, -2:] + moved
        ax.plot(points[:, 1], points[:, 0], gid="samples", **_style("samples"))
    if plane.center_px:
        row, col = plane.center_px
        # Whole on the map's edge too.
        ax.plot([col], [row], clip_on=False, gid="unit", **_unit_style(max(reached.values(), default=math.inf)))
    if bar and not part.is_narrow:
        _scale_bar(ax, plane, part)


def cover_of(view: FloatArray, look: Look) -> FloatArray:
    """How much of the image under it each cell of a map hides."""
    return np.asarray(COVER * np.clip(np.abs(view) / look.peak, 0, 1), dtype=np.float64)


def marks(result: Result, look: Look) -> set[str]:
    """The names of ``MARKS`` that are on a result's map, and "contours" where those are."""
    assert result.map is not None
    plane = result.map.plane
    sampled = ["samples"] if result.sampling_points else []
    contours = ["contours"] if look.contours and min(plane.values.shape) > 1 else []
    unit = ["unit"] if plane.center_px else []
    return {*radii(result), *(["TRF"] if field_box(plane) else []), *sampled, *contours, *unit}


def region_shares(weights: FloatArray) -> FloatArray:
    """Where each cell of a map (H, W) or (D, H, W), smoothed, stands among its highest-density regions, see
    :func:`erfscope.show.drawn.shares`."""
    # As much as the strongest half of the ERF allows: noise is smoothed away, and a small region stays small.
    ball = {2: math.pi, 3: 4 / 3 * math.pi}.get(weights.ndim, 2.0)
    radius = (np.count_nonzero(shares(weights) <= 0.5) / ball) ** (1 / weights.ndim)
    return shares(np.asarray(gaussian_filter(weights, SMOOTHED * radius), dtype=np.float64))


def outline(ax: Axes, regions: FloatArray, contours: Sequence[float]) -> None:
    """Outlines of highest-density regions, so many per cent of the ERF, of a smoothed map, so that they are lines and
    not specks."""
    levels = [each / 100 for each in contours if regions.min() < each / 100 < regions.max()]
    if not levels or min(regions.shape) < 2:
        return
    lines = ax.contour(regions, levels=levels, **CONTOUR)
    lines.set_path_effects([*EDGE])
    lines.set_gid("contours")
    text: dict[str, Any] = {"color": CONTOUR["colors"], "fontsize": TEXT, "annotation_clip": True}
    text["bbox"] = {"facecolor": "#000000c0", "edgecolor": "none", "pad": 0.6}
    for number, (level, path) in enumerate(zip(lines.levels, lines.get_paths(), strict=True)):
        points = np.asarray(path.vertices)
        if len(points) and np.ptp(ax.transData.transform(points)[:, 1]) > 2 * TEXT / 72 * ax.figure.dpi:
            # In turn at the upper and the lower end, so that they stand apart.
            end = points[points[:, 1].argmax() if number % 2 else points[:, 1].argmin()]
            ax.annotate(f"{100 * level:g} %", (end[0], end[1]), ha="center", va="center", **text)


def outline_note(contours: Sequence[float]) -> list[str]:
    """The meaning of the outlines; nothing where there are none."""
    listed = ", ".join(f"{each:g}" for each in contours)
    return [f"contours: highest-density regions of {listed} %, smoothed by an eighth of their radius"] * bool(contours)


def grey(picture: Any) -> FloatArray:
    """An image (H, W, C), or frames or slices of one, of uint8 as grey in [0, 1], so that all colour in a figure is the
    map's."""
    return np.asarray(np.asarray(picture, dtype=np.float64).mean(axis=-1) / 255, dtype=np.float64)


def keys(drawn: set[str], contours: Sequence[float] = ()) -> list[Line2D]:
    """The marks for a legend, in the order of ``MARKS``, and the outlines with their per cents."""
    found = [Line2D([], [], label=name, **_style(name)) for name in MARKS if name in drawn]
    if "contours" in drawn:
        label = f"contours {', '.join(f'{each:g}' for each in contours)} %"
        look: dict[str, Any] = {"path_effects": EDGE, "color": CONTOUR["colors"], "linewidth": CONTOUR["linewidths"]}
        found.append(Line2D([], [], label=label, **look))
    return found


def cell_ratio(plane: ErfMap) -> float:
    """How much higher than wide a cell of a map is."""
    down, across = plane.axes.spacing
    return down / across


def draw_ring(ax: Axes, plane: ErfMap, radius: float, **style: Any) -> None:
    """A circle around the unit's centre, which is an ellipse in cells whose sides differ."""
    row, col = plane.center_px
    height, width = (radius / side for side in plane.axes.spacing)
    shape = Circle((col, row), width) if height == width else Ellipse((col, row), 2 * width, 2 * height)
    shape.set(fill=False, **{"path_effects": EDGE, **style})
    ax.add_patch(shape)


def _style(name: str, reach: float = math.inf) -> dict[str, Any]:
    """Style of a mark that reaches so many points from the unit: a thin line where it is small, so that marks leave
    each other visible."""
    style = {**MARKS[name], "path_effects": CASING if name == "TRF" else EDGE}
    if THIN * reach < style.get("linewidth", 0.0):
        thin = THIN * reach
        style |= {
            "linestyle": "-",
            "linewidth": thin,
            "path_effects": [withStroke(linewidth=2 * thin, foreground=DARK)],
        }
    return style


def _unit_style(reach: float) -> dict[str, Any]:
    """Style of the mark on the unit: its cross, or ticks around marks that reach so few points that they would hide
    under it."""
    if reach >= HIDDEN:
        return _style("unit")
    inner = reach + TICK_GAP
    ends = [(side * along, side * across) for along, across in ((1, 0), (0, 1)) for side in (-1, 1)]
    path = Path(
        [(x * at, y * at) for x, y in ends for at in (inner, inner + TICK)], [Path.MOVETO, Path.LINETO] * len(ends)
    )
    return {**_style("unit"), "marker": path, "markersize": 2 * (inner + TICK)}


def _points(ax: Axes, plane: ErfMap) -> float:
    """Width of a cell of the map, in points of the sheet."""
    height, width = plane.values.shape
    wide = ax.bbox.width / width
    high = wide if height == 1 else ax.bbox.height / (height * cell_ratio(plane))
    return float(min(wide, high)) * 72 / ax.figure.dpi


def _rings(ax: Axes, result: Result, plane: ErfMap) -> dict[str, float]:
    """The rings, and how many points each reaches from the unit."""
    points = _points(ax, plane) / plane.axes.spacing[1]
    reached = {name: float(radius) * points for name, radius in radii(result).items()}
    for name, radius in radii(result).items():
        draw_ring(ax, plane, float(radius), gid=name, **_style(name, reached[name]))
    return reached


def field_box(plane: ErfMap) -> tuple[float, float, float, float] | None:
    """Left, top, width and height of the TRF where any side of it lies inside the map."""
    if plane.trf is None or plane.trf.is_global:
        return None
    (top, bottom), (left, right) = plane.trf.box_px
    height, width = plane.values.shape
    if top <= 0 and left <= 0 and bottom >= height - 1 and right >= width - 1:
        return None
    return left - 0.5, top - 0.5, right - left + 1, bottom - top + 1


def _field(ax: Axes, plane: ErfMap) -> dict[str, float]:
    """The box of the TRF, and how many points it reaches from the unit."""
    box = field_box(plane)
    if box is None:
        return {}
    reach = max(box[2], box[3] * cell_ratio(plane)) / 2 * _points(ax, plane)
    ax.add_patch(Rectangle(box[:2], *box[2:], fill=False, gid="TRF", **_style("TRF", reach)))
    return {"TRF": reach}


def bar_length(plane: ErfMap, part: float) -> tuple[float, str]:
    """A round length of at most such a part of a map's width, or about a cell: in cells, and as text in its unit."""
    step, unit = plane.axes.spacing[-1], plane.axes.units[-1]
    # The unit may be much longer than a cell.
    tenth = 10.0 ** math.floor(math.log10(min(step, 1.0)))
    length = tenth * round_length(part * plane.values.shape[1] * step / tenth)
    return length / step, f"{length:g} {unit}"


def _scale_bar(ax: Axes, plane: ErfMap, part: CloseUp) -> None:
    """A bar of a round length, at most three tenths of the map, in the lower left corner, or where the unit is not."""
    height, width = plane.values.shape
    length, text = bar_length(plane, 0.3)
    left = (0.95 * width - length if bar_is_right(part) else 0.05 * width) - 0.5
    level = (0.12 if plane.center_px and plane.center_px[0] > 0.65 * height else 0.95) * height - 0.5
    edge = [withStroke(linewidth=3.2, foreground=DARK)]
    ax.plot(
        [left, left + length],
        [level, level],
        color="white",
        linewidth=2,
        solid_capstyle="butt",
        path_effects=edge,
        gid="scale bar",
    )
    style: dict[str, Any] = {"color": "white", "fontsize": TEXT, "path_effects": EDGE, "va": "bottom"}
    # From the outer end on, so that it stays on the map.
    end, side = (left + length, "right") if bar_is_right(part) else (left, "left")
    ax.annotate(text, (end, level), (0, 2.5), textcoords="offset points", ha=side, **style)


def round_length(most: float) -> float:
    """The largest of 1, 2, 5, 10, 20, ... that is at most ``most``; 1 below that."""
    power = 10.0 ** math.floor(math.log10(max(most, 1.0)))
    return max(factor * power for factor in (1, 2, 5) if factor * power <= max(most, 1.0))


def pictures_of(results: Sequence[Result], everyone: Sequence[Result]) -> list[Any]:
    """The image of every result, None for those without one.

    Of several units of one run only the first holds it; what was shown to the others is the same where hash, size and
    transform are."""

    def shown(result: Result) -> tuple[object, ...]:
        return result.input.sha256, result.input.size, result.input.transform

    kept = {
        shown(result): result.picture
        for result in reversed(everyone)
        if result.picture is not None and result.input.sha256
    }
    return [kept.get(shown(result)) if result.picture is None else result.picture for result in results]


def condition_words(result: Result) -> dict[str, str]:
    """The conditions under which a map holds, by name, each as it reads alone; its layer and unit stand elsewhere."""
    left_out = ("layer", "unit", "seed")
    found = {name: each.alone for name, each in conditions(result).items() if each.text and name not in left_out}
    return found | ({} if is_input(result.wrt) else {"wrt": f"wrt {result.wrt}"})


def shared(results: Sequence[Result]) -> tuple[list[str], list[list[str]]]:
    """The conditions that all results share, and for each result those in which they differ."""
    every = [condition_words(result) for result in results]
    common = {name: text for name, text in every[0].items() if all(each.get(name) == text for each in every)}
    return list(common.values()), [[text for name, text in each.items() if name not in common] for each in every]


def size_lines(result: Result) -> list[str]:
    """The share of one of several inputs, r50, r90 and the theoretical receptive field (TRF), a line each."""
    word, share = lengths_text(result), [text] if (text := share_text(result)) else []
    return share + [f"{name} {measure_cell(result, name)} {word}" for name in main_radii(result)] + field_lines(result)
