"""Stacks of convolutions as Luo et al. analyse them, many drawn at once: one image, one net."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from erfscope import theory

Activation = Literal["linear", "relu", "tanh", "sigmoid"]
Weights = Literal["uniform", "random"]
ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "linear": lambda h: h,
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """A kind of net: convolutions without padding or biases, so that the one unit of the last layer sees all of the
    input."""

    layers: int
    #: Taps per kernel and axis.
    kernel: int = 3
    #: One per layer; () for 1 in every layer.
    strides: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    #: Channels of the input and between the layers; the last layer has one, or as many if there are skip
    #: connections.
    width: int = 1
    #: Taps of 1 / k^2, or independent normal ones with the variance that keeps the energy of a linear net's gradient.
    weights: Weights = "uniform"
    #: Shares of the taps along one axis, which shape the weights (uniform) or their variances (random); () for equal
    #: ones.
    profile: tuple[float, ...] = ()
    activation: Activation = "linear"
    #: Whether each layer is x + conv(x).
    skip: bool = False
    #: The chance that dropout, before every layer, keeps a value; it divides the kept ones.
    keep: float = 1.0

    @property
    def steps(self) -> list[tuple[int, int]]:
        """(stride, dilation) of every layer."""
        ones = (1,) * self.layers
        return list(zip(self.strides or ones, self.dilations or ones, strict=True))

    @property
    def side(self) -> int:
        """Side of the theoretical receptive field, and so of the input."""
        strides, dilations = zip(*self.steps, strict=True)
        return theory.strided_dilated_stack([self.kernel] * self.layers, strides, dilations).trf_px

    @property
    def channels(self) -> list[int]:
        """Channels of the input, between the layers, and of the output."""
        return [self.width] * self.layers + [self.width if self.skip else 1]


class Nets(nn.Module):
    """Nets of one design, side by side; the number in the last channel of an image selects the net that sees it.

    So each image of a measurement is a run with other weights: the error bars are over runs, and a net without a
    gradient counts as a dead image.

    Args:
        design: Their common design.
        runs: Their number.
        generator: Source of weights and dropout masks.
    """

    def __init__(self, design: Design, runs: int, generator: torch.Generator) -> None:
        super().__init__()
        self.design, self.runs = design, runs
        self.kernels = nn.ParameterList([_kernels(design, runs, a, b, generator) for a, b in pairwise(design.channels)])
        self.masks = nn.ParameterList(_masks(design, runs, generator))
        #: The measured layer: its map is one unit.
        self.unit = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """One unit per image.

        Args:
            x: (B, channels + 1, side, side).

        Returns:
            (B, channels, 1, 1).
        """
        run, h = x[:, -1, 0, 0].long(), x[:, :-1]
        act = ACTIVATIONS[self.design.activation]
        for number, (kernels, (stride, dilation)) in enumerate(zip(self.kernels, self.design.steps, strict=True)):
            if self.design.keep < 1:
                h = h * self.masks[number][run]
            after = _each(h, kernels[run], stride, dilation)
            if self.design.skip:
                margin = (self.design.kernel - 1) // 2 * dilation
                after = after + h[:, :, margin:-margin, margin:-margin]
            h = act(after) if number < self.design.layers - 1 else after
        out: Tensor = self.unit(h)
        return out

    def pictures(self, generator: torch.Generator) -> Tensor:
        """Gaussian noise for every net, with its number: (runs, channels + 1, side, side), float64."""
        side, channels = self.design.side, self.design.channels[0]
        noise = torch.randn(self.runs, channels, side, side, dtype=torch.float64, generator=generator)
        number = torch.arange(self.runs, dtype=torch.float64).view(-1, 1, 1, 1).expand(-1, 1, side, side)
        return torch.cat([noise, number], dim=1)


def _each(h: Tensor, kernels: Tensor, stride: int, dilation: int) -> Tensor:
    """Every image through its own kernels: h (B, c, H, W), kernels (B, c', c, k, k)."""
    batch, channels, rows, cols = h.shape
    side_by_side = h.reshape(1, batch * channels, rows, cols)
    out = F.conv2d(side_by_side, kernels.flatten(0, 1), stride=stride, dilation=dilation, groups=batch)
    return out.view(batch, -1, *out.shape[2:])


def _kernels(design: Design, runs: int, before: int, after: int, generator: torch.Generator) -> nn.Parameter:
    shares = torch.tensor(design.profile or [1 / design.kernel] * design.kernel, dtype=torch.float64)
    shares = torch.outer(shares, shares) / shares.sum() ** 2
    shape = (runs, after, before, design.kernel, design.kernel)
    if design.weights == "uniform":
        return nn.Parameter((shares / before).expand(shape).clone(), requires_grad=False)
    drawn = torch.randn(shape, dtype=torch.float64, generator=generator)
    return nn.Parameter(drawn * (shares / before).sqrt(), requires_grad=False)


def _masks(design: Design, runs: int, generator: torch.Generator) -> list[nn.Parameter]:
    """Return the factors of dropout for the input of every layer, (runs, channels, side, side) each."""
    if design.keep == 1:
        return []
    masks, side = [], design.side
    for channels, (stride, dilation) in zip(design.channels, design.steps, strict=False):
        kept = torch.rand(runs, channels, side, side, dtype=torch.float64, generator=generator) < design.keep
        masks.append(nn.Parameter(kept / design.keep, requires_grad=False))
        side = math.floor((side - (design.kernel - 1) * dilation - 1) / stride) + 1
    return masks
