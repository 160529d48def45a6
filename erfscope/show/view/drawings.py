"""Maps as a page draws them: images and coordinates, made where figures are made."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from erfscope.core.answer.maps.erf_map import FloatArray
from erfscope.core.answer.measures.radial_curve import RadialProfile, radial_profile
from erfscope.core.answer.result import Result, image_cell
from erfscope.show.view import words
from erfscope.show.view.report_view import ReportRow
from erfscope.show.view.table import Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class MapImage:
    """One image of a map, on one scale and one range of colours."""

    uri: str
    scale: str
    #: "shared" by all maps of the page, or "own", or both where that makes no difference.
    spans: tuple[str, ...]
    #: Text of what the first and the last colour stand for.
    least: str = ""
    peak: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnRing:
    """A radius around the unit, in widths of a cell."""

    name: str
    radius: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A map as it is drawn: coordinates are widths of the reference's cells, whose first begins at (-0.5, -0.5)."""

    width: int
    #: Cells that are higher than wide make it higher than it has rows.
    height: float
    #: x, y, width and height of its panel, which shows more beside maps of larger inputs.
    frame: tuple[float, float, float, float]
    #: Row and column of the unit; None where it has no place.
    unit: tuple[float, float] | None
    signed: bool
    sharp: bool
    #: A map of one row, drawn as a strip with lines in place of rings.
    strip: bool
    images: tuple[MapImage, ...]
    #: The first input image under the map.
    overlaid: tuple[MapImage, ...]
    rings: tuple[DrawnRing, ...]
    #: x, y, width and height of the TRF; None if it is unknown or everything.
    field: tuple[float, float, float, float] | None
    #: Whether an edge of the field can be seen.
    field_seen: bool
    #: Length of the scale bar, 0 where there is none, and the same as text in the unit of the axes.
    bar: float
    bar_text: str
    #: The side of the window that is drawn of the map, in words; "" for the whole map.
    window: str = ""
    #: A close-up of an ERF that is a dot beside others.
    inset: Inset | None = None

    @property
    def is_framed(self) -> bool:
        """Whether the panel shows more than the map."""
        return self.frame[2:] != (self.width, self.height)

    @property
    def view_box(self) -> str:
        """The panel's sides, as an SVG has them."""
        return " ".join(f"{side:g}" for side in self.frame)

    def uri(self, scale: str) -> str:
        """The map on one scale, in its own range."""
        return next(shown.uri for shown in self.images if shown.scale == scale and "own" in shown.spans)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inset:
    """A close-up in the corner of a map."""

    drawing: Drawing
    text: str
    #: x, y and side of the corner, and x, y, width and height of what it shows.
    at: tuple[float, float, float]
    of: tuple[float, float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawings:
    """The drawings of a report, by the positions of its results; None where a result has none."""

    maps: tuple[Drawing | None, ...]
    #: Addresses of the figures of all units of a layer.
    positions: tuple[str | None, ...]
    #: Addresses of the panels of volumes, clips and sequences; None of images.
    spaces: tuple[str | None, ...]
    #: Address of the panel of all volumes, or of all sequences; None of other results, of one, and of many.
    together: str | None
    #: Address of the figure of sizes by layer; None where results do not fit it.
    depth: str | None
    #: Addresses of the colours themselves, of signed maps and of others, where there are any.
    ramps: Mapping[bool, str]
    #: The scales that a page offers, and the one that it opens with.
    scales: tuple[str, ...]
    scale: str
    #: The range of colours that a page opens with.
    span: str
    #: What panels show, in words.
    shown: str = ""

    @property
    def has_units(self) -> bool:
        """Whether any map shows its unit, which some units have no place on."""
        return any(drawn is not None and drawn.unit is not None for drawn in self.maps)


#: Size of a profile's drawing; the curves lie LEFT..RIGHT, the density TOP..FLOOR and the enclosed mass SPLIT..BOTTOM.
WIDTH, HEIGHT, LEFT, RIGHT, TOP, FLOOR, SPLIT, BOTTOM = 320.0, 290.0, 36.0, 312.0, 20.0, 112.0, 136.0, 254.0
#: Densities below this share of the largest are not worth a place on the axis.
DECADES = 5
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A place on an axis."""

    at: float
    text: str
    #: Whether it is where the density of a uniform map lies.
    is_uniform: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeMark:
    """A number with its error bar, in per cent of the axis."""

    name: str
    at: float
    low: float
    high: float
    cell: Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """One result of the comparison of sizes."""

    index: int
    label: str
    marks: tuple[RangeMark, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """r50 and r90 of every result on one axis, in the unit of lengths on the input."""

    rows: tuple[Range, ...]
    unit: str
    ticks: tuple[Tick, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A map by the distance to its unit: coordinates in a drawing of WIDTH by HEIGHT."""

    density: str
    enclosed: str
    #: The enclosed mass of the result that others are compared with; "" if there is none.
    other: str
    radii: tuple[Tick, ...]
    densities: tuple[Tick, ...]
    #: Where r50 and r90 are: (name, x, y), y on the curve of the enclosed mass.
    marks: tuple[tuple[str, float, float], ...]


def ranges(rows: Sequence[ReportRow]) -> Ranges | None:
    """The comparison of sizes; None where fewer than two results have one."""
    found = {row: list(_radii(row)) for row in rows if words.radii(row.result)}
    if len(found) < 2:
        return None
    ticks = round_ticks(max(value + se for entries in found.values() for _, value, se, _ in entries))
    end = ticks[-1]

    def mark(name: str, value: float, se: float, cell: Cell) -> RangeMark:
        at, low, high = (100 * place / end for place in (value, max(value - se, 0.0), value + se))
        return RangeMark(name=name, at=at, low=low, high=high, cell=cell)

    axes = {row.result.input_axes for row in found}
    units = " or ".join(sorted({f"image {each.unit}" if each.noun == "image" else each.unit for each in axes}))
    return Ranges(
        unit=units + (f", {words.IN_PLANE}" if all(each.is_in_plane for each in axes) else ""),
        rows=tuple(
            Range(index=row.index, label=row.name, marks=tuple(mark(*entry) for entry in entries))
            for row, entries in found.items()
        ),
        ticks=tuple(Tick(at=100 * tick / end, text=f"{tick:g}") for tick in ticks),
    )


def _radii(row: ReportRow) -> Iterator[tuple[str, float, float, Cell]]:
    """(name, radius, error, cell) in lengths on the input; of an inner map the JSON has no error in these."""
    pixel, sizes = image_cell(row.result) or 1.0, {size.name: size for size in row.sizes}
    for name, radius in words.radii(row.result).items():
        cell = sizes[name].image_px or sizes[name].cell
        yield name, pixel * float(radius), pixel * (radius.se or 0.0), cell


def profiles(rows: Sequence[ReportRow]) -> list[tuple[Profile, str] | None]:
    """The profile of every result, and the name of the one that it is drawn beside, or ""; None where there is no
    map."""
    curves = [profile_of(row.result) for row in rows]
    found: list[tuple[Profile, str] | None] = []
    for row, curve in zip(rows, curves, strict=True):
        other = None if row.partner is None else rows[row.partner]
        is_alike = other is not None and (other.result.wrt, other.result.input.size) == (
            row.result.wrt,
            row.result.input.size,
        )
        grey = curves[other.index] if other is not None and is_alike else None
        beside = other.name if other is not None and grey is not None else ""
        found.append(None if curve is None else (profile(row.result, curve, grey), beside))
    return found


def profile_of(result: Result) -> RadialProfile | None:
    """The profile of a result's map; None where it has no map, or an empty one, and where its unit has no place."""
    if result.map is None or not result.map.values.any() or not result.map.center_px:
        return None
    return radial_profile(result.map)


def profile(result: Result, curve: RadialProfile, other: RadialProfile | None = None) -> Profile:
    """The drawing of a profile.

    Args:
        result: The result, for its r50 and r90.
        curve: Its profile.
        other: That of the result it is compared with; drawn only as far as this one goes.
    """
    ticks = round_ticks(float(curve.radius_px[-1]), count=4)
    reach = max(
        float(curve.radius_px[-1]), ticks[-1] if len(ticks) > 1 and ticks[-1] <= 1.05 * curve.radius_px[-1] else 0.0
    )
    top = max(math.ceil(math.log10(max(float(curve.density.max()), 1e-9))), 1)
    lowest = float(curve.density[curve.density > 0].min())
    bottom = min(max(math.floor(math.log10(lowest)), top - DECADES), 0)
    x = LEFT + (RIGHT - LEFT) * curve.radius_px / reach
    seen = curve.density >= 10.0**bottom
    y = FLOOR - (FLOOR - TOP) * (np.log10(curve.density[seen]) - bottom) / (top - bottom)
    marks = []
    for name, radius in words.radii(result).items():
        share = float(np.interp(float(radius), curve.radius_px, curve.enclosed))
        marks.append((name, LEFT + (RIGHT - LEFT) * float(radius) / reach, BOTTOM - (BOTTOM - SPLIT) * share))
    step = 2 if top - bottom > 4 else 1
    decades = [
        Tick(at=FLOOR - (FLOOR - TOP) * (e - bottom) / (top - bottom), text=_decade(e), is_uniform=e == 0)
        for e in range(bottom, top + 1)
        if not e % step
    ]
    return Profile(
        density=_points(x[seen], y),
        enclosed=_points(x, BOTTOM - (BOTTOM - SPLIT) * curve.enclosed),
        other="" if other is None else _other(other, reach),
        radii=tuple(Tick(at=LEFT + (RIGHT - LEFT) * t / reach, text=f"{t:g}") for t in ticks if t <= reach),
        densities=tuple(decades),
        marks=tuple(marks),
    )


def _decade(exponent: int) -> str:
    """A power of ten as an axis has room for it: 0.001, 1000, and 10 with its exponent beyond."""
    return f"{10.0**exponent:g}" if abs(exponent) <= 3 else "10" + str(exponent).translate(RAISED)


def _other(curve: RadialProfile, reach: float) -> str:
    near = curve.radius_px <= reach
    x = LEFT + (RIGHT - LEFT) * curve.radius_px[near] / reach
    return _points(x, BOTTOM - (BOTTOM - SPLIT) * curve.enclosed[near])


def _points(x: FloatArray, y: FloatArray) -> str:
    """Coordinates of a line; at most about one point per unit of width, since more cannot be seen."""
    stride = max(1, len(x) // int(WIDTH))
    kept = sorted({*range(0, len(x), stride), len(x) - 1})
    return " ".join(f"{x[i]:.1f},{y[i]:.1f}" for i in kept)


def round_ticks(largest: float, count: int = 6) -> list[float]:
    """Round numbers from 0 to just above ``largest``, about ``count`` of them."""
    if largest <= 0:
        return [0.0, 1.0]
    raw = largest / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(s * power for s in (1.0, 2.0, 5.0, 10.0) if s * power >= raw)
    return [step * k for k in range(math.ceil(largest / step - 1e-9) + 1)]
