"""Copying a model, and casting the copy to another dtype."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


def copy_module(module: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """Return a deep copy of a module, with the numbers alone of what it has kept of a forward pass with gradients,
    which PyTorch does not copy.

    Args:
        module: The module.
        memo: Identities of parts and tensors -> what stands in their place, as for ``copy.deepcopy``.
    """
    with _NumbersAlone():
        return copy.deepcopy(module, {} if memo is None else memo)


class _NumbersAlone(TorchFunctionMode):
    """Within it a tensor that autograd has made is copied without its graph."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__deepcopy__ and not args[0].is_leaf:
            tensor, memo = args
            return memo.setdefault(id(tensor), tensor.detach().clone())
        return func(*args, **(kwargs or {}))


def cast_module(
    module: nn.Module, *, device: torch.device | None = None, dtype: torch.dtype | None = None
) -> nn.Module:
    """Move a module in place to a device and a dtype, complex tensors to the complex dtype of the same precision.

    ``Module.to`` would give complex tensors a real dtype, and drop their imaginary parts.
    """
    if dtype is None or not any(t.is_complex() for t in (*module.parameters(), *module.buffers())):
        return module.to(device=device, dtype=dtype)

    module.to(device=device)
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.is_complex() or tensor.is_floating_point():
            tensor.data = tensor.data.to(dtype.to_complex() if tensor.is_complex() else dtype)
    return module
