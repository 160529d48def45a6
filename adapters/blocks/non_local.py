"""The Non-Local block."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from erfscope.adapters.blocks.graph_nets.grid import window_offsets
from erfscope.adapters.blocks.maps import MapBlock, divided, one_of, whole
from erfscope.adapters.blocks.self_attention import attend, attend_window
from erfscope.errors import ErfscopeError

NonLocalMode = Literal["embedded_gaussian", "gaussian", "dot_product", "concatenation"]
MODES: tuple[str, ...] = ("embedded_gaussian", "gaussian", "dot_product", "concatenation")


class NonLocal(MapBlock):
    """y = x + norm(conv_out(attention of theta(x) to phi(x) and g(x))), the shape kept.

    Not timm's ``NonLocalAttn``: that has one mode and one head, and scales by the channels of the input rather than of
    the embedding.

    Args:
        in_channels: c of the input.
        inter_channels: Channels of theta, phi and g; half of ``in_channels`` if None.
        mode: ``"embedded_gaussian"``: softmax of theta . phi. ``"gaussian"``: softmax of x . x. ``"dot_product"``:
            theta . phi / n. ``"concatenation"``: relu(w . [theta, phi]) / n. n is the number of cells that are seen.
        heads: Number of heads, side by side in the channels.
        sub_sample: Whether phi and g are max-pooled 2 x 2, so that a cell sees a quarter as many.
        use_scale: Whether the embedded Gaussian's scores are divided by sqrt(d), d the channels of a head.
        window: Side of a square window, odd, outside of which a cell sees nothing. Computed locally; n stays that of
            the map.
        norm: Whether a BatchNorm follows ``conv_out``.
        zero_init: Whether the block starts as the identity: the norm's weight is zero, or, without a norm, a gain
            ``gamma``.
        bias: Whether the convolutions have biases.

    Raises:
        ErfscopeError: an unknown mode, heads that do not divide the channels, an even window, or options that exclude
            each other.

    Source: Wang et al. 2018, arXiv:1711.07971; names as in mmcv's ``NonLocal2d``; ``gamma`` as in Zhang et al. 2019,
    arXiv:1805.08318."""

    def __init__(
        self,
        in_channels: int,
        inter_channels: int | None = None,
        mode: NonLocalMode = "embedded_gaussian",
        heads: int = 1,
        sub_sample: bool = False,
        use_scale: bool = True,
        *,
        window: int | None = None,
        norm: bool = True,
        zero_init: bool = True,
        bias: bool = True,
    ) -> None:
        super().__init__()
        inter = max(whole("in_channels", in_channels) // 2, 1) if inter_channels is None else inter_channels
        keys = in_channels if mode == "gaussian" else inter
        divided("inter_channels", inter, heads)
        self.heads, self.mode, self.window = heads, one_of("mode", mode, MODES), window
        per_head = divided("in_channels" if mode == "gaussian" else "inter_channels", keys, heads)
        self.scale = per_head**-0.5 if use_scale and mode == "embedded_gaussian" else 1.0
        if window is not None:
            window_offsets(window)
            if sub_sample:
                raise ErfscopeError(
                    "a window counts cells of the map, which sub_sample merges; give window or sub_sample, not both"
                )
        if mode == "concatenation" and (heads > 1 or window is not None):
            raise ErfscopeError("mode='concatenation' has one head and no window")
        embedded = mode != "gaussian"
        self.theta = nn.Conv2d(in_channels, inter, 1, bias=bias) if embedded else nn.Identity()
        self.phi = nn.Conv2d(in_channels, inter, 1, bias=bias) if embedded else nn.Identity()
        self.g = nn.Conv2d(in_channels, inter, 1, bias=bias)
        self.concat_project = nn.Conv2d(2 * inter, 1, 1, bias=False) if mode == "concatenation" else None
        self.sub_sample = sub_sample
        self.conv_out = nn.Conv2d(inter, in_channels, 1, bias=bias)
        self.norm = nn.BatchNorm2d(in_channels) if norm else None
        self.gamma = nn.Parameter(torch.zeros(1)) if zero_init and not norm else None
        if zero_init and self.norm is not None:
            nn.init.zeros_(self.norm.weight)

    def on_map(self, x: Tensor) -> Tensor:
        """The block."""
        theta, phi, g = self.theta(x), self.phi(x), self.g(x)
        if self.sub_sample:
            if min(x.shape[2:]) < 2:
                raise ErfscopeError(f"sub_sample pools 2 x 2 cells, and the map has only {x.shape[2]}x{x.shape[3]}")
            phi, g = F.max_pool2d(phi, 2), F.max_pool2d(g, 2)
        y: Tensor = self.conv_out(self._attended(theta, phi, g))
        if self.norm is not None:
            y = self.norm(y)
        return x + (y if self.gamma is None else self.gamma * y)

    def _attended(self, theta: Tensor, phi: Tensor, g: Tensor) -> Tensor:
        if self.concat_project is not None:
            return self._concatenated(theta, phi, g)
        softmax = self.mode != "dot_product"
        scale = self.scale if softmax else 1 / (g.shape[2] * g.shape[3])
        if self.window is not None:
            return attend_window(theta, phi, g, self.heads, self.window, softmax=softmax, scale=scale)
        return attend(theta, phi, g, self.heads, softmax=softmax, scale=scale)

    def _concatenated(self, theta: Tensor, phi: Tensor, g: Tensor) -> Tensor:
        """relu(w_theta . theta_p + w_phi . phi_i) / n; the two parts are computed apart, since w is linear in their
        concatenation."""
        assert self.concat_project is not None
        mine, theirs = torch.split(self.concat_project.weight, theta.shape[1], 1)
        scores = F.relu(F.conv2d(theta, mine).flatten(2).transpose(1, 2) + F.conv2d(phi, theirs).flatten(2))
        y = g.flatten(2) @ scores.transpose(1, 2) / scores.shape[2]
        return torch.unflatten(y, 2, theta.shape[2:])
