"""Captum's methods on a unit's readout, and ERFs as one of Captum's own classes; the core's only door to Captum."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
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
from captum.log import log_usage
from torch import Tensor, nn

from erfscope.core.adapter import Adapter
from erfscope.core.answer.convention import ContributionRule, Convention, Readout
from erfscope.core.run.attribution.captum_parameters import (
    COPIES,
    IG_STEPS,
    NOISE_SAMPLES,
    NOISE_STDEV,
    PATCHES,
    copies,
)
from erfscope.core.run.attribution.forward import Question, guarded
from erfscope.core.run.attribution.gradient import (
    Contribution,
    in_double,
    remaining_squares,
    reweight_channels,
    without_nonfinite,
)
from erfscope.core.run.attribution.readout import UnitReadout, as_leaf, unit_channels
from erfscope.core.system.restore import generators_lock
from erfscope.core.values.errors import ErfscopeError, unknown
from erfscope.core.values.names import IMAGE, INPUT, is_input
from erfscope.core.values.unit import Unit, UnitWord, resolve_units

Method = str | Callable[[UnitReadout], Any]
Attributor = Callable[[UnitReadout, Tensor], Any]
GRADIENT = "gradient"


class ErfAttribution(GradientAttribution):  # type: ignore[misc]
    """The gradient of one unit, as a Captum class.

    Args:
        adapter: The model, from ``erfscope.adapters.load`` or ``erfscope.wrap``.
        layer: Layer whose unit is read; the adapter's default layer if None.
        wrt: Module output ("NAME") or input ("NAME:in") to attribute to; the input itself if None.
    """

    def __init__(self, adapter: Adapter, layer: str | None = None, wrt: str | None = None) -> None:
        self.adapter, self.layer, self.wrt = adapter, layer or adapter.default_layer, wrt or IMAGE
        #: Reads the layer's map, whichever unit is asked for.
        self.reader = UnitReadout(adapter, self.layer)
        super().__init__(self.reader)

    # As on Captum's own methods: NoiseTunnel calls what this decorator wraps.
    @log_usage()  # type: ignore[untyped-decorator]
    def attribute(
        self,
        inputs: Tensor,
        unit: UnitWord = "centre",
        convention: str | Convention | tuple[Readout, ContributionRule] = "jacobian",
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
            The gradient, in the shape of what it attributes to: ``inputs``, or the module's own tensor, tokens and
                channels-last included.
        """
        with guarded(inputs.device):
            features = self.reader.features(as_leaf(inputs), self.wrt)
            space = tuple(features.map.shape[2:])
            units = resolve_units(unit, space, tuple(side // 2 for side in space), layer=self.layer)
            if len(units) != 1:
                raise ErfscopeError(f"one unit per call, not {len(units)}; call attribute once for each")
            readout = UnitReadout(self.adapter, self.layer, units[0], convention, seed, image=image, draw=draw)
            scalar, g = readout.read(features.map).sum(), None
            if scalar.requires_grad:
                (g,) = torch.autograd.grad(scalar, features.reference.edge, allow_unused=True)
        return g if g is not None else torch.zeros(features.reference.shape, dtype=inputs.dtype, device=inputs.device)


def captum_draws(
    adapter: Adapter,
    x: Tensor,
    question: Question,
    image: int,
    *,
    method: Method,
    compare: bool = False,
) -> Iterator[Iterator[Contribution]]:
    """Contributions to each unit by one of Captum's methods.

    Args:
        adapter: The model.
        x: One input, (1, C_in, *space).
        question: What is asked of the model.
        image: Global index of the input, which random numbers are keyed by.
        method: Name, or function of a readout that makes a Captum method.
        compare: Also take the norm with random signs, to tell a true gradient from rounding noise.

    Yields:
        For each unit its draws, made as they are asked for.

    Raises:
        ErfscopeError: unknown method, or one that is not defined for this model.
    """
    site, convention = question.site, question.convention
    attribute = _attributor(method, adapter, site.wrt)

    def attribution(unit: Unit, convention: Convention, draw: int) -> tuple[Tensor, Tensor]:
        readout = UnitReadout(adapter, site.layer, unit, convention, question.seed, image=image, draw=draw)
        return _attribution(attribute, readout, x, site.wrt)

    def draws(unit: Unit) -> Iterator[Contribution]:
        for draw in range(int(question.draws) if convention.random else 1):
            g, y = attribution(unit, convention, draw)
            maps, squares = convention.contribution(g), None
            if compare and draw == 0 and not convention.random:
                other, _ = attribution(unit, _randomise_signs(convention), 0)
                squares = remaining_squares(convention, g, maps), other.square().sum(1)
            value = in_double(y.detach())
            yield Contribution(maps=without_nonfinite(maps, value.isfinite().all(1)), value=value, squares=squares)

    return map(draws, question.units)


def _randomise_signs(convention: Convention) -> Convention:
    """The same weights on the channels, but with random signs."""

    def readout(y: Tensor, signs: Tensor | None) -> Tensor:
        assert signs is not None
        return reweight_channels(convention, y, signs)

    return replace(convention, readout=readout, random=True)


def _attribution(attribute: Attributor, readout: UnitReadout, x: Tensor, wrt: str) -> tuple[Tensor, Tensor]:
    """Attribution of one input (1, C_in, *space) as a map (1, C_X, *space) in float64, and the unit's channels (1,
    C)."""
    # Captum says on every call that it sets hooks or requires_grad; it is handed leaves that have it, and undoes its
    # hooks.
    with guarded(x.device), warnings.catch_warnings(), _seed_image(readout, x.device):
        warnings.simplefilter("ignore")
        found = attribute(readout, as_leaf(x))
        features = readout.features(x, wrt)
    shape, layout = features.reference.shape, features.reference.layout
    if not isinstance(found, Tensor) or tuple(found.shape) != shape:
        got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ErfscopeError(
            f"the method must return a tensor of the shape of {wrt!r}, which is {shape}; it returned {got}"
        )
    return in_double(features.reference.part(layout.to_map(found.detach()))), unit_channels(features.map, readout.unit)


@contextlib.contextmanager
def _seed_image(readout: UnitReadout, device: torch.device) -> Iterator[None]:
    """Random numbers that depend on the seed and the image alone, one thread at a time; the caller's generators are put
    back."""
    number = (readout.seed * 1_000_003 + readout.image) % 2**63
    with generators_lock, torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        # Not torch.manual_seed, which would seed every GPU of the process.
        torch.default_generator.manual_seed(number)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(number)
        yield


def _attributor(method: Method, adapter: Adapter, wrt: str) -> Attributor:
    """(readout, one input) -> attribution in the shape of the reference.

    Raises:
        ErfscopeError: unknown method, or one that is not defined for this model and reference.
    """
    if callable(method):
        return lambda readout, x: method(readout).attribute(x)
    if method not in ON_IMAGE:
        raise unknown("method", method, NAMES)
    if not is_input(wrt):
        return _layer_attributor(method, adapter, wrt)
    if method == "guided_backprop" and not any(isinstance(module, nn.ReLU) for module in adapter.module.modules()):
        raise ErfscopeError(
            f"guided_backprop changes the gradient of nn.ReLU, and {adapter.spec} has none; use --method gradient"
        )
    return ON_IMAGE[method]


def _layer_attributor(method: str, adapter: Adapter, wrt: str) -> Attributor:
    name, is_input = wrt.removesuffix(INPUT), wrt.endswith(INPUT)
    if method in (GRADIENT, "smoothgrad"):
        return lambda readout, x: _unit_gradient(readout, x, wrt, smooth=method == "smoothgrad")
    if method not in ("input_x_gradient", "integrated_gradients"):
        raise ErfscopeError(
            f"{method} is defined on the image only, not with respect to {wrt!r}; use --method gradient"
        )
    module = dict(adapter.module.named_modules()).get(name)
    if module is None:
        raise ErfscopeError(
            f"{method} with respect to {wrt!r} needs a module of that name; container items work with --method gradient"
        )
    if method == "input_x_gradient":
        return lambda readout, x: LayerGradientXActivation(readout, module).attribute(
            x, attribute_to_layer_input=is_input
        )
    return lambda readout, x: _layer_integrated(readout, module, x, is_input)


def _unit_gradient(readout: UnitReadout, x: Tensor, wrt: str, *, smooth: bool) -> Any:
    """Gradient with respect to a module's tensor, or its mean over noisy copies of the input."""
    method = ErfAttribution(readout.adapter, readout.layer, wrt)
    same = {"seed": readout.seed, "image": readout.image, "draw": readout.draw}
    options: dict[str, Any] = {"unit": readout.unit, "convention": readout.convention, **same}
    return _smoothgrad(method, x, **options) if smooth else method.attribute(x, **options)


def _layer_integrated(readout: UnitReadout, module: nn.Module, x: Tensor, is_input: bool) -> Any:
    """Integrated gradients along the path of a module's output, or of its input as that module alone sees it.

    Captum puts the points of the path into the model as leaves, which no in-place operation may overwrite: the model
    goes on with a copy. The hook that copies is set in the call itself, since of several hooks the one set last runs
    last."""

    def forward(inputs: Tensor) -> Tensor:
        if is_input:
            handle = module.register_forward_pre_hook(lambda _, args: (args[0].clone(), *args[1:]))
        else:
            handle = module.register_forward_hook(lambda _m, _args, output: output.clone())
        try:
            scalars: Tensor = readout(inputs)
        finally:
            handle.remove()
        return scalars

    method = LayerIntegratedGradients(forward, module)
    return _integrated(method, x, attribute_to_layer_input=is_input)


def _integrated(method: Any, x: Tensor, **options: Any) -> Any:
    together = copies("integrated_gradients", math.prod(x.shape[2:]))
    return method.attribute(x, n_steps=IG_STEPS, internal_batch_size=together, **options)


def _guided_backprop(readout: UnitReadout, x: Tensor) -> Any:
    """Guided backpropagation; Captum hands in-place activations a copy.

    Raises:
        ErfscopeError: some ReLU does not depend on the image, such as one of a network that makes position biases.
    """
    try:
        return GuidedBackprop(readout).attribute(x)
    except RuntimeError as error:
        if "register a hook on a tensor" not in str(error):
            raise
        raise ErfscopeError(
            f"guided_backprop needs every nn.ReLU to depend on the image, and one of {readout.adapter.spec} does not;"
            " use --method gradient"
        ) from error


def _smoothgrad(method: Any, x: Tensor, **options: Any) -> Any:
    """Mean gradient over noisy copies."""
    return NoiseTunnel(method).attribute(
        x,
        nt_type="smoothgrad",
        nt_samples=NOISE_SAMPLES,
        nt_samples_batch_size=COPIES["smoothgrad"],
        stdevs=NOISE_STDEV * float(x.detach().max() - x.detach().min()),
        **options,
    )


def _occlusion(readout: UnitReadout, x: Tensor) -> Any:
    """Change of the readout when a patch is set to zero, which is the mean colour after normalisation."""
    channels, *space = x.shape[1:]
    side = max(1, -(-max(space) // PATCHES))
    window = (channels, *(min(side, s) for s in space))
    together = copies("occlusion", math.prod(space))
    return Occlusion(readout).attribute(
        x, sliding_window_shapes=window, strides=window, perturbations_per_eval=together
    )


ON_IMAGE: dict[str, Attributor] = {
    GRADIENT: lambda readout, x: Saliency(readout).attribute(x, abs=False),
    "input_x_gradient": lambda readout, x: InputXGradient(readout).attribute(x),
    "integrated_gradients": lambda readout, x: _integrated(IntegratedGradients(readout), x),
    "guided_backprop": _guided_backprop,
    "smoothgrad": lambda readout, x: _smoothgrad(Saliency(readout), x, abs=False),
    "occlusion": _occlusion,
}
NAMES = tuple(ON_IMAGE)
