"""Numbers that code outside PyTorch reads or writes: NumPy functions, and kernels that are handed memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from erfscope.trf.operations import EXPOSING_METHODS

if TYPE_CHECKING:
    from erfscope.trf.tapes.tape import Tape

#: Name of the recorded operation that makes a tensor whose numbers come from code outside PyTorch.
OUTSIDE = "code outside PyTorch"

#: Storage, offset, shape and strides.
Memory = tuple[int, int, tuple[int, ...], tuple[int, ...]]


def memory_of(tensor: Tensor) -> Memory | None:
    """Where the numbers of a tensor lie; None for one without a storage of its own, such as a sparse one."""
    try:
        with torch._C.DisableTorchFunction():
            return tensor.untyped_storage()._cdata, int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride()
    except (NotImplementedError, RuntimeError):
        return None


class EscapeMode(TorchFunctionMode):
    """Note on every tape which tensors hand their numbers or memory to code outside PyTorch."""

    def __init__(self, *tapes: Tape) -> None:
        super().__init__()
        self.tapes = tapes

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in EXPOSING_METHODS and args and isinstance(args[0], Tensor):
            for tape in self.tapes:
                tape.note_exposed(args[0])
        return out
