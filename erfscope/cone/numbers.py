"""Whether numbers that do not depend on the image are, on a crop, the part of the whole ones that the crop lies on.

Decided by where they come from alone: which slice of which table, which steps of ``arange``, which constant. Their values are never looked
at, since two tables may agree wherever anybody looks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, cast

import torch

from erfscope.trf.axes.place import OTHER, AxisLayout, Dim, PrefixedTokens
from erfscope.trf.graph import Node
from erfscope.trf.tapes.fingerprint import Numbers, Viewed

#: How far below a tensor of numbers its origin is followed.
DEPTH = 40
#: Per dimension the first cell of the crop's numbers in the whole ones.
Offsets = tuple[int, ...]
_JOINING = frozenset(["cat", "concatenate"])
_COPIES = frozenset(["clone", "_to_copy", "alias", "detach", "lift_fresh", "contiguous", "expand", "copy"])


@cache
def is_pointwise(name: str) -> bool:
    """Whether an operation of this name makes every element of the elements at the same position, inputs broadcast."""
    packet = getattr(torch.ops.aten, name, None)
    overloads = [] if packet is None else [getattr(packet, each) for each in packet.overloads()]
    return any(torch.Tag.pointwise in overload.tags for overload in overloads)


def same_numbers(node: Node, partner: Node, first: Sequence[int]) -> bool:
    """Whether an operation on a crop uses, beside the image, the numbers that the whole one uses at the same positions.

    Args:
        node: The operation in the whole pass.
        partner: The same in the cropped one.
        first: Where the output of the cropped one begins, in cells of the whole one along each axis of the image.
    """
    pairs = cast("list[tuple[Numbers, Numbers]]", list(zip(node.constants, partner.constants, strict=False)))
    if len(node.constants) != len(partner.constants):
        return False
    if not pairs:
        return True
    along = [_first_of(dim, part, node.place, first) for dim, part in zip(node.place.dims, partner.place.dims, strict=True)]
    if node.name.startswith("numbers written into") and len(pairs[0][0].shape) != len(node.shape):
        return all(_share_a_value(a, b) for a, b in pairs)
    if node.name in _JOINING or is_pointwise(node.name) or "write into" in node.name or "written into" in node.name:
        return all(_share_a_value(a, b) or _lies_along(a, b, node, partner, along) for a, b in pairs)
    # Of any other operation it is not known along which dimension its numbers lie. Where a crop is shorter than the whole, numbers that
    # follow the positions would not fit both.
    shorter = [a != b for a, b in zip(node.shape, partner.shape, strict=True)]
    return node.constants == partner.constants and all(begin == 0 or short for begin, short in zip(along, shorter, strict=True))


def _share_a_value(a: Numbers, b: Numbers) -> bool:
    return (value := uniform(a)) is not None and value == uniform(b)


def _lies_along(a: Numbers, b: Numbers, node: Node, partner: Node, along: Sequence[int | None]) -> bool:
    """Whether numbers that are broadcast to an operation's output are a crop's part of the whole ones."""
    lead = len(node.shape) - len(a.shape)
    if len(a.shape) != len(b.shape) or lead < 0:
        return False
    offsets = []
    for i, (size, short) in enumerate(zip(a.shape, b.shape, strict=True)):
        whole, part, begin = node.shape[lead + i], partner.shape[lead + i], along[lead + i]
        if size == short == 1:
            offsets.append(0)
        elif begin is None or ((size, short) != (whole, part) and (size != short or whole != part or begin)):
            return False
        else:
            offsets.append(begin)
    return is_part(a, b, tuple(offsets))


def _first_of(dim: Dim, cropped: Dim, place: AxisLayout, first: Sequence[int]) -> int | None:
    """Where a dimension of a crop begins in that of the whole; None where its cells are no run of those.

    Only the first digit may be shorter on the crop: cells of a map that is rolled out row by row lie elsewhere where rows are shorter.
    """
    if len(dim) != len(cropped) or any(a.size != b.size for a, b in zip(dim[1:], cropped[1:], strict=True)):
        return None
    begin, below = 0, 1
    for part in reversed(dim):
        if isinstance(part, PrefixedTokens):
            if dim != cropped or any(first[factor.axis] for factor in part.inner if factor.axis != OTHER):
                return None
        elif part.axis != OTHER and (offset := first[part.axis]):
            top = part.step * part.size == place.size_of(part.axis)
            if offset % (part.step if top else part.step * part.size) or (top and part is not dim[0]):
                return None
            begin += below * (offset // part.step) if top else 0
        below *= part.size
    return begin


def is_part(whole: Numbers, part: Numbers, offsets: Offsets, *, depth: int = 0) -> bool:
    """Whether ``part[j] == whole[j + offsets]`` for every j, shown by where both come from."""
    if depth > DEPTH or len(whole.shape) != len(part.shape) or len(offsets) != len(part.shape):
        return False
    # Along a dimension of one cell there is nothing to be told apart.
    offsets = tuple(0 if a == b == 1 else first for a, b, first in zip(whole.shape, part.shape, offsets, strict=True))
    if any(first < 0 or first + b > a for a, b, first in zip(whole.shape, part.shape, offsets, strict=True)):
        return False
    if whole == part and not any(offsets):
        return True
    value = uniform(whole)
    if value is not None and value == uniform(part):
        return True
    if whole.name != part.name or not whole.name:
        return False
    rule = _RULES.get(whole.name)
    if rule is not None:
        return rule(whole, part, offsets, depth + 1)
    if not (whole.pointwise and part.pointwise):
        return False
    return _same_words(whole, part) and all(
        _broadcast_part(a, b, whole, part, offsets, depth + 1) for a, b in zip(_tensors(whole), _tensors(part), strict=True)
    )


def uniform(numbers: Numbers) -> object:
    """What says which value all elements share, as (value, dtype); None where they are not known to share one."""
    words = numbers.words
    name = numbers.name
    if name in ("zeros", "zeros_like", "new_zeros", "zero"):
        return (0.0, str(words.get("dtype")))
    if name in ("ones", "ones_like", "new_ones"):
        return (1.0, str(words.get("dtype")))
    if name in ("full", "full_like", "new_full", "fill") and isinstance(value := words.get("fill_value", words.get("value")), (int, float)):
        return (float(value), str(words.get("dtype")))
    if name in _COPIES or name in _SHAPES:
        source = _base(numbers)
        found = None if source is None else uniform(source)
        return None if found is None else (found, str(words.get("dtype")))
    return numbers.text if math.prod(numbers.shape) == 1 else None


def _tensors(numbers: Numbers) -> list[Numbers]:
    found: list[Numbers] = []
    for value in numbers.words.values():
        found += [each for each in (value if isinstance(value, (list, tuple)) else (value,)) if isinstance(each, Numbers)]
    return found


def _base(numbers: Numbers) -> Numbers | None:
    """The only tensor whose numbers an operation was given."""
    if numbers.name == "copy":  # what it is written over does not count
        source = numbers.words.get("src")
        return source if isinstance(source, Numbers) else None
    found = _tensors(numbers)
    return found[0] if len(found) == 1 else None


def _same_words(whole: Numbers, part: Numbers, left_out: Sequence[str] = ()) -> bool:
    """Whether two operations were told the same beside tensors."""
    return _plain(whole, left_out) == _plain(part, left_out)


def _plain(numbers: Numbers, left_out: Sequence[str]) -> list[tuple[str, object]]:
    def plain(value: Any) -> object:
        if isinstance(value, Numbers):
            return "numbers"
        if isinstance(value, Viewed):
            return "base"
        return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value

    return [(key, plain(value)) for key, value in numbers.words.items() if key not in left_out]


def _broadcast_part(a: Numbers, b: Numbers, whole: Numbers, part: Numbers, offsets: Offsets, depth: int) -> bool:
    """The same for an input that is broadcast to the output's shape."""
    lead = len(whole.shape) - len(a.shape)
    if len(a.shape) != len(b.shape) or lead < 0:
        return False
    moved = []
    for i, (n, m) in enumerate(zip(a.shape, b.shape, strict=True)):
        if n == 1 and m == 1:
            moved.append(0)
        elif n == whole.shape[lead + i] and m == part.shape[lead + i]:
            moved.append(offsets[lead + i])
        else:
            return False
    return is_part(a, b, tuple(moved), depth=depth)


def _arange(whole: Numbers, part: Numbers, offsets: Offsets, depth: int) -> bool:
    """Whole numbers from a first one in equal steps: where they end says how many there are."""
    first, start = ([numbers.words.get("start") or 0, numbers.words.get("step") or 1] for numbers in (whole, part))
    exact = all(isinstance(value, int) for value in (*first, *start)) and first[1] == start[1]
    return exact and _same_words(whole, part, ("start", "end", "step")) and start[0] == first[0] + offsets[0] * first[1]


def _slice(whole: Numbers, part: Numbers, offsets: Offsets, depth: int) -> bool:
    a, b = _base(whole), _base(part)
    if a is None or b is None or not _same_words(whole, part, ("start", "end")):
        return False
    dim, step = int(whole.words.get("dim") or 0) % len(whole.shape), int(whole.words.get("step") or 1)
    first, start = _bound(whole, a, dim), _bound(part, b, dim)
    moved = list(offsets)
    moved[dim] = first + step * offsets[dim] - start
    return is_part(a, b, tuple(moved), depth=depth) if moved[dim] >= 0 else False


def _bound(numbers: Numbers, base: Numbers, dim: int) -> int:
    start, size = int(numbers.words.get("start") or 0), base.shape[dim]
    return min(max(start + size if start < 0 else start, 0), size)


def _select(whole: Numbers, part: Numbers, offsets: Offsets, depth: int) -> bool:
    a, b = _base(whole), _base(part)
    if a is None or b is None or not _same_words(whole, part):
        return False
    dim = int(whole.words["dim"]) % len(a.shape)
    first, start = (int(n.words["index"]) % base.shape[dim] for n, base in ((whole, a), (part, b)))
    return is_part(a, b, (*offsets[:dim], first - start, *offsets[dim:]), depth=depth)


def _unsqueeze(whole: Numbers, part: Numbers, offsets: Offsets, depth: int) -> bool:
    a, b = _base(whole), _base(part)
    if a is None or b is None or not _same_words(whole, part):
        return False
    dim = int(whole.words["dim"]) % len(whole.shape)
    return is_part(a, b, (*offsets[:dim], *offsets[dim + 1 :]), depth=depth)


def _permute(whole: Numbers, part: Numbers, offsets: Offsets, depth: int) -> bool:
    a, b = _base(whole), _base(part)
    if a is None or b is None or not _same_words(whole, part):
        return False
    rank = len(offsets)
    order = list(range(rank))
    if whole.name == "permute":
        order = [int(d) % rank for d in whole.words["dims"]]
    elif rank > 1:
        first, second = (int(whole.words.get(key, default)) % rank for key, default in (("dim0", 0), ("dim1", 1)))
        order[first], order[second] = order[second], order[first]
    moved = [0] * rank
    for here, there in enumerate(order):
        moved[there] = offsets[here]
    return is_part(a, b, tuple(moved), depth=depth)


def _reshape(whole: Numbers, part: Numbers, offsets: Offsets, depth: int) -> bool:
    """Views that add and drop dimensions of one cell, and nothing else."""
    a, b = _base(whole), _base(part)
    if a is None or b is None:
        return False
    kept = [(n, m, first) for n, m, first in zip(whole.shape, part.shape, offsets, strict=True) if (n, m) != (1, 1)]
    before = [(n, m) for n, m in zip(a.shape, b.shape, strict=False) if (n, m) != (1, 1)]
    if len(a.shape) != len(b.shape) or [(n, m) for n, m, _ in kept] != before:
        return False
    rest = iter(kept)
    moved = tuple(0 if pair == (1, 1) else next(rest)[2] for pair in zip(a.shape, b.shape, strict=True))
    return is_part(a, b, moved, depth=depth)


def _copy(whole: Numbers, part: Numbers, offsets: Offsets, depth: int) -> bool:
    """The same numbers, perhaps repeated along new dimensions."""
    a, b = _base(whole), _base(part)
    return (
        a is not None
        and b is not None
        and _same_words(whole, part, ("size", "self", "base"))
        and _broadcast_part(a, b, whole, part, offsets, depth)
    )


def _convolution(whole: Numbers, part: Numbers, offsets: Offsets, depth: int) -> bool:
    """Of zeros alone, as of a state that a recurrent net begins with: the bias, wherever it is and whatever the padding."""
    zeros = all(isinstance(x := numbers.words.get("input"), Numbers) and _is_zero(x) for numbers in (whole, part))
    own = all(whole.words.get(name) == part.words.get(name) for name in ("weight", "bias"))
    return zeros and own and _same_words(whole, part) and not any(offsets[:2])


def _is_zero(numbers: Numbers) -> bool:
    value = uniform(numbers)
    while isinstance(value, tuple):
        value = value[0]
    return value == 0.0


_SHAPES = {
    "slice": _slice,
    "select": _select,
    "unsqueeze": _unsqueeze,
    "permute": _permute,
    "transpose": _permute,
    "t": _permute,
    "view": _reshape,
    "_unsafe_view": _reshape,
    "reshape": _reshape,
    "squeeze": _reshape,
}
#: By name of the operation: what its output's offsets say of its input's.
_RULES: dict[str, Callable[[Numbers, Numbers, Offsets, int], bool]] = {
    "arange": _arange,
    "convolution": _convolution,
    **_SHAPES,
    **dict.fromkeys(_COPIES, _copy),
}
