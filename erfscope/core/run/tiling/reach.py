"""Which interval of the image each unit of a map sees along each axis, as if the image had no border, and which
operations make that interval depend on where the image begins and ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, NamedTuple

import numpy as np
from torch import fx

from erfscope.core.graph.ends import CLIPPED, LOCAL, SIGNS
from erfscope.core.graph.field import Fields
from erfscope.core.graph.graph import shape_of
from erfscope.core.graph.places import Place, extend, module_of
from erfscope.core.graph.recording import FIRST, Recording
from erfscope.core.graph.rules.reading import (
    ABSENT,
    Call,
    Dims,
    Edge,
    FloatArray,
    IntArray,
    Taps,
    call_of,
)
from erfscope.core.run.tiling.tables import is_table, shuts_seam, tables_of
from erfscope.core.values.errors import ErfscopeError, MeasurementError
from erfscope.core.values.layout import Layout
from erfscope.core.values.names import IMAGE

Kind = Literal["global", "unknown", "wraps", "sized", "uneven", "table"]
#: Neighbours among so few cells may lie half an image apart.
FEW = 8
#: Patterns of taps are looked for among so many indices.
LONGEST_PATTERN = 256
#: Finer steps between two cells are rounding.
FINEST = 4096


class Obstacle(NamedTuple):
    """An operation whose result depends on where the image begins and ends."""

    #: It reads all positions, is not understood, wraps round the border, resizes by the size of the map, reads
    #: positions at uneven distances, or adds a table of positions.
    kind: Kind
    #: What it does, in words, and the module that does it; "" for the model itself.
    operation: str
    module: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reach:
    """What the units of a map see of the image along one axis."""

    #: Side of the image.
    size: int
    #: (units,): the first and last cell that each unit sees, beyond the borders too, and without what mixes all
    #: positions; infinite where it sees none.
    first: FloatArray
    last: FloatArray
    #: Cells of the image from one unit to the next, and where unit 0 stands.
    stride: Fraction
    center: float
    #: Cells after which all operations begin anew.
    period: int
    #: How much further a border reaches before and after, where it cuts a map that an operation has cropped.
    crop_margin: tuple[int, int]
    #: How much further units at the border read into the image, mirrored for example, before and after.
    border_reflection: tuple[int, int]


def is_map(recording: Recording, layer: str) -> bool:
    """Whether a layer holds a map (B, C, *space), with more channel axes maybe, as (B, sources, C, T), or what may be
    one where the operations leave no other choice.

    Raises:
        ErfscopeError: unknown layer.
    """
    layout, seen = recording.reading(layer).layout, recording.find(layer)
    if seen is None or seen.node not in recording.positions.edges:
        return False
    own = _last_axes(seen.node, len(recording.positions.space))
    return layout in (FIRST, own) or (layout is None and len(seen.shape) == 2 + len(own.dims))


def _last_axes(node: fx.Node, count: int) -> Layout:
    """The layout of a map whose axes are a tensor's last dimensions."""
    rank = len(shape_of(node))
    return Layout(dims=tuple(range(rank - count, rank)))


def reach_of(recording: Recording, layer: str, wrt: str = IMAGE) -> tuple[tuple[Reach, ...], tuple[Obstacle, ...]]:
    """What the units of a layer see along each axis of the image, or of one of several inputs, and what stands in the
    way of tiles.

    Raises:
        ErfscopeError: unknown layer, or one that holds no map (B, C, *space).
    """
    if not is_map(recording, layer) or (seen := recording.find(layer)) is None:
        raise MeasurementError(
            f"layer {layer!r} holds no map of the image, such as (B, C, H, W), and tiles are of such maps; name"
            " another layer, or one in which the model brings its axes into this order"
        )
    fields = recording.fields(recording.inputs.get(wrt, recording.positions.image), FIRST, wrt)
    positions = fields.positions
    if seen.node not in fields:
        raise ErfscopeError(f"layer {layer!r} does not depend on {wrt!r}: no path leads from one to the other")
    way = sorted(positions.ancestors(seen.node) & positions.edges.keys(), key=positions.order.__getitem__)
    grains = _grains(recording, fields.sizes)
    axes = tuple(_reach(fields, way, seen.node, axis) for axis in range(len(fields.sizes)))
    axes = tuple(replace(axis, period=math.lcm(axis.period, grain)) for axis, grain in zip(axes, grains, strict=True))
    obstacles = [obstacle for node in way for obstacle in _obstacles(fields, node)]
    masked = [module_of(node) for node in way for edge in tables_of(fields, node) if shuts_seam(fields, node, edge)]
    stay = (one for one in obstacles if one.operation != "roll" or not any(m.startswith(one.module) for m in masked))
    return axes, tuple(dict.fromkeys(stay))


def _grains(recording: Recording, sizes: Sequence[int]) -> list[int]:
    """Along each axis the least number of cells of one of several inputs beside which all others have whole numbers."""
    sides = zip(*(shape_of(node)[2:] for node in recording.inputs.values()), strict=True)
    return [math.lcm(*(own // math.gcd(own, side) for side in along)) for own, along in zip(sizes, sides, strict=True)]


def _reach(fields: Fields, way: list[fx.Node], node: fx.Node, axis: int) -> Reach:
    layout, size = _last_axes(node, len(fields.sizes)), fields.sizes[axis]
    units = shape_of(node)[layout.dims[axis]]
    ends = fields.every_end[node][axis]
    ends = ends.min(tuple(dim for dim in range(1, ends.ndim) if dim != 1 + layout.dims[axis]))
    ends = np.broadcast_to(ends, (len(ends), units)).astype(float)
    (first, last), (low, high) = (ends[rows] * SIGNS[:, None] for rows in (LOCAL, CLIPPED))
    known = np.isfinite(first) & np.isfinite(low)
    # Further than half of the image are windows that were rolled over the border.
    with np.errstate(invalid="ignore"):  # inf - inf, where a unit sees nothing
        further = ((high - last, first < 0), (first - low, last >= size))
    reflections = [
        max(0, int(further[known & beyond & (further <= size / 2)].max(initial=0))) for further, beyond in further
    ]
    center = fields.centers(node, layout, (0,) * len(fields.sizes))[0][axis]
    stride = _fraction(fields.stride(node, layout, axis))
    steps = [stride, *(_fraction(fields.positions.places(node)[axis].slope) for node in way)]
    reads = list(_reads(fields, way))
    steps += [step for edge, before in reads for step in _patterns(edge, before, axis)]
    crop_margins = [_crop_margin(fields, edge, before, axis) for edge, before in reads]
    return Reach(
        size=size,
        first=first,
        last=last,
        stride=stride,
        center=center,
        period=math.lcm(*(step.numerator for step in steps if step)),
        crop_margin=(max((m[0] for m in crop_margins), default=0), max((m[1] for m in crop_margins), default=0)),
        border_reflection=(reflections[0], reflections[1]),
    )


def _fraction(step: float) -> Fraction:
    return Fraction(step).limit_denominator(FINEST)


def _reads(fields: Fields, way: list[fx.Node]) -> Iterator[tuple[Edge, list[tuple[Place, ...]]]]:
    positions = fields.positions
    for node in way:
        for edge, before in zip(positions.edges[node], positions.before[node], strict=True):
            if edge.source in fields:
                yield edge, before


def _patterns(edge: Edge, before: list[tuple[Place, ...]], axis: int) -> Iterator[Fraction]:
    """Cells of the image after which an operation reads positions alike again, as where every other column is written
    over, or windows are taken apart."""
    for step, places in zip(edge.steps, before, strict=True):
        place = places[axis]
        read = step.reads[place.dim] if isinstance(step, Dims) and place.dim is not None else None
        yield _fraction(abs(place.slope) * (_period(read) if isinstance(read, Taps) else 1))


def _period(read: Taps) -> int:
    """Indices of the input after which its taps repeat themselves; 0 where they do not."""
    spots, is_there = read.unbounded, read.unbounded != ABSENT
    for n in range(1, min(len(spots) // 2, LONGEST_PATTERN) + 1):
        by = np.where(is_there[n:], spots[n:] - spots[:-n], 0)
        further = np.unique(by[is_there[n:]])
        if (is_there[n:] == is_there[:-n]).all() and further.size == 1:
            return int(further[0])
    return 0


def _crop_margin(fields: Fields, edge: Edge, before: list[tuple[Place, ...]], axis: int) -> tuple[int, int]:
    """How far inside the image padding stands for cells that exist, as it does behind a slice of a map."""
    cut, size = [0, 0], fields.sizes[axis]
    if not edge.steps or not isinstance(edge.steps[0], Dims):
        return 0, 0
    ends, place, shape = fields.every_end[edge.source][axis][LOCAL], before[0][axis], shape_of(edge.source)
    for dim, read in enumerate(edge.steps[0].reads):
        if not isinstance(read, Taps) or ends.shape[1 + dim] == 1:
            continue
        spots = read.unbounded[read.unbounded != ABSENT]
        beyond, slope = np.array([-1, shape[dim]]), place.slope_along(dim)
        further = extend(ends, 1 + dim, beyond, (slope * SIGNS).astype(np.float32), np.inf)
        first, last = np.moveaxis(further * SIGNS.reshape(-1, *(1,) * (further.ndim - 1)), 1 + dim, 1)
        low = np.moveaxis(ends[0], dim, 0)
        with np.errstate(invalid="ignore"):  # inf - inf, where a unit sees nothing
            # Not of mirrored copies in the batch, whose cells go the other way.
            known = np.stack([low[1] - low[0], low[-1] - low[-2]]) * slope >= 0
        for side, is_padded in enumerate([(spots < 0).any(), (spots >= shape[dim]).any()]):
            if not is_padded or not (here := known[side] & np.isfinite(first[side])).any():
                continue
            if (side == 0) == (slope >= 0):
                cut[0] = max(cut[0], int(first[side][here].max()) + 1)
            else:
                cut[1] = max(cut[1], size - int(last[side][here].min()))
    return cut[0], cut[1]


def _obstacles(fields: Fields, node: fx.Node) -> Iterator[Obstacle]:
    """What an operation does that no tile can see."""
    call = call_of(node)
    if _is_torn(fields, node) and not any(_is_torn(fields, edge.source) for edge, _ in _reads(fields, [node])):
        yield Obstacle("wraps", call.name, module_of(node))
    if node in fields.mixing:
        yield Obstacle("global", fields.mixing[node] or call.name, module_of(node))
    for edge, before in _reads(fields, [node]):
        if edge.inexact:
            yield Obstacle("unknown", edge.inexact, module_of(node))
        shape = shape_of(edge.source)
        for step, places in zip(edge.steps, before, strict=True):
            for dim, read in enumerate(step.reads if isinstance(step, Dims) else ()):
                tables = [place.table for place in places[:-1] if place.varies_along(dim)]
                if isinstance(read, Taps) and tables and (kind := _kind(call, read, shape[dim], tables)):
                    yield Obstacle(kind, call.name, module_of(node))
            shape = step.shape
    for edge in tables_of(fields, node):
        if is_table(fields, node, edge) and not shuts_seam(fields, node, edge):
            yield Obstacle("table", call.name, module_of(node))


def _is_torn(fields: Fields, node: fx.Node) -> bool:
    """Whether neighbours in a tensor see opposite sides of the image."""
    for ends, place, size in zip(fields.every_end[node], fields.positions.places(node), fields.sizes, strict=False):
        if place.slope and place.dim is not None:
            first = ends[LOCAL][0]
            lines = np.where(np.isfinite(first), first, np.nan).swapaxes(place.dim, -1)
            if lines.shape[-1] > FEW and (np.abs(np.diff(lines)) > size / 2).any():
                return True
    return False


def _kind(call: Call, read: Taps, size: int, tables: Sequence[FloatArray]) -> Kind | None:
    """Why the positions that are read along a dimension, with these places, depend on how many there are; None where
    they do not."""
    rows, inside = read.unbounded, read.inside
    if "adaptive" in call.name or (call.args.get("align_corners") and len(rows) != size):
        return "sized"
    before, after = (rows != ABSENT) & (rows < 0) & (inside >= 0), (rows >= size) & (inside >= 0)
    if (inside > -rows)[before].any() or (size - 1 - inside > rows - size + 1)[after].any():
        return "wraps"
    step = _fraction(read.scale)
    if min(step.numerator, step.denominator) > 1 and 2 * step.numerator > size:
        return "uneven"
    there = (rows != ABSENT).any(1)
    low = np.where(rows != ABSENT, rows, np.iinfo(np.intp).max).min(1)[there]
    high = rows.max(1)[there]
    return None if _is_even(low, high, tables) else "uneven"


def _is_even(low: IntArray, high: IntArray, tables: Sequence[FloatArray]) -> bool:
    """Whether what is read moves on by as much after every so many positions: on the image, not to the next one."""
    if len(low) < 2:
        return True
    for period in range(1, len(low) // 2 + 1):
        by, spots = low[period] - low[0], np.clip(low[[0, period]], 0, len(tables[0]) - 1)
        is_elsewhere = by and any(np.ptp(table[spots]) != 0 for table in tables)
        if is_elsewhere and all((ends[period:] - ends[:-period] == by).all() for ends in (low, high)):
            return True
    return False
