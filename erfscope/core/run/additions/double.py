"""A copy of a model in float64, and what it computes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from erfscope.core.adapter import Adapter
from erfscope.core.system.containers import tensors_in
from erfscope.core.system.copies import cast_module, copy_module
from erfscope.core.system.environment import ran_out
from erfscope.core.system.restore import default_dtype
from erfscope.core.system.torch_internals import TorchDispatchMode
from erfscope.core.values.errors import ErfscopeError, MeasurementError

T = TypeVar("T")


class NoDoublePrecision(MeasurementError):
    """The model cannot be run in float64."""


def copy_in_double(adapter: Adapter) -> Adapter:
    """Return an adapter of a copy of the model in float64."""
    double = copy.copy(adapter)
    double.module = cast_module(copy_module(adapter.module), dtype=torch.float64)
    return double


def run_in_double(compute: Callable[[], T]) -> T:
    """Return what a computation with a model's copy in float64 gives.

    Where the model fails, it is computed again with float64 as the type of the tensors that it makes without naming
    one.

    Raises:
        NoDoublePrecision: the model fails then too, such as one that makes float32 tensors of its own.
    """
    try:
        try:
            return compute()
        except RuntimeError as error:
            if ran_out(error):
                raise
            with default_dtype(torch.float64):
                return compute()
    except ErfscopeError:
        raise
    except Exception as error:  # a model may fail in any way
        if ran_out(error):
            raise
        text = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise NoDoublePrecision(f"the model cannot be run in float64 ({text[:100]})") from error


class NarrowerTypes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within it the first narrower type is noted that an operation makes of numbers in float64."""

    #: The first such type; None where there was none.
    dtype: torch.dtype | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if self.dtype is None and torch.float64 in _floating_types((args, kwargs)):
            self.dtype = next((dtype for dtype in _floating_types(out) if dtype != torch.float64), None)
        return out


def _floating_types(value: Any) -> list[torch.dtype]:
    """The types of tensors of real numbers, and of the parts of complex ones."""
    tensors = (each for _, each in tensors_in(value) if each.is_floating_point() or each.is_complex())
    return [tensor.dtype.to_real() for tensor in tensors]
