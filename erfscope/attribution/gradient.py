"""The gradient engine: several units and draws from one forward pass of a batch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from erfscope.adapter import Adapter, Features, Reference
from erfscope.attribution.convention import Convention, random_signs
from erfscope.attribution.readout import SoundKernels, as_leaf, unit_rows
from erfscope.errors import MeasurementError
from erfscope.geometry.layout import Layout
from erfscope.geometry.names import IMAGE
from erfscope.geometry.unit import Unit, around, box_at, inside
from erfscope.graph.run import Forward

#: Pixels of a batch from which channels last is faster on a CPU: two images of 224 x 224. Measured on two cores in
#: float32, forward and backward, times faster for 1, 2 and 10 such images: resnet18 0.80, 1.00, 1.06; resnet50 1.03,
#: 1.11, 1.25; densenet121 1.15, 1.13, 1.15; mobilenetv3_large 1.17, 1.19, 1.12.
CHANNELS_LAST_PAYS = 2 * 224 * 224
#: How many random draws per image, or "all" for the exact sum over channels.
Draws = int | Literal["all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """Contributions of a batch of images to n units, from one backward pass (or from all channels' together).

    Several units share a pass where their theoretical receptive fields (TRF) do not overlap; else there is one."""

    #: Position of the first unit in the list asked for.
    unit: int
    draw: int
    #: (B, *space) float64, where the gradient is (on the CPU where the device has none); a part of the reference where
    #: ``origin`` is given. Of several units, the contribution to the one whose TRF a cell lies in.
    maps: Tensor
    #: The first cell of the maps along each axis of the reference; None if they are whole.
    origin: tuple[int, ...] | None = None
    #: Squared norm of the gradient over channels at each cell, as ``maps``, see :func:`remaining_squares`; and the same
    #: with random signs on the readout's weights. None where these have random signs, or it was not asked for.
    squares: tuple[Tensor, Tensor] | None = None
    #: The units' channels in the order of :func:`unit_rows`, (N, C) float64; None of Captum's methods.
    value: Tensor | None = None


@contextlib.contextmanager
def guarded(device: torch.device, amp_dtype: torch.dtype | None = None, *, whole_model: bool = True) -> Iterator[None]:
    """Gradients on and sound, inference mode off, and autocast only if asked for; whatever the caller's own mode is.

    Norms and recurrent layers of a model are computed as :class:`SoundKernels` does it; its graph (not ``whole_model``)
    does so by itself.
    """
    has_autocast = torch.amp.is_autocast_available(device.type)
    autocast = (
        torch.autocast(device.type, dtype=amp_dtype, enabled=amp_dtype is not None)
        if has_autocast
        else contextlib.nullcontext()
    )
    kernels = SoundKernels() if whole_model else contextlib.nullcontext()
    with torch.inference_mode(False), torch.enable_grad(), kernels, autocast:
        yield


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientRequest:
    """The request for every unit."""

    convention: Convention
    #: Global index of each input, which random signs are keyed by.
    images: Sequence[int]
    seed: int = 0
    #: Random draws per image; a convention without random signs needs and gets one.
    draws: Draws = 1
    #: Also take the norm with random signs, to tell a true gradient from rounding noise.
    with_random_signs: bool = False
    #: Autocast dtype of the forward pass.
    amp_dtype: torch.dtype | None = None


class ForwardPass(NamedTuple):
    """A forward pass of a batch, and the units that are differentiated together."""

    #: Of as many copies of the batch, one after the other, as there are lists of units.
    features: Features
    #: Of each copy; units of one copy have theoretical receptive fields (TRF) that do not overlap.
    units: Sequence[Sequence[Unit]]
    #: Position of the first unit in the list asked for.
    number: int
    #: The first cell of the maps along each axis of the reference; None if they are whole.
    origin: tuple[int, ...] | None
    #: Whether the graph is needed for other units afterwards.
    keep: bool


def gradient_draws(
    adapter: Adapter,
    x: Tensor,
    units: Sequence[Unit],
    asked: GradientRequest,
    *,
    layer: str,
    wrt: str = IMAGE,
    known: Mapping[str, Layout] | None = None,
) -> Iterator[Contribution]:
    """Contributions of every cell of the reference to each unit, from one forward pass of the whole model.

    Args:
        adapter: The model.
        x: Inputs (B, C_in, *space).
        units: Units of ``layer``'s map.
        asked: What is wanted of every unit.
        layer: Layer name.
        wrt: "image", or the module output or input to differentiate with respect to.
        known: How the layer and the reference hold their maps; found by a recorded pass if None.

    Returns:
        One :class:`Contribution` per unit and draw, made as they are asked for.

    Source: the vector-Jacobian product of the readout; random signs are Hutchinson's estimator of the squared Frobenius
    norm."""

    def passes() -> Iterator[ForwardPass]:
        # Nothing is yielded inside the block: the caller's own mode holds between two draws.
        with guarded(x.device, asked.amp_dtype):
            features = adapter.features(as_leaf(x), layer, wrt, known=known)
        for number, unit in enumerate(units):
            yield ForwardPass(features, [[unit]], number, None, number < len(units) - 1)

    return _of_passes(passes(), asked)


def graph_draws(
    passes: Sequence[Forward], x: Tensor, units: Sequence[Unit], asked: GradientRequest, *, first: Sequence[int]
) -> Iterator[Contribution]:
    """The same from the operations that the units need; see :mod:`erfscope.graph.run`.

    Args:
        passes: Of the units in order, each of one of them or more.
        x: Inputs (B, C_in, *space), the part of them that the passes need.
        units: All units.
        asked: What is wanted.
        first: Where that part begins, one pixel per axis.

    Returns:
        One :class:`Contribution` per unit and draw, made as they are asked for.
    """

    def found() -> Iterator[ForwardPass]:
        number = 0
        for forward in passes:
            plan = forward.plan
            if around([plan.image, box_at(first, x.shape[2:])]) != box_at(first, x.shape[2:]):
                text = "a batch needs more of its images than one image alone"
                raise MeasurementError(f"{text}; use --batch-size 1 or --plain (batch_size=1, plain=True)")
            image = x[inside(plan.image, first)]
            features = graph_features(forward, as_leaf(image, faster_order(image)) if plan.is_of_image else image)
            origin = tuple(low for low, _ in plan.image) if plan.is_of_image else None
            for column in range(len(plan.units)):
                unit = replace(units[number], index=(column,))
                yield ForwardPass(features, [[unit]], number, origin, column < len(plan.units) - 1)
                number += 1
            del features  # the graph is freed before the next one is made

    return _of_passes(found(), asked)


def graph_features(forward: Forward, image: Tensor) -> Features:
    """The map that a pass of a graph makes and its reference, in one graph of autograd.

    Args:
        forward: The pass.
        image: (B, C_in, *space), the part of the images that it needs; the reference, where that is the image.
    """
    with guarded(image.device, whole_model=False):
        found, reference = forward(image)
    edge = Reference(name="", edge=reference, layout=forward.plan.reference.layout, shape=tuple(reference.shape))
    return Features(map=found, reference=edge)


def faster_order(x: Tensor) -> torch.memory_format:
    """The order of memory in which convolutions of images (B, C, H, W) are faster."""
    pays = x.dim() == 4 and len(x) > 1 and x.device.type == "cpu" and x[:, 0].numel() >= CHANNELS_LAST_PAYS
    return torch.channels_last if pays else torch.preserve_format


def _of_passes(passes: Iterator[ForwardPass], asked: GradientRequest) -> Iterator[Contribution]:
    """All draws of all units. Nothing here holds a pass, so that its graph is freed before the next one is made."""
    return chain.from_iterable(map(partial(contributions, asked=asked), passes))


def contributions(forward: ForwardPass, asked: GradientRequest) -> Iterator[Contribution]:
    """Contributions of every cell of the reference to units that share each backward pass: one for every draw.

    The gradient of the sum of the units' scalars, cut to the TRF of one of them, is its own where their TRFs do not
    overlap, and copies of an image do not see each other. One backward pass follows the other: as a batch of gradients
    (``is_grads_batched``) eight take 1.04 to 1.2 times as long on the CPU, for layer3 of resnet18 and the sixth block
    of vit_tiny_patch16_224 at 224 px.

    Args:
        forward: The forward pass of the batch, or of copies of it, and the units of each copy.
        asked: What is wanted. With ``draws="all"`` one backward pass is made per channel.

    Source: the compressed vector-Jacobian products of Curtis, Powell & Reid 1974; random signs are keyed by seed, image
    and draw alone."""
    features, units, number, origin, keep = forward
    convention, device = asked.convention, features.map.device
    exact = asked.draws == "all" and convention.random
    count = int(asked.draws) if convention.random and asked.draws != "all" else 1
    images = [image for own in units for image in asked.images for _ in own]
    for draw in range(count):
        # A graph that is freed as the backward pass goes along leaves its memory to what comes next.
        more = keep or draw < count - 1
        compare = asked.with_random_signs and not convention.random and draw == 0
        with guarded(device):
            y = unit_rows(features.map, units)
            signs = random_rows(y, images, asked.seed, draw) if convention.random or compare else None
            if exact:
                maps, squares = _all_channels(features, y, convention, keep=more), None
            else:
                scalars = convention.readout(y, signs if convention.random else None)
                g = backward(features, scalars, keep=more or compare)
                maps, squares = convention.contribution(g), None
                if compare and signs is not None:
                    other = backward(features, reweight_channels(convention, y, signs), keep=more)
                    squares = remaining_squares(convention, g, maps), other.square().sum(1)
        maps = without_nonfinite(maps, y) if len(y) == len(maps) else maps
        value = in_double(y.detach())
        yield Contribution(unit=number, draw=draw, maps=maps, origin=origin, squares=squares, value=value)


def without_nonfinite(maps: Tensor, y: Tensor) -> Tensor:
    """The maps (B, *space), NaN for every image whose unit (B, C) is not finite: a ReLU's gradient is 0 or 1 even
    there, and would pass for one."""
    is_finite = in_double(y.detach()).isfinite().all(1)
    return torch.where(is_finite.reshape(-1, *(1,) * (maps.dim() - 1)), maps, torch.nan)


def reweight_channels(convention: Convention, y: Tensor, signs: Tensor) -> Tensor:
    """Randomly signed sum of the channels (B, C) -> (B,) that weighs each as much as the readout does on the average.

    So the gradients of the two can be compared whatever the readout's scale: a mean over C channels weighs each 1/C.
    """
    with torch.enable_grad():
        channels = y.detach().requires_grad_(True)
        scalars = convention.readout(channels, None)
        weights = torch.autograd.grad(scalars.sum(), channels, allow_unused=True)[0] if scalars.requires_grad else None
    if weights is None:
        return (y * 0).sum(1)
    return (y * signs * weights.square().mean(1, keepdim=True).sqrt()).sum(1)


def remaining_squares(convention: Convention, g: Tensor, maps: Tensor) -> Tensor:
    """Squared norm over channels of a gradient (B, C_X, *space) at each cell, (B, *space), as far as its contribution
    shows it.

    Where the contribution ``maps`` (B, *space) sums signed channels that cancel, it counts by the share of the sum of
    magnitudes that is left: a sum that is only rounding noise is as small as the gradient of a sum of channels that is
    only rounding noise."""
    squares = g.square().sum(1)
    if convention.random:  # sums of squares, of which nothing cancels
        return squares
    magnitudes = convention.contribution(g.abs()).abs()
    return squares * torch.where(magnitudes > 0, maps / magnitudes, 1.0).square()


def _all_channels(features: Features, y: Tensor, convention: Convention, *, keep: bool) -> Tensor:
    """The exact map: one backward pass per channel of (B * n, C), contributions added up."""
    total: Tensor | None = None
    for channel in range(y.shape[1]):
        g = backward(features, y[:, channel], keep=keep or channel < y.shape[1] - 1)
        part = convention.contribution(g)
        total = part if total is None else total + part
    assert total is not None
    return total


def random_rows(y: Tensor, images: Sequence[int], seed: int, draw: int) -> Tensor:
    """Random signs for channels (N, C), of the image that each row is of; in their dtype and on their device."""
    drawn = {image: random_signs(y.shape[1], seed=seed, image=image, draw=draw) for image in dict.fromkeys(images)}
    signs = torch.stack([drawn[image] for image in images])
    # In one copy, which does not wait.
    signs = signs.to(y.dtype).pin_memory() if y.is_cuda else signs
    return signs.to(y, non_blocking=True)


def backward(features: Features, scalars: Tensor, *, keep: bool) -> Tensor:
    """Gradient of each image's scalar (B,) with respect to the reference, as a map (B, C_X, *space) in float64.

    Images of a batch do not see each other in evaluation mode, so that the sum over the batch gives each its own
    gradient. float64 comes before squares are taken: a float32 gradient of 1e-30 would have the square 0."""
    reference = features.reference
    if not scalars.requires_grad:
        return torch.zeros(reference_shape(features), dtype=torch.float64)
    g: Tensor | None = torch.autograd.grad(scalars.sum(), reference.edge, retain_graph=keep, allow_unused=True)[0]
    if g is None:
        return torch.zeros(reference_shape(features), dtype=torch.float64)
    return in_double(reference.layout.to_map(g.detach()))


def in_double(g: Tensor) -> Tensor:
    """In float64, on the CPU where the device has none."""
    return (g.cpu() if g.device.type == "mps" else g).double()


def reference_shape(features: Features) -> tuple[int, ...]:
    """Shape of the reference as a map, (B, C_X, *space)."""
    reference = features.reference
    return reference.layout.map_shape(reference.shape)
