"""Small nets for volumes and clips, built as the published ones are, with random weights."""

from __future__ import annotations

from itertools import pairwise

import torch
from input_nets import block
from torch import Tensor, nn


def _pair(before: int, after: int, kernel: tuple[int, int, int], stride: tuple[int, int, int]) -> nn.Sequential:
    """Two convolutions with instance norm and leaky ReLU, of which the first strides."""
    padding = tuple(side // 2 for side in kernel)
    layers: list[nn.Module] = []
    for width, step in ((before, stride), (after, (1, 1, 1))):
        layers += [nn.Conv3d(width, after, kernel, step, padding), nn.InstanceNorm3d(after, affine=True)]
        layers.append(nn.LeakyReLU(0.01, inplace=True))
    return nn.Sequential(*layers)


class PlainUNet(nn.Module):
    """The plain U-Net of nnU-Net (Isensee et al. 2021) with an anisotropic first stage."""

    def __init__(self, widths: tuple[int, ...] = (4, 8, 12), classes: int = 3) -> None:
        super().__init__()
        kernels = ((1, 3, 3), *((3, 3, 3),) * (len(widths) - 1))
        strides = ((1, 1, 1), (1, 2, 2), *((2, 2, 2),) * (len(widths) - 2))
        before = (1, *widths[:-1])
        self.encoder = nn.ModuleList(map(_pair, before, widths, kernels, strides))
        steps = [*zip(pairwise(widths), kernels, strides[1:], strict=False)][::-1]
        self.up = nn.ModuleList(nn.ConvTranspose3d(deep, fine, step, step) for (fine, deep), _, step in steps)
        self.decoder = nn.ModuleList(_pair(2 * fine, fine, kernel, (1, 1, 1)) for (fine, _), kernel, _ in steps)
        self.head = nn.Conv3d(widths[0], classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 1, D, H, W) -> (B, classes, D, H, W)."""
        skips: list[Tensor] = []
        for stage in self.encoder:
            x = stage(x)
            skips.append(x)
        for up, stage, skip in zip(self.up, self.decoder, skips[-2::-1], strict=True):
            x = stage(torch.cat([up(x), skip], 1))
        return self.head(x)


class _MedBlock(nn.Module):
    """A depthwise convolution, group norm, expansion and compression, with a residual where the size stays."""

    def __init__(self, before: int, after: int, kernel: int = 5, *, move: int = 1) -> None:
        super().__init__()
        kind = nn.ConvTranspose3d if move < 0 else nn.Conv3d
        self.spatial = kind(before, before, kernel, abs(move), kernel // 2, groups=before)
        self.norm = nn.GroupNorm(before, before)
        self.wide, self.narrow = nn.Conv3d(before, 2 * before, 1), nn.Conv3d(2 * before, after, 1)
        self.skip = nn.Identity() if before == after else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.narrow(nn.functional.gelu(self.wide(self.norm(self.spatial(x)))))
        return y if self.skip is None else y + self.skip(x)


class MedNeXt(nn.Module):
    """MedNeXt (Roy et al. 2023) of three stages with 5 x 5 x 5 kernels; upward maps are padded by a first slice."""

    def __init__(self, width: int = 4, classes: int = 2) -> None:
        super().__init__()
        widths = (width, 2 * width, 4 * width)
        self.stem = nn.Conv3d(1, width, 1)
        self.stages = nn.ModuleList(_MedBlock(each, each) for each in widths)
        self.down = nn.ModuleList(_MedBlock(a, b, move=2) for a, b in pairwise(widths))
        self.up = nn.ModuleList(_MedBlock(b, a, move=-2) for a, b in [*pairwise(widths)][::-1])
        self.back = nn.ModuleList(_MedBlock(each, each) for each in widths[-2::-1])
        self.head = nn.ConvTranspose3d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 1, D, H, W) -> (B, classes, D, H, W)."""
        x = self.stages[0](self.stem(x))
        skips = [x]
        for down, stage in zip(self.down, [*self.stages][1:], strict=True):
            x = stage(down(x))
            skips.append(x)
        for up, stage, skip in zip(self.up, self.back, skips[-2::-1], strict=True):
            x = stage(nn.functional.pad(up(x), (1, 0, 1, 0, 1, 0)) + skip)
        return self.head(x)


class _Residual(nn.Module):
    """Convolutions with PReLU whose input, repeated over the channels, is added."""

    def __init__(self, before: int, after: int, count: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(
                nn.Sequential(nn.Conv3d(before if k == 0 else after, after, 5, padding=2), nn.PReLU(after))
                for k in range(count)
            )
        )
        self.times = after // before if after > before else 1

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        return y + x.repeat(1, self.times, 1, 1, 1)[:, : y.shape[1]]


class VNet(nn.Module):
    """V-Net (Milletari et al. 2016) of three stages: residual stages of 5 x 5 x 5 kernels, 2 x 2 x 2 strides."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.first = _Residual(1, width, 1)
        self.down = nn.ModuleList(nn.Conv3d(width * 2**k, width * 2 ** (k + 1), 2, 2) for k in range(2))
        self.deep = nn.ModuleList(_Residual(width * 2 ** (k + 1), width * 2 ** (k + 1), k + 2) for k in range(2))
        self.up = nn.ModuleList(nn.ConvTranspose3d(width * 2 ** (k + 1), width * 2**k, 2, 2) for k in (1, 0))
        self.fine = nn.ModuleList(_Residual(width * 2 ** (k + 1), width * 2 ** (k + 1), 2) for k in (1, 0))
        self.thin = nn.ModuleList(nn.Conv3d(width * 2 ** (k + 1), width * 2**k, 1) for k in (1, 0))
        self.head = nn.Conv3d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 1, D, H, W) -> probabilities (B, 2, D, H, W)."""
        x = self.first(x)
        skips = []
        for down, deep in zip(self.down, self.deep, strict=True):
            skips.append(x)
            x = deep(down(x))
        for up, fine, thin, skip in zip(self.up, self.fine, self.thin, skips[::-1], strict=True):
            x = thin(fine(torch.cat([up(x), skip], 1)))
        return self.head(x).softmax(1)


class _Shifted(nn.Module):
    """A residual block of 2-D convolutions whose branch sees a share of the channels shifted along time."""

    def __init__(self, before: int, after: int, stride: int, frames: int) -> None:
        super().__init__()
        self.body = nn.Sequential(block(before, after, stride), block(after, after))
        self.skip = nn.Conv2d(before, after, 1, stride)
        self.frames = frames

    def forward(self, x: Tensor) -> Tensor:
        y = x.unflatten(0, (-1, self.frames))
        fold = y.shape[2] // 4
        moved = torch.zeros_like(y)
        moved[:, :-1, :fold] = y[:, 1:, :fold]
        moved[:, 1:, fold : 2 * fold] = y[:, :-1, fold : 2 * fold]
        moved[:, :, 2 * fold :] = y[:, :, 2 * fold :]
        return (self.body(moved.flatten(0, 1)) + self.skip(x)).relu()


class TemporalShift(nn.Module):
    """A ResNet with temporal shift modules (Lin et al. 2019): frames are a batch of 2-D convolutions."""

    def __init__(self, width: int = 8, frames: int = 8) -> None:
        super().__init__()
        self.stem = block(3, width, 2)
        self.stages = nn.Sequential(
            _Shifted(width, width, 1, frames), _Shifted(width, 2 * width, 2, frames),
            _Shifted(2 * width, 2 * width, 1, frames),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, T, H, W) -> (B, C, T, H / 4, W / 4)."""
        y = self.stages(self.stem(x.transpose(1, 2).flatten(0, 1)))
        return y.unflatten(0, (len(x), -1)).transpose(1, 2)


class _Inverted(nn.Module):
    """A bottleneck of X3D: expansion, a depthwise 3 x 3 x 3 convolution, squeeze and excitation, projection."""

    def __init__(self, before: int, after: int, stride: int, *, squeeze: bool) -> None:
        super().__init__()
        inner = 2 * after
        self.expand = nn.Sequential(nn.Conv3d(before, inner, 1), nn.BatchNorm3d(inner), nn.ReLU(inplace=True))
        self.spatial = nn.Conv3d(inner, inner, 3, (1, stride, stride), 1, groups=inner)
        self.squeeze = (
            nn.Sequential(nn.AdaptiveAvgPool3d(1), nn.Conv3d(inner, 4, 1), nn.ReLU(), nn.Conv3d(4, inner, 1),
                          nn.Sigmoid()) if squeeze else None
        )  # fmt: skip
        self.project = nn.Conv3d(inner, after, 1)
        self.skip = (
            nn.Identity() if before == after and stride == 1 else nn.Conv3d(before, after, 1, (1, *[stride] * 2))
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.spatial(self.expand(x))
        y = nn.functional.silu(y if self.squeeze is None else y * self.squeeze(y))
        return (self.project(y) + self.skip(x)).relu()


class X3D(nn.Module):
    """X3D (Feichtenhofer 2020): a stem of a 1 x 3 x 3 and a temporal 5 x 1 x 1 convolution, inverted bottlenecks."""

    def __init__(self, width: int = 8, classes: int = 5, *, squeeze: bool = True) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv3d(3, width, (1, 3, 3), (1, 2, 2), (0, 1, 1), bias=False),
            nn.Conv3d(width, width, (5, 1, 1), padding=(2, 0, 0), groups=width, bias=False),
            nn.BatchNorm3d(width), nn.ReLU(inplace=True),
        )  # fmt: skip
        self.stages = nn.Sequential(
            _Inverted(width, width, 2, squeeze=squeeze), _Inverted(width, width, 1, squeeze=False),
            _Inverted(width, 2 * width, 2, squeeze=squeeze),
        )  # fmt: skip
        self.head = nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, T, H, W) -> scores (B, classes)."""
        return self.head(self.stages(self.stem(x)).mean((2, 3, 4)))


class SlowFast(nn.Module):
    """SlowFast (Feichtenhofer et al. 2019): a pathway of every fourth frame, which a thin one of all frames joins."""

    def __init__(self, slow: int = 8, fast: int = 4, alpha: int = 4) -> None:
        super().__init__()
        self.alpha = alpha
        flat, deep = (1, 3, 3), (3, 3, 3)
        self.fast = nn.ModuleList([self._stage(3, fast, deep), self._stage(fast, fast, deep)])
        self.slow = nn.ModuleList([self._stage(3, slow, flat), self._stage(slow + 2 * fast, slow, deep)])
        self.lateral = nn.ModuleList(
            nn.Conv3d(fast, 2 * fast, (5, 1, 1), (alpha, 1, 1), (2, 0, 0), bias=False) for _ in range(2)
        )

    @staticmethod
    def _stage(before: int, after: int, kernel: tuple[int, int, int]) -> nn.Sequential:
        padding = tuple(side // 2 for side in kernel)
        convolution = nn.Conv3d(before, after, kernel, (1, 2, 2), padding, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm3d(after), nn.ReLU(inplace=True))

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, T, H, W) -> (B, slow + 2 fast, T / 4, H / 4, W / 4)."""
        slow, fast = x[:, :, :: self.alpha], x
        for a, b, lateral in zip(self.slow, self.fast, self.lateral, strict=True):
            slow, fast = a(slow), b(fast)
            slow = torch.cat([slow, lateral(fast)], 1)
        return slow
