"""Maps of a grid of units of one layer on one input, as sums over blocks of cells, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from erfscope.apps.explore.planes import Plane, block_sums, pairs_of, planes_of, three
from erfscope.core import (
    MEASURES,
    Axes,
    ErfMap,
    ErfscopeError,
    OpenModel,
    Prepared,
    Request,
    Site,
    Trf,
    UnitMaps,
)
from erfscope.show import counted, drawn

#: First and last cell along each axis.
Field = Sequence[tuple[int, int]]
#: Units along each axis, at most, of references of one, two and three axes; and units of a layer.
GRID, MOST_UNITS = {1: 196, 2: 14, 3: 6}, 4096
#: Bytes of a page beside its maps, about: of everything but its units, and of each unit.
FIXED_BYTES, UNIT_BYTES = 150_000, 465
#: Blocks that each map has room for even if the page grows larger with them.
FEWEST_BLOCKS = 16
#: Backward passes from which less is offered.
MANY = 500
#: Measures that are shown of every unit, before those of time and depth.
MEASURED = ("r50", "r90", "context_r50", "center_share", "erf_trf")
#: What tables show and a page has no room for.
LEFT_OUT = "far_mass"
#: Shares of the map whose radii make the profile.
ENCLOSED = tuple(percent / 100 for percent in range(5, 100, 5))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExploredUnit:
    """One unit: its place, its numbers and its map."""

    index: tuple[int, ...]
    #: Its centre; None for one that no path leads to.
    center_px: tuple[float, ...] | None
    #: The cell of the reference there, through which its planes go.
    cell: tuple[int, ...] | None
    #: First and last pixel along each axis that it can see, inside the image, and of the part that its map is kept on;
    #: () where there is no map.
    trf_px: Field
    field_px: Field
    #: Of :func:`measured_of`, and the radii of :data:`ENCLOSED`; empty for one without a gradient.
    measures: Mapping[str, float | None]
    radii_px: tuple[float, ...]
    #: Its map in the planes that are kept of it.
    planes: tuple[Plane, ...] = ()
    #: Of a sequence the map's blocks relative to the strongest, in 8 bits.
    curve: NDArray[np.uint8] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A grid of units of one layer."""

    name: str
    #: Spatial size of the layer's map, and of the grid of those that were measured.
    space: tuple[int, ...]
    grid: tuple[int, ...]
    stride_px: tuple[float, ...]
    #: Size of a whole field, and what makes it the whole input; "" if nothing does.
    trf_px: tuple[int, ...]
    global_by: str
    #: Side of the blocks in cells of the reference.
    block: int
    #: The centres of units along each axis, in cells of the reference; None for one that no path leads to.
    centers_px: tuple[tuple[float | None, ...], ...]
    #: In the order of ``np.ndindex(grid)``; none where each is computed when it is asked for.
    units: tuple[ExploredUnit, ...] = ()


def measured_of(axes: Axes) -> tuple[str, ...]:
    """The measures that are shown of units of a reference."""
    shown = Request.parse({}).settings.measure_names(axes)
    return (*MEASURED, *(name for name in shown if name not in (*MEASURED, LEFT_OUT)))


def pointed_at(site: Site, model: OpenModel) -> Site:
    """A layer whose units can be pointed at.

    Raises:
        ErfscopeError: its units do not stand along the axes of the reference.
    """
    if len(site.space) != len(site.reference_space):
        layer = f"{site.layer} of {model.label}"
        text = f"the explorer points at units along the axes of the input, and {layer} has a map of"
        raise ErfscopeError(
            f"{text} {len(site.space)} axes on an input of {len(site.reference_space)}; name other layers"
        )
    return site


def grid_of(model: OpenModel, site: Site, grid: int | None) -> list[list[int]]:
    """The indices along each axis of a grid of a layer's units.

    Args:
        model: The model.
        site: The layer.
        grid: How many along each axis, at most; as many as pages have if None.

    Raises:
        ErfscopeError: too many units.
    """
    space = site.space
    grid = grid or GRID[len(space)]
    if (count := grid ** len(space)) > MOST_UNITS:
        most = round(MOST_UNITS ** (1 / len(space)))
        text = f"grid {grid} asks for {count} units of a layer of {len(space)} axes, and a page holds {MOST_UNITS}"
        raise ErfscopeError(f"{text}; take at most --grid {most}")
    chosen = site.units(f"grid:{grid}")
    return [sorted({unit.index[axis] for unit in chosen}) for axis in range(len(space))]


def costs(models: Sequence[Sequence[UnitMaps]]) -> list[str]:
    """What is going to be computed, a line for each model, and what would be less."""
    every = [maps for layers in models for maps in layers]
    lines = [
        f"{layers[0].conditions.label}: {counted(sum(len(maps.every.units) for maps in layers), 'unit')} of"
        f" {counted(len(layers), 'layer')} in {counted(sum(maps.passes for maps in layers), 'backward pass')}"
        for layers in models
    ]
    if sum(maps.passes for maps in every) > MANY:
        draws = "" if every[0].conditions.input.n_draws == 1 else " --draws 1 makes each unit cheaper,"
        grid, rank = max(max(map(len, maps.along)) for maps in every), max(len(maps.along) for maps in every)
        half = max(1, grid // 2)
        share = f"--grid {half} takes about {(half / grid) ** rank:.0%} of them"
        lines.append(f"that may take minutes: {share},{draws} and --layer NAME takes fewer layers")
    return lines


def block_sizes(layers: Sequence[UnitMaps], page_bytes: int) -> list[int]:
    """Side of the blocks of each layer's maps: the smallest with which the page stays about so small.

    Each block has 3 bytes, which are 4 letters of base64. The layer with the most blocks gets larger ones first."""
    units = sum(len(maps.every.units) for maps in layers)
    most = max((page_bytes - FIXED_BYTES - units * UNIT_BYTES) * 3 // 4, units * FEWEST_BLOCKS)
    sizes = [1] * len(layers)

    def blocks(number: int) -> int:
        maps = layers[number]
        fields = np.array([three(field, (0, 0)) for field in maps.every.fields if field], dtype=int)
        first, last = np.moveaxis(fields.reshape(-1, 3, 2), 2, 0) // sizes[number]
        pairs = pairs_of(maps.axes, maps.trf.reference_px[0])
        # A sequence has a curve beside its levels.
        twice = 2 if len(maps.along) == 1 else 1
        return sum(int((last - first + 1)[:, pair].prod(axis=1).sum()) for pair in pairs) * twice

    counts = [blocks(number) for number in range(len(layers))]
    while sum(counts) > most:
        largest = int(np.argmax(counts))
        sizes[largest] += 1
        counts[largest] = blocks(largest)
    return sizes


def explore_stage(maps: UnitMaps, block: int) -> Stage:
    """Measure units of one layer.

    Raises:
        MeasurementError: the model fails.
    """
    measured = {number: _explored(maps, number, erf, block) for number, erf in maps}
    units = [measured.get(number) or _explored(maps, number, None, block) for number in range(len(maps.every.units))]
    return replace(stage_of(maps, block), units=tuple(units))


def _explored(maps: UnitMaps, number: int, erf: ErfMap | None, block: int) -> ExploredUnit:
    every = maps.every
    return explored_unit(every.units[number].index, every.trfs[number], every.fields[number], erf, block=block)


def stage_of(maps: UnitMaps, block: int) -> Stage:
    """The geometry of the units of a layer, whose maps have blocks of so many cells along each axis."""
    middle, trf, site = maps.unit.index, maps.trf, maps.site

    def center(axis: int, place: int) -> float | None:
        index = (*middle[:axis], place, *middle[axis + 1 :])
        try:
            return site.trf(index).center_px[axis]
        except ErfscopeError:  # no path leads to it
            return None

    return Stage(
        name=site.layer,
        space=site.space,
        grid=tuple(map(len, maps.along)),
        stride_px=trf.stride_px,
        trf_px=trf.size_px,
        global_by=trf.global_by or "",
        block=block,
        centers_px=tuple(tuple(center(axis, place) for place in places) for axis, places in enumerate(maps.along)),
    )


def explored_unit(
    index: tuple[int, ...], trf: Trf | None, field: Field, erf: ErfMap | None, *, block: int
) -> ExploredUnit:
    """One unit whose map is zero outside of a field; without a map if it has no gradient."""
    if trf is None:
        return ExploredUnit(index=index, center_px=None, cell=None, trf_px=(), field_px=(), measures={}, radii_px=())
    center, cell = trf.center_px, tuple(map(drawn.cell_at, trf.center_px, trf.reference_px))
    if erf is None:
        return ExploredUnit(index=index, center_px=center, cell=cell, trf_px=(), field_px=(), measures={}, radii_px=())
    part = tuple(slice(first, last + 1) for first, last in field)
    whole = np.zeros(trf.reference_px)
    whole[part] = replace(erf, values=erf.values[part]).magnitude
    ready = Prepared.of(replace(erf, values=whole))
    values = {name: MEASURES[name].of(ready) for name in measured_of(erf.axes)}
    curve = None
    if whole.ndim == 1:
        (first, last), sums = field[0], block_sums(whole, block)
        curve = np.rint(255 * sums / sums.max()).astype(np.uint8)[first // block : last // block + 1]
    return ExploredUnit(
        index=index,
        center_px=center,
        cell=cell,
        trf_px=trf.clipped_box_px,
        field_px=field,
        measures={name: value if isinstance(value, float) else None for name, value in values.items()},
        radii_px=tuple(ready.radius(share) for share in ENCLOSED),
        planes=planes_of(whole, erf.axes, cell, field, block),
        curve=curve,
    )
