"""Maps of a grid of units of one layer on one image, as sums over blocks of pixels, and what they cost."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from erfscope.additions.every_unit import unit_maps
from erfscope.additions.unit_fields import Field, UnitFields, fields_of
from erfscope.engine.batch import accumulate
from erfscope.engine.model import LoadedModel
from erfscope.engine.plan import Callbacks, Plan, Sums, axes_of, plan_run
from erfscope.errors import ErfscopeError
from erfscope.geometry.unit import Trf, resolve_units
from erfscope.maps.drawn import BRIGHTNESS, SHARES
from erfscope.maps.erf_map import ErfMap, FloatArray
from erfscope.measures import MEASURES, Prepared
from erfscope.measures.prepared import Geometry
from erfscope.options.settings import Settings
from erfscope.stimuli.feed import Feed

#: Units along each axis, at most.
GRID = 14
#: Bytes of a page beside its maps, about: of everything but its units, and of each unit.
FIXED_BYTES, UNIT_BYTES = 150_000, 465
#: Blocks that each map has room for even if the page grows larger with them.
FEWEST_BLOCKS = 16
#: Seconds from which less is offered.
LONG = 60
#: Measures that are shown of every unit.
MEASURED = ("r50", "r90", "context_r50", "center_share", "erf_trf")
#: Shares of the map whose radii make the profile.
ENCLOSED = tuple(percent / 100 for percent in range(5, 100, 5))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExploredUnit:
    """One unit: its place, its numbers and its map."""

    index: tuple[int, ...]
    #: Its centre; None for one that no path leads to.
    center_px: tuple[float, ...] | None
    #: First and last pixel along each axis that it can see, inside the image, and of the part that its map is kept on;
    #: () where there is no map.
    trf_px: Field
    field_px: Field
    #: Of :data:`MEASURED`, and the radii of :data:`ENCLOSED`; empty for one without a gradient.
    measures: Mapping[str, float | None]
    radii_px: tuple[float, ...]
    #: Levels of the blocks over its field, see :func:`levels`.
    levels: NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A grid of units of one layer."""

    name: str
    #: Spatial size of the layer's map, and of the grid of those that were measured.
    space: tuple[int, ...]
    grid: tuple[int, ...]
    stride_px: tuple[float, ...]
    #: Size of a whole field, and what makes it the whole image; "" if nothing does.
    trf_px: tuple[int, ...]
    global_by: str
    #: Side of the blocks in pixels.
    block: int
    #: The centres of the rows and of the columns of units, in pixels; None for one that no path leads to.
    centers_px: tuple[tuple[float | None, ...], ...]
    #: In the order of ``np.ndindex(grid)``; none where each is computed when it is asked for.
    units: tuple[ExploredUnit, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """A layer that is ready to be explored."""

    plan: Plan
    sums: Sums
    #: Rows and columns of the units that are measured.
    along: Sequence[Sequence[int]]
    every: UnitFields
    #: Backward passes, and about how long they take.
    passes: int
    seconds: float


def plan_of_planes(model: LoadedModel, feed: Feed, settings: Settings, layer: str) -> Plan:
    """Plan the measurement of one layer.

    Raises:
        ErfscopeError: unknown layer, or one whose map, or whose image, is no plane.
        MeasurementError: the model fails.
    """
    plan = plan_run(model, feed, settings, layer)
    space, reference = model.layer(layer).shape[2:], plan.trfs[0].reference_px
    if len(space) != 2 or len(reference) != 2:
        text = f"the explorer shows planes, and {layer} of {model.label} has a map of {len(space)} axes"
        raise ErfscopeError(f"{text} on an input of {len(reference)}; take a model of images")
    if set(axes_of(plan, 0).spacing) != {1.0}:
        raise ErfscopeError("the explorer draws circles in pixels: leave --spacing out")
    return plan


def plan_stage(model: LoadedModel, feed: Feed, settings: Settings, layer: str, grid: int) -> StagePlan:
    """Choose the units of one layer, and measure the central one to see how long they will take.

    Raises:
        ErfscopeError: unknown layer, or one whose map, or whose image, is no plane.
        MeasurementError: the model fails.
    """
    plan = plan_of_planes(model, feed, replace(settings, plain=True), layer)
    space = model.layer(layer).shape[2:]
    sums = plan.sums()
    started = time.perf_counter()
    accumulate(plan, sums, [0], plan.read)
    sums.seen, seconds = 1, time.perf_counter() - started
    chosen = resolve_units(f"grid:{grid}", space, plan.question.units[0].index, layer=layer)
    along = [sorted({unit.index[axis] for unit in chosen}) for axis in (0, 1)]
    every = fields_of(plan, sums, along)
    draws = model.layer(layer).shape[1] if plan.question.draws == "all" else plan.question.draws
    # A forward pass takes about half as long as a backward pass, and is made once for all units.
    passes, seconds_a_pass = len(every.groups) * draws, seconds / (draws + 0.5)
    return StagePlan(plan=plan, sums=sums, along=along, every=every, passes=passes, seconds=passes * seconds_a_pass)


def costs(models: Sequence[Sequence[StagePlan]], grid: int) -> list[str]:
    """What is going to be computed, a line for each model, and what would be less."""
    every = [stage for stages in models for stage in stages]
    lines = [
        f"{stages[0].plan.model.label}: {sum(len(stage.every.units) for stage in stages)} units of {len(stages)} layers"
        f" in {sum(stage.passes for stage in stages)} backward passes, about"
        f" {sum(stage.seconds for stage in stages):.0f} s"
        for stages in models
    ]
    if sum(stage.seconds for stage in every) > LONG:
        draws = "" if every[0].plan.question.draws == 1 else " --draws 1 makes each unit cheaper,"
        half = max(1, grid // 2)
        share = f"--grid {half} takes about {(half / grid) ** 2:.0%} of it"
        lines.append(f"that is over a minute: {share},{draws} and --layer NAME takes fewer layers")
    return lines


def block_sizes(stages: Sequence[StagePlan], page_bytes: int) -> list[int]:
    """Side of the blocks of each layer's maps: the smallest with which the page stays about so small.

    Each block has 3 bytes, which are 4 letters of base64. The layer with the most blocks gets larger ones first."""
    units = sum(len(stage.every.units) for stage in stages)
    most = max((page_bytes - FIXED_BYTES - units * UNIT_BYTES) * 3 // 4, units * FEWEST_BLOCKS)
    sizes = [1] * len(stages)

    def blocks(number: int) -> int:
        fields = np.array([field for field in stages[number].every.fields if field]).reshape(-1, 2, 2) // sizes[number]
        return int(np.prod(fields[..., 1] - fields[..., 0] + 1, axis=1).sum())

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
    every = stage.every
    maps = dict(unit_maps(stage.plan, stage.sums, every, callbacks))
    units = tuple(
        explored_unit(unit.index, seen, field, maps.get(number), block)
        for number, (unit, seen, field) in enumerate(zip(every.units, every.trfs, every.fields, strict=True))
    )
    return replace(stage_of(stage.plan, stage.along, block), units=units)


def stage_of(plan: Plan, along: Sequence[Sequence[int]], block: int) -> Stage:
    """The geometry of the units in some rows and columns of a layer.

    Args:
        plan: What is measured: one unit of the layer.
        along: The rows and the columns.
        block: Side of the blocks of their maps, in pixels.
    """
    middle, trf = plan.question.units[0].index, plan.trfs[0]

    def center(axis: int, place: int) -> float | None:
        index = (*middle[:axis], place, *middle[axis + 1 :])
        try:
            return plan.model.trf(plan.question.layer, index, plan.question.wrt).center_px[axis]
        except ErfscopeError:  # no path leads to it
            return None

    return Stage(
        name=plan.question.layer,
        space=tuple(plan.model.layer(plan.question.layer).shape[2:]),
        grid=tuple(map(len, along)),
        stride_px=trf.stride_px,
        trf_px=trf.size_px,
        global_by=trf.global_by or "",
        block=block,
        centers_px=tuple(tuple(center(axis, place) for place in places) for axis, places in enumerate(along)),
    )


def explored_unit(
    index: tuple[int, ...], trf: Trf | None, field: Field, erf: ErfMap | None, block: int
) -> ExploredUnit:
    """One unit, whose map is given on its field alone; without a map if it has no gradient."""
    if trf is None or erf is None:
        return ExploredUnit(
            index=index,
            center_px=None if trf is None else trf.center_px,
            trf_px=(),
            field_px=(),
            measures={},
            radii_px=(),
            levels=np.zeros((0, 0), dtype=np.uint8),
        )
    whole = np.zeros(trf.reference_px)
    whole[tuple(slice(first, last + 1) for first, last in field)] = erf.magnitude
    geometry = Geometry(replace(erf, values=whole, center_px=trf.center_px, trf=trf), whole=False)
    prepared = Prepared(whole[geometry.window], geometry)
    values = {name: MEASURES[name].function(prepared) for name in MEASURED}
    rows, cols = (slice(first // block, last // block + 1) for first, last in field)
    return ExploredUnit(
        index=index,
        center_px=trf.center_px,
        trf_px=trf.clipped_box_px,
        field_px=field,
        measures={name: value if isinstance(value, float) else None for name, value in values.items()},
        radii_px=tuple(prepared.radius(share) for share in ENCLOSED),
        levels=levels(block_sums(whole, block)[rows, cols]),
    )


def block_sums(values: FloatArray, block: int) -> FloatArray:
    """Sums of a map (H, W) over blocks of ``block`` x ``block`` pixels from its first one on, the last ones cut off."""
    rows, cols = (np.arange(0, side, block) for side in values.shape)
    return np.asarray(np.add.reduceat(np.add.reduceat(values, rows, axis=0), cols, axis=1))


def levels(weights: FloatArray) -> NDArray[np.uint8]:
    """A map in 8 bits: 0 where there is nothing, else 1 to 255 by the share that blocks at least as strong hold.

    The share is put on the scale ``share`` (:mod:`erfscope.maps.drawn`), on which equal steps look equal. It
    counts a block itself, so that the mass of all blocks of one level is the difference between two shares.

    Args:
        weights: Any shape, non-negative, not all zero.
    """
    _, place = np.unique(weights, return_inverse=True)
    held = np.cumsum(np.bincount(place.ravel(), weights.ravel() / weights.sum())[::-1])[::-1]
    bright = np.interp(np.clip(held, 0, 1), SHARES, BRIGHTNESS)[place.reshape(weights.shape)]
    return np.where(weights > 0, 1 + np.rint(254 * bright), 0).astype(np.uint8)
