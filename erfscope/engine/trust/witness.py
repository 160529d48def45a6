"""The statements of :class:`erfscope.maps.trust.Trust`: which noise, on which images, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from erfscope.adapter import IMAGE
from erfscope.engine.batch_size import device_and_dtype, lacks_for_double
from erfscope.engine.double import NarrowerTypes, NoDoublePrecision, copy_in_double, run_in_double
from erfscope.engine.state import Plan, Sums
from erfscope.engine.trust.noise import Gradient, UnitFunction
from erfscope.engine.trust.place import first_wrong_module
from erfscope.maps.erf_map import ErfMap
from erfscope.maps.probe import LARGEST_ERROR, Probe, is_hidden
from erfscope.maps.trust import TENTH, Region, Step, Trust, join
from erfscope.measures import measure

#: Images that the gradient is compared on, and draws of noise on all of them together.
IMAGES = 8
#: Of these, images that noise is put on in parts and in steps.
FURTHER_IMAGES = 4
#: Larger sigmas, in standard deviations of the reference.
STEPS = (0.03, TENTH, 0.3, 1.0)
#: What moves a scalar by more than so many of its rounding errors is no rounding.
ROUNDINGS = 1e3
#: Neither is a change of a scalar that is within so many rounding errors of its terms known to be one.
ROUNDINGS_OF_TERMS = 10


def sigmas(dtype: torch.dtype) -> tuple[float, float]:
    """The standard deviations of noise that a gradient is judged by, in those of the reference.

    The square root of the rounding error, since a model with many kinks bends early, and the cube root, at which rounding and curvature of
    a central difference balance, for smooth models.
    """
    eps = torch.finfo(dtype).eps
    return eps**0.5, eps ** (1 / 3)


class _Noise(NamedTuple):
    """The noise of one probe."""

    #: "" for noise everywhere, else the part of the reference that it is on.
    region: str
    sigma: float
    draws: int
    #: True for the cells that it is on, (*space) of the gradient; None for all.
    cells: Tensor | None = None


class _Asked(NamedTuple):
    """What is wanted of one image."""

    image: int
    draws: int
    #: Draws for parts and steps; 0 for neither.
    further: int
    #: The unit's map; None where there is none.
    erf: ErfMap | None


def witness(plan: Plan, sums: Sums, number: int, erf: ErfMap | None) -> Trust:
    """What forward passes with noise say of one unit's gradient, on the first images that were used, by all ranks together.

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
    asked = [_Asked(image, draws, math.ceil(draws / 2) if at < FURTHER_IMAGES else 0, erf) for at, image in enumerate(images)]
    gathered = plan.team.all_gather(lambda: [_of_image(plan, sums, number, each) for each in asked[plan.team.rank :: plan.team.size]])
    found = join([trust for of_one in gathered for trust in of_one])
    if not found.is_settled and device_and_dtype(plan)[1] == torch.float32:
        found = _in_double(plan, sums, number, asked, found)
    if not found.is_in_double and found.gradient and is_hidden(found.gradient) and not _is_random(sums):
        found = replace(found, gradient=(), regions=(), ladder=(), lost_in_rounding=found.lost_in_rounding + found.n_images)
    return replace(found, module=_module(plan, images[0], found.is_in_double)) if found.disagrees else found


def _is_random(sums: Sums) -> bool:
    """Whether passes of one image differ, or may."""
    return any(finding.code == "not_repeatable" for finding in sums.repeatability)


def _of_image(plan: Plan, sums: Sums, number: int, asked: _Asked) -> Trust:
    """The same of one image."""
    function = _function(plan, sums, number, asked)
    gradient = function.gradient()
    found = _of_gradient(function, gradient, asked.draws, sums.at_once)
    if not found.gradient or not asked.further:
        return found
    parts = list(_regions(asked, sigmas(function.x.dtype)[0], gradient))
    regions = zip(parts, _probes(function, gradient, parts, sums.at_once), strict=True)
    return replace(
        found,
        regions=tuple(Region(name=part.region, probe=probe) for part, probe in regions),
        ladder=tuple(_steps(function, gradient, asked, sums.at_once)),
        passes=found.passes + (2 * len(parts) + len(STEPS) + 2) * asked.further,
        grey_levels=_grey_levels(plan, gradient.spread),
    )


def _of_gradient(function: UnitFunction, gradient: Gradient, draws: int, at_once: int) -> Trust:
    """What noise everywhere says of the gradient of one image."""
    dtype = function.x.dtype
    everywhere = [_Noise("", sigma, draws) for sigma in sigmas(dtype)]
    probes = list(_probes(function, gradient, everywhere, at_once))
    passes = 1 + 2 * len(everywhere) * draws
    if not all(map(math.isfinite, (gradient.norm, *(value for probe in probes for value in probe.found)))):
        return Trust(gradient=(), passes=passes, not_finite=1)
    if not gradient.norm > 0:
        least = ROUNDINGS * torch.finfo(dtype).eps * float(gradient.channels.abs().sum())
        moved = any(abs(change) * probe.sigma * gradient.spread > least for probe in probes for change in probe.found)
        return Trust(gradient=(), passes=passes, moved_without_gradient=int(moved))
    if _is_rounding(function, gradient, probes):
        return Trust(gradient=(), passes=passes, lost_in_rounding=1)
    return Trust(gradient=tuple(probes), passes=passes)


def _in_double(plan: Plan, sums: Sums, number: int, asked: Sequence[_Asked], found: Trust) -> Trust:
    """What was found, with what noise on a copy of the model in float64 says of the same gradients.

    Rounding errors and kinks, which hide them from passes in float32, lie much closer together there.
    """
    counted = plan.cones[number].bytes if plan.cones else plan.model.pass_bytes(plan.layer, plan.settings.wrt)

    def of_rank() -> tuple[list[Trust], str]:
        if lacking := lacks_for_double(plan, counted):
            return [], f"passes in float64 need {lacking}"
        narrower = NarrowerTypes()  # type: ignore[no-untyped-call]
        ours = list[Trust]()
        try:
            double = run_in_double(partial(copy_in_double, plan.model.adapter))
            for each in asked[plan.team.rank :: plan.team.size]:
                own = _function(plan, sums, number, each)
                copied = replace(own, adapter=double, x=own.x.double(), faster=None)
                ours.append(run_in_double(partial(_of_copy, copied, own.gradient(), each.draws, sums, narrower)))
        except NoDoublePrecision as error:
            return [], str(error)
        cast = narrower.dtype
        return ours, "" if cast is None else f"the model casts float64 to {str(cast).removeprefix('torch.')} by itself"

    gathered = plan.team.all_gather(of_rank)
    trusts = [trust for of_one, _ in gathered for trust in of_one]
    why, in_double = next((text for _, text in gathered if text), ""), join(trusts) if len(trusts) == len(asked) else None
    # What agrees at such small noise is right whatever was cast on the way; what does not says nothing then.
    if in_double is None or (why and not (in_double.gradient and in_double.is_settled)):
        return replace(found, not_in_double=why)
    is_lost = in_double.lost_in_rounding > 0 and not in_double.gradient
    return replace(
        in_double,
        gradient=() if is_lost else (*found.gradient, *(replace(probe, dtype="float64") for probe in in_double.gradient)),
        not_in_double=in_double.not_in_double if is_lost else "",
        regions=() if is_lost else found.regions,
        ladder=() if is_lost else found.ladder,
        passes=found.passes + in_double.passes,
        grey_levels=found.grey_levels,
    )


def _of_copy(copied: UnitFunction, gradient: Gradient, draws: int, sums: Sums, narrower: NarrowerTypes) -> Trust:
    """What noise on a copy of the model in float64 says of the model's own gradient of one image.

    Nothing where the copy has another gradient: rounding errors have changed the model's, or what it computes depends on the type.
    """
    other = copied.gradient()
    apart = float((gradient.values - other.values).norm()) / (other.norm or 1.0)
    if apart > LARGEST_ERROR and not _is_random(sums):
        return Trust(gradient=(), passes=0, lost_in_rounding=1, not_in_double=f"its gradient in float64 is {apart:.1%} apart")
    with narrower:
        return _of_gradient(copied, gradient, draws, max(sums.at_once // 2, 1))


def _function(plan: Plan, sums: Sums, number: int, asked: _Asked) -> UnitFunction:
    device, dtype = device_and_dtype(plan)
    x = plan.read(asked.image).to(device=device, dtype=dtype)
    return UnitFunction(plan=plan, adapter=plan.model.adapter, number=number, image=asked.image, x=x, faster=sums.faster)


def _module(plan: Plan, image: int, is_in_double: bool) -> str | None:
    """The first module whose own derivative is not the true one, in the precision that showed it; None where the whole pass fails."""
    device, dtype = device_and_dtype(plan)
    adapter, x = plan.model.adapter, plan.feed.batch([image]).to(device=device, dtype=dtype)
    try:
        if not is_in_double:
            return first_wrong_module(adapter, x, sigmas(dtype))
        double = copy_in_double(adapter)
        return run_in_double(lambda: first_wrong_module(double, x.double(), sigmas(torch.float64)))
    except NoDoublePrecision:
        return None


def _is_rounding(function: UnitFunction, gradient: Gradient, probes: Sequence[Probe]) -> bool:
    """Whether the scalar neither moves by more than its rounding errors nor should, so that nothing can be said of the gradient."""
    least = ROUNDINGS_OF_TERMS * function.rounding(gradient.channels)
    changes = (probe.sigma * float(np.hypot.reduce((*probe.found, *probe.predicted))) / len(probe.found) ** 0.5 for probe in probes)
    return all(change * gradient.spread * gradient.norm <= least for change in changes)


def _regions(asked: _Asked, sigma: float, gradient: Gradient) -> Iterator[_Noise]:
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
            yield _Noise(name, sigma, asked.further, cells)


def _probes(function: UnitFunction, gradient: Gradient, noises: Sequence[_Noise], at_once: int) -> Iterator[Probe]:
    """The probe of each noise."""
    drawn = [(noise, draw) for noise in noises for draw in range(noise.draws)]
    if not drawn:
        return
    shape = gradient.values.shape
    normals = [function.normal(shape, draw + 1) * (1 if noise.cells is None else noise.cells) for noise, draw in drawn]
    steps = [noise.sigma * gradient.spread for noise, _ in drawn]
    both = (sign * step * normal for step, normal in zip(steps, normals, strict=True) for sign in (1, -1))
    scalars = function.readout(function.moved(gradient, both, at_once)).reshape(-1, 2)
    norm = gradient.norm or 1.0
    found = ((scalars[:, 0] - scalars[:, 1]) / 2 / norm / torch.tensor(steps)).tolist()
    predicted = [float((gradient.values * normal).sum()) / norm for normal in normals]
    for noise in noises:
        here = [at for at, (other, _) in enumerate(drawn) if other is noise]
        share = 1.0 if noise.cells is None else float((gradient.values * noise.cells).square().sum()) / norm**2
        yield Probe(
            sigma=noise.sigma,
            images=(function.image,) * len(here),
            predicted=tuple(predicted[at] for at in here),
            found=tuple(found[at] for at in here),
            shares=(share,) * len(here),
        )


def _steps(function: UnitFunction, gradient: Gradient, asked: _Asked, at_once: int) -> Iterator[Step]:
    """The energy of changes by larger noise beside that by small noise, which is the same but for its sigma.

    Of a readout with random signs the energy is that of all channels, which these signs estimate; else that of the scalar.
    """
    small = sigmas(function.x.dtype)[0]
    scales = (small, -small, *STEPS)
    drawn = range(asked.further)
    noises = (scale * gradient.spread * function.normal(gradient.values.shape, draw + 1) for scale in scales for draw in drawn)
    moved = torch.cat([function.moved(gradient, noises, at_once), gradient.channels[None]])
    values = moved if function.plan.convention.random else function.readout(moved)[:, None]
    by_scale = values[:-1].reshape(len(scales), len(drawn), -1)
    least = ((by_scale[0] - by_scale[1]) / 2 / small).square().sum(1).mean()
    # A step function has moved nowhere yet, and noise as large as the input may lead to NaN: neither has a ratio.
    if not least > 0 or not bool(values.isfinite().all()):
        return
    for sigma, there in zip(STEPS, by_scale[2:], strict=True):
        energies = ((there - values[-1]) / sigma).square().sum(1) / least
        yield Step(sigma=sigma, images=(function.image,) * len(drawn), energies=tuple(energies.tolist()))


def _grey_levels(plan: Plan, spread: float) -> float | None:
    """What so much of the model's input is in grey levels of 255; None where the reference is no image, or was made a tensor by others."""
    preprocess = plan.model.adapter.preprocess
    if plan.settings.wrt != IMAGE or plan.feed.kind == "tensor" or not preprocess.pixelwise:
        return None
    return 255 * spread * float(np.mean(preprocess.std))
