"""Where the units of a map stand on the image, and in cells of a reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from torch import fx

from erfscope.core.graph.graph import shape_of
from erfscope.core.graph.places import NOWHERE, Place, go_on
from erfscope.core.graph.positions import GraphPositions
from erfscope.core.values.errors import ErfscopeError
from erfscope.core.values.layout import Layout
from erfscope.core.values.unit import size_text

T = TypeVar("T")
#: Names of the axes of a reference; of fewer than three axes the last.
AXES = ("first axis", "height", "width")
UNKNOWN = "the operations do not tell where it lies"
#: Of the units along an axis: a table of pixels, or of cells of a reference, one for each.
UNKNOWN_LINE = Place(None, NOWHERE, inexact_reason=UNKNOWN)


def line_of(positions: GraphPositions, node: fx.Node, layout: Layout, axis: int) -> Place:
    """Where the units along an axis of a map stand, those of the first row and column of tokens."""
    shape = shape_of(node)
    space = layout.space(shape)
    if node not in positions or len(space) != len(positions.space):
        return UNKNOWN_LINE
    place, dims = positions.places(node)[axis], layout.space_dims(len(shape))
    if len(place.table) > 1 and place.dim != dims[0 if layout.grid else axis]:
        return UNKNOWN_LINE._replace(inexact_reason=place.unknown_reason or UNKNOWN)
    # What a plane was padded by stands beside it; tokens beside a map stand nowhere.
    table = place.table if layout.grid else go_on(place).table
    table = np.broadcast_to(table, shape[dims[0 if layout.grid else axis]])
    if layout.grid:
        row = tuple(slice(None) if i == axis else 0 for i in range(len(space)))
        table = table[layout.prefix + layout.token_numbers()[row]]
    reason = place.inexact_reason or place.unknown_reason
    if not np.isfinite(table).all():
        return UNKNOWN_LINE._replace(inexact_reason=reason or UNKNOWN)
    return Place(None, table, float(np.median(np.diff(table))) if len(table) > 1 else place.slope, reason)


class UnitCenters:
    """Where units stand in cells of a reference.

    Args:
        positions: Where the elements stand on the image.
        reference: The tensor whose cells are counted.
        layout: How it holds a map.
    """

    def __init__(self, positions: GraphPositions, reference: fx.Node, layout: Layout) -> None:
        self.positions, self.reference, self.layout = positions, reference, layout
        #: Spatial size of the reference.
        self.sizes = tuple(layout.space(shape_of(reference)))
        self._found: dict[object, Any] = {}

    @cached_property
    def lines(self) -> list[Place]:
        """Where the cells of the reference stand along each of its axes."""
        return [line_of(self.positions, self.reference, self.layout, axis) for axis in range(len(self.sizes))]

    def _cached(self, asked: object, find: Callable[[], T]) -> T:
        """Compute a value once for all tensors whose elements stand and read alike."""
        if asked not in self._found:
            self._found[asked] = find()
        found: T = self._found[asked]
        return found

    def _line(self, node: fx.Node, layout: Layout, axis: int) -> Place:
        """Where the units of a map stand along an axis, in cells of the reference: where that is not known, or is not
        exact and more than a unit off, it is the middle of a unit's own cell, (u + 1/2) S / s - 1/2."""

        def find() -> Place:
            space, size, theirs = layout.space(shape_of(node)), self.sizes[axis], self.lines[axis]
            count = space[axis] if len(space) == len(self.sizes) else 1  # the map may have other axes
            natural = (np.arange(count) + 0.5) * size / count - 0.5
            mine = line_of(self.positions, node, layout, axis)
            if len(mine.table) == 1 and not mine.slope:
                mine = mine._replace(slope=theirs.slope * size / count)
            reason = mine.inexact_reason or theirs.inexact_reason
            if not mine.slope or not theirs.slope or not np.isfinite(theirs.table[0]):
                return Place(None, natural, size / count, reason or UNKNOWN)
            step, places = mine.slope / theirs.slope, (mine.table - theirs.table[0]) / theirs.slope
            if reason:  # NaN, too, is off
                natural = natural if step > 0 else natural[::-1]
                places = np.where(np.abs(places - natural) <= abs(step), places, natural)
            return Place(None, places, step, reason)

        return self._cached(("line", self.positions.key(node), layout, axis), find)

    def stride(self, node: fx.Node, layout: Layout, axis: int) -> float:
        """Cells of the reference from one unit to the next along one of its axes."""
        return self._line(node, layout, axis).slope

    def centers(self, node: fx.Node, layout: Layout, unit: Sequence[int]) -> tuple[tuple[float, ...], str]:
        """Where a unit stands, in cells of the reference, and why that is not exact, with the axes where it is not all
        of them; "" where it is exact."""
        lines = [self._line(node, layout, axis) for axis in range(len(self.sizes))]
        index = unit if len(unit) == len(lines) else (0,) * len(lines)
        # The only unit along an axis stands in its middle, whatever it was made from.
        axes = {name: line for name, line in zip(AXES[-len(lines) :], lines, strict=True) if len(line.table) > 1}
        centers = tuple(float(line.table[u]) for line, u in zip(lines, index, strict=True))
        reasons = {name: line.inexact_reason for name, line in axes.items() if line.inexact_reason}
        only = f", along the {' and the '.join(reasons)} alone" if 0 < len(reasons) < len(axes) else ""
        return centers, next(iter(reasons.values()), "") + only

    def nearest_unit(self, node: fx.Node, layout: Layout, at: Sequence[float] | None = None) -> tuple[int, ...]:
        """The unit whose centre is nearest to a place, the reference's centre (S - 1) / 2 if None; of two alike, the
        one with the larger index.

        Raises:
            ErfscopeError: the place is outside the reference, or has not its axes.
        """
        if at is not None and (
            len(at) != len(self.sizes) or any(not 0 <= p < size for p, size in zip(at, self.sizes, strict=True))
        ):
            place = ",".join(f"{p:g}" for p in at)
            whole = size_text(self.sizes)
            raise ErfscopeError(
                f"there is no place {place} in an input of {whole}; write a number from 0 for each of its axes"
            )
        space = layout.space(shape_of(node))
        nearest = [side // 2 for side in space]
        for axis, size in enumerate(self.sizes) if len(space) == len(self.sizes) else ():
            line = self._line(node, layout, axis)
            off = np.abs(line.table - ((size - 1) / 2 if at is None else at[axis]))
            # Rounding must not decide between two.
            nearest[axis] = int(np.flatnonzero(off <= off.min() + 1e-9 * abs(line.slope))[-1])
        return tuple(nearest)
