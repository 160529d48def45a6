"""Copies of modules that hold what cannot be copied: locks, open files, generators, whole modules of Python."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

#: Under this attribute a tensor without numbers keeps the one that it stands for.
STANDS_FOR = "_erfscope_stands_for"
#: Larger tensors are not followed.
LARGEST = 1 << 16


def copy_module(module: nn.Module, memo: Mapping[int, object] | None = None) -> nn.Module:
    """Deep copy that shares with the original what cannot be copied.

    Args:
        module: Any module.
        memo: By the ``id`` of objects of the original what stands for them in the copy, as of :func:`copy.deepcopy`.

    Raises:
        Exception: the module itself refuses to be copied.
    """
    try:
        return copy.deepcopy(module, dict(memo or {}))
    except Exception:  # what refuses to be copied says so in any way
        shared = {id(value): value for part in module.modules() for value in _uncopyable(vars(part), dict(memo or {}))}
        if not shared:
            raise
        return copy.deepcopy(module, {**shared, **(memo or {})})


def _uncopyable(value: Any, memo: dict[int, object]) -> Iterator[object]:
    """What of a value refuses to be copied, looked for in containers; the parts of a module are looked at on their own."""
    if isinstance(value, nn.Module) or id(value) in memo:
        return
    if isinstance(value, dict | list | tuple | set):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _uncopyable(item, memo)
        return
    try:
        copy.deepcopy(value, dict(memo))
    except Exception:
        yield value


def empty_on_meta(tensor: Tensor) -> Tensor:
    """A tensor like this one without numbers.

    PyTorch's ``empty_like`` is written in Python on the meta device, and takes twenty times as long as ``empty``.
    """
    if type(tensor) in (Tensor, nn.Parameter, nn.Buffer) and tensor.layout == torch.strided and tensor.is_contiguous():
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    return torch.empty_like(tensor, device="meta")


def keep_original(stand_in: Tensor, original: Tensor) -> Tensor:
    """``stand_in``, which has no numbers, with a small original of integers kept for whoever asks for them."""
    if not original.is_floating_point() and not original.is_complex() and original.numel() <= LARGEST and not original.is_meta:
        setattr(stand_in, STANDS_FOR, original)
    return stand_in
