"""Between a map's indices and the axes of the tensor that holds it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from erfscope.geometry.layout import Layout
from erfscope.trf.axes.axis_layout import OTHER, AxisFactor, AxisLayout, Part, TokenSequence, factors_of, lowest_step
from erfscope.trf.axes.index_maps import IndexSet, distinct
from erfscope.trf.graph import Node
from erfscope.trf.walk import Region


class MapAxis(NamedTuple):
    """Where one axis of a map lives: its index is the coordinate along ``axis`` divided by ``step``."""

    axis: int
    step: int


def map_dims(layout: Layout, rank: int) -> tuple[int, ...]:
    """The dimensions of the raw tensor that hold the map's axes; for tokens the one that holds all."""
    if layout.order == "channels_first":
        return tuple(range(2, rank))
    return tuple(range(1, rank - 1)) if layout.order == "channels_last" else (1,)


def map_parts(node: Node, layout: Layout) -> list[tuple[Part, ...]] | None:
    """The factors of each axis of a map; None if tokens are not where the layout has them."""
    dims = node.layout.dims
    if layout.order == "factors":
        return _factor_parts(layout)
    if layout.order != "tokens":
        return [dims[d] for d in map_dims(layout, len(dims))]
    parts: tuple[Part, ...] = dims[1]
    if len(parts) == 1 and isinstance(parts[0], TokenSequence):
        if (parts[0].before, parts[0].after) != (layout.prefix, layout.suffix):
            return None
        parts = parts[0].inner
    elif layout.prefix or layout.suffix:
        return None
    return _deal_parts(parts, layout.grid)


def _factor_parts(layout: Layout) -> list[tuple[Part, ...]]:
    """The factors of each axis of a map whose positions are spread over dimensions, outermost first."""
    found = sorted((factor for dim in layout.factors for factor in dim), key=lambda factor: -factor.step)
    return [tuple(AxisFactor(i, f.step, f.size) for f in found if f.role == i) for i in range(len(layout.grid))]


def _deal_parts(parts: Sequence[Part], sizes: Sequence[int]) -> list[tuple[Part, ...]] | None:
    """Deal factors out to axes of these sizes."""
    dealt: list[tuple[Part, ...]] = []
    rest = list(parts)
    for size in sizes:
        taken: list[Part] = []
        if size == 1 and rest and rest[0].size == 1:
            taken.append(rest.pop(0))
        while math.prod(part.size for part in taken) < size and rest:
            taken.append(rest.pop(0))
        if math.prod(part.size for part in taken) != size:
            return None
        dealt.append(tuple(taken))
    return dealt


def map_axes(node: Node, layout: Layout) -> list[MapAxis | None]:
    """For each axis of a map the axis of the image that it shows; None where that is not known."""
    parts = map_parts(node, layout)
    if parts is None:
        return [None] * len(layout.space(node.shape))
    return [_axis(node.layout, found) for found in parts]


def _axis(axis_layout: AxisLayout, parts: Sequence[Part]) -> MapAxis | None:
    factors = [part for part in parts if isinstance(part, AxisFactor) and part.axis != OTHER]
    numbers = {factor.axis for factor in factors}
    if len(factors) < len(parts) or len(numbers) != 1:
        return None
    (number,) = numbers
    lowest = lowest_step(factors)
    in_order = factors == sorted(factors, key=lambda factor: -factor.step)
    if (
        lowest is None
        or not in_order
        or lowest * math.prod(factor.size for factor in factors) != axis_layout.size_of(number)
    ):
        return None
    return MapAxis(number, lowest)


def unit_region(node: Node, layout: Layout, unit: Sequence[int]) -> Region:
    """The part of a tensor that one unit of its map is: every factor that the index does not fix is read in full."""
    parts = map_parts(node, layout)
    fixed: dict[AxisFactor, int] = {}
    if parts is not None:
        for found, index in zip(parts, unit, strict=True):
            rest = index
            for part in reversed(found):
                rest, value = divmod(rest, part.size)
                if isinstance(part, AxisFactor) and part.axis != -1:
                    fixed[part] = value
    spans: list[IndexSet | None] = []
    for number, axis in enumerate(node.layout.axes):
        if axis is None:
            spans.append(None)
            continue
        cells = np.zeros(1, dtype=np.intp)
        for dim in node.layout.dims:
            for factor in factors_of(dim):
                if factor.axis == number:
                    values = np.array([fixed[factor]]) if factor in fixed else np.arange(factor.size)
                    cells = (cells[:, None] + factor.step * values).reshape(-1)
        cells = distinct(cells)
        # Rows and columns of the same index share one span, so that what is read along them is found once.
        same = next((span for span in spans if span is not None and np.array_equal(span.unbounded, cells)), None)
        spans.append(same or IndexSet(cells, cells))
    return Region(tuple(spans), extra_tokens=parts is None)
