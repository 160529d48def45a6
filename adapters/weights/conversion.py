"""Tensors of a checkpoint as a model can hold them: made dense and dequantised, and refused where numbers would be
lost."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy


def oddity(value: Tensor) -> str | None:
    """Why a tensor has no numbers, or no shape, that could be put into another; None for all others."""
    if is_lazy(value):
        return "is a lazy parameter, which has no shape yet"
    if value.is_nested:
        return "is a nested tensor, which has no one shape"
    if value.is_meta:
        return "is on the meta device: it has a shape and no numbers"
    return None


def converted(value: Tensor, own: Tensor) -> Tensor:
    """The numbers of a tensor in the layout, dtype and place of another of its shape.

    Args:
        value: Of a checkpoint; it may be sparse or quantised.
        own: The tensor that is to hold them.

    Raises:
        ValueError: says in a few words what of the numbers would be lost.
    """
    if why := oddity(value):
        raise ValueError(why)
    if own.layout is not torch.strided or own.is_quantized or own.is_meta:
        raise ValueError(
            "has no ordinary tensor in the model to go to: that is sparse, quantised or on the meta device"
        )
    plain = value.detach()
    if plain.is_quantized:
        plain = plain.dequantize()
    if plain.layout is not torch.strided:
        plain = plain.to_dense()
    if plain.is_complex() and not own.is_complex():
        raise ValueError(f"holds complex numbers for {_name(own)} ones, whose imaginary parts would be lost")
    if isinstance(own, nn.Parameter) and not _is_inexact(plain) and _is_inexact(own):
        raise ValueError(
            f"holds {_name(plain)} numbers for {_name(own)} ones: quantised weights mean nothing without their scales"
        )
    found = plain.to(device=own.device, dtype=own.dtype)
    if loss := _loss(plain, found):
        raise ValueError(f"holds {_name(plain)} numbers {loss} {_name(own)}")
    return found


def _loss(plain: Tensor, found: Tensor) -> str:
    if plain.dtype == found.dtype:
        return ""
    if not _is_inexact(found):
        back = found.to(device=plain.device, dtype=plain.dtype)
        return "" if torch.equal(back, plain) else "that cannot be written as"
    if _is_inexact(plain) and bool(
        (torch.isfinite(_wide(plain)) & ~torch.isfinite(_wide(found)).to(plain.device)).any()
    ):
        return "that are too large for"
    return ""


def _wide(tensor: Tensor) -> Tensor:
    """A tensor in a dtype that every operation knows; eight-bit floats have next to none."""
    return tensor if tensor.is_complex() or tensor.itemsize > 1 else tensor.float()


def _is_inexact(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
