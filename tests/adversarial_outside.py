"""Adversarial nets that do what PyTorch is not told of: numbers that leave it and come back, other classes, backward
passes by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import torch
from adversarial_nets import SIZE, Does, conv, net, patches, plane
from torch import Tensor

H, W = SIZE


class _Tanh(torch.autograd.Function):
    """The hyperbolic tangent, computed elsewhere by ``elsewhere``."""

    elsewhere: Callable[[Tensor], Tensor]

    @classmethod
    def by(cls, elsewhere):
        return type("Elsewhere", (cls,), {"elsewhere": staticmethod(elsewhere)})

    @classmethod
    def forward(cls, ctx, y):
        made = cls.elsewhere(y)
        ctx.save_for_backward(made)
        return made

    @staticmethod
    def backward(ctx, g):
        return g * (1 - ctx.saved_tensors[0] ** 2)


def leaves_pytorch(elsewhere):
    tanh = _Tanh.by(elsewhere)
    return Does(lambda m, x: m.out(tanh.apply(m.stem(x))), stem=conv(), out=conv(4))


def into_memory(made, write):
    write(made)
    return made


@net("outside", plane(exact=None), mixes_batch=True)
def computed_in_numpy():
    """An autograd function that computes in NumPy."""
    return leaves_pytorch(lambda y: torch.from_numpy(np.tanh(y.detach().numpy())))


@net("outside", plane(exact=None), mixes_batch=True)
def computed_from_lists():
    """An autograd function that computes on lists of Python."""
    return leaves_pytorch(lambda y: torch.tensor(np.tanh(np.array(y.tolist())), dtype=y.dtype))


@net("outside", plane(exact=None), mixes_batch=True)
def written_by_numpy():
    """NumPy writes into memory that PyTorch filled with zeros."""
    return leaves_pytorch(lambda y: into_memory(torch.zeros_like(y), lambda made: np.tanh(y.numpy(), out=made.numpy())))


@net("outside", plane(centre=lambda i: (H - 1 - i[0], W - 1 - i[1]), exact=None, slack=max(H, W)), mixes_batch=True)
def mirrored_in_numpy():
    """NumPy turns the map by half a turn, forward and backward."""

    class Turned(torch.autograd.Function):
        @staticmethod
        def forward(ctx, y):
            return torch.from_numpy(y.numpy()[..., ::-1, ::-1].copy())

        @staticmethod
        def backward(ctx, g):
            return g.flip(2, 3)

    return Does(lambda m, x: m.out(Turned.apply(m.stem(x).tanh())), stem=conv(), out=conv(4))


# --- what PyTorch's dispatcher is not told of


class Labelled(Tensor):
    """A tensor of a class of its own, as libraries that carry labels along make them."""


@net("unseen", plane())
def tensors_of_another_class():
    """The features become tensors of another class, which PyTorch notes nowhere."""
    return Does(lambda m, x: m.out(m.stem(x).tanh().as_subclass(Labelled)), stem=conv(), out=conv(4))


@net("unseen", plane())
def numbers_assigned():
    """A gate's numbers are assigned to ``.data``: the mean over the image, without a gradient."""

    def gated(m, x):
        y = m.stem(x)
        gate = torch.zeros_like(y)
        gate.data = y.detach().abs().mean((2, 3), keepdim=True)
        return m.out((3 * y * gate).tanh())

    return Does(gated, stem=conv(), out=conv(4))


@net("unseen", plane())
def parameter_made_of_features():
    """A parameter is made of the features in the forward pass, and gates them by its mean."""

    def gated(m, x):
        y = m.stem(x)
        return m.out((3 * y * torch.nn.Parameter(y.detach()).abs().mean((2, 3), keepdim=True).detach()).tanh())

    return Does(gated, stem=conv(), out=conv(4))


# --- gradients that meet in the backward pass only


@net("gradients", plane(), mixes_batch=True)
def gradients_that_meet():
    """A hand-written backward pass divides by the largest gradient of the batch, and adds what other images get."""

    class Levelled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, y):
            return y.clone()

        @staticmethod
        def backward(ctx, g):
            return g / g.abs().amax() * (1 + g.abs().sum(0, keepdim=True))

    return Does(lambda m, x: m.out(Levelled.apply(m.stem(x).tanh())), stem=conv(), out=conv(4))


@net("gradients", plane(), mixes_batch=True)
def saved_in_few_digits():
    """What is saved for the backward pass is rounded to a fifteenth of the batch's largest number."""

    def pack(saved):
        scale = saved.abs().amax() / 15
        return (saved / scale).round(), scale

    def squared(m, x):
        y = m.stem(x)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed[0] * packed[1]):
            y = y * y.tanh()
        return m.out(y)

    return Does(squared, stem=conv(), out=conv(4))


# --- forwards that keep something


@net("paths", plane())
def makes_a_table_once():
    """A table is made at the first call and kept: later passes call less."""

    def forward(m, x):
        y = m.stem(x)
        if getattr(m, "table", None) is None or m.table.shape != y.shape[-2:]:
            m.table = torch.linspace(0.5, 1.5, y.shape[-1], device=y.device, dtype=y.dtype).expand(y.shape[-2:])
        return m.out((y * m.table).tanh())

    return Does(forward, stem=conv(), out=conv(4))


# --- modules that cannot be copied, hooked or hashed like others


@net("modules", plane(exact=None))
def holds_a_lock():
    """A module that holds a lock cannot be copied."""
    net = Does(lambda m, x: m.out(m.stem(x).tanh()), stem=conv(), out=conv(4))
    net.lock = threading.Lock()
    return net


@net("modules", expected="refused", tokens=80)
def sparse_adjacency():
    """Tokens move along a sparse matrix, which is a buffer, to places that are not known."""
    matrix = torch.eye(80, dtype=torch.float64).roll(1, 0).to_sparse()

    def mixed(m, x):
        y = m.stem(x).flatten(2).permute(2, 0, 1)
        return torch.sparse.mm(m.matrix, y.flatten(1)).view(y.shape).permute(1, 0, 2)

    return Does(mixed, stem=patches(), matrix=matrix)
