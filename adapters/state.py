"""Borrowing a model: whatever is changed for a measurement is undone, exceptions included."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from erfscope.adapters.eager import eager
from erfscope.model_errors import contain_exits
from erfscope.restore import lent


@contextlib.contextmanager
def borrowed(module: nn.Module, *, parameters: bool = False) -> Iterator[None]:
    """Evaluation mode, :func:`eager` and parameters outside the autograd graph (or all inside it), for the time of the
    block.

    BatchNorm in training mode would mix the images of a batch and change its own statistics; gradients of parameters
    are never needed. Afterwards, or after the block around it in which the module is :func:`lent`, all is as it was.
    """
    with lent(module):
        module.eval()
        for parameter in module.parameters():
            if parameter.requires_grad is not parameters and parameter.is_floating_point():
                parameter.requires_grad_(parameters)
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


def unwrapped(module: nn.Module) -> nn.Module:
    """The module inside ``torch.compile``, DataParallel or DistributedDataParallel: hooks and gradients need the plain
    one."""
    while True:
        if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            module = module.module
        elif isinstance(getattr(module, "_orig_mod", None), nn.Module):
            module = module._orig_mod  # type: ignore[assignment]
        else:
            return module


def ordinary_copy(module: nn.Module) -> nn.Module:
    """Copy whose tensors are ordinary ones, of a module that was made in inference mode."""
    return _copy(module, torch.clone)


def shared_copy(module: nn.Module) -> nn.Module:
    """Copy of the structure alone: other modules around the very same parameters and buffers."""
    return copy.deepcopy(module, {id(tensor): tensor for tensor in _tensors(module)})


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    """Every parameter, buffer and tensor attribute, those in lists and dictionaries included."""
    for m in module.modules():
        yield from (leaf for leaf in tree_leaves(dict(vars(m))) if isinstance(leaf, Tensor))


def _copy(module: nn.Module, renew: Callable[[Tensor], Tensor]) -> nn.Module:
    """Deep copy in which every parameter, buffer and tensor attribute is what ``renew`` makes of it."""
    memo: dict[int, object] = {}
    for tensor in _tensors(module):
        if id(tensor) in memo:
            continue
        with torch.no_grad():
            new = renew(tensor)
        is_parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(new, requires_grad=tensor.requires_grad) if is_parameter else new
    return copy.deepcopy(module, memo)


def device_of(module: nn.Module) -> torch.device:
    """Device of the first parameter or buffer; the CPU for a module without any."""
    for tensor in (*module.parameters(), *module.buffers()):
        return tensor.device
    return torch.device("cpu")


def dtype_of(module: nn.Module) -> torch.dtype:
    """Floating dtype of the first parameter or buffer; float32 for a module without any."""
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.is_floating_point():
            return tensor.dtype
    return torch.float32
