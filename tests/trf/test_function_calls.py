"""The functions of PyTorch that a pass calls: shapes that are found without PyTorch are those that it finds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from erfscope.trf.tapes.control_flow import _SHAPES, FunctionCalls

CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "batch_norm": lambda x: functional.batch_norm(x, x.new_ones(4), x.new_ones(4)),
    "layer_norm": lambda x: functional.layer_norm(x, (6, 8), x.new_ones(6, 8)),
    "group_norm": lambda x: functional.group_norm(x, 2),
    "instance_norm": lambda x: functional.instance_norm(x, x.new_ones(4), x.new_ones(4), use_input_stats=False),
    "rms_norm": lambda x: functional.rms_norm(x, (8,)),
    "gelu": lambda x: functional.gelu(x, approximate="tanh"),
    "hardswish": functional.hardswish,
    "hardsigmoid": functional.hardsigmoid,
    "mish": functional.mish,
    "elu": functional.elu,
    "linear": lambda x: functional.linear(x, x.new_ones(5, 8), x.new_ones(5)),
    "scaled_dot_product_attention": lambda x: functional.scaled_dot_product_attention(x, x.new_ones(2, 4, 3, 8), x.new_ones(2, 4, 3, 7)),
}
#: What the shapes of the first tensors do not tell.
OTHERS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear to one number": lambda x: functional.linear(x, x.new_ones(8)),
    "linear by names": lambda x: functional.linear(input=x, weight=x.new_ones(5, 8)),
    "attention of one table": lambda x: functional.scaled_dot_product_attention(x[:1], x, x),
    "in place": lambda x: functional.hardswish(x, inplace=True),
    "in place, by position": lambda x: functional.elu(x, 1.0, True),
}


def test_every_shape_that_is_known_is_tried() -> None:
    assert {getattr(function, "__name__", "") for function in _SHAPES} == CALLS.keys()


@pytest.mark.parametrize("name", [*CALLS, *OTHERS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shapes_are_those_that_pytorch_finds(name: str, dtype: torch.dtype) -> None:
    call = {**CALLS, **OTHERS}[name]
    x = torch.randn(2, 4, 6, 8).to(dtype)
    computed = call(x.clone())
    with FunctionCalls(shapes=True) as calls:
        found = call(x.to("meta"))
    assert (found.shape, found.dtype, found.is_meta) == (computed.shape, computed.dtype, True)
    assert name not in CALLS or calls.names[-1] == name


@pytest.mark.parametrize("name", CALLS)
def test_numbers_are_computed(name: str) -> None:
    x = torch.randn(2, 4, 6, 8)
    with FunctionCalls(shapes=True):
        found = CALLS[name](x)
    torch.testing.assert_close(found, CALLS[name](x), rtol=0, atol=0)


def test_what_works_in_place_gives_what_it_got() -> None:
    x = torch.empty(2, 4, device="meta")
    with FunctionCalls(shapes=True):
        assert functional.hardswish(x, inplace=True) is x
        assert functional.elu(x, 1.0, True) is x
