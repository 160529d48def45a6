"""Whether numbers that do not depend on the image are, on a crop, the part of the whole ones that the crop lies on.

Decided by where they come from alone: which slice of which table, which steps of ``arange``, which constant. Their
values are never looked at, since two tables may agree wherever anybody looks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, cast

import torch

from erfscope.trf.axes.axis_layout import OTHER, AxisLayout, Dim, TokenSequence
from erfscope.trf.graph import Node
from erfscope.trf.tapes.fingerprint import Provenance, Viewed

#: How far below a tensor of numbers its origin is followed.
DEPTH = 40
#: Per dimension the first cell of the crop's numbers in the whole ones.
Offsets = tuple[int, ...]
_JOINING = frozenset(["cat", "concatenate"])


@cache
def is_pointwise(name: str) -> bool:
    """Whether an operation of this name makes every element of the elements at the same position, inputs broadcast."""
    packet = getattr(torch.ops.aten, name, None)
    overloads = [] if packet is None else [getattr(packet, each) for each in packet.overloads()]
    return any(torch.Tag.pointwise in overload.tags for overload in overloads)


def same_constants(node: Node, partner: Node, first: Sequence[int]) -> bool:
    """Whether an operation on a crop uses, beside the image, the numbers that the whole one uses at the same positions.

    Args:
        node: The operation in the whole pass.
        partner: The same in the cropped one.
        first: Where the output of the cropped one begins, in cells of the whole one along each axis of the image.
    """
    pairs = cast("list[tuple[Provenance, Provenance]]", list(zip(node.constants, partner.constants, strict=False)))
    if len(node.constants) != len(partner.constants):
        return False
    if not pairs:
        return True
    along = [
        _first_of(dim, part, node.layout, first)
        for dim, part in zip(node.layout.dims, partner.layout.dims, strict=True)
    ]
    if node.writes == "numbers" and len(pairs[0][0].shape) != len(node.shape):
        return all(_share_a_value(a, b) for a, b in pairs)
    if node.name in _JOINING or is_pointwise(node.name) or node.writes is not None:
        return all(_share_a_value(a, b) or _is_broadcast_part(a, b, node.shape, partner.shape, along) for a, b in pairs)
    # Of any other operation it is not known along which dimension its numbers lie. Where a crop is shorter than the
    # whole, numbers that follow the positions would not fit both.
    shorter = [a != b for a, b in zip(node.shape, partner.shape, strict=True)]
    return node.constants == partner.constants and all(
        begin == 0 or short for begin, short in zip(along, shorter, strict=True)
    )


def _share_a_value(a: Provenance, b: Provenance) -> bool:
    return (value := uniform(a)) is not None and value == uniform(b)


def _broadcast_offsets(
    a: Provenance, b: Provenance, whole: Sequence[int], part: Sequence[int], offsets: Sequence[int | None]
) -> Offsets | None:
    """Where numbers that are broadcast to an output's shape begin, from where the output begins; None where they are no
    part of it."""
    lead = len(whole) - len(a.shape)
    if len(a.shape) != len(b.shape) or lead < 0:
        return None
    found = []
    for size, short, n, m, begin in zip(a.shape, b.shape, whole[lead:], part[lead:], offsets[lead:], strict=True):
        if size == short == 1:
            found.append(0)
        elif begin is None or ((size, short) != (n, m) and (size != short or n != m or begin)):
            return None
        else:
            found.append(begin)
    return tuple(found)


def _first_of(dim: Dim, cropped: Dim, axis_layout: AxisLayout, first: Sequence[int]) -> int | None:
    """Where a dimension of a crop begins in that of the whole; None where its cells are no run of those.

    Only the first factor may be shorter on the crop: cells of a map that is rolled out row by row lie elsewhere where
    rows are shorter."""
    if len(dim) != len(cropped) or any(a.size != b.size for a, b in zip(dim[1:], cropped[1:], strict=True)):
        return None
    begin, below = 0, 1
    for part in reversed(dim):
        if isinstance(part, TokenSequence):
            if dim != cropped or any(first[factor.axis] for factor in part.inner if factor.axis != OTHER):
                return None
        elif part.axis != OTHER and (offset := first[part.axis]):
            top = part.step * part.size == axis_layout.size_of(part.axis)
            if offset % (part.step if top else part.step * part.size) or (top and part is not dim[0]):
                return None
            begin += below * (offset // part.step) if top else 0
        below *= part.size
    return begin


def is_part(whole: Provenance, part: Provenance, offsets: Offsets, *, depth: int = 0) -> bool:
    """Whether ``part[j] == whole[j + offsets]`` for every j, shown by where both come from."""
    if depth > DEPTH or len(whole.shape) != len(part.shape) or len(offsets) != len(part.shape):
        return False
    # Along a dimension of one cell there is nothing to be told apart.
    offsets = tuple(0 if a == b == 1 else first for a, b, first in zip(whole.shape, part.shape, offsets, strict=True))
    if any(first < 0 or first + b > a for a, b, first in zip(whole.shape, part.shape, offsets, strict=True)):
        return False
    if whole == part and not any(offsets):
        return True
    if _share_a_value(whole, part):
        return True
    if whole.name != part.name or not whole.name:
        return False
    if whole.name in _VIEWS:
        a, b = _base(whole), _base(part)
        found = None if a is None or b is None else _VIEWS[whole.name](whole, part, a, b, offsets)
        return a is not None and b is not None and found is not None and is_part(a, b, found, depth=depth + 1)
    if whole.name in _SOURCES:
        return _SOURCES[whole.name](whole, part, offsets)
    return (whole.pointwise and part.pointwise and _same_arguments(whole, part)) and all(
        _is_broadcast_part(a, b, whole.shape, part.shape, offsets, depth + 1)
        for a, b in zip(_tensors(whole), _tensors(part), strict=True)
    )


def _is_broadcast_part(
    a: Provenance,
    b: Provenance,
    whole: Sequence[int],
    part: Sequence[int],
    offsets: Sequence[int | None],
    depth: int = 0,
) -> bool:
    """Whether numbers that are broadcast to an output's shape are a crop's part of the whole ones."""
    found = _broadcast_offsets(a, b, whole, part, offsets)
    return found is not None and is_part(a, b, found, depth=depth)


def uniform(numbers: Provenance) -> object:
    """The value that all elements share, as (value, dtype) or a text that stands for it; None where they are not known
    to share one."""
    arguments = numbers.arguments
    name = numbers.name
    if name in ("zeros", "zeros_like", "new_zeros", "zero"):
        return (0.0, str(arguments.get("dtype")))
    if name in ("ones", "ones_like", "new_ones"):
        return (1.0, str(arguments.get("dtype")))
    if name in ("full", "full_like", "new_full", "fill") and isinstance(
        value := arguments.get("fill_value", arguments.get("value")), (int, float)
    ):
        return (float(value), str(arguments.get("dtype")))
    if name in _VIEWS:
        source = _base(numbers)
        found = None if source is None else uniform(source)
        return None if found is None else (found, str(arguments.get("dtype")))
    return numbers.text if math.prod(numbers.shape) == 1 else None


def _tensors(numbers: Provenance) -> list[Provenance]:
    found: list[Provenance] = []
    for value in numbers.arguments.values():
        found += [
            each for each in (value if isinstance(value, (list, tuple)) else (value,)) if isinstance(each, Provenance)
        ]
    return found


def _base(numbers: Provenance) -> Provenance | None:
    """The only tensor whose numbers an operation was given."""
    if numbers.name == "copy":  # what it is written over does not count
        source = numbers.arguments.get("src")
        return source if isinstance(source, Provenance) else None
    found = _tensors(numbers)
    return found[0] if len(found) == 1 else None


def _same_arguments(whole: Provenance, part: Provenance, left_out: Sequence[str] = ()) -> bool:
    """Whether two operations have the same arguments beside tensors."""
    return _plain_arguments(whole, left_out) == _plain_arguments(part, left_out)


def _plain_arguments(numbers: Provenance, left_out: Sequence[str]) -> list[tuple[str, object]]:
    def plain(value: Any) -> object:
        if isinstance(value, Provenance):
            return "numbers"
        if isinstance(value, Viewed):
            return "base"
        return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value

    return [(key, plain(value)) for key, value in numbers.arguments.items() if key not in left_out]


def _arange(whole: Provenance, part: Provenance, offsets: Offsets) -> bool:
    """Whole numbers from a first one in equal steps: where they end says how many there are."""
    first, start = (
        [numbers.arguments.get("start") or 0, numbers.arguments.get("step") or 1] for numbers in (whole, part)
    )
    exact = all(isinstance(value, int) for value in (*first, *start)) and first[1] == start[1]
    return (
        exact
        and _same_arguments(whole, part, ("start", "end", "step"))
        and start[0] == first[0] + offsets[0] * first[1]
    )


def _convolution(whole: Provenance, part: Provenance, offsets: Offsets) -> bool:
    """Of zeros alone, as of a state that a recurrent net begins with: the bias, wherever it is and whatever the
    padding."""
    zeros = all(
        isinstance(x := numbers.arguments.get("input"), Provenance) and _is_zero(x) for numbers in (whole, part)
    )
    own = all(whole.arguments.get(name) == part.arguments.get(name) for name in ("weight", "bias"))
    return zeros and own and _same_arguments(whole, part) and not any(offsets[:2])


def _is_zero(numbers: Provenance) -> bool:
    value = uniform(numbers)
    while isinstance(value, tuple):
        value = value[0]
    return value == 0.0


def _slice(whole: Provenance, part: Provenance, a: Provenance, b: Provenance, offsets: Offsets) -> Offsets | None:
    if not _same_arguments(whole, part, ("start", "end")):
        return None
    dim, step = int(whole.arguments.get("dim") or 0) % len(whole.shape), int(whole.arguments.get("step") or 1)
    first = _bound(whole, a, dim) + step * offsets[dim] - _bound(part, b, dim)
    return (*offsets[:dim], first, *offsets[dim + 1 :]) if first >= 0 else None


def _bound(numbers: Provenance, base: Provenance, dim: int) -> int:
    start, size = int(numbers.arguments.get("start") or 0), base.shape[dim]
    return min(max(start + size if start < 0 else start, 0), size)


def _select(whole: Provenance, part: Provenance, a: Provenance, b: Provenance, offsets: Offsets) -> Offsets | None:
    dim = int(whole.arguments["dim"]) % len(a.shape)
    first, start = (int(n.arguments["index"]) % base.shape[dim] for n, base in ((whole, a), (part, b)))
    return (*offsets[:dim], first - start, *offsets[dim:]) if _same_arguments(whole, part) else None


def _unsqueeze(whole: Provenance, part: Provenance, a: Provenance, b: Provenance, offsets: Offsets) -> Offsets | None:
    dim = int(whole.arguments["dim"]) % len(whole.shape)
    return (*offsets[:dim], *offsets[dim + 1 :]) if _same_arguments(whole, part) else None


def _permute(whole: Provenance, part: Provenance, a: Provenance, b: Provenance, offsets: Offsets) -> Offsets | None:
    if not _same_arguments(whole, part):
        return None
    rank = len(offsets)
    order = list(range(rank))
    if whole.name == "permute":
        order = [int(d) % rank for d in whole.arguments["dims"]]
    elif rank > 1:
        first, second = (int(whole.arguments.get(key, default)) % rank for key, default in (("dim0", 0), ("dim1", 1)))
        order[first], order[second] = order[second], order[first]
    return tuple(offsets[order.index(there)] for there in range(rank))


def _reshape(whole: Provenance, part: Provenance, a: Provenance, b: Provenance, offsets: Offsets) -> Offsets | None:
    """Views that add and drop dimensions of one cell, and nothing else."""
    kept = [(n, m, first) for n, m, first in zip(whole.shape, part.shape, offsets, strict=True) if (n, m) != (1, 1)]
    before = [(n, m) for n, m in zip(a.shape, b.shape, strict=False) if (n, m) != (1, 1)]
    if len(a.shape) != len(b.shape) or [(n, m) for n, m, _ in kept] != before:
        return None
    rest = iter(kept)
    return tuple(0 if pair == (1, 1) else next(rest)[2] for pair in zip(a.shape, b.shape, strict=True))


def _copy(whole: Provenance, part: Provenance, a: Provenance, b: Provenance, offsets: Offsets) -> Offsets | None:
    """The same numbers, perhaps repeated along new dimensions."""
    return (
        _broadcast_offsets(a, b, whole.shape, part.shape, offsets)
        if _same_arguments(whole, part, ("size", "self", "base"))
        else None
    )


#: Operations that make numbers: whether those of a crop are a part of the whole ones.
_SOURCES: dict[str, Callable[[Provenance, Provenance, Offsets], bool]] = {
    "arange": _arange,
    "convolution": _convolution,
}
#: Operations that show or copy the numbers of one tensor: where the crop's part of that begins, from where it begins in
#: the output.
_VIEWS: dict[str, Callable[[Provenance, Provenance, Provenance, Provenance, Offsets], Offsets | None]] = {
    "slice": _slice,
    "select": _select,
    "unsqueeze": _unsqueeze,
    **dict.fromkeys(("permute", "transpose", "t"), _permute),
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "squeeze"), _reshape),
    **dict.fromkeys(("clone", "_to_copy", "alias", "detach", "lift_fresh", "contiguous", "expand", "copy"), _copy),
}
