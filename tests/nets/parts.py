"""Small nets, one for each kind of operation, whose fields a change of the input shows to the cell."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from nets import NETS, Does, Net, rows


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


CASES = {
    "chain": (lambda: Does(lambda n, x: n.b(n.a(x)), a=conv(5, 2, 2), b=conv(3)), (23, 18)),
    "dilated": (lambda: Does(lambda n, x: n.b(n.a(x)), a=conv(3, padding=2, dilation=2), b=conv(3)), (20, 21)),
    "dilated by three, with gaps": (lambda: Does(lambda n, x: n.a(x), a=conv(3, 2, padding=3, dilation=3)), (20, 21)),
    "grouped, no padding": (lambda: Does(lambda n, x: n.b(n.a(x)), a=conv(3, 2, 0, groups=2), b=conv(3)), (21, 19)),
    "residual": (lambda: Does(lambda n, x: n.c(x + n.b(n.a(x))), a=conv(), b=conv(), c=conv(3, 2)), (17, 16)),
    "in place": (
        lambda: Does(lambda n, x: n.a(x).add_(n.b(x)).mul_(2.0).relu_(), a=conv(), b=conv(5, padding=2)),
        (12, 13),
    ),
    "branches": (
        lambda: Does(
            lambda n, x: n.c(torch.cat([n.a(x), n.b(x)], 1)), a=conv(), b=conv(7, padding=3), c=nn.Conv2d(4, 2, 1)
        ),
        (20, 17),
    ),
    "average pooling": (lambda: Does(lambda n, x: F.avg_pool2d(n.a(x), 3, 2, 1), a=conv()), (19, 20)),
    "ceil mode": (lambda: Does(lambda n, x: F.avg_pool2d(n.a(x), 3, 2, ceil_mode=True), a=conv()), (18, 15)),
    "transposed k4 s2 p1": (
        lambda: Does(lambda n, x: n.b(n.a(x)), a=nn.ConvTranspose2d(2, 2, 4, 2, 1), b=conv()),
        (9, 8),
    ),
    "transposed k3 s2 p1": (
        lambda: Does(lambda n, x: n.b(n.a(x)), a=nn.ConvTranspose2d(2, 2, 3, 2, 1, 1), b=conv()),
        (9, 8),
    ),
    "transposed dilated": (
        lambda: Does(
            lambda n, x: n.b(n.a(x)), a=nn.ConvTranspose2d(2, 2, 3, 2, 2, 1, dilation=2), b=conv(5, padding=2)
        ),
        (9, 8),
    ),
    "transposed of strided": (
        lambda: Does(lambda n, x: x + n.b(n.a(x)), a=conv(4, 2, 1), b=nn.ConvTranspose2d(2, 2, 4, 2, 1)),
        (12, 14),
    ),
    "nearest": (lambda: Does(lambda n, x: n.a(F.interpolate(x, scale_factor=2)), a=conv()), (7, 9)),
    "nearest to a size": (lambda: Does(lambda n, x: n.a(F.interpolate(x, (17, 13))), a=conv()), (7, 9)),
    "nearest exact": (
        lambda: Does(lambda n, x: n.a(F.interpolate(x, (17, 5), mode="nearest-exact")), a=conv()),
        (7, 9),
    ),
    "bilinear": (lambda: Does(lambda n, x: F.interpolate(n.a(x), scale_factor=2, mode="bilinear"), a=conv()), (7, 9)),
    "bilinear to a size": (
        lambda: Does(lambda n, x: F.interpolate(n.a(x), (5, 20), mode="bilinear"), a=conv()),
        (7, 9),
    ),
    "aligned corners": (
        lambda: Does(lambda n, x: F.interpolate(n.a(x), (13, 17), mode="bilinear", align_corners=True), a=conv()),
        (7, 9),
    ),
    "bicubic": (lambda: Does(lambda n, x: F.interpolate(n.a(x), scale_factor=2, mode="bicubic"), a=conv()), (9, 11)),
    "antialiased": (
        lambda: Does(lambda n, x: F.interpolate(n.a(x), (5, 7), mode="bilinear", antialias=True), a=conv()),
        (20, 21),
    ),
    "adaptive pooling": (lambda: Does(lambda n, x: F.adaptive_avg_pool2d(n.a(x), (3, 4)), a=conv()), (11, 10)),
    "pixel shuffle": (lambda: Does(lambda n, x: n.b(F.pixel_shuffle(n.a(x), 2)), a=conv(width=8), b=conv()), (7, 8)),
    "pixel unshuffle": (
        lambda: Does(lambda n, x: n.a(F.pixel_unshuffle(x, 2)), a=nn.Conv2d(8, 2, 3, padding=1)),
        (14, 12),
    ),
    "pixel shuffle by hand": (lambda: Does(pixels_by_hand, wide=conv(width=8), conv=conv()), (7, 8)),
    "pixel unshuffle by hand": (lambda: Does(pixels_down_by_hand, conv=nn.Conv2d(8, 2, 3, padding=1)), (14, 12)),
    "two unshuffles and a shuffle": (lambda: Does(shuffled_pixels), (16, 12)),
    "unshuffled, by channels, shuffled": (
        lambda: Does(
            lambda n, x: F.pixel_shuffle(n.a(F.pixel_unshuffle(x, 2)), 2), a=nn.Conv2d(8, 8, 3, padding=1, groups=8)
        ),
        (16, 12),
    ),
    "patches that leave a row": (lambda: Does(lambda n, x: n.a(x), a=nn.Conv2d(2, 3, 4, 4)), (41, 18)),
    "zero padding": (lambda: Does(lambda n, x: n.a(F.pad(x, (2, 1, 0, 1))), a=conv(3, 2, 0)), (14, 14)),
    "padded beside a shortcut": (
        lambda: Does(lambda n, x: (y := n.a(x)) + F.pad(y[..., 7:], (7, 0)), a=conv()),
        (10, 11),
    ),
    "reflection": (lambda: Does(lambda n, x: n.a(F.pad(n.a(x), (1, 1, 1, 1), mode="reflect")), a=conv()), (10, 11)),
    "replication": (lambda: Does(lambda n, x: n.a(F.pad(n.a(x), (3, 3, 3, 3), mode="replicate")), a=conv()), (10, 11)),
    "circular padding": (
        lambda: Does(lambda n, x: n.a(x), a=nn.Conv2d(2, 2, 5, padding=2, padding_mode="circular")),
        (12, 13),
    ),
    "padding same": (lambda: Does(lambda n, x: n.a(x), a=nn.Conv2d(2, 2, 3, padding="same", dilation=2)), (12, 13)),
    "shifted windows": (
        lambda: Does(
            window_attention, conv=conv(1, padding=0), q=nn.Linear(2, 2), k=nn.Linear(2, 2), v=nn.Linear(2, 2)
        ),
        (12, 16),
    ),
    "patch merging": (lambda: Does(merged, norm=nn.LayerNorm(8), linear=nn.Linear(8, 3)), (12, 16)),
    "halves by slices": (lambda: Does(halves_by_slices, conv=nn.Conv2d(8, 2, 3, padding=1)), (12, 14)),
    "channels-last linear": (
        lambda: Does(lambda n, x: n.b(n.a(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)), a=nn.Linear(2, 2), b=conv()),
        (9, 8),
    ),
    "written in place": (lambda: Does(written_in_place, conv=conv(), wide=conv(5, padding=2), last=conv()), (11, 12)),
    "written later": (lambda: Does(later_write, conv=conv(1, padding=0), wide=conv(5, padding=2)), (14, 12)),
    "unfold and fold": (lambda: Does(fold_unfold, conv=conv(), mix=nn.Linear(18, 18)), (11, 12)),
    "unfolded and folded unmixed": (
        lambda: Does(lambda n, x: F.fold(F.unfold(n.a(x), 3, 2, 2), x.shape[2:], 3, 2, 2), a=conv()),
        (11, 12),
    ),
    "overlapping windows": (lambda: Does(halo, conv=conv()), (16, 12)),
    "shuffled channels": (lambda: Does(shuffled, conv=conv(), one=nn.Conv2d(1, 1, 5, padding=2)), (12, 13)),
    "flipped": (lambda: Does(lambda n, x: n.a(x.flip(3)), a=conv(3, 2)), (12, 13)),
    "turned": (lambda: Does(lambda n, x: n.a(torch.rot90(x, 1, (2, 3))), a=conv(3, 2)), (12, 13)),
    "transposed axes": (lambda: Does(lambda n, x: n.b(n.a(x) + x.transpose(2, 3)), a=conv(), b=conv()), (12, 12)),
    "stacked": (lambda: Does(stacked_and_unbound, conv=conv(), wide=conv(5, padding=2)), (12, 13)),
    "side by side": (lambda: Does(lambda n, x: torch.cat([n.a(x), n.b(x)], 2), a=conv(), b=conv(5, padding=2)), (8, 9)),
    "tiled": (lambda: Does(lambda n, x: n.a(x.repeat(1, 1, 1, 2)[..., :9]), a=conv()), (8, 9)),
    "repeated cells": (lambda: Does(lambda n, x: n.b(n.a(x).repeat_interleave(2, dim=3)), a=conv(), b=conv()), (8, 9)),
    "einsum": (
        lambda: Does(lambda n, x: torch.einsum("bchw,dc->bdhw", n.a(x), n.b.weight), a=conv(), b=nn.Linear(2, 3)),
        (8, 9),
    ),
    "einsum that broadcasts": (
        lambda: Does(
            lambda n, x: torch.einsum("...hw,...w->...hw", n.a(x), n.b(x).mean(2, keepdim=True)[:, :, 0]),
            a=conv(),
            b=conv(5, padding=2),
        ),
        (8, 9),
    ),
    "einsum of one column": (
        lambda: Does(
            lambda n, x: torch.einsum("bchw,bchw->bchw", n.a(x), n.b(x)[..., :1]), a=conv(), b=conv(5, padding=2)
        ),
        (8, 9),
    ),
    "broadcast_tensors": (
        lambda: Does(
            lambda n, x: torch.mul(*torch.broadcast_tensors(n.a(x), n.b(x)[:, :, 2:3])),
            a=conv(),
            b=conv(5, padding=2),
        ),
        (8, 9),
    ),
    "linalg.norm": (
        lambda: Does(lambda n, x: n.b(x) / torch.linalg.norm(n.a(x), dim=1, keepdim=True), a=conv(), b=conv()),
        (8, 9),
    ),
    "where and clamp": (
        lambda: Does(
            lambda n, x: torch.where(n.a(x) > 0, n.b(x), n.a(x)).clamp(-1e9, 1e9), a=conv(), b=conv(5, padding=2)
        ),
        (12, 11),
    ),
    "norm over channels": (
        lambda: Does(lambda n, x: n.a(F.layer_norm(x.permute(0, 2, 3, 1), (2,)).permute(0, 3, 1, 2)), a=conv()),
        (9, 8),
    ),
    "frozen batch norm": (lambda: Does(lambda n, x: n.a(n.b(x)), a=conv(), b=nn.BatchNorm2d(2)), (9, 8)),
    "gated": (lambda: Does(lambda n, x: F.glu(n.a(x), 1), a=conv(width=4)), (9, 8)),
    "chosen by numbers": (
        lambda: Does(
            lambda n, x: n.a(x)[:, :, (n.order + 2) % 5], a=conv(), order=nn.Buffer(torch.tensor([3, 1, 0, 2]))
        ),
        (9, 8),
    ),
    "rows cut from a list": (
        lambda: Does(lambda n, x: n.a(x).flatten(2)[:, :, 18:54].view(-1, 2, 4, 9), a=conv()),
        (8, 9),
    ),
    "chosen by a range": (lambda: Does(lambda n, x: n.a(x).index_select(3, torch.arange(6, 0, -2)), a=conv()), (9, 8)),
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


#: Operations that pick or crop, of which a change of the input may show less than the field.
SELECTIVE = {
    "max pooling": lambda: Does(lambda n, x: F.max_pool2d(n.conv(x), 3, 2, 1), conv=conv()),
    "dilated max pooling": lambda: Does(
        lambda n, x: F.max_pool2d(n.conv(x), 3, 2, 1, dilation=2, ceil_mode=True), conv=conv()
    ),
    "adaptive max pooling": lambda: Does(lambda n, x: F.adaptive_max_pool2d(n.conv(x), 5), conv=conv()),
    "cropped": lambda: Does(lambda n, x: n.conv(n.conv(x)[:, :, 3:-2, 2:]), conv=conv()),
    "negative padding": lambda: Does(lambda n, x: n.conv(F.pad(x, (-2, 0, 1, -3))), conv=conv()),
}


NETS.extend(
    Net(kind="part", called=f"part: {name}", make=make, size=size, channels=2, tight=True)
    for name, (make, size) in CASES.items()
)
rows(
    "part",
    {name: lambda function=function: Does(function, **parts()) for name, function in REARRANGED.items()},
    size=(12, 15),
    channels=2,
    tight=True,
)
rows("part", SELECTIVE, size=(14, 13), channels=2)
rows(
    "part",
    {
        "attention of a tensor on itself": lambda: Does(lambda n, x: F.scaled_dot_product_attention(x, x, x)),
        "windows on padding alone": lambda: Does(
            lambda n, x: n.a(x)[:, :, :6, :5] + x, a=nn.Conv2d(2, 2, 2, padding=3)
        ),
    },
    size=(6, 5),
    channels=2,
)
rows(
    "part",
    {"dilated max pooling of three cells": lambda: Does(lambda n, x: F.max_pool2d(x, 3, 1, 1, dilation=2))},
    size=(3, 3),
    channels=2,
)
