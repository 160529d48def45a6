"""Several units of disjoint theoretical receptive fields (TRF) from one backward pass.

The gradient of the sum of their scalars, cut to the TRF of one unit, is that unit's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from erfscope.adapter import Features
from erfscope.attribution.convention import random_signs
from erfscope.attribution.gradient import GradientRequest, backward, guarded, remaining_squares, reweight_channels
from erfscope.geometry.unit import Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class JointContribution:
    """Contributions of a batch of images to units whose TRFs do not overlap, from one draw."""

    draw: int
    #: (B, *space) float64 on the CPU: at each cell the contribution to the unit whose TRF the cell lies in.
    maps: Tensor
    #: Whether the unit's channels are finite, (B, n); elsewhere its gradient means nothing.
    finite: Tensor
    #: Squared norm over channels at each cell, of the readout's gradient as
    #: :func:`erfscope.attribution.gradient.remaining_squares` has it and of that of a readout with random signs; None
    #: where not asked for.
    squares: Tensor | None = None
    random_sign_squares: Tensor | None = None


def joint_contributions(
    features: Features, units: Sequence[Unit], asked: GradientRequest
) -> Iterator[JointContribution]:
    """Contributions to several units, each with the signs that it would get alone; the graph of the pass is kept.

    One backward pass after the other: as a batch of gradients (``is_grads_batched``) eight take 1.04 to 1.2 times as
    long on the CPU, for layer3 of resnet18 and the sixth block of vit_tiny_patch16_224 at 224 px, and give the same
    numbers.

    Args:
        features: The forward pass of the whole batch.
        units: Units whose TRFs do not overlap; they read the same channels.
        asked: What is wanted of every unit. With ``draws="all"`` one backward pass is made per channel.

    Returns:
        One :class:`JointContribution` per draw, made as they are asked for.

    Source: the compressed vector-Jacobian products of Curtis, Powell & Reid 1974; random signs are keyed by seed, image
    and draw alone."""
    convention = asked.convention
    exact = asked.draws == "all" and convention.random
    count = int(asked.draws) if convention.random and asked.draws != "all" else 1
    for draw in range(count):
        with guarded(features.map.device):
            rows = unit_rows(features.map, units)
            finite = rows.detach().isfinite().all(1).reshape(-1, len(units)).cpu()
            if exact:
                yield JointContribution(draw=draw, maps=_all_channels(features, rows, asked), finite=finite)
                continue
            signs = _signs(rows, len(units), asked, draw)
            g = backward(features, convention.readout(rows, signs if convention.random else None), keep=True)
            compare = asked.with_random_signs and not convention.random and draw == 0
            random = backward(features, reweight_channels(convention, rows, signs), keep=True) if compare else None
            maps = convention.contribution(g)
            found = JointContribution(
                draw=draw,
                maps=maps.cpu(),
                finite=finite,
                squares=remaining_squares(convention, g, maps).cpu() if compare else None,
                random_sign_squares=None if random is None else random.square().sum(1).cpu(),
            )
        yield found


def unit_rows(features: Tensor, units: Sequence[Unit]) -> Tensor:
    """The channels of several units, (B, C, *space) -> (B * n, C): those of an image's units beside each other."""
    index: list[Any] = [
        torch.tensor(along, device=features.device) for along in zip(*(unit.index for unit in units), strict=True)
    ]
    rows: Tensor = features[(slice(None), slice(None), *index)].transpose(1, 2).flatten(0, 1)
    return rows if units[0].channels is None else rows[:, list(units[0].channels)]


def _signs(rows: Tensor, count: int, asked: GradientRequest, draw: int) -> Tensor:
    """Random signs of every row: those of its image."""
    each = [random_signs(rows.shape[1], seed=asked.seed, image=image, draw=draw) for image in asked.images]
    return torch.stack(each).repeat_interleave(count, dim=0).to(rows)


def _all_channels(features: Features, rows: Tensor, asked: GradientRequest) -> Tensor:
    total: Tensor | None = None
    for channel in range(rows.shape[1]):
        part = asked.convention.contribution(backward(features, rows[:, channel], keep=True)).cpu()
        total = part if total is None else total + part
    assert total is not None
    return total
