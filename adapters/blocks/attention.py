"""Attention over the nodes of a map: self-attention and Non-Local blocks."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from erfscope.adapters.blocks.graph import masked_softmax, weighted
from erfscope.adapters.blocks.graphs import inside, shifts, window_offsets
from erfscope.adapters.blocks.maps import MapBlock, divided, one_of, per_node, whole
from erfscope.core.values.errors import ErfscopeError

Mode = Literal["softmax", "dot_product"]


class SelfAttention(MapBlock):
    """Y_p = sum_i s_pi X_i W_v with s = softmax(Q K^T / sqrt(d)) or s = Q K^T, Q = X W_q, K = X W_k; no residual.

    Not ``nn.MultiheadAttention``: that has no plain dot product, queries as wide as the values, and always a projection
    behind it. The softmax is PyTorch's fused ``scaled_dot_product_attention``.

    Args:
        in_channels: c of the input.
        out_channels: c of the output, of all heads together; ``in_channels`` if None.
        heads: Number of heads, side by side in the channels.
        key_channels: Channels of queries and keys, of all heads together; ``in_channels`` if None.
        mode: ``"softmax"`` or ``"dot_product"``.
        use_scale: Whether the softmax's scores are divided by sqrt(d), d the channels of a head's keys.
        over_n: Whether dot products are divided by the number of cells of the map.
        window: Side of a square window, odd, outside of which a cell sees nothing. Computed locally.
        mask: (n, n), nonzero where p (row) may see i (column). A row of zeros gives zero.
        proj: Whether a linear layer follows; where None, if there are several heads.
        bias: Whether the linear layers have biases.

    Raises:
        ErfscopeError: heads that do not divide the channels, an even window, a mask that is not square, or a window and
            a mask.

    Source: Vaswani et al. 2017, arXiv:1706.03762; Nicolicioiu & Duta, Theorem 3 (dot product) and Eq. 13 (softmax).
    """

    mask: Tensor | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int | None = None,
        heads: int = 1,
        key_channels: int | None = None,
        *,
        mode: Mode = "softmax",
        use_scale: bool = True,
        over_n: bool = True,
        window: int | None = None,
        mask: Any = None,
        proj: bool | None = None,
        bias: bool = False,
    ) -> None:
        super().__init__()
        out = in_channels if out_channels is None else out_channels
        keys = in_channels if key_channels is None else key_channels
        divided("out_channels", out, heads)
        self.heads, self.over_n = heads, over_n
        self.softmax = one_of("mode", mode, ("softmax", "dot_product")) == "softmax"
        self.scale = divided("key_channels", keys, heads) ** -0.5 if use_scale and self.softmax else 1.0
        self.window = window
        self.register_buffer("mask", checked_mask(mask, window))
        self.query = nn.Linear(in_channels, keys, bias=bias)
        self.key = nn.Linear(in_channels, keys, bias=bias)
        self.value = nn.Linear(in_channels, out, bias=bias)
        self.proj = nn.Linear(out, out, bias=bias) if (heads > 1 if proj is None else proj) else None

    def on_map(self, x: Tensor) -> Tensor:
        """One layer."""
        query, key, value = (per_node(lin, x) for lin in (self.query, self.key, self.value))
        scale = self.scale / (x.shape[2] * x.shape[3]) if self.over_n and not self.softmax else self.scale
        if self.window is not None:
            y = attend_window(query, key, value, self.heads, self.window, softmax=self.softmax, scale=scale)
        else:
            y = attend(query, key, value, self.heads, softmax=self.softmax, scale=scale, mask=self.mask)
        return y if self.proj is None else per_node(self.proj, y)


def attend(
    query: Tensor, key: Tensor, value: Tensor, heads: int, *, softmax: bool, scale: float, mask: Tensor | None = None
) -> Tensor:
    """Attention of every cell of a map to all cells of another.

    Args:
        query: (B, heads * d, H, W).
        key: (B, heads * d, H', W').
        value: (B, heads * e, H', W').
        heads: Number of heads.
        softmax: Whether the scores go through a softmax.
        scale: Factor of the scores.
        mask: Bool (H W, H' W'), True where a row may see a column; None for everywhere.

    Returns:
        (B, heads * e, H, W). Zero where a row may see nothing.

    Raises:
        ErfscopeError: a mask of another size.
    """
    q, k, v = (torch.unflatten(each.flatten(2), 1, (heads, -1)).transpose(2, 3) for each in (query, key, value))
    if mask is not None and mask.shape != (q.shape[2], k.shape[2]):
        raise ErfscopeError(
            f"the mask is {'x'.join(map(str, mask.shape))}, and the map has {q.shape[2]} cells that see {k.shape[2]}"
        )
    if softmax and mask is None:
        out = F.scaled_dot_product_attention(q, k, v, scale=scale)
    elif softmax and mask is not None:
        # A row that may see nothing is opened and then set to zero: what the kernels give for it differs.
        some = mask.any(1, keepdim=True)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask | ~some, scale=scale) * some
    elif mask is None:
        # (Q K^T) V = Q (K^T V): nothing of size n x n is held.
        out = q @ (k.transpose(2, 3) @ v) * scale
    else:
        out = (q @ k.transpose(2, 3) * mask) @ v * scale
    return torch.unflatten(out.transpose(2, 3).flatten(1, 2), 2, query.shape[2:])


def attend_window(
    query: Tensor, key: Tensor, value: Tensor, heads: int, window: int, *, softmax: bool, scale: float
) -> Tensor:
    """Attention of every cell to those of a window around it, from shifted copies of the map; shapes as for
    :func:`attend`.

    Args:
        query: (B, heads * d, H, W).
        key: (B, heads * d, H, W).
        value: (B, heads * e, H, W).
        heads: Number of heads.
        window: Side of the window, odd.
        softmax: Whether the scores go through a softmax.
        scale: Factor of the scores.
    """
    offsets = window_offsets(window)
    products = query.unsqueeze(2) * torch.stack(shifts(key, offsets), 2)
    scores = torch.unflatten(products, 1, (heads, -1)).sum(2) * scale
    # Beyond the border values are zero, so that plain products need no mask.
    weights = masked_softmax(scores, inside(key, offsets), 2) if softmax else scores
    return weighted(weights, torch.stack(shifts(value, offsets), 2)).flatten(1, 2)


def checked_mask(mask: Any, window: int | None) -> Tensor | None:
    """A mask as a bool tensor.

    Raises:
        ErfscopeError: it is not two-dimensional, a window is asked for as well, or the window is even.
    """
    if window is not None:
        window_offsets(window)
    if mask is None:
        return None
    if window is not None:
        raise ErfscopeError("give a window or a mask, not both")
    # On the CPU even where the default device is another.
    found = mask.detach() if isinstance(mask, Tensor) else torch.tensor(np.asarray(mask), device="cpu")
    if found.dim() != 2:
        raise ErfscopeError(
            f"a mask has one row per cell and one column per cell it may see; this one has shape {tuple(found.shape)}"
        )
    return found != 0


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
