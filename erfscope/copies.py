"""Casting a copy of a model to another dtype."""

from __future__ import annotations

import torch
from torch import nn


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
