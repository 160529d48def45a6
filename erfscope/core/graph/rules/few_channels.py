"""Strided convolutions of few channels, as the first of most models: their gradient by a convolution of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

#: Channels of the input at most. Kernels for the gradient of a convolution work on as many of them at a time as a
#: register holds: of ten images of 224 x 224 the first one of resnet18 takes two cores 64 ms, and 26 ms by
#: :class:`_StridedConvolution`; the patches of ViT 39 and 8 ms, those of convnext_tiny 13 and 5 ms.
FEW = 4
CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def pays(x: Tensor, kernel: Tensor, strides: Sequence[int]) -> bool:
    """Whether the gradient of a convolution without groups and dilation is computed faster here."""
    is_needed = x.requires_grad and torch.is_grad_enabled()
    return is_needed and x.device.type == "cpu" and kernel.shape[1] <= FEW and max(strides) > 1


def strided_convolution(
    x: Tensor, kernel: Tensor, shift: Tensor | None, strides: Sequence[int], padding: Sequence[int]
) -> Tensor:
    """Convolution (B, C_in, *space) -> (B, C, *out) by a constant kernel (C, C_in, *taps) and shift (C,), with as much
    padding at both ends of an axis."""
    found: Tensor = _StridedConvolution.apply(x, kernel, shift, (tuple(strides), tuple(padding)))
    return found


class _StridedConvolution(torch.autograd.Function):
    """Its gradient is a convolution of stride 1 whose channels are the cells of one stride.

    Source: Shi et al. 2016, "Is the deconvolution layer the same as a convolutional layer?", arXiv:1609.07009.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, kernel: Tensor, shift: Tensor | None, window: tuple[tuple[int, ...], tuple[int, ...]]
    ) -> Tensor:
        ctx.kernel, ctx.window, ctx.space = kernel, window, x.shape[2:]
        return CONVOLUTIONS[len(ctx.space)](x, kernel, shift, *window)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient g (B, C, *out) -> (B, C_in, *space)."""
        kernel, (strides, padding) = ctx.kernel, ctx.window
        (made, given), axes = kernel.shape[:2], len(strides)
        counts = [math.ceil(side / stride) for side, stride in zip(kernel.shape[2:], strides, strict=True)]
        both = [*zip(counts, strides, strict=True)]
        more = [count * stride - side for (count, stride), side in zip(both, kernel.shape[2:], strict=True)]
        filled = F.pad(kernel, [amount for each in reversed(more) for amount in (0, each)])
        # Taps k of the same k mod stride reach the same cell of a stride.
        taps, cells = range(2, 2 + 2 * axes, 2), range(3, 3 + 2 * axes, 2)
        split = filled.reshape(made, given, *(side for pair in both for side in pair)).permute(1, *cells, 0, *taps)
        by_cell = split.reshape(given * math.prod(strides), made, *counts).flip([*range(2, 2 + axes)])
        found = CONVOLUTIONS[axes](g, by_cell, None, 1, tuple(count - 1 for count in counts))
        space = found.shape[2:]
        pairs = [dim for axis in range(axes) for dim in (2 + axes + axis, 2 + axis)]
        found = found.reshape(len(g), given, *strides, *space).permute(0, 1, *pairs)
        found = found.reshape(len(g), given, *(side * stride for side, stride in zip(space, strides, strict=True)))
        sides = [*zip(ctx.space, padding, found.shape[2:], strict=True)]
        return F.pad(found, [n for side, low, have in sides[::-1] for n in (-low, side + low - have)]), *(None,) * 3
