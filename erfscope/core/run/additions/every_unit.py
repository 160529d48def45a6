"""``--unit all``: the sizes of every unit of a layer, of maps on their theoretical receptive fields (TRF) alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import product

import numpy as np
import torch
from torch import Tensor

from erfscope.core.adapter import Features
from erfscope.core.answer.from_sums import noise_floor
from erfscope.core.answer.maps.erf_map import ErfMap
from erfscope.core.answer.measures import MEASURES, Geometry, Prepared
from erfscope.core.answer.positions import MEASURED, Positions
from erfscope.core.answer.result import Result
from erfscope.core.graph.moved import MovedForward
from erfscope.core.graph.run import Forward
from erfscope.core.run.additions.field_sum import FieldSum
from erfscope.core.run.additions.moved_units import features_of, most_copies, needs_of_whole_images
from erfscope.core.run.additions.unit_fields import UnitFields, fields_of
from erfscope.core.run.attribution.forward import ForwardPass, GraphForward
from erfscope.core.run.attribution.gradient import contributions
from erfscope.core.run.engine.batch import FLOAT64, Need, device_and_dtype, gib
from erfscope.core.run.engine.plan import Callbacks, Plan, Sums, axes_of
from erfscope.core.run.engine.running_sums import on_box
from erfscope.core.system.environment import available_bytes, ran_out
from erfscope.core.system.model_errors import model_failed
from erfscope.core.system.precision import float32_precision
from erfscope.core.values.axes import Axes
from erfscope.core.values.errors import ErfscopeError
from erfscope.core.values.finding import Finding
from erfscope.core.values.printable import counted
from erfscope.core.values.unit import Unit

#: Cells of the geometries that are kept at most: one for all units whose fields lie inside, and some for those at the
#: border. Three numbers each, 100 MB in all.
KEPT_CELLS = 1 << 22
#: Size of a map, the unit's centre and its stride -> their geometry.
GeometryOf = Callable[[tuple[int, ...], tuple[float, ...], tuple[float, ...], Axes], Geometry]


def sizes(erf: ErfMap | None, geometry_of: GeometryOf) -> dict[str, float]:
    """The measures that are taken of every unit; NaN for those that its map does not have.

    A map is zero outside the TRF: radii around the unit are the same on the TRF alone.
    """
    if erf is None:
        return dict.fromkeys(MEASURED, math.nan)
    measured = erf.measured
    prepared = Prepared(
        measured.magnitude, geometry_of(measured.values.shape, measured.center_px, measured.stride_px, measured.axes)
    )
    values = {name: MEASURES[name].of(prepared) for name in MEASURED}
    return {name: value if isinstance(value, float) else math.nan for name, value in values.items()}


def _geometry(
    shape: tuple[int, ...], center_px: tuple[float, ...], stride_px: tuple[float, ...], axes: Axes
) -> Geometry:
    return Geometry(ErfMap(values=np.zeros(shape), center_px=center_px, stride_px=stride_px, axes=axes))


#: Where the memory that there is is not known.
SOME_MEMORY = 1 << 30


@dataclass(kw_only=True)
class _Run:
    """One attempt to measure all units."""

    plan: Plan
    every: UnitFields
    images: Sequence[int]
    batch_size: int
    #: Of every image in a pass, each for one group of units.
    copies: int
    #: The forward pass of all images, where one batch holds them all.
    kept: Features | None = None
    #: Whether a pass of many units has failed, so that each has a whole image to itself.
    is_alone: bool = False
    #: The images, where one batch holds them all.
    loaded: dict[int, Tensor] = field(default_factory=dict)
    #: By the number of images and copies that go through.
    forwards: dict[int, ForwardPass] = field(default_factory=dict)


def with_positions(plan: Plan, sums: Sums, results: list[Result], callbacks: Callbacks) -> list[Result]:
    """The result of one unit with the sizes of all units of its layer; a failed one as it is."""
    (result,) = results
    if result.status == "error":
        return results
    with float32_precision(tf32=plan.settings.tf32):
        found = positions_of(plan, sums, callbacks)
    if found is not None:
        return [replace(result, positions=found)]
    missing = Finding(
        code="stopped",
        text="stopped before every unit was measured; --resume measures them in a run with -o DIR",
    )
    return [replace(result, findings=(*result.findings, missing))]


def positions_of(plan: Plan, sums: Sums, callbacks: Callbacks) -> Positions | None:
    """r50 and context_r50 of every unit of the layer, over the images that were measured.

    Args:
        plan: What was measured: one unit of the layer.
        sums: Over which images, and what came out of it.
        callbacks: What is called meanwhile.

    Returns:
        The sizes; None where the run was stopped.

    Raises:
        ErfscopeError: an image cannot be read.
        MeasurementError: the model fails, or does not fit into memory with one image.
    """
    every = fields_of(plan, sums)
    found = {name: np.full(len(every.units), math.nan) for name in MEASURED}
    # Units that stand alike in fields of the same size share one.
    largest = max((math.prod(last - first + 1 for first, last in field) for field in every.fields), default=1)
    geometry_of = lru_cache(maxsize=max(1, KEPT_CELLS // max(largest, 1)))(_geometry)
    done = 0
    for number, erf in field_maps(plan, sums, every, callbacks):
        for name, value in sizes(erf, geometry_of).items():
            found[name][number] = value
        done += 1
    if done < sum(map(len, every.groups)):
        return None
    shaped = {name: values.reshape(every.space) for name, values in found.items()}
    return Positions(inside=every.inside, passes=len(every.groups), alone=every.alone, **shaped)


def field_maps(plan: Plan, sums: Sums, every: UnitFields, callbacks: Callbacks) -> Iterator[tuple[int, ErfMap | None]]:
    """The map of each unit on its TRF, in the order of the groups; None for one without a gradient. Ends early where it
    is stopped.

    As many groups are summed up at once as fit into memory; a single batch is run once, and each further batch once for
    each of these."""
    run = _prepared(plan, sums, every)
    floor = noise_floor((plan.settings.amp_dtype or str(device_and_dtype(plan)[1])).removeprefix("torch."))
    portions, done, convention = _portions(run), 0, plan.question.convention
    callbacks.tell(f"{plan.model.label} · {plan.site.layer}: {_estimate(run, len(portions))}")
    for portion in portions:
        try:
            totals = _summed(run, portion, callbacks)
        except ErfscopeError:
            raise
        except Exception as error:  # anything a model may raise
            raise model_failed(plan.model.label, plan.model.adapter, error) from error
        if totals is None:
            return
        for number, total in totals.items():
            trf = every.trfs[number]
            usable = trf is not None and (total.ratio is None or total.ratio >= floor)
            erf = total.map(trf, convention, axes_of(plan, 0)) if usable and trf is not None else None
            yield number, erf
        done += len(totals)
        callbacks.progress(done, len(every.units))


def _prepared(plan: Plan, sums: Sums, every: UnitFields) -> _Run:
    """The attempt: whole passes of the images that were read, and copies of them, as many as fit into memory."""
    images = [index for index in plan.indices[: sums.seen] if index not in sums.unreadable]
    batches = needs_of_whole_images(plan)
    batch_size = min(batches.batch_size, sums.batch_size)
    run = _Run(plan=plan, every=every, images=images, batch_size=batch_size, copies=1)
    taken, fitted = min(batch_size, len(images)), sums.batch_size == sums.planned
    may_copy = plan.site.takes_batches and plan.model.adapter.most_images is None
    may_copy = may_copy and every.forward is None and not every.by_crops
    if taken and fitted and may_copy:
        run.copies = _copies(run, taken, batches.needs)
    return run


def _copies(run: _Run, taken: int, needs: Sequence[Need]) -> int:
    """How many copies of so many images go through together, each for one group of units."""
    groups = len(run.every.groups)
    copies = min(most_copies(run.plan, taken, needs), max(groups, 1))
    # Of one size: three and three rather than four and two.
    return math.ceil(groups / math.ceil(groups / copies)) if groups else 1


def _portions(run: _Run) -> list[list[list[int]]]:
    """Groups whose sums are in memory together: one for each copy where a pass of all images is kept, else as many as
    fit into half of it."""
    groups = run.every.groups
    if len(run.images) <= run.batch_size:
        return [groups[first : first + run.copies] for first in range(0, len(groups), run.copies)]
    there = available_bytes()
    room = (SOME_MEMORY if there is None else there) // 2
    found: list[list[list[int]]] = []
    taken = room
    for group in run.every.groups:
        # A sum and its next contribution.
        size = (
            2
            * FLOAT64
            * sum(math.prod(last - first + 1 for first, last in run.every.fields[number]) for number in group)
        )
        if taken + size > room:
            found.append([])
            taken = 0
        found[-1].append(group)
        taken += size
    return found


def _estimate(run: _Run, portions: int) -> str:
    """Say how much is computed."""
    draws, every = run.plan.question.draws, run.every
    times = 1 if draws == "all" else int(draws)
    there = available_bytes()
    memory = "" if there is None else f"; {gib(there)} of memory are free"
    alone = f", each in its own since {every.alone}" if every.alone else ""
    passes = counted(math.ceil(len(every.groups) / run.copies) * times, "backward pass")
    units = counted(len(every.units), "unit")
    if every.forward is not None:
        return f"{units}, {every.forward.count} at a time on parts of an image: {passes} for each image{memory}"
    if every.by_crops:
        return f"{units}, each by the operations that it needs: {passes} for each batch{alone}{memory}"
    return (
        f"{units} in {passes} of {run.copies} {'copy' if run.copies == 1 else 'copies'} per batch{alone},"
        f" {counted(1 if len(run.images) <= run.batch_size else portions, 'forward pass')} of each image{memory}"
    )


def _summed(run: _Run, portion: Sequence[Sequence[int]], callbacks: Callbacks) -> dict[int, FieldSum] | None:
    """The sums of some groups over all images; None where the run was stopped. What fails is tried again with fewer
    copies, and what does not fit with smaller batches."""
    while True:
        if run.is_alone:
            portion = [[number] for group in portion for number in group]
        totals = {number: FieldSum(run.every.fields[number]) for group in portion for number in group}
        add: Callable[[], None] | None = None
        try:
            for first in range(0, len(run.images), run.batch_size):
                for add in _passes(run, list(run.images[first : first + run.batch_size]), portion, totals):
                    if callbacks.stop():
                        return None
                    add()
                add = None  # its graph is freed before the next one is made
            return totals
        except Exception as error:
            run.kept = add = None
            if run.every.forward is not None or run.every.by_crops:
                run.every, run.is_alone = replace(run.every, forward=None, by_crops=False), True
            elif run.copies > 1:
                # As a model that takes so many images at most.
                run.copies //= 2
            elif ran_out(error) and run.batch_size > 1:
                run.batch_size //= 2
                run.forwards.clear()
            else:
                raise


def _passes(
    run: _Run, images: list[int], portion: Sequence[Sequence[int]], totals: Mapping[int, FieldSum]
) -> Iterator[Callable[[], None]]:
    """What adds a batch's contributions to the units of some groups, one pass after the other."""
    every = run.every
    if every.forward is not None:
        for index, group in product(images, portion):
            yield partial(_add_moved, run, every.forward, index, group, totals)
    elif every.by_crops:
        x = torch.cat([_image(run, index) for index in images])
        for (number,) in portion:
            yield partial(_add_crop, run, x, images, every.units[number], totals[number])
    else:
        features = _forward(run, images)
        for first in range(0, len(portion), run.copies):
            yield partial(_add, run, features, images, portion[first : first + run.copies], totals)


def _forward(run: _Run, images: list[int]) -> Features:
    """The forward pass of a batch and its copies; that of the only batch is kept."""
    if run.kept is not None:
        return run.kept
    x = torch.cat([_image(run, index) for index in images] * run.copies)
    if len(x) not in run.forwards:
        run.forwards[len(x)] = _pass_of(run.plan, len(x))
    (features,) = run.forwards[len(x)](x)
    if len(images) == len(run.images):
        run.kept = features
    return features


def _pass_of(plan: Plan, images: int) -> ForwardPass:
    """The forward pass of so many images to all of a layer: by the graph where it saves frozen norms (resnet18 1.3
    times faster, vit_tiny 1.15 times slower), or alone tells what is meant; else by the model itself."""
    site = plan.site
    is_alone = any(map(plan.model.recording.is_call, (site.layer, site.wrt))) or site.is_from_bare_stage
    if plan.plain_reason is not None or not (is_alone or plan.model.whole(site).norms):
        return plan.model_forward
    whole = plan.model.whole(site, images=images)
    return GraphForward(Forward(whole, plan.model.adapter.tensors()), (0,) * len(whole.image), [plan.question.place])


def _add(
    run: _Run,
    features: Features,
    images: list[int],
    groups: Sequence[Sequence[int]],
    totals: Mapping[int, FieldSum],
) -> None:
    """Add a batch's contributions to the units of some groups, each in its own copy of the batch."""
    units = [[run.every.units[number] for number in group] for group in groups]
    # Copies that are left over in the last pass are read at units that are there already, and not added.
    units += units[-1:] * (run.copies - len(units))
    rows = [[totals[number] for number in group] for group in groups for _ in images]
    _add_rows(run.plan, features, units, images, rows, keep=True)


def _add_moved(
    run: _Run, forward: MovedForward, index: int, group: Sequence[int], totals: Mapping[int, FieldSum]
) -> None:
    """Add one image's contributions to the units of a group, each in its own part of it."""
    indices = [run.every.units[number].index for number in group]
    features, origins = features_of(forward, _image(run, index), indices)
    unit = replace(run.plan.question.units[0], index=(0,))
    rows = [[totals[number]] for number in group]
    _add_rows(
        run.plan, features, [[unit]] * forward.count, [index], rows, keep=False, whole_model=False, origins=origins
    )


def _add_crop(run: _Run, x: Tensor, images: Sequence[int], unit: Unit, total: FieldSum) -> None:
    """Add a batch's contributions to one unit, by the operations that it needs."""
    plan, count = run.plan, len(images)
    (crop,) = plan.model.crops(plan.site, [unit.index], images=count, most=max(count, run.batch_size))
    forward = Forward(crop, plan.model.adapter.tensors())
    (features,) = GraphForward(forward, (0,) * len(crop.image), [plan.question.place])(x)
    alone = replace(unit, index=(0,))
    _add_rows(plan, features, [[alone]], images, [[total]] * count, keep=False, whole_model=False)


def _image(run: _Run, index: int) -> Tensor:
    """One image where the model lies, kept where one batch holds all."""
    found = run.loaded.get(index)
    if found is None:
        device, dtype = device_and_dtype(run.plan)
        found = run.plan.feed.batch([index]).to(device=device, dtype=dtype)
        if len(run.images) <= run.batch_size:
            run.loaded[index] = found
    return found


def _add_rows(
    plan: Plan,
    features: Features,
    units: Sequence[Sequence[Unit]],
    images: Sequence[int],
    rows: Sequence[Sequence[FieldSum]],
    *,
    keep: bool,
    whole_model: bool = True,
    origins: Sequence[Sequence[int] | None] = (),
) -> None:
    """Add contributions: those of each row of a pass to the sums of its units.

    Args:
        plan: What is measured.
        features: A forward pass.
        units: As for :func:`contributions`.
        images: Global index of each input.
        rows: The sums of the units of each row.
        keep: Whether the graph is needed afterwards.
        whole_model: As for :func:`contributions`.
        origins: The first cell of each row's maps along each axis of the reference, where each row has its own.
    """
    compare = plan.may_cancel and any(total.ratio is None for row in rows for total in row)
    total, count = None, 0
    asked = {"compare": compare, "keep": keep, "whole_model": whole_model}
    for (found,) in contributions([features], units, plan.question, images, **asked):
        total, count = found.maps if total is None else total + found.maps, count + 1
        origins = origins or [found.origin] * len(rows)
        _compare_with_noise([each.cpu() for each in found.squares or ()], rows, origins)
    assert total is not None
    is_finite = iter(found.value.isfinite().all(1).tolist())
    for row, maps, origin in zip(rows, (total / count).cpu(), origins, strict=False):
        for own in row:
            if next(is_finite):
                own.add(on_box(maps[None], own.part, origin)[0].numpy(), plan.question.convention)


def _compare_with_noise(
    squares: Sequence[Tensor], rows: Sequence[Sequence[FieldSum]], origins: Sequence[Sequence[int] | None]
) -> None:
    """Note how large each unit's gradient is against one with random signs, for the first image that has one."""
    for row, origin, *pair in zip(rows, origins, *(squares or ((), ())), strict=False):
        for total in row:
            norm, other = (float(on_box(values[None], total.part, origin).sum().sqrt()) for values in pair)
            if total.ratio is None and norm > 0 and math.isfinite(norm) and math.isfinite(other):
                total.ratio = norm / other if other > 0 else math.inf
