"""``--verify``: the first image by the plain model in float64, beside what the measurement computes of it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from erfscope.adapter import Adapter
from erfscope.attribution.forward import ModelForward
from erfscope.attribution.gradient import Contribution, of_units
from erfscope.containers import tensors_in
from erfscope.copies import cast_module
from erfscope.engine.batch import device_and_dtype, draws, first_readable, lacks_for_double
from erfscope.engine.plan import Callbacks, Plan, Sums
from erfscope.engine.running_sums import on_reference
from erfscope.environment import ran_out
from erfscope.errors import ErfscopeError, MeasurementError
from erfscope.model_errors import wrap_model_errors
from erfscope.restore import default_dtype, same_random_numbers
from erfscope.results.result import Result, Verification
from erfscope.torch_internals import TorchDispatchMode

T = TypeVar("T")


class NoDoublePrecision(MeasurementError):
    """The model cannot be run in float64."""


def copy_in_double(adapter: Adapter) -> Adapter:
    """Return an adapter of a copy of the model in float64."""
    double = copy.copy(adapter)
    double.module = cast_module(copy.deepcopy(adapter.module), dtype=torch.float64)
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


#: Largest relative L1 differences that rounding explains.
ALLOWED = {torch.float64: 1e-9, torch.float32: 1e-2}


def with_verification(plan: Plan, _sums: Sums, results: list[Result], _callbacks: Callbacks) -> list[Result]:
    """Compare each unit's value and map of the first image with the plain model: plain autograd, no crop, no fold, no
    batch, float64.

    Returns:
        The results, one per unit, with relative L1 differences of the unit's channels and of its map.

    Raises:
        MeasurementError: the model cannot be run in float64, or there is no memory for it.
    """
    with same_random_numbers(), wrap_model_errors(plan.model.label, plan.model.adapter):
        found = _verify(plan)
    return [replace(result, verification=each) for result, each in zip(results, found, strict=True)]


def _verify(plan: Plan) -> list[Verification]:
    """One record per unit."""
    counted = plan.model.pass_bytes(plan.question.layer, plan.question.wrt)
    if lacking := lacks_for_double(plan, counted):
        raise MeasurementError(f"--verify needs {lacking}; use a smaller --input-size, or leave --verify out")
    index, x = first_readable(plan, plan.indices)
    device, dtype = device_and_dtype(plan)
    part = plan.read(index).to(device=device, dtype=dtype)
    measured = _by_unit(plan, draws(plan, part, [index]))
    double = copy_in_double(plan.model.adapter)
    forward = ModelForward(double, plan.question, plan.known)
    whole = x.to(device).double()
    plain = run_in_double(
        lambda: _by_unit(plan, of_units([(forward, plan.question.units)], whole, plan.question, [index]))
    )
    pairs = zip(measured, plain, strict=True)
    return [Verification(value=_off(a[0], b[0]), map=_off(a[1], b[1]), allowed=ALLOWED[dtype]) for a, b in pairs]


def _by_unit(plan: Plan, contributions: Iterable[Iterable[Contribution]]) -> list[tuple[Tensor, Tensor]]:
    """By unit its channels (C,), and the mean of its maps of one image over the draws, (*space) of the whole
    reference."""
    found = []
    for trf, draws_of_unit in zip(plan.trfs, contributions, strict=True):
        total, count = torch.zeros(trf.reference_px, dtype=torch.float64), 0
        for each in draws_of_unit:
            total, count = total + on_reference(each.maps, trf.reference_px, each.origin)[0].cpu(), count + 1
        assert each.value is not None
        found.append((each.value[0].cpu(), total / count))
    return found


def _off(measured: Tensor, plain: Tensor) -> float:
    """Relative L1 difference; 0 of two that are zero."""
    difference, scale = float((measured - plain).abs().sum()), float(plain.abs().sum())
    return difference / scale if scale > 0 else difference
