"""What is read off an operation of PyTorch and its results: what it writes to, its functional form, its plainer
spelling."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.multiprocessing.reductions import StorageWeakRef

from erfscope.core.graph.graph import arguments
from erfscope.core.system.torch_internals import schema_arguments

aten = torch.ops.aten
#: Operations that also take one image without a batch, (C, *space) -> how many dimensions that has.
WITHOUT_BATCH: dict[Any, int] = {
    getattr(packet, overload): count + 1
    for count in (1, 2, 3)
    for name in ("conv{}d", "conv_transpose{}d", "max_pool{}d", "max_pool{}d_with_indices", "avg_pool{}d")
    if (packet := getattr(aten, name.format(count), None)) is not None
    for overload in packet.overloads()
}
#: Casts to the dtype and device of another tensor, and views in its shape: the same without it, and what is read of it.
LIKE: dict[Any, tuple[Any, Callable[[Tensor], tuple[Any, ...]]]] = {
    aten.type_as.default: (aten.to.device, lambda out: (out.device, out.dtype)),
    aten.to.other: (aten.to.device, lambda out: (out.device, out.dtype)),
    aten.expand_as.default: (aten.expand.default, lambda out: (list(out.shape),)),
    aten.view_as.default: (aten.view.default, lambda out: (list(out.shape),)),
    aten.reshape_as.default: (aten.reshape.default, lambda out: (list(out.shape),)),
}
#: Operations that give back the very tensor that they took where they drop nothing.
_DROPOUTS = (
    *(aten.dropout.default, aten.feature_dropout.default),
    *(aten.alpha_dropout.default, aten.feature_alpha_dropout.default),
)


class Form(NamedTuple):
    """Shape, strides and dtype of a tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


class NotFollowedError(Exception):
    """An operation in place that cannot be written as a functional one."""


def result_of(func: Any, args: Any, kwargs: Any) -> Any:
    """What an operation gives on real tensors, where PyTorch 2.6 gives something else on those without numbers."""
    if func in _DROPOUTS and not (args[1] and args[2]):
        return args[0]
    out = func(*args, **kwargs)
    if func is aten.lstm.input:
        return out[0], *(state.reshape(given.shape) for state, given in zip(out[1:], args[1], strict=True))
    return out


def form_of(out: Any) -> Any:
    """Form of a tensor, of each of several; None of what is none."""
    if isinstance(out, tuple | list):
        return tuple(form_of(each) for each in out)
    if not isinstance(out, Tensor):
        return None
    return Form(tuple(out.shape), out.stride() if out.layout == torch.strided else (), out.dtype)


def map_form(form: Any, change: Callable[[Form], Any]) -> Any:
    """Change the form of a tensor, or each of several."""
    if form is None or isinstance(form, Form):
        return None if form is None else change(form)
    return tuple(map_form(each, change) for each in form)


def address_of(tensor: Tensor) -> object:
    """The memory that a tensor looks into; itself where it has none of its own."""
    if tensor.layout != torch.strided:
        return tensor
    return StorageWeakRef(tensor.untyped_storage()).cdata  # type: ignore[no-untyped-call]


@cache
def written_argument(func: Any) -> int | None:
    """Which of its arguments an operation writes to; None for none."""
    given = enumerate(schema_arguments(func))
    found = [(at, str(each.type)) for at, each in given if each.alias_info and each.alias_info.is_write]
    if len(found) > 1 or any(kind != "Tensor" for _, kind in found):
        raise NotFollowedError(f"{func} writes to several tensors")
    return found[0][0] if found else None


@cache
def functional_of(func: Any) -> Any:
    """The operation that gives what an operation in place writes; None where there is none of the same arguments."""
    namespace, _, full_name = func.name().partition("::")
    name, _, overload = full_name.partition(".")
    packet = getattr(getattr(torch.ops, namespace), name.removesuffix("_"), None) if name.endswith("_") else None
    return None if name.startswith("_") else getattr(packet, overload or "default", None)


def draws(node: fx.Node) -> bool:
    """Whether an operation draws random numbers."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    given = arguments(node)
    return bool(given.get("train", given.get("training", True)) and given.get("dropout_p", given.get("p", 1.0)))
