"""The gradient engine: several units and draws from one forward pass of a batch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from erfscope.adapter import IMAGE, Adapter, Features
from erfscope.convention import Convention, random_signs
from erfscope.readout import at, leaf
from erfscope.unit import Unit

#: How many random draws per image, or "all" for the exact sum over channels.
Draws = int | Literal["all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """Contributions of a batch of images to one unit, from one backward pass (or from all channels' together)."""

    #: Position of the unit in the list asked for.
    unit: int
    draw: int
    #: (B, *space) float64 on the CPU.
    maps: Tensor
    #: Norm of each image's gradient, (B,) float64.
    norms: Tensor
    #: The same for one random-sign draw of the same forward pass; None where the draw itself is one or it was not asked for.
    yardstick: Tensor | None = None


@contextlib.contextmanager
def guarded(device: torch.device, amp_dtype: torch.dtype | None = None) -> Iterator[None]:
    """Gradients on, inference mode off, and autocast if asked for; whatever the caller's own mode is."""
    autocast = torch.autocast(device.type, dtype=amp_dtype) if amp_dtype is not None else contextlib.nullcontext()
    with torch.inference_mode(False), torch.enable_grad(), autocast:
        yield


def gradient_draws(
    adapter: Adapter,
    x: Tensor,
    units: Sequence[Unit],
    convention: Convention,
    *,
    layer: str,
    wrt: str = IMAGE,
    images: Sequence[int],
    seed: int = 0,
    draws: Draws = 1,
    yardstick: bool = False,
    amp_dtype: torch.dtype | None = None,
) -> Iterator[Draw]:
    """Contributions of every cell of the reference to each unit.

    Args:
        adapter: The model.
        x: Inputs (B, C_in, *space).
        units: Units of ``layer``'s map.
        convention: Readout and contribution.
        layer: Layer name.
        wrt: "image", or the module output or input to differentiate with respect to.
        images: Global index of each input, which random signs are keyed by.
        seed: Seed of the random signs.
        draws: Random draws per image; a convention without random signs needs and gets one.
        yardstick: Also take the norm of one random-sign draw, to tell a true gradient from rounding noise.
        amp_dtype: Autocast dtype of the forward pass.

    Yields:
        One :class:`Draw` per unit and draw.

    Source: the vector-Jacobian product of the readout; random signs are Hutchinson's estimator of the squared Frobenius norm.
    """
    with guarded(x.device, amp_dtype):
        features = adapter.features(leaf(x), layer, wrt)
        for number, unit in enumerate(units):
            if draws == "all" and convention.random:
                yield _all_channels(features, unit, number, convention)
                continue
            for draw in range(int(draws) if convention.random and draws != "all" else 1):
                y = at(features.map, unit)
                signs = _signs(y, images, seed, draw) if convention.random else None
                g = _backward(features, convention.readout(y, signs))
                measure = yardstick and not convention.random and draw == 0
                norm = _norms(_backward(features, (y * _signs(y, images, seed, 0)).sum(1))) if measure else None
                yield Draw(unit=number, draw=draw, maps=convention.contribution(g).cpu(), norms=_norms(g), yardstick=norm)


def _all_channels(features: Features, unit: Unit, number: int, convention: Convention) -> Draw:
    """The exact map: one backward pass per channel, contributions added up."""
    y = at(features.map, unit)
    total, square = None, None
    for channel in range(y.shape[1]):
        g = _backward(features, y[:, channel])
        part, norm = convention.contribution(g).cpu(), _norms(g).square()
        total = part if total is None else total + part
        square = norm if square is None else square + norm
    assert total is not None
    assert square is not None
    return Draw(unit=number, draw=0, maps=total, norms=square.sqrt())


def _signs(y: Tensor, images: Sequence[int], seed: int, draw: int) -> Tensor:
    return torch.stack([random_signs(y.shape[1], seed=seed, image=image, draw=draw) for image in images]).to(y)


def _backward(features: Features, scalars: Tensor) -> Tensor:
    """Gradient of each image's scalar (B,) with respect to the reference, as a map (B, C_X, *space) in float64.

    Images of a batch do not see each other in evaluation mode, so that the sum over the batch gives each its own gradient. float64 comes
    before squares are taken: a float32 gradient of 1e-30 would have the square 0.
    """
    reference = features.reference
    if not scalars.requires_grad:
        return torch.zeros(reference_shape(features), dtype=torch.float64)
    g: Tensor | None = torch.autograd.grad(scalars.sum(), reference.edge, retain_graph=True, allow_unused=True)[0]
    if g is None:
        return torch.zeros(reference_shape(features), dtype=torch.float64)
    return reference.layout.to_map(g.detach()).double()


def reference_shape(features: Features) -> tuple[int, ...]:
    """Shape of the reference as a map, (B, C_X, *space)."""
    reference = features.reference
    channels = reference.shape[1] if reference.layout.order == "channels_first" else reference.shape[-1]
    return (reference.shape[0], channels, *reference.space)


def _norms(g: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(g.flatten(1), dim=1)
    return norms.cpu()
