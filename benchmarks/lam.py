"""Local attribution maps beside the demo's loop: the same map, and how many times as long the loop takes.

    python benchmarks/lam.py            about a minute
    python benchmarks/lam.py U-Net

The loop is that of the demo of Gu and Dong (arXiv:2011.11036): 50 steps, one after the other, each a forward and a
backward pass of the whole model on one image of 64 x 64 pixels, for a window of 16 x 16 pixels of the output. It is
given the blurred images, which the demo makes before. Both take turns on one thread, and the ratio is of the medians of
the processor's time. It is large where the window needs a small part of the operations, as of a model that enlarges:
what attends, or weighs by means over the whole image, is computed for all of it.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from statistics import median
from time import process_time

import numpy as np
import torch
from torch import Tensor, nn

import erfscope
from erfscope.apps.lam.attribution import BlurPath

SIDE, STEPS, WINDOW, TURNS = 64, 50, 16, 3


def conv(inputs: int, outputs: int, side: int = 3) -> nn.Conv2d:
    """A convolution that keeps the size."""
    return nn.Conv2d(inputs, outputs, side, padding=side // 2)


class Residual(nn.Sequential):
    """Layers whose input is added to what they give."""

    def forward(self, x: Tensor) -> Tensor:
        """Run them."""
        return x + super().forward(x)


class ChannelAttention(nn.Module):
    """The weight of each channel from its mean, as RCAN has it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weigh = nn.Sequential(nn.AdaptiveAvgPool2d(1), conv(width, width, 1), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        """Weigh the channels."""
        return x * self.weigh(x)


class WindowAttention(nn.Module):
    """Attention inside windows of 8 x 8 pixels that are moved by some, as SwinIR has it."""

    def __init__(self, width: int, shift: int) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), nn.MultiheadAttention(width, 4, batch_first=True)
        self.shift = shift

    def forward(self, x: Tensor) -> Tensor:
        """Attend, and add the input."""
        batch, width, height, length = x.shape
        parts = x.roll((-self.shift, -self.shift), (2, 3)).reshape(batch, width, height // 8, 8, length // 8, 8)
        tokens = self.norm(parts.permute(0, 2, 4, 3, 5, 1).reshape(-1, 64, width))
        found = self.attention(tokens, tokens, tokens, need_weights=False)[0]
        whole = found.reshape(batch, height // 8, length // 8, 8, 8, width).permute(0, 5, 1, 3, 2, 4)
        return x + whole.reshape(x.shape).roll((self.shift, self.shift), (2, 3))


class UNet(nn.Module):
    """One level below the image."""

    def __init__(self) -> None:
        super().__init__()
        self.fine, self.last = nn.Sequential(conv(3, 32), nn.ReLU(), conv(32, 32), nn.ReLU()), conv(64, 3)
        self.low = nn.Sequential(nn.MaxPool2d(2), conv(32, 64), nn.ReLU(), nn.ConvTranspose2d(64, 32, 2, 2))

    def forward(self, x: Tensor) -> Tensor:
        """Restore the image."""
        fine = self.fine(x)
        return x + self.last(torch.cat([fine, self.low(fine)], 1))


def enlarging(scale: int, *body: nn.Module, width: int = 32) -> nn.Sequential:
    """A body between a convolution and the upsampling of EDSR: 2 or 4 times."""
    steps = [each for _ in range(scale // 2) for each in (conv(width, 4 * width), nn.PixelShuffle(2))]
    return nn.Sequential(conv(3, width), *body, *steps, conv(width, 3))


def block(*more: nn.Module) -> Residual:
    """A residual block of EDSR, or of RCAN with its attention."""
    return Residual(conv(32, 32), nn.ReLU(), conv(32, 32), *more)


NETS: dict[str, Callable[[], nn.Module]] = {
    "SRCNN": lambda: nn.Sequential(conv(3, 64, 9), nn.ReLU(), conv(64, 32, 1), nn.ReLU(), conv(32, 3, 5)),
    "EDSR x2": lambda: enlarging(2, *(block() for _ in range(4))),
    "EDSR x4": lambda: enlarging(4, *(block() for _ in range(4))),
    "RCAN x4": lambda: enlarging(4, *(block(ChannelAttention(32)) for _ in range(4))),
    "SwinIR x2": lambda: enlarging(2, WindowAttention(32, 0), WindowAttention(32, 4), conv(32, 32)),
    "U-Net": UNet,
}


def loop(net: nn.Module, images: Tensor, start: int) -> np.ndarray:
    """The demo's: gradients at the images x_1 ... x_50, times the step that led there, summed over channels."""
    total, end = torch.zeros_like(images[0]), start + WINDOW
    for before, now in itertools.pairwise(images):
        leaf = now[None].clone().requires_grad_()
        output = net(leaf)[..., start : end + 1, start : end + 1]
        inner = output[..., :-1, :-1]
        squares = (inner - output[..., 1:, :-1]) ** 2 + (inner - output[..., :-1, 1:]) ** 2
        (gradient,) = torch.autograd.grad(squares[squares > 0].sqrt().sum(), leaf)
        total += gradient[0] * (now - before)
    return total.sum(0).abs().numpy()


def timed(run: Callable[[], np.ndarray]) -> tuple[float, np.ndarray]:
    """How long the processor works for a call, and what it returns."""
    begin = process_time()
    found = run()
    return process_time() - begin, found


def row(name: str) -> str:
    """One net: both times, how many times as long the loop takes, and how far the maps differ."""
    torch.manual_seed(0)
    net, x = NETS[name]().eval(), torch.rand(3, SIDE, SIDE, dtype=torch.float64)
    images, _ = BlurPath(steps=STEPS).part(x, 0, STEPS + 1)
    start = net(x[None].float()).shape[-1] // 2 - WINDOW // 2
    runs: list[Callable[[], np.ndarray]] = [
        lambda: loop(net, images.float(), start),
        lambda: erfscope.lam(net, x, (start, start, WINDOW)).maps[0].values,  # type: ignore[attr-defined]
    ]
    turns = [[timed(run) for run in runs] for _ in range(TURNS)]
    theirs, ours = (median(turn[n][0] for turn in turns) for n in (0, 1))
    expected, obtained = turns[0][0][1], turns[0][1][1]
    difference = np.linalg.norm(obtained - expected) / np.linalg.norm(expected)
    return f"{name:10} {theirs:8.2f} s {ours:8.2f} s {theirs / ours:8.1f} {difference:12.1e}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="*", default=[*NETS], metavar="NET", help=", ".join(NETS))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'net':10} {'loop':>10} {'erfscope':>10} {'ratio':>8} {'difference':>12}")
    for each in asked.nets:
        print(row(each), flush=True)
