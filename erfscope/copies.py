"""Tensors of a model's copy in another dtype."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def cast_module(
    module: nn.Module, *, device: torch.device | None = None, dtype: torch.dtype | None = None
) -> nn.Module:
    """Move a module in place to a device, and to a type of numbers: complex tensors to the complex type of that
    precision.

    ``Module.to`` gives complex tensors a real type, and so drops their imaginary parts.
    """
    if dtype is None or not any(t.is_complex() for t in (*module.parameters(), *module.buffers())):
        return module.to(device=device, dtype=dtype)

    def cast(tensor: Tensor) -> Tensor:
        return tensor.to(
            dtype.to_complex() if tensor.is_complex() else dtype if tensor.is_floating_point() else tensor.dtype
        )

    module.to(device=device)._apply(cast)  # type: ignore[no-untyped-call]
    return module
