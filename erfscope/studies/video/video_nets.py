"""3D ResNets in the style of I3D, with graph or attention layers behind the second stage, and their training.

Source: Nicolicioiu & Duta, section 4.2: three stages of two blocks (I3D-S, 4.1 M parameters) or three (I3D-L, 6.1 M),
the map behind the second stage 5 x 16 x 16 x 128, taken to 32 channels for two layers and back. Kernels are not given;
those here, 3 x 3 in space and then 3 in time, come near these numbers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from erfscope.adapters.blocks import GCN, Pipeline, SelfAttention
from erfscope.maps.erf_map import FloatArray
from erfscope.restore import seed_generators
from erfscope.studies.study import StudyOptions
from erfscope.studies.training import batches, one_cycle, train
from erfscope.studies.video.moving_digits import Scale, moving_digits

#: Name -> blocks per stage, and the layers behind the second stage.
VIDEO_NETS = {"I3D-S": (2, None), "I3D-L": (3, None), "I3D-S + GCN": (2, "gcn"), "I3D-S + SA": (2, "attention")}
PARAMETERS = {"I3D-S": 4.1e6, "I3D-L": 6.1e6}
#: The paper's largest distances, in pixels; half of these in the smaller videos.
DISTANCES = (20, 60, 80, 100)
#: The paper's videos, and those that nets are trained on at a scale that fits two cores; channels of those nets.
PAPER, SMALL = Scale(), Scale(frames=6, side=64, zoom=1, digits=3, symbols=3)
NARROW = (16, 32, 64)
#: Largest learning rate.
RATE = 2e-3


class Residual(nn.Module):
    """ReLU(x + two times (3 x 3 in space, 3 in time)); a strided 1 x 1 x 1 convolution beside it where the shape
    changes.

    Args:
        in_channels: c of the input.
        out_channels: c of the output.
        stride: In time, rows and columns.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: tuple[int, int, int] = (1, 1, 1)) -> None:
        super().__init__()
        self.first = _separated(in_channels, out_channels, stride)
        self.second = _separated(out_channels, out_channels, (1, 1, 1))
        same = in_channels == out_channels and stride == (1, 1, 1)
        self.skip = (
            nn.Identity()
            if same
            else nn.Sequential(
                nn.Conv3d(in_channels, out_channels, 1, stride=stride, bias=False), nn.BatchNorm3d(out_channels)
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, c, T, H, W) -> (B, c', T', H', W')."""
        y: Tensor = self.second(torch.relu(self.first(x)))
        return torch.relu(self.skip(x) + y)


def video_net(name: str, classes: int, *, widths: Sequence[int] = (64, 128, 256), seed: int = 0) -> nn.Sequential:
    """One of :data:`VIDEO_NETS` at random weights, videos (B, 1, T, H, W) -> logits.

    Args:
        name: Which.
        classes: How many logits.
        widths: Channels of the three stages.
        seed: Of the weights.
    """
    blocks, kind = VIDEO_NETS[name]
    with seed_generators(seed):
        parts: OrderedDict[str, nn.Module] = OrderedDict(
            stem=nn.Sequential(
                nn.Conv3d(1, widths[0], (1, 5, 5), stride=(1, 2, 2), padding=(0, 2, 2), bias=False),
                nn.BatchNorm3d(widths[0]),
                nn.ReLU(),
                nn.MaxPool3d((1, 2, 2)),
            ),
            stage1=_stage(widths[0], widths[0], blocks, (1, 1, 1)),
            stage2=_stage(widths[0], widths[1], blocks, (2, 2, 2)),
        )
        if kind == "gcn":
            parts["block"] = Pipeline(widths[1], lambda c: GCN(c, c, 1, graph="full"), inner=32, layers=2, act="relu")
        if kind == "attention":
            parts["block"] = Pipeline(widths[1], lambda c: SelfAttention(c), inner=32, layers=2)
        parts["stage3"] = _stage(widths[1], widths[2], blocks, (1, 2, 2))
        parts.update(pool=nn.AdaptiveAvgPool3d(1), flat=nn.Flatten(), head=nn.Linear(widths[2], classes))
    return nn.Sequential(parts)


def _stage(in_channels: int, out_channels: int, blocks: int, stride: tuple[int, int, int]) -> nn.Sequential:
    first = Residual(in_channels, out_channels, stride)
    return nn.Sequential(first, *(Residual(out_channels, out_channels) for _ in range(blocks - 1)))


def _separated(in_channels: int, out_channels: int, stride: tuple[int, int, int]) -> nn.Sequential:
    time, down, across = stride
    return nn.Sequential(
        nn.Conv3d(in_channels, out_channels, (1, 3, 3), stride=(1, down, across), padding=(0, 1, 1), bias=False),
        nn.BatchNorm3d(out_channels),
        nn.ReLU(),
        nn.Conv3d(out_channels, out_channels, (3, 1, 1), stride=(time, 1, 1), padding=(1, 0, 0), bias=False),
        nn.BatchNorm3d(out_channels),
    )


def trained(name: str, asked: StudyOptions, number: int = 0) -> tuple[nn.Sequential, dict[int, float]]:
    """A narrow net, trained on small videos of all distances, and its accuracy at the largest one by the videos seen.

    Args:
        name: One of :data:`VIDEO_NETS`.
        asked: Effort of the training, and the folder where nets are kept.
        number: Nets of one number and of different names start from the same seed, and see the same videos.
    """
    net = video_net(name, SMALL.classes, widths=NARROW, seed=asked.seed + number)
    count, epochs = asked.pick(long=(4800, 50), full=(384, 24), quick=(128, 4), smoke=(32, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE)

    def losses(epoch: int) -> Iterator[Tensor]:
        made = [small_videos(count // len(DISTANCES), distance, asked, 100 + epoch, number) for distance in DISTANCES]
        videos, classes = (torch.cat(part) for part in zip(*made, strict=True))
        videos = videos.to(memory_format=torch.channels_last_3d)  # 1.3 times as fast
        parts = batches(len(videos), 32, epoch)
        for done, some in enumerate(parts):
            one_cycle(optimizer, RATE, (epoch + (done + 0.5) / len(parts)) / epochs)
            yield F.cross_entropy(net(videos[some]), classes[some])

    checked = small_videos(asked.pick(long=400, full=100, quick=50, smoke=20), DISTANCES[-1], asked, 20)

    def measured() -> dict[str, float]:
        return {"far": float(_right(net.eval(), *checked).mean())}

    kept = f"syncmnist-{name.replace(' + ', '-')}-{number + 1}"
    history = train(asked, kept, net, optimizer, epochs, losses, measured=measured, videos=count)
    return net, {count * (epoch + 1): entry["far"] for epoch, entry in enumerate(history)}


def small_videos(count: int, distance: float, asked: StudyOptions, part: int, number: int = 0) -> tuple[Tensor, Tensor]:
    """Videos and their classes, at one of :data:`DISTANCES`; parts and numbers differ in their random numbers."""
    generator = np.random.default_rng([asked.seed, part, round(distance), *([number] if number else [])])
    return moving_digits(count, distance * SMALL.side / PAPER.side, SMALL, generator)


def right_answers(net: nn.Sequential, asked: StudyOptions) -> FloatArray:
    """Return which videos' classes are right at each of :data:`DISTANCES`, 0 or 1, (4, videos)."""
    count = asked.pick(long=1000, full=400, quick=100, smoke=20)
    return np.stack([_right(net, *small_videos(count, distance, asked, 10)) for distance in DISTANCES])


def _right(net: nn.Sequential, videos: Tensor, classes: Tensor) -> FloatArray:
    with torch.no_grad():
        answers = torch.cat([net(some).argmax(1) for some in torch.split(videos, 50)])
    return np.asarray((answers == classes).double().numpy())
