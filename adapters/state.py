"""Borrow a model: every change for a measurement is undone, exceptions included."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from erfscope.adapters.eager import eager
from erfscope.core.system.containers import tensors_of
from erfscope.core.system.copies import copy_module
from erfscope.core.system.model_errors import contain_exits
from erfscope.core.system.restore import restoring_module, set_training


@contextlib.contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Evaluation mode, :func:`eager` and parameters outside the autograd graph, for the time of the block.

    BatchNorm in training mode would mix the images of a batch and change its own statistics; gradients of parameters
    are never needed. Afterwards, or after a :func:`restoring_module` around it, all is as it was.
    """
    with restoring_module(module) as loan:
        loan.keep_state(module)
        set_training(module, False)
        for parameter in module.parameters():
            parameter.requires_grad_(False)
        with eager(), contain_exits():
            yield


@contextlib.contextmanager
def hooked(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    """Hooks that are removed when the block ends."""
    kept = list(handles)
    try:
        yield
    finally:
        for handle in kept:
            handle.remove()


def shared_copy(module: nn.Module) -> nn.Module:
    """Copy of the structure alone: other modules around the very same parameters and buffers."""
    return copy_module(module, {id(tensor): tensor for tensor in tensors_of(module).values()})


def device_of(module: nn.Module) -> torch.device:
    """Device of the first parameter or buffer; the CPU for a module without any."""
    for tensor in itertools.chain(module.parameters(), module.buffers()):
        return tensor.device
    return torch.device("cpu")


def dtype_of(module: nn.Module, default: torch.dtype | None = None) -> torch.dtype:
    """Floating dtype of the first parameter or buffer; ``default``, or float32, for a module without any."""
    for tensor in itertools.chain(module.parameters(), module.buffers()):
        if tensor.is_floating_point():
            return tensor.dtype
    return default or torch.float32
