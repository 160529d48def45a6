"""How the axes of an operation's input follow from the axes of its output, given which dimensions correspond."""

from __future__ import annotations

import math
from collections.abc import Sequence

from erfscope.trf.axes.digit_maps import Comb, Phase, Regrid
from erfscope.trf.axes.index_maps import Fixed
from erfscope.trf.axes.place import Axis, AxisDigit, AxisLayout, Dim, PrefixedTokens, contiguous, factors, other, spatial
from erfscope.trf.graph import Edge, Node, Step
from erfscope.trf.lines import with_joined_lines


def related(out: AxisLayout, source: Node, pairs: Sequence[int | None], *, stays: bool = False) -> Edge:
    """Edge of an operation that keeps the positions of paired dimensions and reads unpaired dimensions in full.

    Args:
        out: Place of the output.
        source: The input.
        pairs: For each dimension of the input the dimension of the output that has the same positions, or None.
        stays: The output has the input's axes, though the operation mixes along the unpaired dimensions.
    """
    place = source.place
    if place is out and not stays and list(pairs) == list(range(len(pairs))):
        return Edge(source, None)
    twins: dict[int, list[tuple[AxisDigit, AxisDigit | None]]] = {axis: [] for axis in place.present}
    unclear: set[int] = set()
    beside: bool | None = None if any(map(_bundled, place.dims)) else False
    for dim, pair in zip(place.dims, pairs, strict=True):
        partners = _partners(dim, out.dims[pair]) if pair is not None else [None] * len(list(factors(dim)))
        if _bundled(dim) and (pair is None or not _bundled(out.dims[pair])):
            beside = True
        for i, factor in enumerate(factors(dim)):
            if factor.axis == -1:
                continue
            if partners is None:
                unclear.add(factor.axis)
            else:
                twins[factor.axis].append((factor, partners[i]))
    steps = tuple(
        None if axis is None else Step(None, None, "unknown") if i in unclear else _step(i, axis, twins[i], out, stays)
        for i, axis in enumerate(place.axes)
    )
    return Edge(source, steps, beside)


def widened(source: Node) -> Edge:
    """Edge of an operation that is not understood: it may read everything, for reasons not known."""
    steps = tuple(None if axis is None else Step(None, None, "unknown") for axis in source.place.axes)
    return Edge(source, steps, any(map(_bundled, source.place.dims)))


def everything(source: Node) -> Edge:
    """Edge of an operation that is known to read all of this input, wherever its output is."""
    return related(AxisLayout((None,) * len(source.place.axes), ()), source, [None] * len(source.shape))


def broadcast(sources: Sequence[Node], shape: Sequence[int]) -> tuple[AxisLayout, tuple[Edge, ...]]:
    """Place and edges of an elementwise operation on inputs that are broadcast to ``shape``."""
    main = max(sources, key=lambda node: len(node.place.present))
    place = main.place if main.shape == tuple(shape) else _stretched(main, shape)
    for node in sources:
        if node is not main:
            place = _adopting(place, node, shape)
    place = with_joined_lines(place, sources)
    edges = []
    for node in sources:
        lead = len(shape) - len(node.shape)
        pairs = [lead + i if n == shape[lead + i] else None for i, n in enumerate(node.shape)]
        edges.append(related(place, node, pairs))
    return place, tuple(edges)


def _stretched(node: Node, shape: Sequence[int]) -> AxisLayout:
    """The place of a tensor broadcast to ``shape``: where it is repeated it has no axis any more."""
    lead = len(shape) - len(node.shape)
    dims = [other(n) for n in shape[:lead]]
    gone: set[int] = set()
    for i, n in enumerate(node.shape):
        same = n == shape[lead + i]
        dims.append(node.place.dims[i] if same else other(shape[lead + i]))
        if not same:
            gone.update(f.axis for f in factors(node.place.dims[i]))
    return AxisLayout(tuple(None if i in gone else axis for i, axis in enumerate(node.place.axes)), tuple(dims))


def _adopting(place: AxisLayout, node: Node, shape: Sequence[int]) -> AxisLayout:
    """The place with those axes of another operand that it lacks, where its own dimensions are free for them."""
    lead = len(shape) - len(node.shape)
    missing = [axis for axis in node.place.present if place.axes[axis] is None]
    for axis in missing:
        spots = {lead + i: dim for i, dim in enumerate(node.place.dims) if any(f.axis == axis for f in factors(dim))}
        free = all(not spatial(place.dims[i]) and node.shape[i - lead] == shape[i] for i in spots)
        alone = all(f.axis in (axis, -1) for dim in spots.values() for f in factors(dim))
        if free and alone:
            axes = tuple(node.place.axes[axis] if i == axis else old for i, old in enumerate(place.axes))
            place = AxisLayout(axes, place.with_dims(spots).dims)
    return place


def _bundled(dim: Dim) -> bool:
    return any(isinstance(part, PrefixedTokens) for part in dim)


def _partners(dim: Dim, out: Dim) -> list[AxisDigit | None] | None:
    """For each digit of ``dim`` the digit of ``out`` with the same value, None if it has none; no list if the two do not line up."""
    if not spatial(out):
        return None if any(f.size > 1 for f in factors(dim) if f.axis != -1) else [None] * len(list(factors(dim)))
    if len(dim) != len(out):
        return None
    partners: list[AxisDigit | None] = []
    for mine, theirs in zip(dim, out, strict=True):
        if mine.size != theirs.size:
            return None
        if isinstance(mine, PrefixedTokens):
            if not isinstance(theirs, PrefixedTokens) or (mine.before, len(mine.inner), mine.cells) != (
                theirs.before,
                len(theirs.inner),
                theirs.cells,
            ):
                return None
            partners.extend(theirs.inner)
            if any(a.size != b.size for a, b in zip(mine.inner, theirs.inner, strict=True)):
                return None
        elif isinstance(theirs, PrefixedTokens) or (theirs.axis == -1 and mine.axis != -1 and mine.size > 1):
            return None  # a position that the output does not know of
        else:
            partners.append(theirs if theirs.axis != -1 else None)
    return partners


def _step(number: int, axis: Axis, twins: list[tuple[AxisDigit, AxisDigit | None]], out: AxisLayout, stays: bool) -> Step:
    """The step of one axis, given each of its digits and the output's digit with the same value (None: read in full)."""
    paired = sorted(((mine, theirs) for mine, theirs in twins if theirs is not None), key=lambda pair: -pair[0].step)
    if not paired:
        if axis.size == 1:
            return Step(None, Fixed(1, 0))
        return Step(number if stays else None, None, "global", stays)
    numbers = {theirs.axis for _, theirs in paired}
    if len(numbers) != 1:
        return Step(None, None, "unknown")
    (partner,) = numbers
    under, over = contiguous(mine for mine, _ in paired), contiguous(theirs for _, theirs in paired)
    count = math.prod(mine.size for mine, _ in paired)
    if under and over and under * count == axis.size and over * count == out.size_of(partner):
        in_order = all(mine.step * over == theirs.step * under for mine, theirs in paired)
        if in_order:
            return Step(partner, Regrid(axis.size, over, under), "window" if over > 1 else "local", stays)
    if under and over and under * count == axis.size and all(mine.step * over == theirs.step * under for mine, theirs in paired):
        return Step(partner, Phase(axis.size, over, under, count), "window", stays)  # repeated in every window
    if under and over and over * count == out.size_of(partner) and not axis.size % (under * count):
        low = [mine for mine, theirs in twins if theirs is None and mine.step < under * count]
        if all(mine.step * over == theirs.step * under for mine, theirs in paired) and all(mine.step < under for mine in low):
            return Step(partner, Comb(axis.size, over, under, count), "global", stays)  # mixed over all windows
    mixed = max((mine for mine, theirs in twins if theirs is None), key=lambda f: f.step, default=None)
    if mixed is not None and mixed.step * mixed.size == axis.size:
        return Step(number if stays else None, None, "global", stays)
    return Step(None, None, "unknown")
