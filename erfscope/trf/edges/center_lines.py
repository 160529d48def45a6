"""Affine coordinates of the centres of cells, carried forward through the operations and joined where branches meet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from erfscope.trf.axes.axis_layout import Axis, AxisDigit, AxisLayout, Line, digits_of
from erfscope.trf.graph import Node, skip_views

#: Two coordinates closer than this share of a step are the same one, computed in another order.
SAME = 1e-6
#: Lines that are kept where branches disagree: the first, and those that lie furthest apart.
MOST = 4


def distinct_lines(lines: Iterable[Line], cells: int) -> tuple[Line, ...]:
    """Lines that differ at the first or at the last of so many cells, in the order given."""
    found: list[Line] = []
    for line in lines:
        if not any(same_line(line, other, cells) for other in found):
            found.append(line)
    if len(found) > MOST:
        low, high = (choose(found[1:], key=lambda line: line.offset + line.step * cells / 2) for choose in (min, max))
        found = [found[0], low, high]
    return tuple(found)


def same_line(one: Line, other: Line, cells: int) -> bool:
    """Whether two lines give the same centres to so many cells."""
    close = SAME * max(abs(one.step), abs(other.step))
    return all(abs(one.offset + i * one.step - other.offset - i * other.step) <= close for i in (0, cells - 1))


def with_joined_lines(place: AxisLayout, sources: Sequence[Node]) -> AxisLayout:
    """The place of an elementwise operation, or of a concatenation of channels, with the lines of all its inputs."""
    if len(sources) < 2:
        return place
    axes = list(place.axes)
    for number in place.present:
        digits = _digits(place, number)
        found = [node for node in sources if node.place.axes[number] is not None and _digits(node.place, number) == digits]
        if len(found) > 1:
            axes[number] = _join_axes(axes[number], found, number)
    return AxisLayout(tuple(axes), place.dims)


def join_parts(number: int, parts: Sequence[tuple[AxisLayout, int]], size: int) -> Axis:
    """An axis of ``size`` cells made of parts of it, each given by its place and the cell that it begins at."""
    return _with_all_lines([axis.resample(size, shift=-start) for place, start in parts if (axis := place.axes[number]) is not None])


def note_disagreement(place: AxisLayout, name: str, module: str, sources: Sequence[Node]) -> AxisLayout:
    """The place with a doubt noted on every axis where the inputs disagree about the centres of its cells."""
    axes = list(place.axes)
    for number, axis in enumerate(axes):
        if axis is None or len(axis.lines) < 2 or axis.doubt:
            continue
        told = [f"{by} puts unit 0 at {line.offset:g} px and a unit every {line.step:g} px" for line, by in _owners(axis, sources, number)]
        where = f"{name} in {module}" if module else name
        axes[number] = replace(axis, doubt=f"branches that meet in {where} disagree: {'; '.join(told)}")
    return AxisLayout(tuple(axes), place.dims)


def _owners(axis: Axis, sources: Sequence[Node], number: int) -> list[tuple[Line, str]]:
    """The first two lines of an axis, each with the input that has it."""
    found = []
    for line, other in zip(axis.lines[:2], ("one", "another"), strict=True):
        owner = next((node for node in sources if _has_line(node.place.axes[number], line)), None)
        found.append((line, other if owner is None else owner.describe()))
    return found


def _has_line(axis: Axis | None, line: Line) -> bool:
    return axis is not None and any(same_line(line, other, axis.size) for other in axis.lines)


def _join_axes(axis: Axis | None, sources: Sequence[Node], number: int) -> Axis:
    assert axis is not None
    joined = _with_all_lines([theirs for node in sources if (theirs := node.place.axes[number]) is not None])
    whole = _whole_cell(sources, number, joined.lines) if len(joined.lines) > 1 else None
    return replace(axis, lines=joined.lines if whole is None else (whole,), doubt=joined.doubt)


def _with_all_lines(axes: Sequence[Axis]) -> Axis:
    """The first of some axes, with the lines of all of them and the first doubt."""
    lines = distinct_lines((line for axis in axes for line in axis.lines), axes[0].size)
    return replace(axes[0], lines=lines, doubt=next((axis.doubt for axis in axes if axis.doubt), ""))


def _whole_cell(sources: Sequence[Node], number: int, lines: Sequence[Line]) -> Line | None:
    """The line of the cells that interleaved parts make up, as where x[::2] and x[1::2] meet; None if the parts leave gaps."""
    (base, *others) = {skip_views(node) for node in sources}
    axis = base.place.axes[number]
    if others or axis is None or len(axis.lines) != 1:
        return None
    (offset, step), count = axis.lines[0], len(lines)
    phases = sorted((line.offset - offset) / step for line in lines)
    apart = any(abs(line.step - count * step) > SAME * abs(line.step) for line in lines)
    if apart or any(abs(phase - i) > SAME for i, phase in enumerate(phases)):
        return None
    return Line(offset + step * (count - 1) / 2, count * step)


def _digits(place: AxisLayout, number: int) -> list[tuple[int, AxisDigit]]:
    """Where an axis's digits are, counted from the last dimension."""
    rank = len(place.dims)
    return [(i - rank, factor) for i, dim in enumerate(place.dims) for factor in digits_of(dim) if factor.axis == number]
