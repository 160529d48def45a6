"""Operations that keep every element where it is, and those that only take a tensor's shape."""

from __future__ import annotations

import torch
from torch import Tensor

from erfscope.core.graph.graph import evaluate, shape_of, value
from erfscope.core.graph.rules.mixing import MASKED_SCORE
from erfscope.core.graph.rules.parts import PartStep, PartValues, cut, runs, whole
from erfscope.core.graph.rules.reading import (
    OPERATIONS,
    Call,
    Dims,
    Edge,
    Whole,
    broadcast,
    is_tensor,
    pointwise,
    read_whole,
    rule,
)

rule("__and", "__or", "__xor", "__lshift", "__rshift")(pointwise)
rule("leaky_relu", "ldexp", "_conj_physical")(pointwise)  # PyTorch 2.6 has no tag for them
rule("round", "floor", "ceil", "trunc", "sign", "sgn", "heaviside", has_derivative=False)(pointwise)


@rule("view_as_real")
def parts_of_complex(call: Call) -> list[Edge]:
    """Real and imaginary part as a last dimension."""
    x = call.tensor()
    return [Edge(source=x, steps=(Dims(tuple(range(len(shape_of(x)))), call.shape),))]


@rule("view_as_complex")
def complex_of_parts(call: Call) -> list[Edge]:
    """Complex numbers of a last dimension of real and imaginary parts."""
    return [Edge(source=call.tensor(), steps=(Dims((*range(len(call.shape)), Whole()), call.shape),))]


@runs("view_as_real")
def run_parts_of_complex(step: PartStep, values: PartValues) -> Tensor:
    """The parts of complex numbers; older releases of PyTorch take their gradient only where it lies in pairs."""
    out = torch.view_as_real(values.of(step.call.tensor()))
    if out.requires_grad:
        out.register_hook(_in_pairs)  # type: ignore[no-untyped-call]
    return out


def _in_pairs(tensor: Tensor) -> Tensor:
    # A dimension of one element may have any stride, and counts as contiguous.
    return tensor.clone(memory_format=torch.contiguous_format)


@runs("view_as_complex")
def run_complex_of_parts(step: PartStep, values: PartValues) -> Tensor:
    """Complex numbers of a part, whose real and imaginary parts need not lie in pairs."""
    return torch.view_as_complex(_in_pairs(values.of(step.call.tensor())))


@rule("where", "lerp", "addcmul", "addcdiv", "clip", "nan_to_num", "complex", "polar", "positive")
@rule("hardswish", "hardsigmoid", "hardtanh", "relu6", "celu", "selu", "elu", "gelu", "silu", "mish", "softplus")
@rule("prelu", "_prelu_kernel", "rrelu", "rrelu_with_noise", "log_sigmoid", "threshold", "softshrink")
@rule("dropout", "native_dropout", "feature_dropout", "alpha_dropout")
@rule("contiguous", "to", "clone", "alias", "_to_copy", "lift_fresh", "lift_fresh_copy")
@rule("float", "double", "half", "real", "imag")
@rule("detach", has_derivative=False)
def elementwise(call: Call) -> list[Edge] | None:
    """Elementwise operations, those among them that PyTorch does not mark as such."""
    if call.output or any(
        len(shape_of(each)) > len(call.shape) for each in call.node.all_input_nodes if is_tensor(each)
    ):
        return None
    if call.name.startswith("prelu"):
        return [Edge(source=call.tensor(), steps=()), read_whole(call, call.args["weight"])]
    return pointwise(call)


@rule("masked_fill")
def masking(call: Call) -> list[Edge] | None:
    """Elementwise; scores of attention that a constant mask closes count as open, an upper bound."""
    closed = call.args["value"]
    inexact = (
        call.name if isinstance(closed, int | float) and closed <= MASKED_SCORE and is_tensor(call.args["mask"]) else ""
    )
    first, *rest = pointwise(call)
    return [Edge(source=first.source, steps=first.steps, inexact=inexact), *rest]


@rule("native_group_norm", normalises=True)
@rule("fake_quantize_per_tensor_affine", "fake_quantize_per_tensor_affine_cachemask", has_derivative=False)
@rule("fake_quantize_per_channel_affine", "fake_quantize_per_channel_affine_cachemask", has_derivative=False)
@rule("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams", has_derivative=False)
@rule("quantize_per_tensor", "quantize_per_channel", has_derivative=False)
def unknown(call: Call) -> list[Edge] | None:
    """Operations that count as reading everything, and of which other facts are known."""
    return None


@rule(*(f"{name}_like" for name in ("empty", "zeros", "ones", "full", "rand", "randn", "randint")))
@rule(*(f"new_{name}" for name in ("empty", "empty_strided", "zeros", "ones", "full")))
def shape_only(call: Call) -> list[Edge] | None:
    """Operations that take the shape of a tensor, and nothing of its numbers."""
    return []


@runs(*(name for name, known in OPERATIONS.items() if known.reads is shape_only))
def run_shape_only(step: PartStep, values: PartValues) -> Tensor:
    """A tensor of which the input only says the shape, the dtype and the device."""
    source = step.call.tensor()
    like = torch.empty(shape_of(source), dtype=value(source).dtype, device=values.device)
    return cut(evaluate(step.node, lambda _: like), whole(shape_of(step.node)), step.part)


@rule("fill", "zero", "copy")
def overwritten(call: Call) -> list[Edge] | None:
    """A tensor written over: nothing is left of what was there."""
    written = [call.args[key] for key in ("src", "value") if is_tensor(call.args.get(key))]
    return [Edge(source=each, steps=broadcast(shape_of(each), call.shape)) for each in written]


@runs("fill", "zero")
def run_overwritten(step: PartStep, values: PartValues) -> Tensor:
    """A tensor of one number, of which nothing is left that was there."""
    number, dtype = step.call.args.get("value", 0), value(step.node).dtype
    shape = [len(each) for each in step.part]
    if is_tensor(number):
        return values.of(number).to(dtype).expand(shape)
    return torch.full(shape, number, dtype=dtype, device=values.device)
