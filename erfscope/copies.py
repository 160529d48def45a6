"""Tensors of a model's copy: in another dtype, or without numbers on the meta device."""

from __future__ import annotations

import torch
from torch import Tensor, nn

#: Under this attribute a tensor without numbers keeps the tensor of integers that it stands for.
STANDS_FOR = "_erfscope_stands_for"
#: Larger tensors of integers are not kept.
LARGEST = 1 << 16


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


def empty_on_meta(tensor: Tensor) -> Tensor:
    """Return a tensor like this one without numbers.

    PyTorch's ``empty_like`` is written in Python on the meta device, and takes twenty times as long as ``empty``.
    """
    if type(tensor) in (Tensor, nn.Parameter, nn.Buffer) and tensor.layout == torch.strided and tensor.is_contiguous():
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    return torch.empty_like(tensor, device="meta")


def keep_original(stand_in: Tensor, original: Tensor) -> Tensor:
    """Return ``stand_in``, which has no numbers, with a small original of integers kept, such as a table of indices."""
    if (
        not original.is_floating_point()
        and not original.is_complex()
        and original.numel() <= LARGEST
        and not original.is_meta
    ):
        setattr(stand_in, STANDS_FOR, original)
    return stand_in
