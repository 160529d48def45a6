"""Another default type of tensors, in one thread: ``torch.set_default_dtype`` is the whole process's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors
from torch.utils._pytree import tree_leaves, tree_map

#: Functions whose result has the type that their own name says.
_CASTS = frozenset(
    ("to", "type", "type_as", "float", "half", "bfloat16", "double", "cfloat", "cdouble", "chalf", "view", "dequantize", "__get__")
)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Another type of tensors that are made without naming one, for the time of the block and in this thread alone.

    Old constructors, such as ``torch.Tensor(2, 3)``, and ``torch.get_default_dtype`` keep the type of the process.

    Args:
        dtype: A floating type.
    """
    with _DefaultDtype(dtype):
        yield


class _DefaultDtype(TorchFunctionMode):
    """Within it whatever PyTorch would give its default type, without a tensor that asks for it, has another one."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if not isinstance(out, Tensor) or out.dtype != torch.get_default_dtype() or kwargs.get("dtype") is not None:
            return out
        if getattr(func, "__name__", "") in _CASTS or any(map(_is_floating, tree_leaves((args, kwargs)))):
            return out
        try:
            if func in _device_constructors():
                return func(*args, **{**kwargs, "dtype": self.dtype})
            # Of whole numbers, as a quotient of them is.
            return func(*tree_map(self._cast, args), **tree_map(self._cast, kwargs)).to(self.dtype)
        except (RuntimeError, TypeError, IndexError):  # no operands, such as conditions and indices
            return out.to(self.dtype)

    def _cast(self, value: Any) -> Any:
        return value.to(self.dtype) if isinstance(value, Tensor) and value.dtype != torch.bool else value


def _is_floating(value: Any) -> bool:
    """Whether an argument has a floating type of its own, which the result then has."""
    if isinstance(value, np.ndarray | np.generic):
        return bool(np.issubdtype(value.dtype, np.inexact))
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())
