"""The control flow of a forward pass: which functions of PyTorch it calls, and whether it asks on which device its tensors lie."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import EllipsisType, FrameType, NoneType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from erfscope.adapter import Visitor

#: What tells a forward on which device a tensor lies.
_DEVICE_QUERIES = frozenset(
    getattr(Tensor, name).__get__
    for name in ("device", "is_cpu", "is_cuda", "is_meta", "is_mps", "is_xpu", "is_xla", "is_mkldnn", "is_vulkan", "is_ipu", "is_maia")
    if hasattr(Tensor, name)
) | {Tensor.get_device, Tensor.__repr__, Tensor.untyped_storage}
#: What only asks about a tensor and computes nothing of it.
_TENSOR_QUERIES = frozenset(
    (
        *("__get__", "__len__", "__repr__", "__format__", "__hash__", "size", "dim", "ndimension", "numel", "nelement", "element_size"),
        *("stride", "storage_offset", "is_contiguous", "is_floating_point", "is_complex", "is_inference"),
        *("get_device", "data_ptr", "untyped_storage"),
    )
)

#: Arguments that are compared by what they are.
_PLAIN = (int, float, complex, str, bytes, NoneType, EllipsisType, torch.dtype, torch.device, torch.layout, torch.memory_format)


def asks_device(func: object, caller: FrameType) -> bool:
    """Whether a call of PyTorch tells the model on which device a tensor lies."""
    return func in _DEVICE_QUERIES and _package(caller) not in ("torch", "erfscope")


def record_function_calls(visit: Callable[[Tensor, Visitor], None], x: Tensor) -> FunctionCalls:
    """What one forward pass on ``x`` calls, with gradients and with arguments."""
    calls = FunctionCalls(arguments=True)
    with torch.inference_mode(False), torch.enable_grad(), calls:
        visit(x.detach().requires_grad_(True), lambda *_, **__: None)
    return calls


class FunctionCalls(TorchFunctionMode):
    """Within it the functions of PyTorch that a model calls are noted, but for those that only ask about a tensor.

    Args:
        arguments: Also note what they are called with: numbers, words, and the shapes and types of tensors.
    """

    def __init__(self, *, arguments: bool = False) -> None:
        super().__init__()
        self.names: list[str] = []
        self.arguments: list[object] | None = [] if arguments else None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        name = getattr(func, "__name__", str(func))
        if name not in _TENSOR_QUERIES and _package(sys._getframe(1)) != "erfscope":
            self.names.append(name)
            if self.arguments is not None:
                self.arguments.append(_comparable((args, kwargs)))
        return func(*args, **(kwargs or {}))


def _comparable(value: object) -> object:
    """An argument as a value that is equal to itself in another pass: what is neither numbers nor words counts by its type."""
    if isinstance(value, Tensor):
        return value.shape, value.dtype
    if isinstance(value, list | tuple):
        return [_comparable(entry) for entry in value]
    if isinstance(value, dict):
        return [(key, _comparable(entry)) for key, entry in value.items()]
    if isinstance(value, slice):
        return [_comparable(each) for each in (value.start, value.stop, value.step)]
    if isinstance(value, np.ndarray):
        return value.shape, str(value.dtype), value.tobytes()
    # Types count: True is not 1, and nan is nan.
    return type(value), repr(value) if isinstance(value, _PLAIN) else None


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
