"""The control flow of a forward pass: which functions of PyTorch it calls, and whether it asks on which device its tensors lie."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import EllipsisType, FrameType, NoneType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter, functional
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

#: What gives a tensor like its first argument.
_LIKE_THEIR_INPUT = (
    *(functional.batch_norm, functional.layer_norm, functional.group_norm, functional.instance_norm, functional.rms_norm),
    *(functional.gelu, functional.hardswish, functional.hardsigmoid, functional.mish, functional.elu),
)
#: Shapes of what PyTorch takes long to find out without numbers, from the shapes of the tensors that come first; None where it must.
_SHAPES: dict[object, Callable[..., tuple[int, ...] | None]] = {
    **dict.fromkeys(_LIKE_THEIR_INPUT, lambda x, *_: x),
    functional.linear: lambda x, weight, *_: (*x[:-1], *weight[:-1]),
    functional.scaled_dot_product_attention: lambda q, k, v, *_: (*q[:-1], v[-1]) if q[:-2] == k[:-2] == v[:-2] else None,
}

#: Arguments that are compared by what they are.
_PLAIN = (int, float, complex, str, bytes, NoneType, EllipsisType, torch.dtype, torch.device, torch.layout, torch.memory_format)


def asks_device(func: object, caller: FrameType) -> bool:
    """Whether a call of PyTorch tells the model on which device a tensor lies."""
    return func in _DEVICE_QUERIES and _package(caller) not in ("torch", "erfscope")


def record_function_calls(
    visit: Callable[[Tensor, Visitor], None], x: Tensor, *, arguments: bool = False, shapes: bool = False
) -> FunctionCalls:
    """What one forward pass on ``x`` calls, with gradients; see :class:`FunctionCalls`."""
    calls = FunctionCalls(arguments=arguments, shapes=shapes)
    with torch.inference_mode(False), torch.enable_grad(), calls:
        visit(x.detach().requires_grad_(True), lambda *_, **__: None)
    return calls


class FunctionCalls(TorchFunctionMode):
    """Within it the functions of PyTorch that a model calls are noted, but for those that only ask about a tensor.

    Args:
        arguments: Also note what they are called with: numbers, words, and the shapes and types of tensors.
        shapes: Of tensors without numbers, find shapes alone where PyTorch takes long, and no gradients.
    """

    def __init__(self, *, arguments: bool = False, shapes: bool = False) -> None:
        super().__init__()
        self.names: list[str] = []
        self.arguments: list[object] | None = [] if arguments else None
        self._shapes = shapes

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        name = getattr(func, "__name__", str(func))
        if name not in _TENSOR_QUERIES and _package(sys._getframe(1)) != "erfscope":
            self.names.append(name)
            if self.arguments is not None:
                self.arguments.append(_comparable((args, kwargs)))
            if self._shapes and func in _SHAPES and (found := _shaped(func, args, kwargs or {})) is not None:
                return found
        return func(*args, **(kwargs or {}))


def _shaped(func: object, args: Sequence[object], kwargs: dict[str, object]) -> Tensor | None:
    """What a function would give, of the right shape and without numbers; None where it has to be called."""
    tensors = [arg for arg in args[:3] if isinstance(arg, Tensor)]
    in_place = kwargs.get("inplace") or any(arg is True for arg in args)
    if in_place or not all(type(t) in (Tensor, Parameter) and t.is_meta for t in tensors):
        return None
    try:
        shape = _SHAPES[func](*(t.shape for t in tensors))
    except (TypeError, IndexError):  # called by names, or not as it can be
        return None
    return None if shape is None else tensors[0].new_empty(shape)


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
