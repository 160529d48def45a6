"""Attention pooling: cells are scored, the best are kept in their place, and the rest become zero."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from erfscope.adapters.blocks.maps import MapBlock, one_of, whole
from erfscope.core.values.errors import ErfscopeError


class TopKPooling(MapBlock):
    """Keeps the k cells with the largest score y = x . p / |p|, each multiplied by a gate of its score; all others are
    zero.

    The cells stay where they are, so that the map keeps its shape. Of cells with the same score those counted first are
    kept.

    Args:
        in_channels: c of the input.
        ratio: Share of the cells to keep, in (0, 1], rounded up; or their number, at most all.
        nonlinearity: The gate: ``"sigmoid"`` or ``"tanh"`` of the score, or ``"softmax"`` over the scores of all cells.

    Raises:
        ErfscopeError: a ratio that is neither, or an unknown gate.

    Source: Gao & Ji 2019, arXiv:1905.05178 (sigmoid); PyTorch Geometric's ``TopKPooling`` (tanh); Knyazev et al. 2019,
    arXiv:1905.02850 (softmax)."""

    def __init__(self, in_channels: int, ratio: float | int = 0.5, nonlinearity: str = "sigmoid") -> None:
        super().__init__()
        if isinstance(ratio, bool) or not (
            (isinstance(ratio, int) and ratio >= 1) or (isinstance(ratio, float) and 0 < ratio <= 1)
        ):
            raise ErfscopeError(f"ratio is a share of the cells in (0, 1] or a number of them, not {ratio!r}")
        self.ratio = ratio
        self.nonlinearity = one_of("nonlinearity", nonlinearity, ("sigmoid", "tanh", "softmax"))
        self.weight = _direction(in_channels)

    def on_map(self, x: Tensor) -> Tensor:
        """The cells that are kept, gated."""
        scores = self._scores(x)
        gate = (
            scores.flatten(1).softmax(1).view_as(scores)
            if self.nonlinearity == "softmax"
            else getattr(torch, self.nonlinearity)(scores)
        )
        return x * gate * self._kept(scores)

    def selected(self, x: Tensor) -> Tensor:
        """Which cells of a map (B, C, H, W) are kept, bool (B, 1, H, W)."""
        return self._kept(self._scores(x))

    def _scores(self, x: Tensor) -> Tensor:
        direction: Tensor = self.weight / torch.linalg.vector_norm(self.weight)
        return (x * direction.view(1, -1, 1, 1)).sum(1, keepdim=True)

    def _kept(self, scores: Tensor) -> Tensor:
        flat = scores.detach().flatten(1)
        n = flat.shape[1]
        count = min(self.ratio, n) if isinstance(self.ratio, int) else math.ceil(round(self.ratio * n, 6))
        order = flat.argsort(dim=1, descending=True, stable=True)[:, :count]
        return torch.zeros_like(flat, dtype=torch.bool).scatter(1, order, True).view_as(scores)


class ThresholdPooling(MapBlock):
    """Keeps the cells whose attention alpha = softmax over all cells of x . p exceeds a threshold, multiplied by it;
    all others are zero.

    Cells that are dropped stay in the softmax, and so keep an influence. A threshold of 0 keeps all: attention
        re-weighting alpha * x.

    Args:
        in_channels: c of the input.
        threshold: Of alpha, which sums to 1 over the map; 1 / n, the mean, if None.

    Raises:
        ErfscopeError: a threshold outside [0, 1).

    Source: Knyazev et al. 2019, arXiv:1905.02850.
    """

    def __init__(self, in_channels: int, threshold: float | None = None) -> None:
        super().__init__()
        if threshold is not None and not 0 <= threshold < 1:
            raise ErfscopeError(f"threshold is a share of attention in [0, 1), not {threshold!r}")
        self.threshold = threshold
        self.weight = _direction(in_channels)

    def on_map(self, x: Tensor) -> Tensor:
        """The cells that are kept, weighted by their attention."""
        alpha = self._alpha(x)
        return x * alpha * self._kept(alpha)

    def selected(self, x: Tensor) -> Tensor:
        """Which cells of a map (B, C, H, W) are kept, bool (B, 1, H, W)."""
        return self._kept(self._alpha(x))

    def _alpha(self, x: Tensor) -> Tensor:
        scores = (x * self.weight.view(1, -1, 1, 1)).sum(1, keepdim=True)
        return scores.flatten(1).softmax(1).view_as(scores)

    def _kept(self, alpha: Tensor) -> Tensor:
        return alpha.detach() > (1 / alpha[0].numel() if self.threshold is None else self.threshold)


def _direction(channels: int) -> nn.Parameter:
    """The vector p, (1, C), as PyTorch Geometric draws it."""
    reach = whole("in_channels", channels) ** -0.5
    return nn.Parameter(torch.empty(1, channels).uniform_(-reach, reach))
