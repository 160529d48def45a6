"""``--trust``: the gradient beside what forward passes with noise find, in float64 where rounding errors hide it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from erfscope.core.answer import from_sums
from erfscope.core.answer.hidden import with_hidden
from erfscope.core.answer.maps.erf_map import ErfMap
from erfscope.core.answer.maps.probe import LARGEST_ERROR, is_hidden
from erfscope.core.answer.maps.trust import TENTH_OF_SPREAD, Region, Step, Trust, join, join_regions
from erfscope.core.answer.measures import Geometry, Prepared
from erfscope.core.answer.result import Result
from erfscope.core.run.additions.double import NarrowerTypes, NoDoublePrecision, copy_in_double, run_in_double
from erfscope.core.run.additions.noise import Gradient, Noise, UnitFunction, function_of, of_gradient, probes_of, sigmas
from erfscope.core.run.engine.batch import device_and_dtype, lacks_for_double
from erfscope.core.run.engine.cost import unproved_operations
from erfscope.core.run.engine.plan import Callbacks, Plan, Sums
from erfscope.core.run.engine.shared_run import SharedRun
from erfscope.core.system.model_errors import wrap_model_errors
from erfscope.core.values.names import is_input

#: Images that the gradient is compared on, and draws of noise on all of them together.
IMAGES = 8
#: Of these, images that noise is put on in parts and in steps.
FURTHER_IMAGES = 4
#: Larger sigmas, in standard deviations of the reference.
STEPS = (0.03, TENTH_OF_SPREAD, 0.3, 1.0)


class _ImageCheck(NamedTuple):
    """The request for one image."""

    image: int
    draws: int
    #: Draws for regions and steps; 0 for neither.
    further: int
    #: The unit's map; None where there is none.
    erf: ErfMap | None


T = TypeVar("T")
_OfCopy = Callable[[UnitFunction, Gradient, _ImageCheck, NarrowerTypes], T]


def _in_double(plan: Plan, number: int, asked: Sequence[_ImageCheck], of_copy: _OfCopy[T]) -> tuple[list[T], str]:
    """What passes of a copy of the model in float64 say of each image, by all ranks together, and why they say nothing;
    none of the images where one of them has nothing.

    Args:
        plan: What was measured.
        number: Of the plan's units.
        asked: The images.
        of_copy: The function in float64, the gradient that the model itself has, and the request -> what it says.
    """
    counted = SharedRun(plan).pass_bytes

    def of_rank() -> tuple[list[T], str]:
        if lacking := lacks_for_double(plan, counted):
            return [], f"passes in float64 need {lacking}"
        narrower = NarrowerTypes()  # type: ignore[no-untyped-call]
        ours = list[T]()
        try:
            double = run_in_double(partial(copy_in_double, plan.model.adapter))
            for each in plan.process_group.share(asked):
                own = function_of(plan, number, each.image)
                copied = replace(own, adapter=double, x=own.x.double())
                ours.append(run_in_double(partial(of_copy, copied, own.gradient(), each, narrower)))
        except NoDoublePrecision as error:
            return [], str(error)
        cast = narrower.dtype
        return ours, "" if cast is None else f"the model casts float64 to {str(cast).removeprefix('torch.')} by itself"

    gathered = plan.process_group.all_gather(of_rank)
    every = [each for of_one, _ in gathered for each in of_one]
    return every if len(every) == len(asked) else [], next((text for _, text in gathered if text), "")


def found_in_double(plan: Plan, sums: Sums, number: int, asked: Sequence[_ImageCheck], found: Trust) -> Trust:
    """The findings in the model's own type, completed by noise on a copy of the model in float64.

    Rounding errors and kinks, which hide them from passes in float32, lie much closer together there.

    Args:
        plan: What was measured.
        sums: Of the measurement, by all ranks.
        number: Of the plan's units.
        asked: The images that all ranks have checked.
        found: By passes of the model's own type.
    """
    trusts, why = _in_double(plan, number, asked, partial(_of_copy, batch_size=max(sums.batch_size // 2, 1)))
    in_double = join(trusts) if trusts else None
    # A gradient that agrees at such small noise is right whatever was cast; one that does not proves nothing.
    if in_double is None or (why and not (in_double.gradient and in_double.is_settled)):
        return replace(found, not_in_double=why)
    is_lost = in_double.lost_in_rounding > 0 and not in_double.gradient
    return replace(
        in_double,
        gradient=()
        if is_lost
        else (*found.gradient, *(replace(probe, dtype="float64") for probe in in_double.gradient)),
        not_in_double=in_double.not_in_double if is_lost else "",
        regions=() if is_lost else found.regions,
        ladder=() if is_lost else found.ladder,
        passes=found.passes + in_double.passes,
        grey_levels=found.grey_levels,
    )


def _of_copy(
    copied: UnitFunction, gradient: Gradient, asked: _ImageCheck, narrower: NarrowerTypes, *, batch_size: int
) -> Trust:
    """The check of the model's own gradient of one image by noise on a copy in float64.

    Nothing where the copy has another gradient: rounding errors have changed the model's, or what it computes depends
    on the type."""
    other = copied.gradient()
    apart = float((gradient.values - other.values).norm()) / (other.norm or 1.0)
    if apart > LARGEST_ERROR and not copied.plan.model.recording.draws_random_numbers:
        return Trust(
            gradient=(), passes=0, lost_in_rounding=1, not_in_double=f"its gradient in float64 is {apart:.1%} apart"
        )
    with narrower:
        return of_gradient(copied, gradient, asked.draws, batch_size)


def regions_in_double(plan: Plan, sums: Sums, number: int, asked: Sequence[_ImageCheck], found: Trust) -> Trust:
    """The findings, completed by noise on each region on a copy of the model in float64, and the gradient that it has
    there; as they are where the model cannot be run so, or casts to a narrower type."""
    of_copy = partial(_regions_of_copy, batch_size=max(sums.batch_size // 2, 1))
    tested = {image for probe in found.gradient for image in probe.images}
    some = [each for each in asked if each.further and each.image in tested]
    lists, why = _in_double(plan, number, some, of_copy)
    if why or not lists:
        return replace(found, not_in_double=why)
    by_name = {region.name: region for region in join_regions(lists)}
    passes = sum(2 * len(probe.images) for region in by_name.values() for probe in region.probes)
    regions = (
        replace(
            region,
            further=(*region.further, *(replace(probe, dtype="float64") for probe in by_name[region.name].probes)),
        )
        for region in found.regions
    )
    return replace(found, regions=tuple(regions), passes=found.passes + passes)


def _regions_of_copy(
    copied: UnitFunction, _own: Gradient, asked: _ImageCheck, narrower: NarrowerTypes, *, batch_size: int
) -> tuple[Region, ...]:
    gradient = copied.gradient()
    with narrower:
        return regions_of(copied, gradient, asked, batch_size, twice=True)


def with_trust(plan: Plan, sums: Sums, results: list[Result], _callbacks: Callbacks) -> list[Result]:
    """The results, one per unit, with what forward passes say of its gradient; failed ones as they are."""
    found = []
    for number, result in enumerate(results):
        if result.status != "error":
            with wrap_model_errors(plan.model.label, plan.model.adapter):
                trust = check_gradient(plan, sums, number, result.map)
            is_accepted = plan.settings.accept == "gradient_disagrees"
            result = from_sums.with_trust(result, replace(trust, accepted=is_accepted))
        found.append(result)
    return found


def check_gradient(plan: Plan, sums: Sums, number: int, erf: ErfMap | None) -> Trust:
    """The check of one unit's gradient by forward passes with noise, on the first images that were used, by all ranks
    together.

    Args:
        plan: What was measured.
        sums: Of the measurement, by all ranks: which images were lost, and how many fit into memory.
        number: Of the plan's units.
        erf: Its map, whose r50 and r90 say where noise is put; None where there is none.

    Raises:
        ErfscopeError: an image cannot be read.
    """
    lost = {*sums.unreadable, *sums.averages[number].nan_images}
    images = [index for index in plan.indices[: sums.seen] if index not in lost][:IMAGES]
    draws = math.ceil(IMAGES / max(len(images), 1))
    asked = [
        _ImageCheck(image, draws, math.ceil(draws / 2) if at < FURTHER_IMAGES else 0, erf)
        for at, image in enumerate(images)
    ]
    gathered = plan.process_group.all_gather(
        lambda: [_of_image(plan, sums, number, each) for each in plan.process_group.share(asked)]
    )
    found = with_hidden(join([trust for of_one in gathered for trust in of_one]), erf)
    is_single = device_and_dtype(plan)[1] == torch.float32
    if is_single and not (found.is_settled and (found.disagrees or found.is_within)):
        found = with_hidden(found_in_double(plan, sums, number, asked, found), erf)
    is_repeatable = not plan.model.recording.draws_random_numbers
    if is_single and is_repeatable and _needs_regions(found):
        found = with_hidden(regions_in_double(plan, sums, number, asked, found), erf)
    if is_repeatable and not found.is_in_double and found.gradient and is_hidden(found.gradient):
        found = replace(
            found,
            gradient=(),
            regions=(),
            ladder=(),
            hidden=None,
            lost_in_rounding=found.lost_in_rounding + found.n_images,
        )
    unproved = unproved_operations(plan.site)
    module = next(iter(unproved.values()), None) if found.disagrees else None
    return replace(found, has_unproved=bool(unproved), module=module)


def _needs_regions(trust: Trust) -> bool:
    """Whether passes in float64 may tell what noise on single regions finds."""
    if trust.disagrees or not trust.regions or trust.hidden is None:
        return False
    return not trust.hidden.is_within or trust.hidden.in_doubt != ""


def _of_image(plan: Plan, sums: Sums, number: int, asked: _ImageCheck) -> Trust:
    """The same of one image."""
    function = function_of(plan, number, asked.image)
    gradient = function.gradient()
    found = of_gradient(function, gradient, asked.draws, sums.batch_size)
    if not found.gradient or not asked.further:
        return found
    regions = regions_of(function, gradient, asked, sums.batch_size, twice=False)
    probes = [probe for region in regions for probe in region.probes]
    return replace(
        found,
        regions=regions,
        ladder=tuple(_steps(function, gradient, asked, sums.batch_size)),
        passes=found.passes + (2 * len(probes) + len(STEPS) + 2) * asked.further,
        grey_levels=_grey_levels(plan, gradient.spread),
    )


def regions_of(
    function: UnitFunction, gradient: Gradient, asked: _ImageCheck, batch_size: int, *, twice: bool
) -> tuple[Region, ...]:
    """What noise on each region finds at the smaller sigma, and at the larger one too on the outermost or, ``twice``,
    on all."""
    small, large = sigmas(function.x.dtype)
    parts = list(_parts(asked, gradient))
    noises = [
        [Noise(sigma, asked.further, cells) for sigma in ((small, large) if twice or ends_at is None else (small,))]
        for _, ends_at, cells in parts
    ]
    probes = probes_of(function, gradient, [noise for of_part in noises for noise in of_part], batch_size)
    regions = list[Region]()
    for (name, ends_at, cells), of_part in zip(parts, noises, strict=True):
        probe, *further = islice(probes, len(of_part))
        regions.append(Region(name=name, ends_at=ends_at, cells=int(cells.sum()), probe=probe, further=tuple(further)))
    return tuple(regions)


def _parts(asked: _ImageCheck, gradient: Gradient) -> Iterator[tuple[str, float | None, Tensor]]:
    """(name, where it ends, cells of the gradient) of the parts within r50, to r90, to r99.9, and beyond, where there
    are such cells."""
    if asked.erf is None or not (geometry := Geometry(asked.erf)).has_center:
        return
    whole = Prepared(asked.erf.measured.magnitude, geometry)
    measured, rank = asked.erf.axes.measured, len(gradient.box)
    place = tuple(slice(*gradient.box[axis]) for axis in measured)
    distance = torch.from_numpy(geometry.distance[place])
    for axis in sorted({*range(rank)} - {*measured}):
        distance = distance.unsqueeze(axis)
    inner = -math.inf
    for share, name in ((50, "within r50"), (90, "r50 to r90"), (99.9, "r90 to r99.9"), (None, "beyond r99.9")):
        outer = None if share is None else whole.radius(share / 100)
        cells = ((distance > inner) & (distance <= (math.inf if outer is None else outer))).expand(
            gradient.values.shape[1:]
        )
        if bool(cells.any()):
            yield name, outer, cells
        inner = inner if outer is None else outer


def _steps(function: UnitFunction, gradient: Gradient, asked: _ImageCheck, batch_size: int) -> Iterator[Step]:
    """The energy of changes by larger noise beside that by small noise, which is the same but for its sigma.

    Of a readout with random signs the energy is that of all channels, which these signs estimate; else that of the
    scalar."""
    small = sigmas(function.x.dtype)[0]
    scales = (small, -small, *STEPS)
    drawn = range(asked.further)
    noises = (
        scale * gradient.spread * function.normal(gradient.values.shape, draw + 1) for scale in scales for draw in drawn
    )
    moved = torch.cat([function.moved(gradient, noises, batch_size), gradient.channels[None]])
    values = moved if function.plan.question.convention.random else function.readout(moved)[:, None]
    by_scale = values[:-1].reshape(len(scales), len(drawn), -1)
    least = ((by_scale[0] - by_scale[1]) / 2 / small).square().sum(1).mean()
    # A step function has moved nowhere yet, and noise as large as the input may lead to NaN: neither has a ratio.
    if not least > 0 or not bool(values.isfinite().all()):
        return
    for sigma, there in zip(STEPS, by_scale[2:], strict=True):
        energies = ((there - values[-1]) / sigma).square().sum(1) / least
        yield Step(sigma=sigma, images=(function.image,) * len(drawn), energies=tuple(energies.tolist()))


def _grey_levels(plan: Plan, spread: float) -> float | None:
    """What so much of the model's input is in grey levels of 255; None where the reference is no image, or was made a
    tensor by others."""
    preprocess, feed = plan.model.adapter.preprocess.of(plan.site.wrt), plan.feed.of(plan.site.wrt)
    if not is_input(plan.site.wrt) or feed.kind in ("tensor", "volume", "sound") or not preprocess.pixelwise:
        return None
    return 255 * spread * float(np.mean(preprocess.std))
