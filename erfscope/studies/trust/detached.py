"""The ratio of trust and Captum's infidelity of a gradient when a share of one module's output is detached."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

import erfscope
from erfscope.adapters import IMAGE, ModuleAdapter
from erfscope.api.models import feed_of
from erfscope.attribution.captum_methods import infidelity
from erfscope.attribution.readout import UnitReadout
from erfscope.errors import MeasurementError
from erfscope.maps.erf_map import FloatArray
from erfscope.maps.trust import Estimate

#: Images of one run, all of which ``--trust`` probes, and draws of noise on each for Captum.
IMAGES, PERTURBATIONS = 8, 16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Found:
    """One net of one seed with one share detached. Arrays have one entry per image."""

    share: float
    ratio: Estimate
    disagrees: bool
    #: The module of the first operation without a true derivative, which the finding names.
    module: str | None
    #: Standard deviation of the noise for Captum, in standard deviations of an image.
    sigma: float
    #: Captum's infidelity over the square of the noise's standard deviation: plain, and normalised.
    infidelity: FloatArray
    normalised: FloatArray
    #: Energy of the gradient, |g|².
    energy: FloatArray


@contextlib.contextmanager
def detached(adapter: ModuleAdapter, place: str, share: float) -> Iterator[ModuleAdapter]:
    """Detach a share of a module's output, y -> s y.detach() + (1 - s) y, which keeps its values exactly. Yield a new
    adapter, since an adapter is recorded once."""

    def mix(_module: object, _args: object, y: Tensor) -> Tensor:
        return y.detach() + (1 - share) * (y - y.detach())

    handle = adapter.module.get_submodule(place).register_forward_hook(mix)
    try:
        yield copy.copy(adapter)
    finally:
        handle.remove()


def measured(adapter: ModuleAdapter, place: str, share: float, seed: int, base: Found | None = None) -> Found:
    """Measure with one share detached, on the same images and with the same noise for every share.

    Args:
        adapter: The net, which stays as it was.
        place: Name of a module.
        share: Share of its output; 0 to detach nothing.
        seed: Seed of the images, the random signs and the noise.
        base: The measurement with nothing detached, whose sharpest noise Captum gets; None to make that one.

    Raises:
        MeasurementError: the unit has no gradient.
    """
    with detached(adapter, place, share) if share else contextlib.nullcontext(adapter) as adapter:
        result = erfscope.analyze(adapter, samples=IMAGES, seed=seed, trust=True, measures=["r50"])
        trust, unit = result.trust, result.unit
        if trust is None or trust.ratio is None or unit is None:
            raise MeasurementError(
                f"{adapter.spec} with {share:.0%} of {place} detached: {result.error or 'no gradient'}"
            )
        # Captum runs in the model's own type, where noise for float64 would drown in rounding errors.
        own = [probe for probe in trust.gradient if probe.dtype is None]
        if not own:
            raise MeasurementError(f"{adapter.spec}: rounding errors hide what Captum could find")
        sigma = base.sigma if base else min(own, key=lambda probe: probe.energy.se).sigma
        scores = _scores(adapter, unit.index, seed, sigma)
    plain, normalised, energy = np.array(scores).T
    return Found(
        share=share,
        ratio=trust.ratio,
        disagrees=trust.disagrees,
        module=trust.module,
        sigma=sigma,
        infidelity=plain,
        normalised=normalised,
        energy=energy,
    )


def _scores(adapter: ModuleAdapter, unit: tuple[int, ...], seed: int, sigma: float) -> list[tuple[float, float, float]]:
    """Return Captum's infidelity of the gradient, plain and normalised, and the gradient's energy, for each image of a
    measurement."""
    images = feed_of({"samples": IMAGES, "seed": seed}, adapter.preprocess).batch(range(IMAGES)).float()
    known = adapter.layouts(images[:1], adapter.default_layer, IMAGE)
    found = []
    for image in range(IMAGES):
        readout = UnitReadout(adapter, unit=unit, seed=seed, image=image, known=known)
        x = images[image : image + 1].clone().requires_grad_(True)
        (g,) = torch.autograd.grad(readout(x).sum(), x)
        step = sigma * float(x.detach().double().std())
        plain, normalised = (
            infidelity(readout, x.detach(), g, step=step, samples=PERTURBATIONS, normalize=normalize) / step**2
            for normalize in (False, True)
        )
        found.append((plain, normalised, float(g.double().square().sum())))
    return found
