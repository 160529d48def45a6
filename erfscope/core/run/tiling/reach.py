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
from erfscope.core.graph.graph import name_of, shape_of
from erfscope.core.graph.places import Place, extend, module_of
from erfscope.core.graph.recording import FIRST, Recording
from erfscope.core.graph.rules.products import ATTENTION
from erfscope.core.graph.rules.reading import (
    ABSENT,
    COPIES,
    Call,
    Dims,
    Edge,
    FloatArray,
    IntArray,
    Shape,
    Taps,
    call_of,
    edges_of,
)
from erfscope.core.values.errors import ErfscopeError, MeasurementError
from erfscope.core.values.layout import Layout
from erfscope.core.values.names import IMAGE

Kind = Literal["global", "unknown", "wraps", "sized", "uneven", "table"]
#: Neighbours among so few cells may lie half an image apart.
FEW = 8
#: What is added to a product of attention that is to count for nothing.
MASKED_BIAS = -50
#: Patterns of taps are looked for among so many indices.
LONGEST_PATTERN = 256
#: Operations that fill a tensor with one number.
ONE_NUMBER = ("zeros_like", "ones_like", "full_like")
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
    masked = [module_of(node) for node in way for edge in _tables_of(fields, node) if _shuts_seam(fields, node, edge)]
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
    """How far inside the image padding stands for cells that exist, as it does behind a slice of a map; cells on the
    other side of the image are those of a map that was rolled.
    """
    cut = [0, 0]
    if not edge.steps or not isinstance(edge.steps[0], Dims):
        return 0, 0
    ends, place, shape = fields.every_end[edge.source][axis][LOCAL], before[0][axis], shape_of(edge.source)
    for dim, read in enumerate(edge.steps[0].reads):
        if not isinstance(read, Taps) or ends.shape[1 + dim] == 1:
            continue
        spots = read.unbounded[read.unbounded != ABSENT]
        beyond = np.array([-1, shape[dim]])
        slopes = (place.slope_along(dim) * SIGNS).astype(np.float32)
        first, last = np.moveaxis(extend(ends, 1 + dim, beyond, slopes, np.inf), 1 + dim, 1)
        first, last = first[0][np.isfinite(first[0])], -last[1][np.isfinite(last[1])]
        if (spots < 0).any() and first.size:
            cut[0] = max(cut[0], int(first.max()) + 1)
        if (spots >= shape[dim]).any() and last.size:
            cut[1] = max(cut[1], fields.sizes[axis] - int(last.min()))
    return (0, 0) if max(cut) > fields.sizes[axis] // 2 else (cut[0], cut[1])


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
                varies = any(place.varies_along(dim) for place in places[:-1])
                if isinstance(read, Taps) and varies and (kind := _kind(call, read, shape[dim])):
                    yield Obstacle(kind, call.name, module_of(node))
            shape = step.shape
    for edge in _tables_of(fields, node):
        if _is_table(fields, node, edge) and not _shuts_seam(fields, node, edge):
            yield Obstacle("table", call.name, module_of(node))


def _tables_of(fields: Fields, node: fx.Node) -> list[Edge]:
    """Tensors that an operation reads and that do not depend on the image."""
    positions, graph = fields.positions, fields.positions.graph
    # What comes from another input is cut as this one is.
    others = frozenset() if positions.image in graph.inputs else graph.live
    return [
        edge for edge in edges_of(node, positions.numbers) if edge.source not in positions and edge.source not in others
    ]


def _shuts_seam(fields: Fields, node: fx.Node, edge: Edge) -> bool:
    """Whether a table shuts attention in windows between cells from opposite sides of the image, and no other."""
    numbers, edges = fields.positions.numbers(edge.source), fields.positions.edges
    while (reads := edges.get(node)) and reads[0].mixing != ATTENTION:
        node = reads[0].source
    if numbers is None or numbers.ndim < 3 or numbers.shape[-1] != numbers.shape[-2] or not reads:
        return False
    table, side = numbers.detach().cpu().numpy(), numbers.shape[-1]
    table = table.reshape(-1, side, side)
    torn = np.zeros((1, 1, 1), dtype=bool)
    for ends, size in zip(fields.every_end[reads[0].source], fields.sizes, strict=True):
        # Of the queries: windows by their cells, those of the first image first.
        if ends.shape[-2] not in (1, side):
            return False
        first = np.broadcast_to(ends[CLIPPED][0][..., :1], (*ends.shape[1:-2], side, 1)).reshape(-1, side)
        first = first[: len(table)].astype(float)
        torn = torn | (np.abs(first[:, :, None] - first[:, None]) > size / 2)
    shut = table if table.dtype == bool else table <= MASKED_BIAS
    return bool(torn.any() and (shut == torn).all() and (table[shut == 0] == 0).all())


def _is_torn(fields: Fields, node: fx.Node) -> bool:
    """Whether neighbours in a tensor see opposite sides of the image."""
    for ends, place, size in zip(fields.every_end[node], fields.positions.places(node), fields.sizes, strict=False):
        if place.slope and place.dim is not None:
            first = ends[LOCAL][0]
            lines = np.where(np.isfinite(first), first, np.nan).swapaxes(place.dim, -1)
            if lines.shape[-1] > FEW and (np.abs(np.diff(lines)) > size / 2).any():
                return True
    return False


def _kind(call: Call, read: Taps, size: int) -> Kind | None:
    """Why the positions that are read along a dimension depend on how many there are; None where they do not."""
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
    return None if _is_even(low, high) else "uneven"


def _is_even(low: IntArray, high: IntArray) -> bool:
    """Whether what is read moves on by as much after every so many positions."""
    if len(low) < 2:
        return True
    for period in range(1, len(low) // 2 + 1):
        by = low[period] - low[0]
        if by and (low[period:] - low[:-period] == by).all() and (high[period:] - high[:-period] == by).all():
            return True
    return False


def _is_table(fields: Fields, node: fx.Node, edge: Edge) -> bool:
    """Whether a tensor that does not depend on the image differs from position to position, all over the image."""
    source = edge.source
    while name_of(source) in COPIES:
        source = source.all_input_nodes[0]
    if name_of(source) in ONE_NUMBER:
        return False
    shape: Shape = shape_of(edge.source)
    goals = list(range(len(shape)))
    for step in edge.steps:
        if not isinstance(step, Dims):
            return False
        goals = [-1 if g < 0 or not isinstance(read := step.reads[g], int) else read for g in goals]
    numbers = fields.positions.numbers(edge.source)
    for dim, goal in enumerate(goals):
        for place, size in zip(fields.positions.places(node), fields.sizes, strict=False):
            # In windows that were rolled over the border positions are far apart too: the others tell.
            is_along = goal >= 0 and shape[dim] > 1 and place.varies_along(goal)
            is_wide = is_along and np.nanmax(place.table) - np.nanmin(place.table) >= size / 2
            if is_wide and (numbers is None or (numbers != numbers.narrow(dim, 0, 1)).any()):
                return True
    return False
