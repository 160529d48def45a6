"""Adversarial nets whose numbers leave PyTorch and come back: functions in NumPy, on lists, through pointers."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import torch
from adversarial_nets import SIZE, Does, conv, net, plane
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


@net("outside", plane(exact=None), mixes_batch=True)
def written_through_a_pointer():
    """A foreign kernel writes into empty memory that it has the address of."""

    def elsewhere(y):
        values = np.tanh(np.asarray(y))
        return into_memory(torch.empty_like(y), lambda made: ctypes.memmove(made.data_ptr(), values.ctypes.data, values.nbytes))

    return leaves_pytorch(elsewhere)


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
