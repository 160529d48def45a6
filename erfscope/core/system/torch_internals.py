"""The private names of PyTorch that erfscope uses; no other module names them.

Found in every release from 2.4 to 2.14. Where one of the first group is missing, no forward pass can be recorded and
models are run whole, for the reason in ``missing``; where one of the others is, what it serves is left out."""

from __future__ import annotations

import contextlib
import sys
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules import module as all_modules

#: The name that recording a forward pass lacks; "" where all are there.
missing = ""
if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import (
        DataDependentOutputException,
        DynamicOutputShapeException,
        FakeTensor,
        FakeTensorMode,
        unset_fake_temporarily,
    )
    from torch.utils._python_dispatch import TorchDispatchMode

    below_autograd: Any
else:
    try:
        from torch._subclasses.fake_tensor import (
            DataDependentOutputException,
            DynamicOutputShapeException,
            FakeTensor,
            FakeTensorMode,
            unset_fake_temporarily,
        )
        from torch.utils._python_dispatch import TorchDispatchMode

        below_autograd = torch._C._AutoDispatchBelowAutograd
    except (ImportError, AttributeError) as error:
        missing = f"torch {torch.__version__} lacks what a recording needs: {error}"
        DataDependentOutputException = DynamicOutputShapeException = RuntimeError
        FakeTensor, unset_fake_temporarily = (), contextlib.nullcontext
        FakeTensorMode = below_autograd = None
        TorchDispatchMode = contextlib.nullcontext

__all__ = [
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "TorchDispatchMode",
    "below_autograd",
    "unset_fake_temporarily",
]

#: Attributes of a module that hold its parameters and its buffers.
TENSOR_TABLES = ("_parameters", "_buffers")
#: Attribute of a convolution with the cells that padding adds, from the last axis to the first, on both sides.
PADDED_BY = "_reversed_padding_repeated_twice"
#: Attributes of a module with the hooks of its own calls, and those of gradients.
_FORWARD_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_BACKWARD_HOOKS = ("_backward_hooks", "_backward_pre_hooks")


def schema_arguments(operation: Any) -> list[Any]:
    """Return the arguments in an operation's schema; none where it has no schema."""
    return list(getattr(getattr(operation, "_schema", None), "arguments", ()))


def forward_hooks(module: nn.Module) -> OrderedDict[int, Any]:
    """Return the table of a module's forward hooks, in the order in which they run."""
    hooks: Any = getattr(module, "_forward_hooks", None)
    return hooks if isinstance(hooks, OrderedDict) else OrderedDict()


def hook_tables(module: nn.Module) -> list[dict[int, Any]]:
    """Return every table of hooks of a module, to which a forward pass may add some."""
    return _tables(module, _FORWARD_HOOKS + _BACKWARD_HOOKS)


def backward_hooks(module: nn.Module) -> list[dict[int, Any]]:
    """Return the tables of hooks on a module's gradients."""
    return _tables(module, _BACKWARD_HOOKS)


def buffer_tables(module: nn.Module) -> list[dict[str, Any]]:
    """Return the table of a module's buffers; none of a scripted module."""
    return _tables(module, ("_buffers",))


def _tables(module: nn.Module, names: tuple[str, ...]) -> list[dict[Any, Any]]:
    return [table for name in names if isinstance(table := getattr(module, name, None), dict)]


def has_global_backward_hooks() -> bool:
    """Return whether backward hooks are set on all modules of the process."""
    names = ("_global_backward_hooks", "_global_backward_pre_hooks")
    return any(getattr(all_modules, name, ()) for name in names)


def is_of_checkpoint(context: object) -> bool:
    """Return whether a call of a hand-written autograd function is one of ``torch.utils.checkpoint``."""
    return getattr(getattr(context, "_forward_cls", None), "__module__", "") == "torch.utils.checkpoint"


def inside_compiled(module: object) -> nn.Module | None:
    """Return the module that ``torch.compile`` has wrapped; None for any other."""
    inner = getattr(module, "_orig_mod", None)
    return inner if isinstance(inner, nn.Module) else None


def compiler_is_loaded() -> bool:
    """Return whether Dynamo, which takes seconds to load, has been loaded, as it is wherever something is compiled."""
    return "torch._dynamo" in sys.modules
