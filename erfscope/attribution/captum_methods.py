"""Captum's methods on a unit's readout, and ERFs as one of Captum's own classes. The only module that knows Captum."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from captum.attr import (
    GradientAttribution,
    GuidedBackprop,
    InputXGradient,
    IntegratedGradients,
    LayerGradientXActivation,
    LayerIntegratedGradients,
    NoiseTunnel,
    Occlusion,
    Saliency,
)
from torch import Tensor, nn

from erfscope.adapter import IMAGE, Adapter
from erfscope.attribution.gradient import Draw, guarded
from erfscope.convention import Contribution, Convention, Readout, convention_of
from erfscope.errors import ErfscopeError, unknown
from erfscope.layout import Layout
from erfscope.readout import UnitReadout, leaf
from erfscope.unit import Unit, UnitWord, resolve

Method = str | Callable[[UnitReadout], Any]
GRADIENT = "gradient"
#: Steps of the path integral and noisy copies per image; Captum's defaults are 50 and 5.
IG_STEPS, NOISE_SAMPLES, NOISE_STDEV = 32, 16, 0.15
NAMES = (GRADIENT, "input_x_gradient", "integrated_gradients", "guided_backprop", "smoothgrad", "occlusion")


class ErfAttribution(GradientAttribution):  # type: ignore[misc]
    """The gradient of one unit, as a Captum class.

    Args:
        adapter: The model, from ``erfscope.adapters.load`` or ``erfscope.wrap``.
        layer: Layer whose unit is read; the adapter's default layer if None.
        wrt: Module output ("NAME") or input ("NAME:in") to attribute to; the input itself if None.
    """

    def __init__(self, adapter: Adapter, layer: str | None = None, wrt: str | None = None) -> None:
        self.adapter, self.layer, self.wrt = adapter, layer or adapter.default_layer, wrt or IMAGE
        super().__init__(UnitReadout(adapter, self.layer))

    def attribute(
        self,
        inputs: Tensor,
        unit: UnitWord = "centre",
        convention: str | Convention | tuple[Readout, Contribution] = "jacobian",
        *,
        seed: int = 0,
        image: int = 0,
        draw: int = 0,
    ) -> Tensor:
        """Gradient of the unit's readout.

        Args:
            inputs: (B, C_in, *space)
            unit: The unit; "centre" is h // 2, w // 2 here, since no theoretical receptive field is computed.
            convention: Gives the readout. The contribution is left to the caller.
            seed: Seed of the random signs, where the convention has them.
            image: Global index of the image, which the signs depend on.
            draw: Number of the draw; one call is one draw.

        Returns:
            The gradient, in the shape of what it attributes to: ``inputs``, or the module's own tensor, tokens and channels-last included.
        """
        with guarded(inputs.device):
            features = self.adapter.features(leaf(inputs), self.layer, self.wrt)
            space = tuple(features.map.shape[2:])
            units = resolve(unit, space, tuple(side // 2 for side in space), layer=self.layer)
            if len(units) != 1:
                raise ErfscopeError(f"one unit per call, not {len(units)}; call attribute once for each")
            readout = UnitReadout(self.adapter, self.layer, units[0], convention, seed, image=image, draw=draw)
            (g,) = torch.autograd.grad(readout.read(features.map).sum(), features.reference.edge, allow_unused=True)
        return g if g is not None else torch.zeros(features.reference.shape, dtype=inputs.dtype, device=inputs.device)


def captum_draws(
    adapter: Adapter,
    x: Tensor,
    units: Sequence[Unit],
    convention: Convention,
    *,
    method: Method,
    layer: str,
    wrt: str = IMAGE,
    images: Sequence[int],
    seed: int = 0,
    draws: int = 1,
) -> Iterator[Draw]:
    """Contributions by one of Captum's methods, image by image; arguments as :func:`erfscope.attribution.gradient_draws`.

    Raises:
        ErfscopeError: unknown method, or one that means nothing for this model.
    """
    attribute = _attributor(method, adapter, wrt)
    for position, image in enumerate(images):
        single = x[position : position + 1]
        for number, unit in enumerate(units):
            for draw in range(draws if convention.random else 1):
                readout = UnitReadout(adapter, layer, unit, convention, seed, image=image, draw=draw)
                with guarded(x.device), warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
                    # Captum says on every call that it sets hooks or requires_grad; it is handed leaves that have it, and undoes its hooks.
                    warnings.simplefilter("ignore")
                    torch.manual_seed(seed * 1_000_003 + image)
                    attribution = attribute(readout, leaf(single))
                    g = _layout(readout, single, wrt).to_map(attribution.detach()).double()
                yield Draw(unit=number, draw=draw, maps=convention.contribution(g).cpu(), norms=g.flatten(1).norm(dim=1).cpu())


def _layout(readout: UnitReadout, x: Tensor, wrt: str) -> Layout:
    """How the reference's tensor is read as a map."""
    return Layout(order="channels_first") if wrt == IMAGE else readout.features(x, wrt).reference.layout


def _attributor(method: Method, adapter: Adapter, wrt: str) -> Callable[[UnitReadout, Tensor], Tensor]:
    """(readout, one input) -> attribution in the shape of the reference.

    Raises:
        ErfscopeError: unknown method, or one that means nothing here.
    """
    if callable(method):
        return lambda readout, x: method(readout).attribute(x)
    if method not in NAMES:
        raise unknown("method", method, NAMES)
    if wrt != IMAGE:
        return _layer_attributor(method, adapter, wrt)
    if method == "guided_backprop":
        if not any(isinstance(module, nn.ReLU) for module in adapter.module.modules()):
            raise ErfscopeError(f"guided_backprop changes the gradient of nn.ReLU, and {adapter.spec} has none; use --method gradient")
        return lambda readout, x: GuidedBackprop(readout).attribute(x)
    if method == "occlusion":
        return _occlusion
    if method == "smoothgrad":
        return lambda readout, x: _smoothgrad(Saliency(readout), x, abs=False)
    if method == "integrated_gradients":
        return lambda readout, x: IntegratedGradients(readout).attribute(x, n_steps=IG_STEPS, internal_batch_size=8)
    if method == "input_x_gradient":
        return lambda readout, x: InputXGradient(readout).attribute(x)
    return lambda readout, x: Saliency(readout).attribute(x, abs=False)


def _layer_attributor(method: str, adapter: Adapter, wrt: str) -> Callable[[UnitReadout, Tensor], Tensor]:
    name, is_input = wrt.removesuffix(":in"), wrt.endswith(":in")
    if method == "smoothgrad":
        return lambda readout, x: _smoothgrad(
            ErfAttribution(adapter, readout.layer, wrt),
            x,
            unit=readout.unit.index,
            convention=readout.convention,
            seed=readout.seed,
            image=readout.image,
            draw=readout.draw,
        )
    if method not in ("input_x_gradient", "integrated_gradients"):
        raise ErfscopeError(f"{method} is defined on the image only, not with respect to {wrt!r}; use --method gradient")
    module = dict(adapter.module.named_modules()).get(name)
    if module is None:
        raise ErfscopeError(f"{method} with respect to {wrt!r} needs a module of that name; container items work with --method gradient")
    if method == "input_x_gradient":
        return lambda readout, x: LayerGradientXActivation(readout, module).attribute(x, attribute_to_layer_input=is_input)
    return lambda readout, x: LayerIntegratedGradients(readout, module).attribute(
        x, n_steps=IG_STEPS, internal_batch_size=8, attribute_to_layer_input=is_input
    )


def _smoothgrad(method: Any, x: Tensor, **kwargs: Any) -> Tensor:
    """Mean gradient over noisy copies; the noise is 15 % of the input's range, as in Smilkov et al. 2017."""
    deviation = NOISE_STDEV * float(x.detach().max() - x.detach().min())
    result: Tensor = NoiseTunnel(method).attribute(
        x, nt_type="smoothgrad", nt_samples=NOISE_SAMPLES, nt_samples_batch_size=4, stdevs=deviation, **kwargs
    )
    return result


def _occlusion(readout: UnitReadout, x: Tensor) -> Tensor:
    """Change of the readout when a patch is set to zero, which is the mean colour after normalisation; 28 patches along the longer side."""
    channels, space = x.shape[1], x.shape[2:]
    side = max(1, -(-max(space) // 28))
    window = (channels, *(min(side, s) for s in space))
    result: Tensor = Occlusion(readout).attribute(x, sliding_window_shapes=window, strides=window, perturbations_per_eval=8)
    return result
