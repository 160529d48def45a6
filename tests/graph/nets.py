"""What the tests of the graph share: operations on random shapes, and small nets, one for each kind of operation."""

import random

import numpy as np
import torch
import torch.nn.functional as F
from oracle import Net
from torch import nn

from erfscope.core.graph.graph import Numbers
from erfscope.core.graph.record import record
from erfscope.core.system.containers import tensors_of


def conv(kernel=3, stride=1, padding=1, dilation=1, groups=1, width=2):
    return nn.Conv2d(2, width, kernel, stride, padding, dilation, groups)


def windows(x, size):
    """(B, H, W, C) -> (B * windows, size * size, C)"""
    b, h, w, c = x.shape
    return x.view(b, h // size, size, w // size, size, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, size * size, c)


def unwindows(x, size, h, w):
    c = x.shape[-1]
    return x.view(-1, h // size, w // size, size, size, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, h, w, c)


def attention(q, k, v):
    return (q @ k.transpose(-2, -1)).softmax(-1) @ v


def window_attention(net, x):
    """One block of Swin: shift, windows of 4, attention, back, skip."""
    y = net.conv(x).permute(0, 2, 3, 1)
    y = torch.roll(y, (-2, -2), (1, 2))
    t = windows(y, 4)
    t = attention(net.q(t), net.k(t), net.v(t))
    y = torch.roll(unwindows(t, 4, *x.shape[2:]), (2, 2), (1, 2))
    return x + y.permute(0, 3, 1, 2)


def merged(net, x):
    """Swin's patch merging: 2 x 2 positions become channels, a norm and a linear layer follow; channels last all
    along.
    """
    x = x.permute(0, 2, 3, 1)
    b, h, w, c = x.shape
    x = x.reshape(b, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 4, 2, 5).flatten(3)
    return net.linear(net.norm(x)).permute(0, 3, 1, 2)


def halves_by_slices(net, x):
    return net.conv(torch.cat([x[:, :, i::2, j::2] for i in (0, 1) for j in (0, 1)], 1))


def written_in_place(net, x):
    """A padded buffer filled through views, then changed through another view of it."""
    y = net.conv(x)
    buffer = y.new_zeros(len(x), 2, y.shape[2] + 2, y.shape[3])
    buffer[:, :, 1:-1].copy_(y)
    buffer[:, :, 0] = y[:, :, 3]
    view = buffer.transpose(2, 3)
    view[:, :, 2:4, 1:-1] += net.wide(y)[:, :, :, 2:4].transpose(2, 3)
    buffer.mul_(2)
    return net.last(buffer)


def later_write(net, x):
    """A view taken before its base is overwritten shows the new values."""
    y = net.conv(x)
    view = y[:, :, 2:-2]
    y.add_(net.wide(x))
    return view


def fold_unfold(net, x):
    y = F.unfold(net.conv(x), 3, padding=1, stride=2)
    return F.fold(net.mix(y.transpose(1, 2)).transpose(1, 2), x.shape[2:], 3, padding=1, stride=2)


def halo(net, x):
    """Keys from overlapping windows, as in HaloNet."""
    y = F.pad(net.conv(x), [1, 1, 1, 1]).unfold(2, 6, 4).unfold(3, 6, 4)
    return y.sum((-1, -2))


def pixels_by_hand(net, x):
    y = net.wide(x)
    b, _, h, w = y.shape
    y = y.view(b, 2, 2, 2, h, w).permute(0, 1, 4, 2, 5, 3).reshape(b, 2, h * 2, w * 2)
    return net.conv(y)


def pixels_down_by_hand(net, x):
    b, c, h, w = x.shape
    y = x.view(b, c, h // 2, 2, w // 2, 2).permute(0, 1, 3, 5, 2, 4).reshape(b, c * 4, h // 2, w // 2)
    return net.conv(y)


def shuffled(net, x):
    """ShuffleNet: split, one half through a convolution, joined, channels shuffled."""
    a, b = net.conv(x).chunk(2, 1)
    y = torch.cat([a, net.one(b)], 1)
    return y.view(len(x), 2, 1, *y.shape[2:]).transpose(1, 2).flatten(1, 2)


def blocks(x, rows, cols):
    """(B, C, H, W) -> (B * windows, C, rows, cols)"""
    b, c, h, w = x.shape
    return x.view(b, c, h // rows, rows, w // cols, cols).permute(0, 2, 4, 1, 3, 5).reshape(-1, c, rows, cols)


def unblocks(y, rows, cols):
    """Back, for ``rows`` times ``cols`` windows of whatever size they now are."""
    _, c, h, w = y.shape
    return y.view(-1, rows, cols, c, h, w).permute(0, 3, 1, 4, 2, 5).reshape(-1, c, rows * h, cols * w)


def inside_windows(function):
    return lambda net, x: net.last(unblocks(function(net, blocks(net.first(x), 4, 5)), 3, 3))


def across_windows(net, x):
    """A convolution over windows, cell by cell: to the map it is dilated by the window's size."""
    b = len(x)
    y = x.view(b, 2, 3, 4, 3, 5).permute(0, 3, 5, 1, 2, 4).reshape(b * 20, 2, 3, 3)
    return net.conv(y).view(b, 4, 5, 2, 3, 3).permute(0, 3, 4, 1, 5, 2).reshape(b, 2, 12, 15)


def global_queries(net, x):
    """GCViT: the same queries, made from a coarse map, in every window."""
    y = net.conv(x)
    coarse = F.avg_pool2d(y, (3, 3)).flatten(2).transpose(1, 2)
    tokens = blocks(y, 4, 5).flatten(2).transpose(1, 2)
    queries = net.q(coarse)[:, None].expand(-1, 9, -1, -1).flatten(0, 1)
    return unblocks(attention(queries, net.k(tokens), tokens).transpose(1, 2).reshape(-1, 2, 4, 5), 3, 3)


def patches(net, x):
    """MobileViTv2: 1x1 convolutions on (B, C, cells of a patch, patches)."""
    b = len(x)
    y = x.view(b, 2, 4, 3, 5, 3).permute(0, 1, 3, 5, 2, 4).reshape(b, 2, 9, 20)
    return net.last(net.first(y).view(b, 2, 3, 3, 4, 5).permute(0, 1, 4, 2, 5, 3).reshape(b, 2, 12, 15))


def over_windows(net, x):
    """MobileViTv2's context: every place in a patch is summed over all patches, and read by that place in each."""
    b = len(x)
    y = net.first(x).view(b, 2, 4, 3, 5, 3).permute(0, 1, 3, 5, 2, 4).reshape(b, 2, 9, 20)
    y = y * y.sum(3, keepdim=True)
    return y.view(b, 2, 3, 3, 4, 5).permute(0, 1, 4, 2, 5, 3).reshape(b, 2, 12, 15)


def relative(net, x):
    """HaloNet's scores from relative positions along rows."""
    y = net.conv(x).permute(0, 2, 3, 1)
    b, h, w, _ = y.shape
    scores = F.pad(net.scores(y).reshape(b * h, w, 2 * w - 1), [0, 1]).flatten(1)
    scores = F.pad(scores, [0, w - 1]).reshape(-1, w + 1, 2 * w - 1)[:, :w, w - 1 :]
    return net.out(scores.reshape(b, h, w, w)).permute(0, 3, 1, 2)


def row_by_row(join):
    def forward(net, x):
        y = net.conv(x)
        return net.last(join([y[:, :, i] * (i + 1) for i in range(y.shape[2])]))

    return forward


def cells(net, x):
    """A recurrence by hand: each row adds half of the one before."""
    rows = list(net.conv(x).unbind(2))
    for i in range(1, len(rows)):
        rows[i] = rows[i] + rows[i - 1] / 2
    return torch.stack(rows, 2)


def stacked_and_unbound(net, x):
    a, b = torch.stack([net.conv(x), net.wide(x)], 2).unbind(2)
    return a + b


def shuffled_pixels(net, x):
    """Two pixel unshuffles and one shuffle, with nothing between that mixes channels."""
    return F.pixel_shuffle(F.pixel_unshuffle(F.pixel_unshuffle(x, 2), 2), 2)


WIDE = {"wide": conv(5, padding=2)}
CASES = {
    "chain": (Net(lambda n, x: n.b(n.a(x)), a=conv(5, 2, 2), b=conv(3)), (23, 18)),
    "dilated": (Net(lambda n, x: n.b(n.a(x)), a=conv(3, padding=2, dilation=2), b=conv(3)), (20, 21)),
    "dilated by three, with gaps": (Net(lambda n, x: n.a(x), a=conv(3, 2, padding=3, dilation=3)), (20, 21)),
    "grouped, no padding": (Net(lambda n, x: n.b(n.a(x)), a=conv(3, 2, 0, groups=2), b=conv(3)), (21, 19)),
    "residual": (Net(lambda n, x: n.c(x + n.b(n.a(x))), a=conv(), b=conv(), c=conv(3, 2)), (17, 16)),
    "in place": (Net(lambda n, x: n.a(x).add_(n.b(x)).mul_(2.0).relu_(), a=conv(), b=conv(5, padding=2)), (12, 13)),
    "branches": (
        Net(lambda n, x: n.c(torch.cat([n.a(x), n.b(x)], 1)), a=conv(), b=conv(7, padding=3), c=nn.Conv2d(4, 2, 1)),
        (20, 17),
    ),
    "average pooling": (Net(lambda n, x: F.avg_pool2d(n.a(x), 3, 2, 1), a=conv()), (19, 20)),
    "ceil mode": (Net(lambda n, x: F.avg_pool2d(n.a(x), 3, 2, ceil_mode=True), a=conv()), (18, 15)),
    "transposed k4 s2 p1": (Net(lambda n, x: n.b(n.a(x)), a=nn.ConvTranspose2d(2, 2, 4, 2, 1), b=conv()), (9, 8)),
    "transposed k3 s2 p1": (Net(lambda n, x: n.b(n.a(x)), a=nn.ConvTranspose2d(2, 2, 3, 2, 1, 1), b=conv()), (9, 8)),
    "transposed dilated": (
        Net(lambda n, x: n.b(n.a(x)), a=nn.ConvTranspose2d(2, 2, 3, 2, 2, 1, dilation=2), b=conv(5, padding=2)),
        (9, 8),
    ),
    "transposed of strided": (
        Net(lambda n, x: x + n.b(n.a(x)), a=conv(4, 2, 1), b=nn.ConvTranspose2d(2, 2, 4, 2, 1)),
        (12, 14),
    ),
    "nearest": (Net(lambda n, x: n.a(F.interpolate(x, scale_factor=2)), a=conv()), (7, 9)),
    "nearest to a size": (Net(lambda n, x: n.a(F.interpolate(x, (17, 13))), a=conv()), (7, 9)),
    "nearest exact": (Net(lambda n, x: n.a(F.interpolate(x, (17, 5), mode="nearest-exact")), a=conv()), (7, 9)),
    "bilinear": (Net(lambda n, x: F.interpolate(n.a(x), scale_factor=2, mode="bilinear"), a=conv()), (7, 9)),
    "bilinear to a size": (Net(lambda n, x: F.interpolate(n.a(x), (5, 20), mode="bilinear"), a=conv()), (7, 9)),
    "aligned corners": (
        Net(lambda n, x: F.interpolate(n.a(x), (13, 17), mode="bilinear", align_corners=True), a=conv()),
        (7, 9),
    ),
    "bicubic": (Net(lambda n, x: F.interpolate(n.a(x), scale_factor=2, mode="bicubic"), a=conv()), (9, 11)),
    "antialiased": (
        Net(lambda n, x: F.interpolate(n.a(x), (5, 7), mode="bilinear", antialias=True), a=conv()),
        (20, 21),
    ),
    "adaptive pooling": (Net(lambda n, x: F.adaptive_avg_pool2d(n.a(x), (3, 4)), a=conv()), (11, 10)),
    "pixel shuffle": (Net(lambda n, x: n.b(F.pixel_shuffle(n.a(x), 2)), a=conv(width=8), b=conv()), (7, 8)),
    "pixel unshuffle": (Net(lambda n, x: n.a(F.pixel_unshuffle(x, 2)), a=nn.Conv2d(8, 2, 3, padding=1)), (14, 12)),
    "pixel shuffle by hand": (Net(pixels_by_hand, wide=conv(width=8), conv=conv()), (7, 8)),
    "pixel unshuffle by hand": (Net(pixels_down_by_hand, conv=nn.Conv2d(8, 2, 3, padding=1)), (14, 12)),
    "two unshuffles and a shuffle": (Net(shuffled_pixels), (16, 12)),
    "unshuffled, by channels, shuffled": (
        Net(lambda n, x: F.pixel_shuffle(n.a(F.pixel_unshuffle(x, 2)), 2), a=nn.Conv2d(8, 8, 3, padding=1, groups=8)),
        (16, 12),
    ),
    "patches that leave a row": (Net(lambda n, x: n.a(x), a=nn.Conv2d(2, 3, 4, 4)), (41, 18)),
    "zero padding": (Net(lambda n, x: n.a(F.pad(x, (2, 1, 0, 1))), a=conv(3, 2, 0)), (14, 14)),
    "padded beside a shortcut": (Net(lambda n, x: (y := n.a(x)) + F.pad(y[..., 7:], (7, 0)), a=conv()), (10, 11)),
    "reflection": (Net(lambda n, x: n.a(F.pad(n.a(x), (1, 1, 1, 1), mode="reflect")), a=conv()), (10, 11)),
    "replication": (Net(lambda n, x: n.a(F.pad(n.a(x), (3, 3, 3, 3), mode="replicate")), a=conv()), (10, 11)),
    "circular padding": (Net(lambda n, x: n.a(x), a=nn.Conv2d(2, 2, 5, padding=2, padding_mode="circular")), (12, 13)),
    "padding same": (Net(lambda n, x: n.a(x), a=nn.Conv2d(2, 2, 3, padding="same", dilation=2)), (12, 13)),
    "shifted windows": (
        Net(window_attention, conv=conv(1, padding=0), q=nn.Linear(2, 2), k=nn.Linear(2, 2), v=nn.Linear(2, 2)),
        (12, 16),
    ),
    "patch merging": (Net(merged, norm=nn.LayerNorm(8), linear=nn.Linear(8, 3)), (12, 16)),
    "halves by slices": (Net(halves_by_slices, conv=nn.Conv2d(8, 2, 3, padding=1)), (12, 14)),
    "channels-last linear": (
        Net(lambda n, x: n.b(n.a(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)), a=nn.Linear(2, 2), b=conv()),
        (9, 8),
    ),
    "written in place": (Net(written_in_place, conv=conv(), wide=conv(5, padding=2), last=conv()), (11, 12)),
    "written later": (Net(later_write, conv=conv(1, padding=0), wide=conv(5, padding=2)), (14, 12)),
    "unfold and fold": (Net(fold_unfold, conv=conv(), mix=nn.Linear(18, 18)), (11, 12)),
    "unfolded and folded unmixed": (
        Net(lambda n, x: F.fold(F.unfold(n.a(x), 3, 2, 2), x.shape[2:], 3, 2, 2), a=conv()),
        (11, 12),
    ),
    "overlapping windows": (Net(halo, conv=conv()), (16, 12)),
    "shuffled channels": (Net(shuffled, conv=conv(), one=nn.Conv2d(1, 1, 5, padding=2)), (12, 13)),
    "flipped": (Net(lambda n, x: n.a(x.flip(3)), a=conv(3, 2)), (12, 13)),
    "turned": (Net(lambda n, x: n.a(torch.rot90(x, 1, (2, 3))), a=conv(3, 2)), (12, 13)),
    "transposed axes": (Net(lambda n, x: n.b(n.a(x) + x.transpose(2, 3)), a=conv(), b=conv()), (12, 12)),
    "stacked": (Net(stacked_and_unbound, conv=conv(), wide=conv(5, padding=2)), (12, 13)),
    "side by side": (Net(lambda n, x: torch.cat([n.a(x), n.b(x)], 2), a=conv(), b=conv(5, padding=2)), (8, 9)),
    "tiled": (Net(lambda n, x: n.a(x.repeat(1, 1, 1, 2)[..., :9]), a=conv()), (8, 9)),
    "repeated cells": (Net(lambda n, x: n.b(n.a(x).repeat_interleave(2, dim=3)), a=conv(), b=conv()), (8, 9)),
    "einsum": (
        Net(lambda n, x: torch.einsum("bchw,dc->bdhw", n.a(x), n.b.weight), a=conv(), b=nn.Linear(2, 3)),
        (8, 9),
    ),
    "einsum that broadcasts": (
        Net(
            lambda n, x: torch.einsum("...hw,...w->...hw", n.a(x), n.b(x).mean(2, keepdim=True)[:, :, 0]),
            a=conv(),
            b=conv(5, padding=2),
        ),
        (8, 9),
    ),
    "einsum of one column": (
        Net(lambda n, x: torch.einsum("bchw,bchw->bchw", n.a(x), n.b(x)[..., :1]), a=conv(), b=conv(5, padding=2)),
        (8, 9),
    ),
    "broadcast_tensors": (
        Net(
            lambda n, x: torch.mul(*torch.broadcast_tensors(n.a(x), n.b(x)[:, :, 2:3])),
            a=conv(),
            b=conv(5, padding=2),
        ),
        (8, 9),
    ),
    "linalg.norm": (
        Net(lambda n, x: n.b(x) / torch.linalg.norm(n.a(x), dim=1, keepdim=True), a=conv(), b=conv()),
        (8, 9),
    ),
    "where and clamp": (
        Net(lambda n, x: torch.where(n.a(x) > 0, n.b(x), n.a(x)).clamp(-1e9, 1e9), a=conv(), b=conv(5, padding=2)),
        (12, 11),
    ),
    "norm over channels": (
        Net(lambda n, x: n.a(F.layer_norm(x.permute(0, 2, 3, 1), (2,)).permute(0, 3, 1, 2)), a=conv()),
        (9, 8),
    ),
    "frozen batch norm": (Net(lambda n, x: n.a(n.b(x)), a=conv(), b=nn.BatchNorm2d(2)), (9, 8)),
    "gated": (Net(lambda n, x: F.glu(n.a(x), 1), a=conv(width=4)), (9, 8)),
    "chosen by numbers": (
        Net(lambda n, x: n.a(x)[:, :, (n.order + 2) % 5], a=conv(), order=nn.Buffer(torch.tensor([3, 1, 0, 2]))),
        (9, 8),
    ),
    "rows cut from a list": (Net(lambda n, x: n.a(x).flatten(2)[:, :, 18:54].view(-1, 2, 4, 9), a=conv()), (8, 9)),
    "chosen by a range": (Net(lambda n, x: n.a(x).index_select(3, torch.arange(6, 0, -2)), a=conv()), (9, 8)),
}
#: Cases on maps of 12 x 15 that share their parts.
REARRANGED = {
    "convolution inside windows": inside_windows(lambda n, y: n.inner(y)),
    "average pooling inside windows": inside_windows(lambda n, y: F.avg_pool2d(y, 2, padding=1)),
    "padding inside windows": inside_windows(lambda n, y: F.pad(y, (1, 0, 0, 1))),
    "convolution across windows": across_windows,
    "patches": patches,
    "pooled rows": lambda n, x: n.last(F.avg_pool1d(n.conv(x).flatten(2), 5).view(-1, 2, 12, 3)),
    "relative positions": relative,
    "rows stacked": row_by_row(lambda rows: torch.stack(rows, 2)),
    "rows joined": row_by_row(lambda rows: torch.cat([row[:, :, None] for row in rows], 2)),
    "rows that add up": cells,
    "running sum": lambda n, x: n.conv(x).cumsum(2),
    "running product from behind": lambda n, x: n.conv(x).flip(3).cumprod(3).flip(3),
    "nothing joined": lambda n, x: torch.cat([n.conv(x)[:, :, :0], n.conv(x)], 2),
    "channels shuffled": lambda n, x: F.channel_shuffle(n.conv(x), 2),
    "windows that overlap": lambda n, x: n.conv(x).unfold(2, 5, 3).unfold(3, 3, 2).mean((-1, -2)),
    "reflected": lambda n, x: F.pad(n.conv(x), (2, 3, 4, 1), mode="reflect"),
    "wrapped": lambda n, x: F.pad(n.conv(x), (2, 3, 4, 1), mode="circular"),
    "shifted": lambda n, x: torch.roll(n.conv(x), (5, -4), (2, 3)),
    "shifted and a convolution": lambda n, x: n.last(torch.roll(n.conv(x), (5, -4), (2, 3))),
    "global queries": global_queries,
}


def parts():
    torch.manual_seed(0)
    return {
        "conv": conv(),
        "first": conv(1, padding=0),
        "last": conv(),
        "inner": conv(3, 2),
        "scores": nn.Linear(2, 29),
        "out": nn.Linear(15, 2),
        "q": nn.Linear(2, 2),
        "k": nn.Linear(2, 2),
    }


def random_conv(r, dims):
    """A convolution of a random kind: (function, shape of its input)."""
    kernel, stride, dilation = ([r.randint(1, 3) for _ in range(dims)] for _ in range(3))
    padding, groups = [r.randint(0, 2) for _ in range(dims)], r.choice([1, 2])
    weight = torch.rand(2 * groups, 2, *kernel, dtype=torch.float64) + 0.5
    function = (F.conv1d, F.conv2d, F.conv3d)[dims - 1]
    shape = [2, 2 * groups, *(r.randint(7, 9) for _ in range(dims))]
    return lambda x: function(x, weight, None, stride, padding, dilation, groups), shape


def transposed(r, dims):
    kernel, stride, dilation = ([r.randint(1, 3) for _ in range(dims)] for _ in range(3))
    padding = [r.randint(0, min(2, d * (k - 1))) for k, d in zip(kernel, dilation, strict=True)]
    weight = torch.rand(2, 3, *kernel, dtype=torch.float64) + 0.5
    function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[dims - 1]
    shape = [2, 2, *(r.randint(3, 5) for _ in range(dims))]
    return lambda x: function(x, weight, None, stride, padding, 0, 1, dilation), shape


def pooled(r, dims):
    kernel = [r.randint(1, 3) for _ in range(dims)]
    stride, padding = [r.randint(1, 3) for _ in range(dims)], [r.randint(0, k // 2) for k in kernel]
    ceil, function = r.random() < 0.5, (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[dims - 1]
    return lambda x: function(x, kernel, stride, padding, ceil), [2, 2, *(r.randint(6, 9) for _ in range(dims))]


def resized(r, mode, **more):
    dims = {"linear": 1, "trilinear": 3}.get(mode, 2)
    size = [r.randint(2, 13) for _ in range(dims)]
    return lambda x: F.interpolate(x, size, mode=mode, **more), [2, 2, *(r.randint(3, 7) for _ in range(dims))]


def padded(r, mode):
    amounts = [r.randint(0, 3) for _ in range(4)]
    return lambda x: F.pad(x, amounts, mode=mode), [2, 2, r.randint(4, 6), r.randint(4, 6)]


def random_shape(r, low=1, high=4, rank=None):
    return [r.randint(low, high) for _ in range(rank or r.randint(2, 4))]


def reshaped(r):
    """Dimensions merged, or split."""
    fine = [r.randint(1, 3) for _ in range(5)]
    cuts = sorted(r.sample(range(1, 5), 2))
    coarse = [int(np.prod(fine[a:b])) for a, b in zip([0, *cuts], [*cuts, 5], strict=True)]
    old, new = (fine, coarse) if r.random() < 0.5 else (coarse, fine)
    return lambda x: x.reshape(new), old


def permuted(r):
    shape = random_shape(r)
    return (lambda order: lambda x: x.permute(order))(r.sample(range(len(shape)), len(shape))), shape


def sliced(r):
    shape = random_shape(r, 3, 6)
    dim, start, step = r.randrange(len(shape)), r.randint(-2, 2), r.randint(1, 3)
    return lambda x: x[(slice(None),) * dim + (slice(start, None, step),)], shape


def rolled(r):
    shape = random_shape(r, 2, 5)
    return (lambda s, d: lambda x: torch.roll(x, (s, -1), (d, 0)))(r.randint(-7, 7), r.randrange(len(shape))), shape


def joined(r):
    shape = random_shape(r)
    dim = r.randrange(len(shape))
    return lambda x: torch.cat([x * 2, torch.zeros_like(x), x.flip(dim)], dim), shape


def stacked(r):
    shape = random_shape(r)
    return (lambda dim: lambda x: torch.stack([torch.zeros_like(x), x], dim))(r.randint(0, len(shape))), shape


def unfolded(r):
    dim, size, step = r.randrange(3), r.randint(1, 3), r.randint(1, 3)
    return lambda x: x.unfold(dim, size, step), [r.randint(4, 7) for _ in range(3)]


def columns(r):
    kernel, dilation, padding, stride = r.randint(1, 3), r.randint(1, 2), r.randint(0, 2), r.randint(1, 3)
    return lambda x: F.unfold(x, kernel, dilation, padding, stride), [2, 2, r.randint(5, 7), r.randint(5, 7)]


def folded(r):
    kernel, stride, side = r.randint(1, 3), r.randint(1, 3), r.randint(4, 7)
    count = (side + 2 - kernel) // stride + 1
    return lambda x: F.fold(x, side, kernel, 1, 1, stride), [2, 2 * kernel**2, count**2]


def reshuffled(r, up):
    k, side = r.randint(2, 3), r.randint(2, 3)
    shape = [2, 2 * k * k, side, side] if up else [2, 2, side * k, side * k]
    return (lambda x: F.pixel_shuffle(x, k)) if up else (lambda x: F.pixel_unshuffle(x, k)), shape


def chosen(r):
    shape = random_shape(r, 2, 5)
    dim, index = r.randrange(len(shape)), torch.tensor([r.randint(0, 1) for _ in range(r.randint(1, 5))])
    return lambda x: x.index_select(dim, index), shape


def written(r):
    side, start, step = r.randint(5, 8), r.randint(0, 2), r.randint(1, 2)

    def forward(x):
        y = x * 1
        y[:, start::step] = x[:, start::step].flip(1) * 2
        return y

    return forward, [2, side]


#: Operation -> given random numbers, a function that calls it in a random way, and the shape of its input. What a rule
#: says of each is compared with derivatives, and a part of its output with the whole.
OPERATIONS = {
    **{f"conv{n}d": lambda r, n=n: random_conv(r, n) for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": lambda r, n=n: transposed(r, n) for n in (1, 2, 3)},
    **{f"avg_pool{n}d": lambda r, n=n: pooled(r, n) for n in (1, 2, 3)},
    **{mode: lambda r, m=mode: resized(r, m) for mode in ("nearest", "nearest-exact", "linear", "bilinear", "bicubic")},
    "trilinear": lambda r: resized(r, "trilinear"),
    "aligned": lambda r: resized(r, "bilinear", align_corners=True),
    "antialiased": lambda r: resized(r, "bilinear", antialias=True),
    **{f"pad {mode}": lambda r, m=mode: padded(r, m) for mode in ("constant", "reflect", "replicate", "circular")},
    "adaptive": lambda r: ((lambda o: lambda x: F.adaptive_avg_pool2d(x, o))([r.randint(1, 6), 2]), [2, 2, 7, 5]),
    "reshape": reshaped,
    "permute": permuted,
    "slice": sliced,
    "roll": rolled,
    "flip": lambda r: (lambda x: x.flip(0, -1), random_shape(r)),
    "real": lambda r: (lambda x: torch.complex(x, x).real + torch.complex(x, 2 * x).imag, random_shape(r)),
    "rot90": lambda r: ((lambda k: lambda x: torch.rot90(x, k, (1, 2)))(r.randint(0, 3)), [2, 3, 4, 2]),
    "cat": joined,
    "stack": stacked,
    "expand": lambda r: (lambda x: x.expand(3, 2, 4), [2, 1] if r.random() < 0.5 else [1, 2, 1]),
    "repeat": lambda r: (lambda x: x.repeat(2, 1, 3), random_shape(r, rank=2)),
    "repeat_interleave": lambda r: ((lambda n: lambda x: x.repeat_interleave(n, 1))(r.randint(2, 3)), random_shape(r)),
    "select": lambda r: (lambda x: x[:, 1], random_shape(r, 2)),
    "unbind": lambda r: (lambda x: x.unbind(1)[1], random_shape(r, 2)),
    "split": lambda r: (lambda x: x.split(2, 1)[-1], random_shape(r, 3)),
    "chunk": lambda r: (lambda x: x.chunk(2, 0)[0], random_shape(r, 2)),
    "unfold": unfolded,
    "im2col": columns,
    "col2im": folded,
    "pixel_shuffle": lambda r: reshuffled(r, True),
    "pixel_unshuffle": lambda r: reshuffled(r, False),
    "channel_shuffle": lambda r: (lambda x: F.channel_shuffle(x, 2), [2, 6, 2, 3]),
    "index_select": chosen,
    "slice_scatter": written,
    "mean": lambda r: (
        (lambda d, k: lambda x: x.mean(d, keepdim=k))(r.choice([0, 1, (0, 2)]), r.random() < 0.5),
        [2, 3, 4],
    ),
    "softmax": lambda r: ((lambda d: lambda x: x.softmax(d))(r.randrange(3)), [2, 3, 4]),
    "layer_norm": lambda r: (lambda x: F.layer_norm(x, x.shape[1:]), [2, 3, 4]),
    "cumsum": lambda r: ((lambda d: lambda x: x.cumsum(d))(r.randrange(3)), [2, 3, 4]),
    "glu": lambda r: (lambda x: F.glu(x, 1), [2, 4, 3]),
    "linear": lambda r: (lambda x: x @ torch.ones(4, 5, dtype=x.dtype), [2, 3, 4]),
    "matmul": lambda r: (lambda x: x @ x.transpose(-2, -1), [2, 3, 4]),
    "attention": lambda r: (lambda x: F.scaled_dot_product_attention(x, x, x), [2, 2, 3, 4]),
    "einsum": lambda r: (lambda x: torch.einsum("bij,bkj->bki", x, x + 1), [2, 3, 4]),
    "einsum by an ellipsis": lambda r: (lambda x: torch.einsum("...i,...ji->...j", x, x[..., None, :] + 1), [2, 3, 4]),
    "einsum of one index": lambda r: (lambda x: torch.einsum("bij,bij->bji", x, x[:, :1]), [2, 3, 4]),
    "broadcast_tensors": lambda r: (
        (lambda k: lambda x: torch.broadcast_tensors(x[:, :1], x[:1])[k])(r.randrange(2)),
        [2, 3, 4],
    ),
    "linalg_norm": lambda r: ((lambda d: lambda x: torch.linalg.norm(x, dim=d))(r.choice([0, -1, (1, 2)])), [2, 3, 4]),
    "squeeze": lambda r: (lambda x: x.unsqueeze(1).squeeze(2), [2, 1, 3]),
}


class RecordedOperation:
    """An operation recorded on a random shape; the same for the same seed."""

    def __init__(self, name, seed):
        self.random = random.Random(f"{name} {seed}")
        self.forward, shape = OPERATIONS[name](self.random)
        module = Net(lambda _, x: self.forward(x))
        self.x = torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        self.graph = record(module, (self.x,))
        self.numbers = Numbers(self.graph, tensors_of(module))
        (self.node,) = self.graph.marks[""].outputs.values()
