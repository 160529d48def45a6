"""Affine coordinates of the centres of cells, carried forward through the operations and joined where branches meet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from erfscope.trf.axes.axis_layout import AffineCenter, Axis, AxisFactor, AxisLayout, factors_of
from erfscope.trf.graph import Node, skip_views

#: Two coordinates closer than this share of a step are the same one, computed in another order.
SAME = 1e-6
#: Answers that are kept where branches disagree: the first, and those that lie furthest apart.
MOST = 4


def distinct_centers(centers: Iterable[AffineCenter], cells: int) -> tuple[AffineCenter, ...]:
    """Centres that differ at the first or at the last of so many cells, in the order given."""
    found: list[AffineCenter] = []
    for center in centers:
        if not any(same_center(center, other, cells) for other in found):
            found.append(center)
    if len(found) > MOST:
        low, high = (
            choose(found[1:], key=lambda center: center.offset + center.step * cells / 2) for choose in (min, max)
        )
        found = [found[0], low, high]
    return tuple(found)


def same_center(one: AffineCenter, other: AffineCenter, cells: int) -> bool:
    """Whether two answers give the same centres to so many cells."""
    close = SAME * max(abs(one.step), abs(other.step))
    return all(abs(one.offset + i * one.step - other.offset - i * other.step) <= close for i in (0, cells - 1))


def with_joined_centers(layout: AxisLayout, sources: Sequence[Node]) -> AxisLayout:
    """The layout of an elementwise operation, or of a concatenation of channels, with the centres of all its inputs."""
    if len(sources) < 2:
        return layout
    axes = list(layout.axes)
    for number in layout.present:
        factors = _factors(layout, number)
        found = [
            node
            for node in sources
            if node.layout.axes[number] is not None and _factors(node.layout, number) == factors
        ]
        if len(found) > 1:
            axes[number] = _join_axes(axes[number], found, number)
    return AxisLayout(tuple(axes), layout.dims)


def join_parts(number: int, parts: Sequence[tuple[AxisLayout, int]], size: int) -> Axis:
    """An axis of ``size`` cells made of parts of it, each given by its layout and the cell that it begins at."""
    return _with_all_centers(
        [axis.resample(size, shift=-start) for layout, start in parts if (axis := layout.axes[number]) is not None]
    )


def note_disagreement(layout: AxisLayout, name: str, module: str, sources: Sequence[Node]) -> AxisLayout:
    """The layout with a doubt noted on every axis where the inputs disagree about the centres of its cells."""
    axes = list(layout.axes)
    for number, axis in enumerate(axes):
        if axis is None or len(axis.centers) < 2 or axis.doubt:
            continue
        told = [
            f"{by} puts unit 0 at {at:g} px and a unit every {step:g} px"
            for (at, step), by in _owners(axis, sources, number)
        ]
        where = f"{name} in {module}" if module else name
        axes[number] = replace(axis, doubt=f"branches that meet in {where} disagree: {'; '.join(told)}")
    return AxisLayout(tuple(axes), layout.dims)


def _owners(axis: Axis, sources: Sequence[Node], number: int) -> list[tuple[AffineCenter, str]]:
    """The first two centres of an axis, each with the input that has it."""
    found = []
    for center, other in zip(axis.centers[:2], ("one", "another"), strict=True):
        owner = next((node for node in sources if _has_center(node.layout.axes[number], center)), None)
        found.append((center, other if owner is None else owner.describe()))
    return found


def _has_center(axis: Axis | None, center: AffineCenter) -> bool:
    return axis is not None and any(same_center(center, other, axis.size) for other in axis.centers)


def _join_axes(axis: Axis | None, sources: Sequence[Node], number: int) -> Axis:
    assert axis is not None
    joined = _with_all_centers([theirs for node in sources if (theirs := node.layout.axes[number]) is not None])
    whole = _whole_cell(sources, number, joined.centers) if len(joined.centers) > 1 else None
    return replace(axis, centers=joined.centers if whole is None else (whole,), doubt=joined.doubt)


def _with_all_centers(axes: Sequence[Axis]) -> Axis:
    """The first of some axes, with the centres of all of them and the first doubt."""
    centers = distinct_centers((center for axis in axes for center in axis.centers), axes[0].size)
    return replace(axes[0], centers=centers, doubt=next((axis.doubt for axis in axes if axis.doubt), ""))


def _whole_cell(sources: Sequence[Node], number: int, centers: Sequence[AffineCenter]) -> AffineCenter | None:
    """The centre of the cells that interleaved parts make up, as where x[::2] and x[1::2] meet; None if the parts leave
    gaps."""
    (base, *others) = {skip_views(node) for node in sources}
    axis = base.layout.axes[number]
    if others or axis is None or len(axis.centers) != 1:
        return None
    (offset, step), count = axis.centers[0], len(centers)
    phases = sorted((center.offset - offset) / step for center in centers)
    apart = any(abs(center.step - count * step) > SAME * abs(center.step) for center in centers)
    if apart or any(abs(phase - i) > SAME for i, phase in enumerate(phases)):
        return None
    return AffineCenter(offset + step * (count - 1) / 2, count * step)


def _factors(layout: AxisLayout, number: int) -> list[tuple[int, AxisFactor]]:
    """Where an axis's factors are, counted from the last dimension."""
    rank = len(layout.dims)
    return [
        (i - rank, factor) for i, dim in enumerate(layout.dims) for factor in factors_of(dim) if factor.axis == number
    ]
