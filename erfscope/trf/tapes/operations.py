"""Kinds of PyTorch's operations, by their names and schemas."""

from __future__ import annotations

from typing import Any

import torch

#: Operations that fill a new tensor with one number.
FILLING = frozenset(
    (
        *("zeros", "ones", "full", "empty", "zeros_like", "ones_like", "full_like", "empty_like"),
        *("new_zeros", "new_ones", "new_full", "new_empty"),
    )
)
#: Operations that pick by numbers.
INDEXING = frozenset(["index", "index_select", "gather"])
#: Operations that only copy.
COPIES = frozenset(["clone", "_to_copy"])


def is_view(func: torch._ops.OpOverload) -> bool:
    """Whether an operation returns a view of its argument."""
    return (
        any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
        or func._schema.name == "aten::_unsafe_view"
    )


def is_written(argument: Any) -> bool:
    """Whether an operation writes into an argument of its schema."""
    return argument.alias_info is not None and bool(argument.alias_info.is_write)
