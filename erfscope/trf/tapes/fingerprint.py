"""What the comparison of two recordings needs to know of arguments that are no part of the image."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from erfscope.trf.axes.place import OTHER, AxisLayout, PrefixedTokens, factors
from erfscope.trf.graph import Node
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
#: Operations that show or write a part of one dimension.
_PARTS = frozenset(["slice", "select", "narrow", "split", "split_with_sizes", "unsafe_split", "unbind", "chunk"])


@dataclass(frozen=True, slots=True, repr=False)
class Numbers:
    """Where the numbers of a tensor come from that does not depend on the image; equal ones hold equal numbers."""

    shape: tuple[int, ...]
    #: A digest of everything below.
    text: str
    #: The operation that made them, "" for a tensor that was there before the pass.
    name: str = field(default="", compare=False)
    #: Its arguments, with :class:`Numbers` in place of tensors.
    words: Mapping[str, Any] = field(default_factory=dict, compare=False)
    #: Whether every element is made of the elements at the same position.
    pointwise: bool = field(default=False, compare=False)

    def __repr__(self) -> str:
        return f"{self.shape} {self.text}"


def made_by(
    name: str, words: Mapping[str, Any], shape: tuple[int, ...], *, output: int = 0, source: str = "", pointwise: bool = False
) -> Numbers:
    """The numbers that an operation gives; ``source`` makes them unlike those of the same operation elsewhere."""
    digest = hashlib.blake2b(repr((name, list(words.items()), output, source)).encode(), digest_size=16)
    return Numbers(shape, digest.hexdigest(), name, words, pointwise)


def tensor_identity(tensor: Tensor) -> Numbers:
    """A tensor that was there before the pass by its identity, numbers made in Python by themselves."""
    is_plain = tensor.device.type == "cpu" and tensor.layout == torch.strided
    if is_plain and tensor.numel() <= 4096 and not isinstance(tensor, torch.nn.Parameter):
        return Numbers(tuple(tensor.shape), repr((tensor.dtype, tensor.tolist())))
    return Numbers(tuple(tensor.shape), f"at {id(tensor)}")


def is_random(func: torch._ops.OpOverload, args: Mapping[str, Any]) -> bool:
    """Whether an operation draws random numbers: attention and dropout may be told not to."""
    off = args.get("dropout_p") == 0 or args.get("p") == 0 or args.get("train") is False or args.get("training") is False
    return torch.Tag.nondeterministic_seeded in func.tags and not off


@dataclass(frozen=True, slots=True)
class Part:
    """Which part of a dimension an operation takes."""

    #: As far as it is no matter of positions.
    known: tuple[object, ...]
    #: In its own words.
    words: str = field(compare=False)


def static_arguments(call: Call, output: int, place: AxisLayout) -> tuple[object, ...]:
    """What an operation was told: which arguments are tensors, and the others unless they follow sizes; and which output this is.

    Args:
        call: The operation.
        output: Which of its outputs.
        place: Of the tensor that it takes a part of, if it does: where that has no positions, sizes say what is taken.
    """
    words: tuple[object, ...] = tuple(_said(name, value, call) for name, value in call.args.items())
    if call.name not in _PARTS:
        return (*words, output) if output else words
    plain = repr([value for value in call.args.values() if not isinstance(value, (Viewed, Node, Tensor))])
    return (*words, Part(_known(call, place, output, plain), f"{output} {plain}"))


def _said(name: str, value: Any, call: Call) -> object:
    if isinstance(value, Node):
        return f"image {call.live.index(value)}" if value in call.live else "image"
    if isinstance(value, (Tensor, Viewed)):
        return "numbers" if isinstance(value, Tensor) else "base"
    if name in _SIZES:
        return None
    return tuple(_said("", entry, call) for entry in value) if isinstance(value, (list, tuple)) else value


def _known(call: Call, place: AxisLayout, output: int, words: str) -> tuple[object, ...]:
    """What says which part of a dimension an operation takes, as far as it is no matter of positions."""
    dim = int(call.args.get("dim") or 0) % max(len(place.dims), 1)
    parts = place.dims[dim] if place.dims else ()
    bundle = next((part for part in parts if isinstance(part, PrefixedTokens)), None)
    if bundle is not None:
        return (output, *(_from_ends(call.args.get(name), bundle) for name in ("start", "end")))
    if any(factor.axis != OTHER for factor in factors(parts)):
        return (output,)
    return (output, words)


def _from_ends(bound: int | None, tokens: PrefixedTokens) -> tuple[str, int] | None:
    """A bound among tokens, counted from the end that it belongs to, whatever the size of the map between."""
    if bound is None:
        return None
    index = min(max(bound + tokens.size if bound < 0 else bound, 0), tokens.size)
    return ("first", index) if index <= tokens.before else ("last", tokens.size - index)


def put_at(view: Call, place: AxisLayout, numbers: Numbers, source: str) -> Numbers:
    """Numbers that were written through a view: unlike any others where it may show some of the positions only."""
    dim = int(view.args.get("dim") or 0) % max(len(place.dims), 1)
    if view.name in _PARTS and all(factor.axis == OTHER for factor in factors(place.dims[dim] if place.dims else ())):
        return numbers
    return made_by("written at positions", {}, numbers.shape, source=source)
