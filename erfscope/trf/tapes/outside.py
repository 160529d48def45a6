"""Numbers that code outside PyTorch reads or writes: NumPy functions, and kernels that are handed memory."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from erfscope.trf.tapes.path import asks_place

if TYPE_CHECKING:
    from erfscope.trf.tapes.tape import Tape

#: Name of the recorded operation that makes a tensor whose numbers come from code outside PyTorch.
OUTSIDE = "code outside PyTorch"
#: Methods that hand the numbers of a tensor, or its memory, to code that is not recorded.
_LEAVING = frozenset(["numpy", "__array__", "tolist", "__dlpack__", "data_ptr", "untyped_storage", "storage"])
#: Operations that make a tensor of numbers that Python or NumPy holds.
BORN = frozenset(["lift_fresh"])
#: Operations that make memory without numbers: one that is read before it was written to was written to by code that is not recorded.
HOLLOW = frozenset(["empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"])
#: Operations that take the shape of a tensor and not its numbers.
SHAPED = frozenset(f"{name}_like" for name in ("empty", "zeros", "ones", "full", "rand", "randn", "randint")) | frozenset(
    f"new_{name}" for name in ("empty", "empty_strided", "zeros", "ones", "full")
)

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
    """Note on every tape which tensors hand their numbers or memory to code outside PyTorch, and whether the model asks for devices."""

    def __init__(self, *tapes: Tape) -> None:
        super().__init__()
        self.tapes = tapes
        self.asked_place = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in _LEAVING and args and isinstance(args[0], Tensor):
            for tape in self.tapes:
                tape.hand_out(args[0])
        self.asked_place = self.asked_place or asks_place(func, sys._getframe(1))
        return out
