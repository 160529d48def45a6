"""Nets that were reported: each was once refused, or measured wrongly."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nets import Does, conv, net, plane


@net("cast", plane())
def constant_kernel_of_another_precision():
    """A float32 constant that is no buffer is cast to the input's dtype in every pass."""
    kernel = torch.tensor([[1.0, 2, 1], [2, 4, 2], [1, 2, 1]]).expand(3, 1, 3, 3) / 16
    return Does(lambda m, x: m.out(F.conv2d(x, kernel.to(x.dtype), padding=1, groups=3).tanh()), out=conv())


def rms(x: Tensor, gain: Tensor) -> Tensor:
    y = x.float()
    return (y * torch.rsqrt(y.square().mean(1, keepdim=True) + 1e-6) * gain.float()).type_as(x)


@net("cast", plane(), dtype="float32")
def norm_in_float32_whatever_comes_in():
    """An RMS norm computes in float32 and goes back with ``type_as``, as in Gemma and Llama's reference code."""
    gain = nn.Parameter(torch.rand(4, 1, 1) + 0.5)
    return Does(lambda m, x: m.out(rms(m.stem(x), m.gain)), stem=conv(), gain=gain, out=conv(4))


@net("batch", plane())
def head_that_is_run_for_each_image():
    """SuperPoint, Pixtral and NaViT run their head for each image of a batch."""
    return Does(lambda m, x: torch.cat([m.head(each[None]) for each in m.body(x)]), body=conv(), head=conv(4))


@net("dilated", plane(0, 8, (4, 5)))
def branches_that_see_the_border_alone():
    """An ASPP behind a stem of stride 8: all outer taps of its dilated branches lie outside of the image."""
    stem = nn.Sequential(*(nn.Sequential(conv(i, 4, 3, 2), nn.Tanh()) for i in (3, 4, 4)))
    branches = nn.ModuleList(nn.Conv2d(4, 2, 3, 1, rate, rate) for rate in (1, 12, 24))
    return Does(lambda m, x: torch.cat([b(m.stem(x)) for b in m.branches], 1), stem=stem, branches=branches)
