"""Maps as a page draws them: images and coordinates, made where figures are made."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from erfscope.results.result import image_cell
from erfscope.view import words
from erfscope.view.report_view import Row
from erfscope.view.table import Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One image of a map, on one scale and one range of colours."""

    uri: str
    scale: str
    #: "shared" by all maps of the page, or "own", or both where that makes no difference.
    spans: tuple[str, ...]
    #: Text of what the first and the last colour stand for.
    least: str = ""
    peak: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
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
    images: tuple[Shown, ...]
    #: The first input image under the map.
    overlaid: tuple[Shown, ...]
    rings: tuple[Ring, ...]
    #: x, y, width and height of the TRF; None if it is unknown or everything.
    field: tuple[float, float, float, float] | None
    #: Whether an edge of the field can be seen.
    field_seen: bool
    #: Length of the scale bar, and the same as text in the unit of the axes.
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
    #: Address of the figure of profiles; None where results do not fit it, and of many.
    profile: str | None
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A place on an axis."""

    at: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
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
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """r50 and r90 of every result on one axis, in the unit of lengths on the input."""

    rows: tuple[Range, ...]
    unit: str
    ticks: tuple[Tick, ...]


def ranges(rows: Sequence[Row]) -> Ranges | None:
    """The comparison of sizes; None where fewer than two results have one."""
    found = {row: list(_radii(row)) for row in rows if words.radii(row.result)}
    if len(found) < 2:
        return None
    ticks = round_ticks(max(value + se for entries in found.values() for _, value, se, _ in entries))
    end = ticks[-1]

    def mark(name: str, value: float, se: float, cell: Cell) -> Mark:
        at, low, high = (100 * place / end for place in (value, max(value - se, 0.0), value + se))
        return Mark(name=name, at=at, low=low, high=high, cell=cell)

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


def _radii(row: Row) -> Iterator[tuple[str, float, float, Cell]]:
    """(name, radius, error, cell) in lengths on the input; of an inner map the JSON has no error in these."""
    pixel, sizes = image_cell(row.result) or 1.0, {size.name: size for size in row.sizes}
    for name, radius in words.radii(row.result).items():
        cell = sizes[name].image_px or sizes[name].cell
        yield name, pixel * float(radius), pixel * (radius.se or 0.0), cell


def round_ticks(largest: float, count: int = 6) -> list[float]:
    """Round numbers from 0 to just above ``largest``, about ``count`` of them."""
    if largest <= 0:
        return [0.0, 1.0]
    raw = largest / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(s * power for s in (1.0, 2.0, 5.0, 10.0) if s * power >= raw)
    return [step * k for k in range(math.ceil(largest / step - 1e-9) + 1)]
