"""Nets as they are usually built: norms behind convolutions, and what follows an attention over all tokens."""

from __future__ import annotations

import torch.nn.functional as F
from torch import nn

from nets import Does, rows
from nets import conv as conv_of


def conv(i=4, o=4, k=3):
    """A convolution that keeps the size."""
    return conv_of(i, o, k)


class Chain(nn.Module):
    """Layers in a row between two convolutions, and a module whose output is the map."""

    def __init__(self, layers, channels=3):
        super().__init__()
        self.first, self.layers, self.then, self.last = conv(channels), nn.ModuleList(layers), conv(), nn.Identity()

    def forward(self, x):
        x = self.first(x).tanh()
        for layer in self.layers:
            x = layer(x)
        return self.last(self.then(x))


def device(x):
    return {"device": x.device, "dtype": x.dtype}


# --- norms folded into convolutions


class Absolute(nn.BatchNorm2d):
    def forward(self, x):
        return F.batch_norm(
            x, self.running_mean, self.running_var, self.weight.abs() + 0.5, self.bias, False, 0.1, self.eps
        )


class OtherEps(nn.BatchNorm2d):
    def forward(self, x):
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.1, 0.3)


class ByKeyword(nn.BatchNorm2d):
    def forward(self, x):
        return F.batch_norm(
            x, running_mean=self.running_mean, running_var=self.running_var, weight=self.weight, bias=self.bias
        )


class OtherBias(nn.Conv2d):
    def forward(self, x):
        return F.conv2d(x, self.weight, self.bias * 3, 1, self.padding)


class Standardised(nn.Conv2d):
    def forward(self, x):
        return F.conv2d(x, self.weight - self.weight.mean((1, 2, 3), keepdim=True), self.bias, 1, self.padding)


def weight_twice(m, x):
    return F.conv2d(m.norm(m.conv(x)).tanh(), m.conv.weight, padding=1)


def norm_twice(m, x):
    y = m.conv(x)
    z = F.batch_norm(m.other(x), m.norm.running_mean, m.norm.running_var, m.norm.weight, m.norm.bias)
    return m.norm(y).tanh() + z.sin()


FOLDED = {
    "plain": lambda: nn.Sequential(conv(), nn.BatchNorm2d(4), nn.Tanh()),
    "without affine": lambda: nn.Sequential(conv(), nn.BatchNorm2d(4, affine=False), nn.Tanh()),
    "other gain": lambda: nn.Sequential(conv(), Absolute(4), nn.Tanh()),
    "other eps": lambda: nn.Sequential(conv(), OtherEps(4), nn.Tanh()),
    "by keyword": lambda: nn.Sequential(conv(), ByKeyword(4), nn.Tanh()),
    "other bias": lambda: nn.Sequential(OtherBias(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Tanh()),
    "standardised": lambda: nn.Sequential(Standardised(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Tanh()),
    "weight norm": lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(conv()), nn.BatchNorm2d(4), nn.Tanh()),
    "weight used by hand": lambda: Does(weight_twice, conv=conv(), norm=nn.BatchNorm2d(4)),
    "norm used by hand": lambda: Does(norm_twice, conv=conv(), other=conv(), norm=nn.BatchNorm2d(4)),
    "transposed": lambda: nn.Sequential(nn.ConvTranspose2d(4, 4, 3, 1, 1), nn.BatchNorm2d(4), nn.Tanh()),
    "read beside": lambda: Does(lambda m, x: m.norm(y := m.conv(x)).tanh() + y, conv=conv(), norm=nn.BatchNorm2d(4)),
    "weight read": lambda: Does(
        lambda m, x: m.norm(m.conv(x)).tanh() * m.conv.weight.sum(), conv=conv(), norm=nn.BatchNorm2d(4)
    ),
}


# --- what follows an attention over all tokens


class Transformer(nn.Module):
    """Patches, one attention over all tokens, and what follows it."""

    def __init__(self, after, mlp):
        super().__init__()
        self.patches, self.attention = nn.Conv2d(3, 8, 4, 4), nn.MultiheadAttention(8, 2, batch_first=True)
        self.after, self.mlp, self.last = after, mlp, nn.Identity()

    def forward(self, x):
        y = self.patches(x)
        t = y.flatten(2).transpose(1, 2)
        t = t + self.attention(t, t, t, need_weights=False)[0]
        return self.last(self.after(self.mlp, t).transpose(1, 2).reshape(y.shape))


def feed_forward():
    return nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))


def gated(m, t):
    z = t * m(t)
    return z / z.norm(dim=-1, keepdim=True)


AFTER = {
    "residual": (lambda m, t: t + m(t), feed_forward),
    "flat batch": (lambda m, t: t + m(t.reshape(-1, 8)).view(t.shape), feed_forward),
    "tokens first": (lambda m, t: t + m(t.transpose(0, 1)).transpose(0, 1), feed_forward),
    "heads beside the batch": (lambda m, t: t + m(t.unflatten(1, (6, 7)).flatten(0, 1)).view(t.shape), feed_forward),
    "in place": (lambda m, t: t.mul(2).add_(m(t)), feed_forward),
    "twice": (lambda m, t: m(m(t)), feed_forward),
    "neighbour": (lambda m, t: t + m(t).roll(1, 1), feed_forward),
    "mean": (lambda m, t: t + m(t).mean(1, keepdim=True), feed_forward),
    "norm of zeros": (gated, feed_forward),
    "root of zeros": (lambda m, t: (t * m(t)).abs().sqrt(), feed_forward),
    "logarithm of zeros": (lambda m, t: (t * m(t)).square().log(), feed_forward),
    "division by zeros": (lambda m, t: t / m(t), feed_forward),
}


class Rows(nn.Module):
    """Every row of the map is a sequence of its own, beside the batch."""

    def __init__(self):
        super().__init__()
        self.first, self.mlp, self.last = (
            conv(3),
            nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4)),
            nn.Identity(),
        )

    def forward(self, x):
        x = self.first(x)
        x = x + x.mean((2, 3), keepdim=True)
        b, c, h, w = x.shape
        return self.last(self.mlp(x.permute(0, 2, 3, 1).reshape(b * h, w, c)).view(b, h, w, c).permute(0, 3, 1, 2))


rows("folded", {name: lambda make=make: Chain([make()]) for name, make in FOLDED.items()}, size=(29, 34))
rows(
    "after attention",
    {name: lambda after=after, mlp=mlp: Transformer(after, mlp()) for name, (after, mlp) in AFTER.items()},
    size=(24, 28),
)
rows("ordinary", {"rows beside the batch": Rows}, size=(20, 24))
