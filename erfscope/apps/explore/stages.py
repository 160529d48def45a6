"""Maps of a grid of units of one layer on one input, as sums over blocks of cells, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from erfscope.apps.explore.planes import Plane, block_sums, pairs_of, planes_of, three
from erfscope.core.answer.maps.drawn import cell_at
from erfscope.core.answer.maps.erf_map import ErfMap
from erfscope.core.answer.measures import MEASURES, shown_of, value_of
from erfscope.core.answer.measures.prepared import Geometry
from erfscope.core.answer.measures.values import prepared
from erfscope.core.answer.timing import own_step
from erfscope.core.images.feed import Images
from erfscope.core.request.settings import Settings
from erfscope.core.run.additions.every_unit import unit_maps
from erfscope.core.run.additions.unit_fields import Field, UnitFields, fields_of
from erfscope.core.run.engine.batch import accumulate
from erfscope.core.run.engine.model import OpenModel
from erfscope.core.run.engine.plan import Callbacks, Plan, Sums, axes_of, plan_run
from erfscope.core.values.axes import Axes
from erfscope.core.values.errors import ErfscopeError
from erfscope.core.values.unit import Trf, resolve_units
from erfscope.show import counted

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


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """A layer that is ready to be explored."""

    plan: Plan
    sums: Sums
    #: Indices along each axis of the units that are measured.
    along: Sequence[Sequence[int]]
    every: UnitFields
    #: Backward passes.
    passes: int


def measured_of(axes: Axes) -> tuple[str, ...]:
    """The measures that are shown of units of a reference."""
    return (*MEASURED, *shown_of(axes))


def plan_layer(model: OpenModel, feed: Images, settings: Settings, layer: str) -> Plan:
    """Plan the measurement of one layer.

    Raises:
        ErfscopeError: unknown layer, or one whose units do not stand along the axes of the reference.
        MeasurementError: the model fails.
    """
    plan = plan_run(model, feed, settings, layer)
    space, reference = plan.site.space, plan.trfs[0].reference_px
    if len(space) != len(reference):
        text = f"the explorer points at units along the axes of the input, and {layer} of {model.label} has a map of"
        raise ErfscopeError(f"{text} {len(space)} axes on an input of {len(reference)}; name other layers")
    return plan


def plan_stage(model: OpenModel, feed: Images, settings: Settings, layer: str, grid: int | None) -> StagePlan:
    """Choose the units of one layer, and measure the central one to see what its operations do.

    Raises:
        ErfscopeError: unknown layer, one whose units do not stand along the axes of the reference, or too many units.
        MeasurementError: the model fails.
    """
    plan = plan_layer(model, feed, replace(settings, plain=True), layer)
    space = plan.site.space
    grid = grid or GRID[len(space)]
    if (count := grid ** len(space)) > MOST_UNITS:
        most = round(MOST_UNITS ** (1 / len(space)))
        text = f"grid {grid} asks for {count} units of a layer of {len(space)} axes, and a page holds {MOST_UNITS}"
        raise ErfscopeError(f"{text}; take at most --grid {most}")
    sums = plan.sums()
    accumulate(plan, sums, [0], plan.read)
    sums.seen = 1
    chosen = resolve_units(f"grid:{grid}", space, plan.question.units[0].index, layer=layer)
    along = [sorted({unit.index[axis] for unit in chosen}) for axis in range(len(space))]
    every = fields_of(plan, sums, along)
    draws = model.layer(layer).shape[1] if plan.question.draws == "all" else plan.question.draws
    return StagePlan(plan=plan, sums=sums, along=along, every=every, passes=len(every.groups) * draws)


def costs(models: Sequence[Sequence[StagePlan]]) -> list[str]:
    """What is going to be computed, a line for each model, and what would be less."""
    every = [stage for stages in models for stage in stages]
    lines = [
        f"{stages[0].plan.model.label}: {counted(sum(len(stage.every.units) for stage in stages), 'unit')} of"
        f" {counted(len(stages), 'layer')} in {counted(sum(stage.passes for stage in stages), 'backward pass')}"
        for stages in models
    ]
    if sum(stage.passes for stage in every) > MANY:
        draws = "" if every[0].plan.question.draws == 1 else " --draws 1 makes each unit cheaper,"
        grid, rank = max(max(map(len, stage.along)) for stage in every), max(len(stage.along) for stage in every)
        half = max(1, grid // 2)
        share = f"--grid {half} takes about {(half / grid) ** rank:.0%} of them"
        lines.append(f"that may take minutes: {share},{draws} and --layer NAME takes fewer layers")
    return lines


def block_sizes(stages: Sequence[StagePlan], page_bytes: int) -> list[int]:
    """Side of the blocks of each layer's maps: the smallest with which the page stays about so small.

    Each block has 3 bytes, which are 4 letters of base64. The layer with the most blocks gets larger ones first."""
    units = sum(len(stage.every.units) for stage in stages)
    most = max((page_bytes - FIXED_BYTES - units * UNIT_BYTES) * 3 // 4, units * FEWEST_BLOCKS)
    sizes = [1] * len(stages)

    def blocks(number: int) -> int:
        stage = stages[number]
        fields = np.array([three(field, (0, 0)) for field in stage.every.fields if field], dtype=int)
        first, last = np.moveaxis(fields.reshape(-1, 3, 2), 2, 0) // sizes[number]
        pairs = pairs_of(axes_of(stage.plan, 0), stage.plan.trfs[0].reference_px[0])
        # A sequence has a curve beside its levels.
        twice = 2 if len(stage.along) == 1 else 1
        return sum(int((last - first + 1)[:, pair].prod(axis=1).sum()) for pair in pairs) * twice

    counts = [blocks(number) for number in range(len(stages))]
    while sum(counts) > most:
        largest = int(np.argmax(counts))
        sizes[largest] += 1
        counts[largest] = blocks(largest)
    return sizes


def explore_stage(stage: StagePlan, block: int, callbacks: Callbacks) -> Stage:
    """Measure all units of one layer's grid.

    Raises:
        MeasurementError: the model fails.
    """
    every, space = stage.every, stage.plan.site.space
    maps = dict(unit_maps(stage.plan, stage.sums, every, callbacks))
    units = tuple(
        explored_unit(unit.index, seen, field, maps.get(number), block=block, space=space)
        for number, (unit, seen, field) in enumerate(zip(every.units, every.trfs, every.fields, strict=True))
    )
    return replace(stage_of(stage.plan, stage.along, block), units=units)


def stage_of(plan: Plan, along: Sequence[Sequence[int]], block: int) -> Stage:
    """The geometry of the units of a layer that have some indices along each axis.

    Args:
        plan: What is measured: one unit of the layer.
        along: The indices.
        block: Side of the blocks of their maps, in cells.
    """
    middle, trf = plan.question.units[0].index, plan.trfs[0]

    def center(axis: int, place: int) -> float | None:
        index = (*middle[:axis], place, *middle[axis + 1 :])
        try:
            return plan.site.trf(index).center_px[axis]
        except ErfscopeError:  # no path leads to it
            return None

    return Stage(
        name=plan.site.layer,
        space=plan.site.space,
        grid=tuple(map(len, along)),
        stride_px=trf.stride_px,
        trf_px=trf.size_px,
        global_by=trf.global_by or "",
        block=block,
        centers_px=tuple(tuple(center(axis, place) for place in places) for axis, places in enumerate(along)),
    )


def explored_unit(
    index: tuple[int, ...], trf: Trf | None, field: Field, erf: ErfMap | None, *, block: int, space: Sequence[int]
) -> ExploredUnit:
    """One unit of a layer with a map of this size, whose ERF map is given on its field alone; without a map if it has
    no gradient."""
    if trf is None:
        return ExploredUnit(index=index, center_px=None, cell=None, trf_px=(), field_px=(), measures={}, radii_px=())
    center, cell = trf.center_px, tuple(map(cell_at, trf.center_px, trf.reference_px))
    if erf is None:
        return ExploredUnit(index=index, center_px=center, cell=cell, trf_px=(), field_px=(), measures={}, radii_px=())
    whole = np.zeros(trf.reference_px)
    whole[tuple(slice(first, last + 1) for first, last in field)] = erf.magnitude
    step = own_step(trf, erf.axes, index, tuple(space))
    erf = replace(erf, values=whole, center_px=center, trf=trf, own_time=step)
    ready = prepared(whole, erf, Geometry(erf, whole=False))
    values = {name: value_of(MEASURES[name], ready) for name in measured_of(erf.axes)}
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
