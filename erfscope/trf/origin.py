"""What the comparison of two recordings needs to know of arguments that are no part of the image."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from erfscope.trf.graph import Node
from erfscope.trf.place import OTHER, factors
from erfscope.trf.rules import Call


class Viewed:
    """Stands for the base in the arguments of a view."""

    def __repr__(self) -> str:
        return "the base"


VIEWED = Viewed()
#: Arguments that follow the sizes of tensors, or say where and not what.
_SIZES = frozenset(
    (
        *("size", "start", "end", "length", "output_size", "split_size", "split_sizes", "N", "HxW"),
        *("layout", "device", "pin_memory", "non_blocking", "memory_format", "generator", "implicit"),
    )
)


def told(name: str, value: Any) -> object:
    """An argument if it says what the operation does, else None."""
    if name in _SIZES or isinstance(value, (Tensor, Node, Viewed)):
        return None
    if isinstance(value, (list, tuple)):
        return tuple(told("", entry) for entry in value)
    return value


def where(view: Call, whole: Node) -> tuple[object, ...]:
    """What says which cells a view shows: equal for the same ones; never where it picks positions."""
    args = view.args
    if view.name in ("slice", "select", "narrow", "split", "split_with_sizes", "unbind", "chunk"):
        dim = int(args.get("dim") or 0) % max(len(whole.shape), 1)
        if not any(factor.axis != OTHER for factor in factors(whole.place.dims[dim])):
            return (view.name, repr([value for value in args.values() if not isinstance(value, Viewed)]))
    return (object(),)


def digest(name: str, words: Mapping[str, Any], output: int, source: str) -> str:
    """A short text that is equal for equal operations on equal numbers."""
    return hashlib.blake2b(repr((name, list(words.items()), output, source)).encode(), digest_size=16).hexdigest()


def leaf(tensor: Tensor) -> str:
    """A tensor that was there before the pass by its identity, numbers made in Python by themselves."""
    if tensor.device.type == "cpu" and tensor.numel() <= 4096 and not isinstance(tensor, torch.nn.Parameter):
        return repr((tuple(tensor.shape), tensor.dtype, tensor.tolist()))
    return f"at {id(tensor)}"
