"""From recorded passes of a model to its tiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from erfscope.core.graph.named import RETURNED
from erfscope.core.graph.record import UNRECORDED
from erfscope.core.graph.recording import Recording
from erfscope.core.graph.rules.reading import FloatArray, IntArray
from erfscope.core.run.engine.cost import forward_bytes
from erfscope.core.run.engine.model import OpenModel
from erfscope.core.run.tiling.plan import TileAxis, Tiling, sides_along
from erfscope.core.run.tiling.reach import Kind, Obstacle, Reach, is_map, reach_of
from erfscope.core.run.tiling.sizes import chosen_by_size
from erfscope.core.system.containers import Path
from erfscope.core.values.errors import ErfscopeError, MeasurementError
from erfscope.core.values.input_size import Size
from erfscope.core.values.names import IMAGE, OUTPUT
from erfscope.core.values.unit import size_text

#: What an operation does, and what can be done about it.
_WORDS: dict[Kind, str] = {
    "global": "reads the whole map, which no tile holds; replace it with one that reads a window, or compute it once on"
    " the whole image",
    "unknown": "is not understood and may read the whole map; give the graph a rule for it",
    "wraps": "reads across the border from the opposite side; pad with zeros or mirrored cells instead",
    "sized": "reads positions that depend on the size of the map; use align_corners=False and a fixed scale_factor, or"
    " pooling with a fixed kernel",
    "uneven": "reads positions at uneven distances, or all up to a position; resize by a whole factor, or choose sides"
    " that the strides divide",
    "table": "holds a number for every position of the map; make it a function of the content, or of the position in a"
    " window",
}
_SPECIAL = {
    "norm": "takes its statistics from the map; use batch norm with stored statistics, or those of the whole image",
    "global average pooling": "averages over the whole map, as squeeze-and-excitation does; compute it once on the"
    " whole image and keep it for all tiles",
    "attention": "compares all positions of the map; use attention in windows, or accept that each tile attends to"
    " itself alone",
}
#: Cells that are rounding.
SLACK = 1e-6
#: Modules that a sentence lists.
MOST = 3
#: Sides at which a model is recorded until units there see no border and leave the rest that is wanted.
LARGER_SIDES = 3
Opener = Callable[[tuple[int, ...] | None], OpenModel]


def find_plan(
    open_at: Opener,
    *,
    tile: Size = 256,
    layer: str | None = None,
    image_size: Size | None = None,
    wrt: str = IMAGE,
) -> Tiling:
    """How a model is run on tiles.

    Args:
        open_at: Opens the model at an input size; at its own for None.
        tile: Side of the part of the output that each tile gives, in input cells; it is rounded up to what the model's
            strides allow.
        layer: The layer whose map is the output; what the model returns if None.
        image_size: Size of the images, or one that the model treats alike: padding and rounding may depend on what
            sides leave when divided by the total stride. The model's own size if None.
        wrt: The input that is cut, of several.

    Raises:
        ErfscopeError: unknown layer, a size with other axes, or an output without a map.
        MeasurementError: the model fails on an input of its own size.
    """
    loaded = open_at(None)
    blockers = dict.fromkeys(_of_the_pass(loaded, layer))
    if loaded.recording.graph.by == UNRECORDED:
        return _impossible(loaded, layer or "", blockers)
    name = layer or _output(loaded)
    axes, obstacles = reach_of(loaded.recording, name, wrt)
    own = tuple(axis.size for axis in axes)
    wanted = own if image_size is None else sides_along(image_size, len(own))
    if not all(map(_is_periodic, axes)):
        return _impossible(loaded, layer or "", (*blockers, *_sentences(obstacles)))
    sides = tuple(map(_side, axes, wanted))
    recording = loaded.recording
    try:
        for _ in range(LARGER_SIDES):
            if sides == own:
                break
            recording = open_at(sides).recording
            axes, obstacles = reach_of(recording, name, wrt)
            # More units may show a longer period, by which this side leaves another rest than the one that is wanted.
            if not all(map(_is_periodic, axes)):
                break
            if not any((side - other) % axis.period for side, other, axis in zip(sides, wanted, axes, strict=True)):
                break
            own, sides = sides, tuple(map(_side, axes, wanted))
    except ErfscopeError as error:
        strides = " and ".join(str(axis.period) for axis in axes)
        more = f"choose another image_size, or pad images to multiples of its strides ({strides})"
        blockers |= {f"the model does not run on {size_text(sides)} ({error.reason}); {more}": None}
    blockers |= dict.fromkeys(_sentences(obstacles))
    has_factor = all(obstacle.kind != "sized" for obstacle in obstacles)
    if not has_factor or not all(_is_periodic(axis) and _is_uniform(axis) for axis in axes):
        return _impossible(loaded, layer or "", blockers)
    tiles = tuple(map(_tile_axis, axes, sides_along(tile, len(axes))))
    plan = Tiling(
        possible=not blockers,
        blockers=tuple(blockers),
        axes=tiles,
        model=loaded.label,
        layer=layer or "",
        path=() if layer else _path(loaded.recording, name),
        wrt=wrt,
        space=own_axes if (own_axes := loaded.adapter.preprocess.of(wrt).axes).recorded else None,
    )
    return _confirmed(plan, axes, open_at, name, recording) if plan.possible else plan


def _impossible(loaded: OpenModel, layer: str, blockers: Iterable[str]) -> Tiling:
    """A plan without a halo: the fields of the units are not known, or not alike."""
    reasons = tuple(blockers) or ("its units see different parts of the image from place to place",)
    return Tiling(possible=False, blockers=reasons, axes=(), model=loaded.label, layer=layer)


def _output(loaded: OpenModel) -> str:
    """The name of the first map that the model returns."""
    recording = loaded.recording
    names = [name for name in recording.modules if name == OUTPUT or name.startswith(f"{OUTPUT}[")]
    output = next((name for name in names if is_map(recording, name)), None)
    if output is None:
        raise MeasurementError(
            "returns no map of the image, such as (B, C, H, W), that tiles could be put together to; name a layer with"
            " --layer",
            model=loaded.label,
        )
    return output


def _path(recording: Recording, name: str) -> Path:
    """Where a tensor is in what the model itself returns."""
    returned, node = recording.graph.returned, recording.modules[name].node
    return next(path[1:] for path, other in returned.items() if path[:1] == (RETURNED,) and other is node)


def _of_the_pass(loaded: OpenModel, layer: str | None) -> Iterator[str]:
    recording = loaded.recording
    if why := recording.needs_numbers(layer) if layer else recording.needed_numbers:
        yield f"its forward pass depends on the numbers of the image ({why}), which differ from tile to tile"
    if recording.draws_random_numbers:
        yield "its forward pass draws random numbers, which differ from tile to tile"


def _sentences(obstacles: Iterable[Obstacle]) -> Iterator[str]:
    """What each kind of operation does, with the modules that it is in."""
    modules: dict[tuple[str, Kind], list[str]] = {}
    for kind, operation, module in obstacles:
        modules.setdefault((operation, kind), []).append(module or "the model itself")
    for (operation, kind), names in modules.items():
        special = next((words for start, words in _SPECIAL.items() if start in operation and kind == "global"), None)
        listed = ", ".join(names[:MOST]) + f" and {len(names) - MOST} more" * (len(names) > MOST)
        yield f"{operation} ({listed}) {special or _WORDS[kind]}"


def _is_periodic(axis: Reach) -> bool:
    """Whether units along an axis have fields, the same ones after every total stride."""
    period = axis.period / axis.stride
    return bool(np.isfinite(axis.first).all()) and axis.stride > 0 and len(axis.first) >= period == int(period)


def _side(axis: Reach, wanted: int) -> int:
    """A side at which units in the middle see no border, and which the model treats as the one that is wanted."""
    first, last = _tables(axis)
    field = int((last - first).max()) + 1
    least = max(axis.size, 2 * field + 2 * axis.period)
    return least + (wanted - least) % axis.period


def _tables(axis: Reach) -> tuple[FloatArray, FloatArray]:
    """First and last cell of the units of one total stride that begins at cell 0, by those in the middle."""
    period = int(axis.period / axis.stride)
    block = (len(axis.first) - period) // 2 // period
    units = slice(block * period, (block + 1) * period)
    shift = block * axis.period
    return axis.first[units] - shift - axis.crop_margin[0], axis.last[units] - shift + axis.crop_margin[1]


def _of_units(table: FloatArray, units: IntArray, alignment: int) -> FloatArray:
    """The cells of units, by those of one total stride."""
    return table[units % len(table)] + units // len(table) * alignment


def _is_uniform(axis: Reach) -> bool:
    """Whether some units see no border, and all of these see alike."""
    inner = np.flatnonzero((axis.first >= 0) & (axis.last < axis.size))
    seen = axis.first[inner] - axis.crop_margin[0], axis.last[inner] + axis.crop_margin[1]
    expected = (_of_units(table, inner, axis.period) for table in _tables(axis))
    return inner.size > 0 and all(map(np.array_equal, expected, seen))


def _tile_axis(axis: Reach, tile: int) -> TileAxis:
    stride, alignment, count = axis.stride, axis.period, len(axis.first)
    period = int(alignment / stride)
    first, last = _tables(axis)
    # Where a model crops borders, its units stand further in than those of a model that keeps the size.
    step, lost = float(stride), axis.size - count * float(stride)
    cut = axis.center - (step - 1) / 2
    cut = cut if abs(cut) <= abs(lost) + step else lost / 2
    offset = math.floor(cut + SLACK) if min(abs(cut), abs(lost)) >= max(step, 1.0) - SLACK else 0
    units = np.arange(-period, 2 * period)
    firsts, lasts = (_of_units(table, units, alignment) for table in (first, last))
    starts = [math.floor(unit * stride) + offset for unit in range(period)]
    stops = [math.ceil((unit + 1) * stride) + offset for unit in range(period)]
    any_phase = [
        max(start - firsts[period + unit : 2 * period + unit].min() for unit, start in enumerate(starts)),
        max(lasts[unit + 1 : period + unit + 1].max() + 1 - stop for unit, stop in enumerate(stops)),
    ]
    # A model without padding loses cells at both ends, and a tile is what it makes of a crop.
    tile_units = period + (count % period if offset > 0 else 0)
    last_seen = _of_units(last, np.arange(tile_units), alignment).max()
    aligned = offset - min(first.min(), 0), last_seen + 1 - math.ceil(tile_units * stride) - offset
    halo, any_halo = ((max(int(a), 0), max(int(b), 0)) for a, b in (aligned, any_phase))
    return TileAxis(
        halo=halo,
        halo_any_phase=any_halo,
        alignment=alignment,
        stride=stride,
        offset=offset,
        size=axis.size,
        units=count,
        border_reflection=axis.border_reflection,
        tile_units=tile_units,
    ).with_tile(tile)


def _confirmed(plan: Tiling, axes: Sequence[Reach], open_at: Opener, name: str, recording: Recording) -> Tiling:
    """The plan with the memory of one tile, if the model treats a tile's crop as it does the image of a recording."""
    sides = tuple(map(_other_side, plan.crop, axes))
    try:
        loaded = open_at(sides)
        tiles, _ = reach_of(loaded.recording, name, plan.wrt)
    except ErfscopeError as error:
        return _blocked(plan, f"does not run on a crop of {size_text(sides)} ({error.reason})")
    if not all(map(_agree, axes, tiles)):
        return _blocked(
            plan, f"gives other units on a crop of {size_text(sides)}; its padding or resizing depends on the size"
        )
    if where := chosen_by_size(recording, loaded.recording, name):
        more = "or is another one, or reads other channels or weights, at another size; do the same at all sizes"
        return _blocked(
            plan, f"{where} takes a number that it makes of the size of its input, {more}, and pad images beforehand"
        )
    share = math.prod(plan.crop) / math.prod(sides)
    return replace(plan, memory=round(forward_bytes(loaded.recording.graph) * share))


def _other_side(side: int, axis: Reach) -> int:
    """The next side at which what repeats itself only after two or three periods, as padding may, differs from that at
    the axis' own."""
    while math.gcd((side - axis.size) // axis.period, 6) > 1:
        side += axis.period
    return side


def _blocked(plan: Tiling, why: str) -> Tiling:
    return replace(plan, possible=False, blockers=(*plan.blockers, why))


def _agree(one: Reach, other: Reach) -> bool:
    """Whether units see the same at two sizes."""
    period = int(one.period / one.stride)
    further = (other.size - one.size) // one.period * period
    same = (one.stride, one.period, len(one.first) + further) == (other.stride, other.period, len(other.first))
    return same and all(np.array_equal(*tables) for tables in zip(_tables(one), _tables(other), strict=True))
