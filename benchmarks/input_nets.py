"""Small nets of several inputs, built as the published ones are, with random weights."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def block(before: int, after: int, stride: int = 1, kind: Any = nn.Conv2d) -> nn.Sequential:
    """A 3 x 3 convolution (3 x 3 x 3 for ``nn.Conv3d``), batch norm and ReLU."""
    norm = nn.BatchNorm3d if kind is nn.Conv3d else nn.BatchNorm2d
    return nn.Sequential(kind(before, after, 3, stride, 1, bias=False), norm(after), nn.ReLU(inplace=True))


class Stereo(nn.Module):
    """Disparity by a concatenation volume and soft-argmin, as in PSMNet (Chang & Chen 2018)."""

    def __init__(self, width: int = 8, disparities: int = 16) -> None:
        super().__init__()
        self.disparities = disparities
        self.features = nn.Sequential(block(3, width, 2), block(width, width), block(width, width, 2))
        self.branches = nn.ModuleList(
            nn.Sequential(nn.AvgPool2d(size, size), nn.Conv2d(width, width, 1), nn.ReLU(inplace=True))
            for size in (4, 8)
        )
        self.fuse = nn.Conv2d(3 * width, width, 1)
        self.aggregate = nn.Sequential(
            block(2 * width, width, kind=nn.Conv3d),
            block(width, width, kind=nn.Conv3d),
            nn.Conv3d(width, 1, 3, padding=1),
        )

    def extract(self, x: Tensor) -> Tensor:
        """Features of one view with pooled context, at a quarter of the size."""
        y = self.features(x)
        wide = [F.interpolate(each(y), y.shape[-2:], mode="bilinear") for each in self.branches]
        return self.fuse(torch.cat([y, *wide], 1))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """(B, 3, H, W) twice -> (B, 1, H, W)."""
        a, b = self.extract(left), self.extract(right)
        batch, width, *space = a.shape
        cost = a.new_zeros(batch, 2 * width, self.disparities // 4, *space)
        for shift in range(self.disparities // 4):
            if shift > 0:
                cost[:, :width, shift, :, shift:] = a[:, :, :, shift:]
                cost[:, width:, shift, :, shift:] = b[:, :, :, :-shift]
            else:
                cost[:, :width, shift] = a
                cost[:, width:, shift] = b
        cost = self.aggregate(cost.contiguous())
        cost = F.interpolate(cost, (self.disparities, *left.shape[-2:]), mode="trilinear").squeeze(1)
        values = torch.arange(self.disparities, dtype=cost.dtype, device=cost.device).view(1, -1, 1, 1)
        return (cost.softmax(1) * values).sum(1, keepdim=True)


class CorrelationStereo(nn.Module):
    """Disparity by correlation along rows, as in DispNetC (Mayer et al. 2016)."""

    def __init__(self, width: int = 8, shifts: int = 5) -> None:
        super().__init__()
        self.shifts = shifts
        self.features = nn.Sequential(block(3, width, 2), block(width, width, 2))
        self.reduce = nn.Conv2d(width, width, 1)
        self.decode = nn.Sequential(block(shifts + width, width, 2), block(width, width))
        self.up = nn.ConvTranspose2d(width, width, 4, 2, 1)
        self.head = nn.Conv2d(2 * width, 1, 3, padding=1)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """(B, 3, H, W) twice -> (B, 1, H / 4, W / 4)."""
        a, b = self.features(left), self.features(right)
        padded = F.pad(b, (self.shifts - 1, 0))
        first = [padded[..., k : k + a.shape[-1]] for k in range(self.shifts)]
        volume = torch.stack([(a * each).mean(1) for each in first], 1)
        y = self.up(self.decode(torch.cat([volume, self.reduce(a)], 1)))
        return self.head(torch.cat([y, a], 1))


class Tracker(nn.Module):
    """Cross-correlation of a template with a larger search image, as in SiamFC (Bertinetto et al. 2016)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, width, 11, 2), nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2),
            nn.Conv2d(width, width, 5, groups=2), nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2),
            nn.Conv2d(width, width, 3),
        )  # fmt: skip

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        """(B, 3, h, w) and (B, 3, H, W) -> (B, 1, H', W')."""
        template, search = self.backbone(z), self.backbone(x)
        batch, width, *space = search.shape
        found = F.conv2d(search.reshape(1, batch * width, *space), template, groups=batch)
        return 0.001 * found.transpose(0, 1)


class RgbD(nn.Module):
    """Two ResNets whose stages are added, as in FuseNet (Hazirbas et al. 2016)."""

    def __init__(self) -> None:
        super().__init__()
        from torchvision.models import resnet18

        self.color, self.depth_net = resnet18(weights=None), resnet18(weights=None)
        self.depth_net.conv1 = nn.Conv2d(1, 64, 7, 2, 3, bias=False)
        self.head = nn.Conv2d(512, 5, 1)

    def forward(self, rgb: Tensor, depth: Tensor) -> Tensor:
        """(B, 3, H, W) and (B, 1, H, W) -> (B, 5, H, W)."""
        a, b = (net.maxpool(net.relu(net.bn1(net.conv1(x)))) for net, x in ((self.color, rgb), (self.depth_net, depth)))
        for stage in ("layer1", "layer2", "layer3", "layer4"):
            b = getattr(self.depth_net, stage)(b)
            a = getattr(self.color, stage)(a) + b
        return F.interpolate(self.head(a), rgb.shape[-2:], mode="bilinear", align_corners=False)


class PanSharpening(nn.Module):
    """Details of a panchromatic image added to enlarged spectral bands, as in PanNet (Yang et al. 2017)."""

    def __init__(self, bands: int = 4, width: int = 8) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(bands, bands, 8, 4, 2, groups=bands, bias=False)
        self.body = nn.Sequential(block(bands + 1, width), block(width, width), nn.Conv2d(width, bands, 3, padding=1))
        self.blur = nn.AvgPool2d(5, 1, 2)

    def forward(self, ms: Tensor, pan: Tensor) -> Tensor:
        """(B, 4, h, w) and (B, 1, 4 h, 4 w) -> (B, 4, 4 h, 4 w)."""
        details = torch.cat([self.up(ms - self.blur(ms)), pan - self.blur(pan)], 1)
        return F.interpolate(ms, scale_factor=4, mode="bicubic") + self.body(details)


class ChangeDetection(nn.Module):
    """A siamese U-Net whose skips are differences, as FC-Siam-diff (Caye Daudt et al. 2018)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        sides = [3, width, 2 * width, 4 * width]
        self.down = nn.ModuleList(block(a, b) for a, b in pairwise(sides))
        self.pool = nn.MaxPool2d(2)
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, b, 3, 2, 1, 1) for b in sides[:0:-1])
        self.join = nn.ModuleList(block(2 * b, a) for a, b in zip((*sides[-2:0:-1], width), sides[:0:-1], strict=True))
        self.head = nn.Conv2d(width, 2, 1)

    def encode(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The deepest features, and those before each pooling."""
        skips = []
        for each in self.down:
            skips.append(each(x))
            x = self.pool(skips[-1])
        return x, skips[::-1]

    def forward(self, before: Tensor, after: Tensor) -> Tensor:
        """(B, 3, H, W) twice -> (B, 2, H, W)."""
        (_, old), (y, new) = self.encode(before), self.encode(after)
        for up, join, a, b in zip(self.up, self.join, old, new, strict=True):
            y = join(torch.cat([up(y), (b - a).abs()], 1))
        return self.head(y).log_softmax(1)


class Inpainting(nn.Module):
    """A gated net that is shown the image outside of a mask, as in Yu et al. 2019."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        sides = [4, width, width, width, width]
        dilations = (1, 2, 4, 1)
        self.gated = nn.ModuleList(
            nn.Conv2d(a, 2 * b, 3, padding=d, dilation=d) for a, b, d in zip(sides, sides[1:], dilations, strict=False)
        )
        self.head = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, image: Tensor, mask: Tensor) -> Tensor:
        """(B, 3, H, W) and (B, 1, H, W) -> (B, 3, H, W)."""
        y = torch.cat([image * (1 - mask), mask], 1)
        for each in self.gated:
            value, gate = each(y).chunk(2, 1)
            y = F.elu(value) * gate.sigmoid()
        return self.head(y).tanh() * mask + image * (1 - mask)
