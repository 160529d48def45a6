"""Small nets, at a scale that fits two cores, that are trained to find the digits that move in step; their accuracy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from erfscope.studies.study import StudyOptions
from erfscope.studies.training import batches, descend, fit
from erfscope.studies.video.moving_digits import Scale, moving_digits
from erfscope.studies.video.video_nets import video_net

#: The paper's largest distances, in pixels; half of these in the smaller videos.
DISTANCES = (20, 60, 80, 100)
PAPER, SMALL = Scale(), Scale(frames=6, side=64, zoom=1, digits=3, symbols=3)
NARROW = (16, 32, 64)


def trained(name: str, asked: StudyOptions) -> nn.Sequential:
    """A narrow net, trained on small videos of all distances."""
    net = video_net(name, SMALL.classes, widths=NARROW, seed=asked.seed)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    count = asked.pick(full=384, quick=128, smoke=32)

    def epoch(number: int) -> dict[str, float]:
        parts = [_small(count // len(DISTANCES), distance, asked, 100 + number) for distance in DISTANCES]
        videos, classes = (torch.cat(part) for part in zip(*parts, strict=True))
        total = 0.0
        for some in batches(len(videos), 32, number):
            total += len(some) * descend(optimizer, F.cross_entropy(net(videos[some]), classes[some]))
        return {"loss": total / len(videos)}

    fit(
        asked,
        f"syncmnist-{name.replace(' + ', '-')}",
        net,
        optimizer,
        asked.pick(full=24, quick=4, smoke=1),
        epoch,
        videos=count,
    )
    return net


def _small(count: int, distance: float, asked: StudyOptions, part: int) -> tuple[Tensor, Tensor]:
    generator = np.random.default_rng([asked.seed, part, round(distance)])
    return moving_digits(count, distance * SMALL.side / PAPER.side, SMALL, generator)


def above_chance(accuracies: Sequence[float], asked: StudyOptions) -> bool:
    """Whether the mean over distances is above chance by two standard errors."""
    chance = 1 / SMALL.classes
    error = math.sqrt(chance * (1 - chance) / (len(accuracies) * scored(asked)))
    return float(np.mean(accuracies)) > chance + 2 * error


def scored(asked: StudyOptions) -> int:
    """Videos at each distance that a net is scored on."""
    return asked.pick(full=400, quick=100, smoke=20)


def accuracies_of(net: nn.Sequential, asked: StudyOptions) -> tuple[float, ...]:
    """Return the share of videos whose class is right, at each of :data:`DISTANCES`."""
    found = []
    with torch.no_grad():
        for distance in DISTANCES:
            videos, classes = _small(scored(asked), distance, asked, 10)
            answers = torch.cat([net(some).argmax(1) for some in torch.split(videos, 50)])
            found.append(float((answers == classes).float().mean()))
    return tuple(found)
