"""Provenance of numbers that do not depend on the image, and arguments of operations, as two recordings are compared
by."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from erfscope.trf.axes.axis_layout import OTHER, AxisLayout, TokenSequence, factors_of
from erfscope.trf.graph import Node
from erfscope.trf.operations import DRAWING, PART_VIEWS, SIZE_ARGUMENTS
from erfscope.trf.rules import Call


class Viewed:
    """Stands for the base in the arguments of a view."""

    def __repr__(self) -> str:
        return "the base"


VIEWED = Viewed()


@dataclass(frozen=True, slots=True, repr=False)
class Provenance:
    """Where the numbers of a tensor that does not depend on the image come from; equal provenances mean equal
    numbers."""

    shape: tuple[int, ...]
    #: A digest of everything below.
    text: str
    #: The operation that made them, "" for a tensor that was there before the pass.
    name: str = field(default="", compare=False)
    #: Its arguments, with :class:`Provenance` in place of tensors.
    arguments: Mapping[str, Any] = field(default_factory=dict, compare=False)
    #: Whether every element is made of the elements at the same position.
    pointwise: bool = field(default=False, compare=False)

    def __repr__(self) -> str:
        return f"{self.shape} {self.text}"


def operation_provenance(
    name: str,
    arguments: Mapping[str, Any],
    shape: tuple[int, ...],
    *,
    output: int = 0,
    source: str = "",
    pointwise: bool = False,
) -> Provenance:
    """The provenance of an operation's output; ``source`` tells it from that of the same operation elsewhere."""
    digest = hashlib.blake2b(repr((name, list(arguments.items()), output, source)).encode(), digest_size=16)
    return Provenance(shape, digest.hexdigest(), name, arguments, pointwise)


def is_drawn(numbers: object) -> bool:
    """Whether numbers, by their provenance, are made of random ones."""
    stack, seen = [numbers], set[int]()
    while stack:
        each = stack.pop()
        if isinstance(each, list | tuple):
            stack.extend(each)
        elif isinstance(each, Provenance) and id(each) not in seen:
            seen.add(id(each))
            if each.name.rstrip("_") in DRAWING:
                return True
            stack.extend(each.arguments.values())
    return False


def tensor_identity(tensor: Tensor) -> Provenance:
    """A tensor that was there before the pass by its identity, numbers made in Python by themselves."""
    is_plain = tensor.device.type == "cpu" and tensor.layout == torch.strided
    if is_plain and tensor.numel() <= 4096 and not isinstance(tensor, torch.nn.Parameter):
        return Provenance(tuple(tensor.shape), repr((tensor.dtype, tensor.tolist())))
    return Provenance(tuple(tensor.shape), f"at {id(tensor)}")


def is_random(func: torch._ops.OpOverload, args: Mapping[str, Any]) -> bool:
    """Whether an operation draws random numbers: attention and dropout may be told not to."""
    off = (
        args.get("dropout_p") == 0 or args.get("p") == 0 or args.get("train") is False or args.get("training") is False
    )
    return torch.Tag.nondeterministic_seeded in func.tags and not off


@dataclass(frozen=True, slots=True)
class PartArgument:
    """Which part of a dimension an operation takes."""

    #: As far as it is no matter of positions.
    known: tuple[object, ...]
    #: In its own words.
    text: str = field(compare=False)


def static_arguments(call: Call, output: int, layout: AxisLayout) -> tuple[object, ...]:
    """The arguments of an operation that two recordings must share: which are tensors, the others unless they follow
    sizes, and the output.

    Args:
        call: The operation.
        output: Which of its outputs.
        layout: Of the tensor that it takes a part of, if it does: where that has no positions, sizes say what is taken.
    """
    arguments: tuple[object, ...] = tuple(_static_value(name, value, call) for name, value in call.args.items())
    if call.name not in PART_VIEWS:
        return (*arguments, output) if output else arguments
    plain = repr([value for value in call.args.values() if not isinstance(value, (Viewed, Node, Tensor))])
    return (*arguments, PartArgument(_known(call, layout, output, plain), f"{output} {plain}"))


def _static_value(name: str, value: Any, call: Call) -> object:
    if isinstance(value, Node):
        return f"image {call.live.index(value)}" if value in call.live else "image"
    if isinstance(value, (Tensor, Viewed)):
        return "numbers" if isinstance(value, Tensor) else "base"
    if name in SIZE_ARGUMENTS:
        return None
    return tuple(_static_value("", entry, call) for entry in value) if isinstance(value, (list, tuple)) else value


def _known(call: Call, layout: AxisLayout, output: int, text: str) -> tuple[object, ...]:
    """What says which part of a dimension an operation takes, as far as it is no matter of positions."""
    dim = int(call.args.get("dim") or 0) % max(len(layout.dims), 1)
    parts = layout.dims[dim] if layout.dims else ()
    tokens = next((part for part in parts if isinstance(part, TokenSequence)), None)
    if tokens is not None:
        return (output, *(_from_ends(call.args.get(name), tokens) for name in ("start", "end")))
    if any(factor.axis != OTHER for factor in factors_of(parts)):
        return (output,)
    return (output, text)


def _from_ends(bound: int | None, tokens: TokenSequence) -> tuple[str, int] | None:
    """A bound among tokens, counted from the end that it belongs to, whatever the size of the map between."""
    if bound is None:
        return None
    index = min(max(bound + tokens.size if bound < 0 else bound, 0), tokens.size)
    return ("first", index) if index <= tokens.before else ("last", tokens.size - index)


def provenance_through_view(view: Call, layout: AxisLayout, numbers: Provenance, source: str) -> Provenance:
    """Numbers that were written through a view: unlike any others where it may show some of the positions only."""
    dim = int(view.args.get("dim") or 0) % max(len(layout.dims), 1)
    if view.name in PART_VIEWS and all(
        factor.axis == OTHER for factor in factors_of(layout.dims[dim] if layout.dims else ())
    ):
        return numbers
    return operation_provenance("written at positions", {}, numbers.shape, source=source)
