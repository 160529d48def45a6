"""``--trust``: the gradient beside what forward passes with noise find, in float64 where rounding errors hide it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from erfscope.additions.double import NarrowerTypes, NoDoublePrecision, copy_in_double, run_in_double
from erfscope.additions.noise import Gradient, Noise, UnitFunction, function_of, of_gradient, probes_of, sigmas
from erfscope.engine.batch import device_and_dtype, lacks_for_double
from erfscope.engine.cost import unproved_operations
from erfscope.engine.plan import Callbacks, Plan, Sums
from erfscope.geometry.names import is_input
from erfscope.maps.erf_map import ErfMap
from erfscope.maps.trust import LARGEST_ERROR, TENTH_OF_SPREAD, Region, Step, Trust, is_hidden, join
from erfscope.measures import measure
from erfscope.model_errors import wrap_model_errors
from erfscope.results import from_sums
from erfscope.results.result import Result


def found_in_double(plan: Plan, sums: Sums, number: int, images: Sequence[int], draws: int, found: Trust) -> Trust:
    """The findings in the model's own type, completed by noise on a copy of the model in float64.

    Rounding errors and kinks, which hide them from passes in float32, lie much closer together there.

    Args:
        plan: What was measured.
        sums: Of the measurement, by all ranks.
        number: Of the plan's units.
        images: Those that all ranks have checked.
        draws: Of noise on each of them.
        found: By passes of the model's own type.
    """
    counted = plan.pass_bytes

    def of_rank() -> tuple[list[Trust], str]:
        if lacking := lacks_for_double(plan, counted):
            return [], f"passes in float64 need {lacking}"
        narrower = NarrowerTypes()  # type: ignore[no-untyped-call]
        ours = list[Trust]()
        try:
            double = run_in_double(partial(copy_in_double, plan.model.adapter))
            for image in plan.process_group.share(images):
                own = function_of(plan, number, image)
                copied = replace(own, adapter=double, x=own.x.double())
                ours.append(run_in_double(partial(_of_copy, copied, own.gradient(), draws, sums, narrower)))
        except NoDoublePrecision as error:
            return [], str(error)
        cast = narrower.dtype
        return ours, "" if cast is None else f"the model casts float64 to {str(cast).removeprefix('torch.')} by itself"

    gathered = plan.process_group.all_gather(of_rank)
    trusts = [trust for of_one, _ in gathered for trust in of_one]
    why, in_double = (
        next((text for _, text in gathered if text), ""),
        join(trusts) if len(trusts) == len(images) else None,
    )
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


def _of_copy(copied: UnitFunction, gradient: Gradient, draws: int, sums: Sums, narrower: NarrowerTypes) -> Trust:
    """The check of the model's own gradient of one image by noise on a copy in float64.

    Nothing where the copy has another gradient: rounding errors have changed the model's, or what it computes depends
    on the type."""
    other = copied.gradient()
    apart = float((gradient.values - other.values).norm()) / (other.norm or 1.0)
    if apart > LARGEST_ERROR and not copied.plan.model.draws_random_numbers:
        return Trust(
            gradient=(), passes=0, lost_in_rounding=1, not_in_double=f"its gradient in float64 is {apart:.1%} apart"
        )
    with narrower:
        return of_gradient(copied, gradient, draws, max(sums.batch_size // 2, 1))


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
    #: Draws for parts and steps; 0 for neither.
    further: int
    #: The unit's map; None where there is none.
    erf: ErfMap | None


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
    found = join([trust for of_one in gathered for trust in of_one])
    if not found.is_settled and device_and_dtype(plan)[1] == torch.float32:
        found = found_in_double(plan, sums, number, images, draws, found)
    if not found.is_in_double and found.gradient and is_hidden(found.gradient) and not plan.model.draws_random_numbers:
        found = replace(
            found, gradient=(), regions=(), ladder=(), lost_in_rounding=found.lost_in_rounding + found.n_images
        )
    if not found.disagrees:
        return found
    unproved = unproved_operations(plan.model.recording, plan.question.layer, plan.question.wrt)
    return replace(found, module=next(iter(unproved.values()), None))


def _of_image(plan: Plan, sums: Sums, number: int, asked: _ImageCheck) -> Trust:
    """The same of one image."""
    function = function_of(plan, number, asked.image)
    gradient = function.gradient()
    found = of_gradient(function, gradient, asked.draws, sums.batch_size)
    if not found.gradient or not asked.further:
        return found
    parts = list(_regions(asked, sigmas(function.x.dtype)[0], gradient))
    regions = zip(parts, probes_of(function, gradient, parts, sums.batch_size), strict=True)
    return replace(
        found,
        regions=tuple(Region(name=part.region, probe=probe) for part, probe in regions),
        ladder=tuple(_steps(function, gradient, asked, sums.batch_size)),
        passes=found.passes + (2 * len(parts) + len(STEPS) + 2) * asked.further,
        grey_levels=_grey_levels(plan, gradient.spread),
    )


def _regions(asked: _ImageCheck, sigma: float, gradient: Gradient) -> Iterator[Noise]:
    """Noise within r50, between r50 and r90, and beyond, where there are such cells."""
    sizes = {} if asked.erf is None else measure(asked.erf, ["r50", "r90"])
    r50, r90 = sizes.get("r50"), sizes.get("r90")
    if asked.erf is None or not isinstance(r50, float) or not isinstance(r90, float):
        return
    space, center = gradient.values.shape[1:], asked.erf.center_px
    plane = range(len(space))[-2:]
    away = [torch.arange(space[axis], dtype=torch.float64) + gradient.origin[axis] - center[axis] for axis in plane]
    distance = torch.stack(torch.meshgrid(*away, indexing="ij")).norm(dim=0).expand(space)
    for name, cells in (
        ("within r50", distance <= r50),
        ("r50 to r90", (distance > r50) & (distance <= r90)),
        ("beyond r90", distance > r90),
    ):
        if bool(cells.any()):
            yield Noise(name, sigma, asked.further, cells)


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
    preprocess, feed = plan.model.adapter.preprocess.of(plan.question.wrt), plan.feed.of(plan.question.wrt)
    if not is_input(plan.question.wrt) or feed.kind in ("tensor", "volume", "sound") or not preprocess.pixelwise:
        return None
    return 255 * spread * float(np.mean(preprocess.std))
