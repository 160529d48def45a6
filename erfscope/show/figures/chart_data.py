"""The figure of a study as data: charts of curves and maps on a grid. :mod:`erfscope.show.figures.charts` draws it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from erfscope.core.answer.maps.erf_map import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Curve:
    """One line of a chart."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    #: Standard errors of ``y``.
    error: Sequence[float] | None = None
    #: Points alone, without a line between them.
    points: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chart:
    """Curves on one pair of axes."""

    title: str
    x: str
    y: str
    curves: tuple[Curve, ...]
    #: Axes with a logarithmic scale: "", "x", "y" or "xy".
    log: str = ""
    #: Horizontal lines to compare with: (what it is, where).
    marks: tuple[tuple[str, float], ...] = ()
    #: Words below the ticks of a horizontal axis of names, at 0, 1, 2, ...
    names: tuple[str, ...] = ()
    #: Whether the names stand left of a vertical axis instead, from top to bottom, on a line each; marks are then
    #: vertical.
    sideways: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChartMap:
    """One map."""

    title: str
    #: (H, W), any scale; each map has its own range of colours.
    values: FloatArray
    signed: bool = False
    #: log10(1 + density) instead of the values; the title says so.
    log: bool = False
    #: Where the unit is, (row, col).
    unit: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Picture:
    """Panels in rows, from left to right; rows may differ in length."""

    title: str
    rows: tuple[tuple[Chart | ChartMap, ...], ...]
    #: Words above the rows, one for each; empty for none.
    headings: tuple[str, ...] = ()
    #: A sentence below.
    note: str = ""
