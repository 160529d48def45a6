"""How a tensor holds a map, read off what the recorded operations did to the positions of the image and to the images
of the batch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from erfscope.geometry.layout import BATCH, CHANNEL, Factor, Layout
from erfscope.trf.axes.axis_layout import OTHER, AxisFactor, AxisLayout, Dim, Part, TokenSequence
from erfscope.trf.axes.index_maps import WHOLE, single
from erfscope.trf.graph import Kind, Node
from erfscope.trf.operations import INDEXING
from erfscope.trf.rules.products import ATTENTION
from erfscope.trf.walk import Region, trace_back

#: What is left out where it is asked on which part of the image a tensor stands: a position mixed with all others
#: stands where it did.
MIXING: frozenset[Kind] = frozenset(("global", "window"))


class Positions(NamedTuple):
    """What the operations say of a tensor's positions."""

    #: "known"; "none": no image position, as of queries and pooled values; "holes": its places form no grid; "open": an
    #: operation on the way is not understood.
    status: Literal["known", "none", "holes", "open"]
    layout: Layout | None = None
    #: Open: why, in words.
    why: str = ""


class TapedTensor(NamedTuple):
    """A tensor on the two tapes of one pass: by the axes of the image, and by the images of the batch."""

    node: Node
    #: None if the pass was recorded with one image, which then is the first dimension.
    batch: Node | None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class VisitedTensor:
    """A tensor as it was when the visitor was called."""

    #: None if it does not depend on the image.
    tensor: TapedTensor | None
    shape: tuple[int, ...]
    #: How the adapter would read it by its shape, and whether the user said so.
    guess: Layout | None
    declared: bool
    #: Whether it is one of the model's stages, which the library declares to be (B, C, *space).
    stage: bool
    order: int
    #: How often the module ran so far.
    calls: int


class InferredLayout(NamedTuple):
    """How a tensor is read."""

    #: None if it is no map.
    layout: Layout | None
    #: What is assumed about the positions, in words; "" where the operations, the user or the model's library say where
    #: they are.
    assumed: str = ""
    #: Why it is no map, after the layer's name.
    refusal: str = ""


#: What a user can do about positions that are not known.
WAYS_OUT = (
    "name another layer with --layer, or say how this one is held with --layout, and --prefix-tokens for tokens beside"
    " the map"
)


def infer_layout(seen: VisitedTensor, root: TapedTensor) -> InferredLayout:
    """How a tensor holds its map: as the user or the library says, else as the operations say, else by its shape, which
    is said."""
    # Two images may have been recorded; a reader thinks of one.
    shape = (1, *seen.shape[1:]) if seen.shape[:1] == root.node.shape[:1] else seen.shape
    if seen.tensor is None or seen.stage:
        return InferredLayout(seen.guess, refusal=f"holds no spatial map: its output has shape {shape}")
    found = positions_of(seen.tensor, root)
    if seen.declared and seen.guess is not None:
        if found.layout is not None and found.layout.order == seen.guess.order:
            return InferredLayout(found.layout)
        return InferredLayout(seen.guess, assumed="it is read as was asked for, which the operations do not confirm")
    if found.layout is not None:
        return InferredLayout(found.layout)
    held = f"its output has shape {shape}" + (f", {shape[1]} tokens" if len(shape) == 3 else "")
    if found.status == "open":
        if seen.guess is not None and seen.shape[:1] == root.node.shape[:1]:
            return InferredLayout(
                seen.guess, assumed=f"{found.why}, so that the positions are assumed from the shape {shape} alone"
            )
        return InferredLayout(None, refusal=f"has no known positions: {held}, and {found.why}; {WAYS_OUT}")
    why = "which have no image position: pooled, mixed or queried values"
    if found.status == "holes":
        why = "whose places on the image form no grid"
    return InferredLayout(None, refusal=f"holds no spatial map: {held}, {why}; {WAYS_OUT}")


def looks_spatial(shape: Sequence[int]) -> bool:
    """Whether a tensor could be a map by its shape: several vectors for each image."""
    return len(shape) >= 3 and math.prod(shape[2:]) > 1 and max(shape[1:-1]) > 1


def batch_mixing(tensor: TapedTensor, root: TapedTensor) -> str:
    """The operation by which the images of a batch see each other on their way to a tensor; "" if they do not, or that
    was not recorded."""
    node = tensor.batch
    if node is None or root.batch is None:
        return ""
    one = Region((single(1) if node.layout.axes[0] is not None else None,))
    found = trace_back(node, one, root.batch, None)
    span = None if found.region is None else found.region.spans[0]
    if span is None or (not span.whole and span.in_bounds.tolist() == [1]):
        return ""
    culprits = [*(node for node, _ in found.mixers), *found.unknown]
    first = min(culprits, key=lambda node: node.index, default=node)
    return first.describe(first.mixing_name)


def positions_of(tensor: TapedTensor, root: TapedTensor) -> Positions:
    """What the recorded operations say of a tensor's positions; ``root`` is the image."""
    node, batch = tensor
    rank = len(root.node.layout.axes)
    images = _batch_factors(node, batch)
    if None in node.layout.axes and (culprit := _not_understood(node, root.node)) is not None:
        return Positions("open", why=culprit)
    if (
        images is None
        and batch is not None
        and root.batch is not None
        and (culprit := _not_understood(batch, root.batch)) is not None
    ):
        return Positions("open", why=culprit)
    # A map of one position, left by convolutions that fit once, has its axes still; what was pooled has none.
    if images is None or (
        None in node.layout.axes and not any(node.layout.size_of(axis) > 1 for axis in node.layout.present)
    ):
        return Positions("none")
    dims = [_common_factors(mine, theirs) for mine, theirs in zip(node.layout.dims, images, strict=True)]
    if any(dim is None for dim in dims):
        holes = any(isinstance(part, TokenSequence) and part.cells for dim in node.layout.dims for part in dim)
        return Positions("holes") if holes else Positions("open", why=_why_open(node))
    factors = _with_channels([dim for dim in dims if dim is not None], node.layout)
    layout = _named_layout(factors, node, rank) or _factor_layout(factors, node, rank)
    return Positions("known", layout) if layout is not None else Positions("open", why=_why_open(node))


def _batch_factors(node: Node, batch: Node | None) -> Sequence[Dim] | None:
    """The factors of the batch in every dimension, () where there are none; None if the tensor does not hold every
    image once."""
    if batch is None:
        return (
            [(AxisFactor(0, 1, 1),) if i == 0 else () for i in range(len(node.shape))]
            if node.shape and node.shape[0] == 1
            else None
        )
    axis = batch.layout.axes[0]
    found = [tuple(part for part in dim if not _is_other(part)) for dim in batch.layout.dims]
    size = math.prod(part.size for dim in found for part in dim)
    return batch.layout.dims if axis is not None and size == axis.size and any(found) else None


def _is_other(part: Part) -> bool:
    return isinstance(part, AxisFactor) and part.axis == OTHER


def _not_understood(node: Node, root: Node) -> str | None:
    """Why the positions of a tensor are not known, by the first operation after the image that is not understood; None
    if they were mixed away."""
    region = Region(tuple(None if axis is None else WHOLE for axis in node.layout.axes), extra_tokens=True)
    found = trace_back(node, region, root, None, MIXING)
    # As many cells as before may well be the same cells: a filter in frequencies, a matrix over tokens; or rows written
    # one by one.
    same = [
        end
        for end in found.ends
        if end.mixing_name != ATTENTION
        and _lost_axes(end)
        and any(edge.source.shape == end.shape for edge in end.edges)
    ]
    written = [each for each in found.passed if each.writes == "values"]
    culprits = [*found.unknown, *same, *written]
    if not culprits:
        return None
    first = min(culprits, key=lambda each: each.index)
    return _why_open(first, first.name if first in found.unknown else first.mixing_name)


def _lost_axes(node: Node) -> bool:
    """Whether an operation's output lacks an axis of the image that one of its inputs has."""
    return any(
        mine is None and theirs is not None
        for edge in node.edges
        for mine, theirs in zip(node.layout.axes, edge.source.layout.axes, strict=True)
    )


def _why_open(node: Node, words: str = "") -> str:
    """What is to be said of an operation behind which positions are not known."""
    what = node.describe(words)
    return (
        f"{what} picks positions by numbers that are not followed"
        if node.name in INDEXING
        else f"{what} is not understood"
    )


class _Role(NamedTuple):
    """A factor of a dimension that both readings, that of the image's axes and that of the batch, agree on."""

    axis: int  # of the image, BATCH, or CHANNEL
    step: int
    size: int


class _Dim(NamedTuple):
    factors: list[_Role]
    before: int = 0
    after: int = 0
    #: The entries that the factors number, where these come in no order of factors.
    picked: tuple[int, ...] | None = None


def _common_factors(mine: Dim, images: Dim) -> _Dim | None:
    """A dimension's factors of the image's axes and of the batch in one list; None if they cut across each other."""
    tokens = next((part for part in mine if isinstance(part, TokenSequence)), None)
    if tokens is not None:
        alone = len(mine) == 1 and all(_is_other(part) for part in images)
        inner = [_Role(f.axis, f.step, f.size) for f in tokens.inner]
        if not alone or not tokens.cells:
            return _Dim(inner, tokens.before, tokens.after) if alone else None
        total = math.prod(f.size for f in tokens.inner)
        spots = {cell: entry for entry, cell in enumerate(tokens.cells) if cell >= 0}
        # A grid with holes is no map.
        return _Dim(inner, picked=tuple(spots[cell] for cell in range(total))) if len(spots) == total else None
    ours = [part for part in mine if isinstance(part, AxisFactor)]
    theirs = [part for part in images if isinstance(part, AxisFactor)]
    if len(theirs) < len(images):
        return None
    if not any(f.axis != OTHER for f in theirs):
        theirs = []
    found: list[_Role] = []
    while ours:
        low, image = ours.pop(), theirs.pop() if theirs else AxisFactor(OTHER, 1, 1)
        while image.axis == OTHER and image.size == 1 and theirs:
            image = theirs.pop()
        if not theirs and image.axis == OTHER:
            found.append(_Role(CHANNEL if low.axis == OTHER else low.axis, low.step, low.size))
            continue
        size = math.gcd(low.size, image.size)
        if size == 1 and low.size != 1 and image.size != 1:
            return None
        if low.axis != OTHER and image.axis != OTHER and size > 1:
            return None
        if size == 1:  # a factor of one value
            (
                found.append(_Role(CHANNEL if low.axis == OTHER else low.axis, low.step, 1))
                if low.size == 1
                else ours.append(low)
            )
            if image.size != 1:
                theirs.append(image)
            continue
        role = BATCH if image.axis != OTHER else low.axis if low.axis != OTHER else CHANNEL
        found.append(_Role(role, low.step if role == low.axis else 1, size))
        if low.size > size:
            ours.append(AxisFactor(low.axis, low.step if low.axis == OTHER else low.step * size, low.size // size))
        if image.size > size:
            theirs.append(AxisFactor(image.axis, image.step, image.size // size))
    if any(f.axis != OTHER for f in theirs) and not any(f.axis == BATCH for f in found):
        found += [_Role(BATCH, 1, f.size) for f in theirs if f.axis != OTHER]
    return _Dim(found[::-1])


def _with_channels(dims: list[_Dim], axis_layout: AxisLayout) -> list[_Dim]:
    """The factors, with inner factors of an axis that stand among channels counted as channels: a patch that was made
    one."""
    for number in axis_layout.present:
        spots = sorted(
            (role.step, i, k)
            for i, dim in enumerate(dims)
            for k, role in enumerate(dim.factors)
            if role.axis == number and role.size > 1
        )
        for _, i, k in spots[:-1]:  # the outermost factor is a position
            among = any(role.axis == CHANNEL and role.size > 1 for role in dims[i].factors)
            if not among:
                break
            dims[i].factors[k] = dims[i].factors[k]._replace(axis=CHANNEL)
    return dims


def _named_layout(dims: list[_Dim], node: Node, rank: int) -> Layout | None:
    """One of the layouts with a name; None if the tensor has none of them."""
    roles = [[role for role in dim.factors if role.size > 1 or role.axis == BATCH] for dim in dims]
    if any(dim.picked is not None for dim in dims):
        return None
    if len(roles) < 2 or [role.axis for role in roles[0]] not in ([BATCH], []) or (not roles[0] and node.shape[0] != 1):
        return None
    if len(dims) == rank + 2 and not any(dim.before or dim.after for dim in dims):
        for order, channel, space in (
            ("channels_first", 1, range(2, rank + 2)),
            ("channels_last", rank + 1, range(1, rank + 1)),
        ):
            lone = all(role.axis == CHANNEL for role in roles[channel])
            if lone and all(_is_axis(roles[dim], i) for i, dim in enumerate(space)):
                return Layout(order=order)  # type: ignore[arg-type]
    if len(dims) == 3 and all(role.axis == CHANNEL for role in roles[2]):
        grid = [[role for role in roles[1] if role.axis == number] for number in range(rank)]
        if [role for axis in grid for role in axis] == roles[1] and all(map(_is_descending, grid)) and rank > 1:
            sizes = tuple(math.prod(role.size for role in axis) for axis in grid)
            return Layout(order="tokens", grid=sizes, prefix=dims[1].before, suffix=dims[1].after)
    return None


def _is_axis(roles: Sequence[_Role], number: int) -> bool:
    """Whether a dimension is one axis of the image, or one position."""
    return all(role.axis == number for role in roles) and _is_descending(roles)


def _is_descending(roles: Sequence[_Role]) -> bool:
    return all(one.step == other.step * other.size for one, other in itertools.pairwise(roles))


def _factor_layout(dims: list[_Dim], node: Node, rank: int) -> Layout | None:
    """The layout of a tensor whose positions lie in any order over its dimensions; None if some are missing."""
    grid = []
    for number in range(rank):
        roles = sorted(
            (role for dim in dims for role in dim.factors if role.axis == number and role.size > 1),
            key=lambda role: -role.step,
        )
        if not _is_descending(roles):
            return None
        grid.append(math.prod(role.size for role in roles))
    factors = tuple(tuple(Factor(role.axis, role.size, role.step) for role in dim.factors) for dim in dims)
    if not any(factor.role == BATCH for dim in factors for factor in dim):
        return None
    picked = tuple(_entries(dim, size) for dim, size in zip(dims, node.shape, strict=True))
    return Layout(order="factors", grid=tuple(grid), factors=factors, picked=picked)


def _entries(dim: _Dim, size: int) -> tuple[int, ...] | None:
    """The entries of a dimension that are the map's; None for all."""
    if dim.picked is not None:
        return dim.picked
    return tuple(range(dim.before, size - dim.after)) if dim.before or dim.after else None
