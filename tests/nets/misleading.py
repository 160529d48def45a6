"""Nets that use their size, numbers by position, writes, gradients and random numbers in ways that could mislead."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from nets import NETS, SIZE, Does, Net, kind_of, rows
from nets.ordinary import Chain, conv, feed_forward


def wide(x):
    """A size that every crop changes, told apart from the whole."""
    return x.shape[-1] >= SIZE[1] or x.shape[-2] >= SIZE[0]


def table(*shape, seed=5):
    return nn.Parameter(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)))


def lowpass_and_table(m, x):
    low = F.avg_pool2d(x, 5, 1, 2)
    return (low + m.map[:, :, : x.shape[2], : x.shape[3]]).relu()


def with_coordinates_written(m, x):
    b, c, h, w = x.shape
    buffer = torch.zeros(b, c + 1, h, w, **kind_of(x))
    buffer[:, :c] = x
    buffer[:, c] = torch.linspace(-1, 1, w, **kind_of(x))
    return m.inner(buffer).sin()


def over_a_table(m, x):
    """A table of which a part is written over."""
    y = m.map[:, :, : x.shape[2], : x.shape[3]].expand(len(x), 4, *x.shape[2:]).clone()
    y[:, :2] = x[:, :2]
    return (m.inner(y) + x).sin()


def corner(m, x):
    """A fixed number of cells, and a table that fits them whatever they are."""
    part = x[:, :, :12, :12]
    return x + F.pad((part * m.map).sin(), (0, x.shape[3] - part.shape[3], 0, x.shape[2] - part.shape[2]))


def locally_connected(m, x):
    part = x[:, :, :, :12]
    y = torch.einsum("bchw,wcd->bdhw", part, m.w)
    return x + F.pad(y.tanh(), (0, x.shape[3] - 12))


def norm_of_columns(m, x):
    part = x[:, :, :, :12].permute(0, 3, 1, 2)
    return x + F.pad(m.norm(part).permute(0, 2, 3, 1).tanh(), (0, x.shape[3] - 12))


def without_gradient_by_size(m, x):
    with torch.set_grad_enabled(torch.is_grad_enabled() and wide(x)):
        gate = m.inner(x).sigmoid()
    return x * gate


def detached_by_size(m, x):
    return x * (m.inner(x) if wide(x) else m.inner(x).detach()).sigmoid()


class RemembersATable(nn.Module):
    """Makes its grid once, and keeps it."""

    def __init__(self):
        super().__init__()
        self.kept, self.inner = {}, conv()

    def forward(self, x):
        if "grid" not in self.kept:
            self.kept["grid"] = torch.linspace(0, 1, x.shape[-1], **kind_of(x))
        return self.inner(x + self.kept["grid"][: x.shape[-1]]).sin()


def padded_to_a_multiple(m, x):
    y = F.pad(x, (0, -x.shape[3] % 6, 0, -x.shape[2] % 6), value=0.7)
    return F.avg_pool2d(y, 6, 1, 3)[:, :, : x.shape[2], : x.shape[3]]


def rows_with_a_table(m, x):
    b, c, h, w = x.shape
    y = x.permute(0, 2, 1, 3).reshape(b * h, c, w)
    return (y + m.map[:h].repeat(b, 1, 1)).view(b, h, c, w).permute(0, 2, 1, 3).sin()


def windows_with_a_table(m, x):
    b, c, h, w = x.shape
    return (x.view(b, c, h // 4, 4, w // 4, 4) + m.map[:, :, : h // 4]).view(b, c, h, w).sin()


def written_row_by_row(m, x):
    y = x.clone()
    y.view(len(x), -1)[:, 40:80] = 0.5
    return y.sin()


class Rolled(torch.autograd.Function):
    """The identity with a gradient that moves."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return g + g.roll(1, 2)


def written(where):
    def function(m, x):
        x = x * 1
        where(x)
        return x

    return function


def zero(x):
    x[..., -5:] = 0


def zeroed(x):
    x[..., -5:].zero_()


def diagonal(x):
    x.diagonal(dim1=2, dim2=3).zero_()


def indexed(x):
    x[:, :, torch.arange(x.shape[2], device=x.device) % 3 == 0] = 0


def scaled(x):
    x[..., 2:6] *= 3


def backward_hooked():
    module = conv()
    module.register_full_backward_hook(lambda _m, gradients, _o: tuple(g.flip(3) for g in gradients))
    return module


def tiled(m, x):
    return (x + m.tile.repeat(1, 1, 14, 14)[:, :, : x.shape[2], : x.shape[3]]).sin()


def sampled(m, x):
    grid = F.affine_grid(torch.eye(2, 3, **kind_of(x))[None].expand(len(x), 2, 3), x.shape, align_corners=False)
    return F.grid_sample(x, grid, align_corners=False)


def columns(x):
    return torch.arange(x.shape[-1], device=x.device)


def hooked(m, x):
    y = m.inner(x)
    if y.requires_grad:
        y.register_hook(lambda g: g * g.shape[-1])
    return y.sin()


#: Nets that do something else at another size, or by the place, or whose gradient is another.
HOSTILE = {
    "a low-pass and a table": lambda: Does(lowpass_and_table, map=table(1, 4, 64, 64)),
    "a half by the size": lambda: Does(lambda m, x: m.i(x.chunk(2, 1)[int(wide(x))]), i=conv(2)),
    "a part by the size": lambda: Does(
        lambda m, x: m.i(x.split([1, 3], 1)[1] if wide(x) else x.split([3, 1], 1)[0]), i=conv(3)
    ),
    "a channel by the size": lambda: Does(lambda m, x: m.i(x.unbind(1)[int(wide(x))][:, None]), i=conv(1)),
    "the largest or its place": lambda: Does(lambda m, x: x * x.max(1, keepdim=True)[int(wide(x))]),
    "coordinates written": lambda: Does(with_coordinates_written, inner=conv(5)),
    "a table written over": lambda: Does(over_a_table, map=table(1, 4, 64, 64), inner=conv()),
    "a table on a fixed corner": lambda: Does(corner, map=table(1, 4, 12, 12)),
    "weights for every column": lambda: Does(locally_connected, w=table(12, 4, 4)),
    "a norm for every column": lambda: Does(norm_of_columns, norm=nn.BatchNorm2d(12)),
    "gradients by the size": lambda: Does(without_gradient_by_size, inner=conv()),
    "detached by the size": lambda: Does(detached_by_size, inner=conv()),
    "a forward that looks for gradients": lambda: Does(
        lambda m, x: x * 3 if x.requires_grad and not wide(x) else x.sin(),
    ),
    "a forward that asks for gradients": lambda: Does(
        lambda m, x: x * 3 if torch.is_grad_enabled() and not wide(x) else x.sin()
    ),
    "a table of the first image": RemembersATable,
    "a resized table": lambda: Does(
        lambda m, x: (x + F.interpolate(m.map, x.shape[2:], mode="bilinear")).relu(), map=table(1, 4, 5, 5)
    ),
    "a table by rows alone": lambda: Does(lambda m, x: (x + m.map[:, :, : x.shape[2]]).relu(), map=table(1, 4, 64, 1)),
    "a table of another stride": lambda: Does(
        lambda m, x: (
            (F.avg_pool2d(x, 2) + m.map[..., : x.shape[2] // 2, : x.shape[3] // 2])
            .relu()
            .repeat_interleave(2, 2)
            .repeat_interleave(2, 3)
        ),
        map=table(1, 4, 64, 64),
    ),
    "a convolution of ones": lambda: Does(lambda m, x: (x + m.inner(torch.ones_like(x)).tanh()).sin(), inner=conv()),
    "a table for the map row by row": lambda: Does(
        lambda m, x: (x.flatten(2) + m.map[:, :, : x.shape[2] * x.shape[3]]).view(x.shape).sin(), map=table(1, 4, 4000)
    ),
    "rows of the map as a batch": lambda: Does(rows_with_a_table, map=table(64, 4, 1)),
    "windows of a table": lambda: Does(windows_with_a_table, map=table(1, 4, 20, 1, 1, 1)),
    "a table within windows": lambda: Does(windows_with_a_table, map=table(1, 4, 1, 4, 1, 4)),
    "a part written row by row": lambda: Does(written_row_by_row),
    "a mean by hand": lambda: Does(lambda m, x: x - x.sum((2, 3), keepdim=True) / (x.shape[2] * x.shape[3])),
    "rolled by half": lambda: Does(lambda m, x: x + x.roll(x.shape[3] // 2, 3)),
    "padded to a multiple": lambda: Does(padded_to_a_multiple),
    "random columns by a seed": lambda: Does(
        lambda m, x: x[..., torch.randperm(x.shape[-1], generator=torch.Generator().manual_seed(3)).to(x.device)]
    ),
    # Constants of the same shape that follow the size, and constants per position.
    "one of two buffers": lambda: Does(
        lambda m, x: (x + (m.a if wide(x) else m.b)).sin(), a=torch.ones(1), b=-torch.ones(1)
    ),
    "a slice of a weight": lambda: Does(
        lambda m, x: F.conv2d(x, m.all[x.shape[-1] % 4], padding=1), all=nn.Parameter(torch.randn(4, 4, 4, 3, 3))
    ),
    "every third column": lambda: Does(lambda m, x: x.masked_fill(columns(x) % 3 == 0, 0.0)),
    "all but the last columns": lambda: Does(
        lambda m, x: torch.where(columns(x) < x.shape[-1] - 4, x, x.new_zeros(()))
    ),
    "tiles": lambda: Does(tiled, tile=table(1, 4, 3, 3)),
    "indices": lambda: Does(
        lambda m, x: x + x[..., m.order % x.shape[-1]][..., : x.shape[-1]], order=torch.randperm(160)
    ),
    "a gather": lambda: Does(lambda m, x: x.gather(3, x.shape[-1] - 1 - columns(x).expand(x.shape))),
    # Constants written into the map.
    "zeros written at the end": lambda: Does(written(zero)),
    "the end zeroed": lambda: Does(written(zeroed)),
    "the diagonal zeroed": lambda: Does(written(diagonal)),
    "rows zeroed by index": lambda: Does(written(indexed)),
    "columns scaled": lambda: Does(written(scaled)),
    "a triangle": lambda: Does(lambda m, x: x.triu(2)),
    # Sizes.
    "padding by the width": lambda: Does(lambda m, x: F.pad(x, (x.shape[-1] % 7, 0, 0, 0))),
    "a padding value": lambda: Does(lambda m, x: F.pad(x, (0, 2, 0, 1), value=float(x.shape[-1]))),
    "circular padding outside a convolution": lambda: Does(lambda m, x: F.pad(x, (2, 2, 2, 2), mode="circular")),
    "a crooked scale": lambda: Does(
        lambda m, x: F.interpolate(x, scale_factor=1.3, mode="bicubic", recompute_scale_factor=True)
    ),
    # Gradients that are not the forward's.
    "a gradient that moves": lambda: Does(lambda m, x: Rolled.apply(m.inner(x)), inner=conv()),
    "a module's backward hook": backward_hooked,
    "a hook on a tensor": lambda: Does(hooked, inner=conv()),
    # Rows of a rotation, frequencies, products, channels.
    "grid sample": lambda: Does(sampled),
    "fourier": lambda: Does(lambda m, x: torch.fft.ifft2(torch.fft.fft2(x) * 0.5).real),
    "a matrix over columns": lambda: Does(lambda m, x: x @ ((columns(x)[:, None] - columns(x)).abs() <= 1).to(x.dtype)),
    "permuted channels": lambda: Does(lambda m, x: x[:, [2, 0, 3, 1]]),
}


#: Why the model itself is run.
PLAIN = {
    "a forward that looks for gradients": "reads requires_grad",
    "a hook on a tensor": "reads requires_grad",
    "random columns by a seed": "draws random numbers",
    "a gradient that moves": "hand-written backward pass",
    "a module's backward hook": "backward hooks",
}


RANDOM = {
    "dropout": lambda m, x: F.dropout(x, 0.5, training=True),
    "channels dropped": lambda m, x: F.dropout2d(x, 0.5, training=True),
    "noise": lambda m, x: x * torch.rand_like(x),
    "noise in place": lambda m, x: x * x.new_empty(x.shape).bernoulli_(0.5),
    "rrelu": lambda m, x: F.rrelu(x, training=True),
    "bernoulli": lambda m, x: x * torch.bernoulli(x.sigmoid()),
}


def convlstm(m, x):
    """Two steps on one image, with states of its own."""
    b, _, h, w = x.shape
    hidden, cell = torch.zeros(b, 4, h, w, **kind_of(x)), torch.zeros(b, 4, h, w, **kind_of(x))
    for _ in range(2):
        i, f, o, g = m.gates(torch.cat([x, hidden], 1)).chunk(4, 1)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        hidden = o.sigmoid() * cell.tanh()
    return hidden


#: Numbers beside those of the image, the same everywhere or by the place.
NUMBERS = {
    "states of zeros": lambda: Does(convlstm, gates=conv(8, 16)),
    "a convolution of zeros": lambda: Does(lambda m, x: (x + m.inner(torch.zeros_like(x)).tanh()).sin(), inner=conv()),
    "a mask of ones": lambda: Does(lambda m, x: (x * torch.ones(x.shape[2:], **kind_of(x))).sin()),
    "one number for all": lambda: Does(lambda m, x: (x + torch.full_like(x, 0.3)).sin()),
    "new zeros": lambda: Does(lambda m, x: torch.cat([x, x.new_zeros(len(x), 1, *x.shape[2:])], 1)[:, :4].sin()),
    "zeros written": lambda: Does(lambda m, x: written_zero(x)),
    "a table for all positions": lambda: Does(
        lambda m, x: (x + m.c.expand(1, 4, *x.shape[2:])).sin(), c=table(1, 4, 1, 1)
    ),
    "a table": lambda: Does(lambda m, x: (x + m.map[:, :, : x.shape[2], : x.shape[3]]).relu(), map=table(1, 4, 64, 64)),
    "a table of rows": lambda: Does(lambda m, x: (x + m.map[: x.shape[2]].t()[:, :, None]).relu(), map=table(64, 4)),
    "steps": lambda: Does(lambda m, x: (x + torch.sin(columns(x) * 0.3)).relu()),
    "a table chosen by steps": lambda: Does(lambda m, x: (x + torch.where(columns(x) % 3 == 0, 1.0, 0.0)).relu()),
    "zeros put beside": lambda: Does(lambda m, x: torch.cat([x, torch.zeros_like(x)], 1)[:, 1:5].sin()),
}


def written_zero(x):
    y = x * 1
    y[:, 1] = 0.0
    return y.sin()


# --- modules on the tokens after a mean of all of them


class Tokens(nn.Module):
    """Patches, a mean of all of them, and a module on each token."""

    def __init__(self, mlp):
        super().__init__()
        self.patches, self.mlp, self.last = nn.Conv2d(3, 8, 4, 4), mlp, nn.Identity()

    def forward(self, x):
        y = self.patches(x)
        t = y.flatten(2).transpose(1, 2)
        t = t + t.mean(1, keepdim=True)
        return self.last((t + self.mlp(t)).transpose(1, 2).reshape(y.shape))


CELLWISE = {
    "a norm over all cells": lambda: nn.Sequential(nn.LayerNorm([80, 8]), feed_forward()),
    "a table that one cell is repeated over": lambda: Does(
        lambda m, t: m.f((t + m.p)[:, : t.shape[1]]), f=feed_forward(), p=nn.Parameter(torch.randn(1, 80, 8))
    ),
    "a table by index": lambda: Does(
        lambda m, t: m.f(t + m.e(torch.arange(t.shape[1], device=t.device))), f=feed_forward(), e=nn.Embedding(80, 8)
    ),
    "the number of tokens": lambda: Does(lambda m, t: m.f(t) * t.shape[1] ** 0.5, f=feed_forward()),
    "tokens as channels of a norm": lambda: Does(lambda m, t: m.n(m.f(t)), f=feed_forward(), n=nn.BatchNorm1d(80)),
    "dropout": lambda: nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.5), nn.Linear(32, 8)),
    "statistics of the batch": lambda: Does(
        lambda m, t: F.batch_norm(m.f(t).transpose(1, 2), None, None, training=True).transpose(1, 2), f=feed_forward()
    ),
    "halves by the number of tokens": lambda: Does(
        lambda m, t: m.f(t[..., :4] if t.shape[1] > 40 else t[..., 4:]), f=nn.Linear(4, 8)
    ),
    "the rows of a map": lambda: Does(lambda m, t: m.f(t.unflatten(1, (8, 10))).flatten(1, 2), f=feed_forward()),
}


class Square(nn.Module):
    """As many tokens as channels, and a reshape that takes the one for the other."""

    def __init__(self):
        super().__init__()
        self.patches, self.last = nn.Conv2d(3, 16, 8, 8), nn.Identity()
        self.mlp = Does(
            lambda m, t: (m.f(t).reshape(len(t), 16, -1) + m.p).sin().reshape(t.shape),
            f=nn.Linear(16, 16),
            p=table(16, 1),
        )

    def forward(self, x):
        y = self.patches(x)
        t = y.flatten(2).transpose(1, 2)
        t = t + t.mean(1, keepdim=True)
        return self.last((t + self.mlp(t)).transpose(1, 2).reshape(y.shape))


def keeping(m, x):
    y = m.inner(x)
    if torch.is_grad_enabled():
        y.retain_grad()
    return y.sin()


def checkpointed(m, x):
    return checkpoint(m.inner, x, use_reentrant=False)


NETS.extend(
    Net(
        kind="misleading",
        called=f"misleading: {name}",
        make=lambda make=make: Chain([make()]),
        plain=PLAIN.get(name, ""),
        keeps=name == "a table of the first image",
    )
    for name, make in HOSTILE.items()
)
rows("numbers", {name: lambda make=make: Chain([make()]) for name, make in NUMBERS.items()})
rows(
    "chance",
    {name: lambda make=make: Chain([Does(make)]) for name, make in RANDOM.items()},
    expected="noisy",
    plain="draws random numbers",
)
NETS.extend(
    Net(
        kind="cellwise",
        called=f"cellwise: {name}",
        make=lambda make=make: Tokens(make()),
        mixes_batch=name == "statistics of the batch",
    )
    for name, make in CELLWISE.items()
)
rows("cellwise", {"tokens that are taken for channels": Square}, size=(32, 32))
rows(
    "no hook",
    {
        "a checkpoint": lambda: Chain([Does(checkpointed, inner=nn.Sequential(conv(), nn.Tanh(), conv()))]),
        "a kept gradient": lambda: Chain([Does(keeping, inner=conv())]),
    },
)
