"""Where the units of a map stand on the image, and in cells of a reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from torch import fx

from erfscope.geometry.layout import Layout
from erfscope.graph.carry import pick_units
from erfscope.graph.graph import shape_of
from erfscope.graph.layouts import boxes_of_units
from erfscope.graph.positions import Positions
from erfscope.graph.rules.reading import FloatArray, IntArray, is_tensor

T = TypeVar("T")


def places_of_units(positions: Positions, node: fx.Node, layout: Layout, units: IntArray, axis: int) -> FloatArray:
    """Where units, (units, axes of the map), stand along an axis of the image, in pixels: (answers, units), several
    answers where branches disagree: the middle of those of their elements that stand somewhere; NaN for nowhere.
    """
    if node not in positions or not is_tensor(node):
        return np.full((1, len(units)), np.nan)
    centers = pick_units(positions.places(node)[axis].centers, boxes_of_units(layout, shape_of(node), units))
    there = np.isfinite(centers[:1])
    low = np.where(there, centers, np.inf).min(2, initial=np.inf)
    high = np.where(there, centers, -np.inf).max(2, initial=-np.inf)
    with np.errstate(invalid="ignore"):  # inf - inf, where no element of a unit stands anywhere
        return np.broadcast_to((low + high) / 2, (len(centers), len(units)))


def line_of(positions: Positions, node: fx.Node, layout: Layout, axis: int) -> list[tuple[float, float]] | None:
    """Where unit 0 stands along an axis of the image and how far it is from unit to unit, by each branch; None
    where that is not known.
    """
    space = layout.space(shape_of(node))
    if len(space) != len(positions.space):
        return None
    ends = [[index if i == axis else 0 for i in range(len(space))] for index in (0, min(1, space[axis] - 1))]
    first, second = places_of_units(positions, node, layout, np.array(ends), axis).T.tolist()
    if not np.isfinite([*first, *second]).all():
        return None
    if space[axis] == 1:
        place = positions.places(node)[axis]
        slope = next(
            (each for each, side in zip(place.slope, shape_of(node), strict=True) if side == 1 and each), place.step
        )
        return [(center, slope) for center in first]
    found = [(low, high - low) for low, high in zip(first, second, strict=True)]
    return found if all(step for _, step in found) else None


class UnitCenters:
    """Where units stand in cells of a reference.

    Args:
        positions: Where the elements stand on the image.
        reference: The tensor whose cells are counted.
        layout: How it holds a map.
    """

    def __init__(self, positions: Positions, reference: fx.Node, layout: Layout) -> None:
        self.positions, self.reference, self.layout = positions, reference, layout
        #: Spatial size of the reference.
        self.sizes = tuple(layout.space(shape_of(reference)))
        self.lines = [line_of(positions, reference, layout, axis) for axis in range(len(self.sizes))]
        self._found: dict[object, Any] = {}

    def _once(self, asked: object, find: Callable[[], T]) -> T:
        """Compute a value once for all tensors whose elements stand and read alike."""
        if asked not in self._found:
            self._found[asked] = find()
        found: T = self._found[asked]
        return found

    def stride(self, node: fx.Node, layout: Layout, axis: int) -> float:
        """Cells of the reference from one unit to the next along one of its axes."""

        def find() -> float:
            mine, theirs = line_of(self.positions, node, layout, axis), self.lines[axis]
            if mine is None or theirs is None:
                return self.sizes[axis] / self._units(node, layout)[axis]
            return mine[0][1] / theirs[0][1]

        return self._once(("stride", self.positions.key(node), layout, axis), find)

    def _units(self, node: fx.Node, layout: Layout) -> tuple[int, ...]:
        """How many units there are along each axis of the reference: one where the map has others."""
        space = layout.space(shape_of(node))
        return space if len(space) == len(self.sizes) else (1,) * len(self.sizes)

    def centers(self, node: fx.Node, layout: Layout, unit: Sequence[int]) -> tuple[tuple[float, ...], str]:
        """Where a unit stands, in cells of the reference, and why that is not exact; "" where it is.

        Where branches disagree it is the place by the one that the model's operation names first, or, where
        that lies more than a stride away from (u + 1/2) S / s - 1/2, of the one nearest to this, as in a U-Net
        whose coarse maps drift; where no operation says so, it is this.
        """

        def find() -> tuple[tuple[float, ...], str]:
            found = [self._center(node, layout, np.array([unit]), axis) for axis in range(len(self.sizes))]
            # The only unit along an axis stands in its middle, whatever it was made from.
            reasons = [
                each for (_, each), count in zip(found, self._units(node, layout), strict=True) if each and count > 1
            ]
            return tuple(float(centers[0]) for centers, _ in found), next(iter(reasons), "")

        return self._once(("centers", self.positions.key(node), layout, tuple(unit)), find)

    def _center(self, node: fx.Node, layout: Layout, units: IntArray, axis: int) -> tuple[FloatArray, str]:
        """The same of several units, (units, axes of the map), along one axis."""
        count, size, theirs = self._units(node, layout)[axis], self.sizes[axis], self.lines[axis]
        index = units[:, axis] if units.shape[1] == len(self.sizes) else np.zeros(len(units))
        natural = (index + 0.5) * size / count - 0.5
        at = places_of_units(self.positions, node, layout, units, axis)
        place = self.positions.places(node)[axis] if node in self.positions else None
        if not np.isfinite(at).any() or theirs is None or place is None:
            return natural, (
                place.unknown_reason if place is not None else ""
            ) or "the operations do not tell where it lies"
        seen = np.concatenate([(at - offset) / step for offset, step in theirs])
        off = np.nan_to_num(np.abs(seen - natural), nan=np.inf)
        nearest = seen[
            np.where(off[0] <= abs(self.stride(node, layout, axis)), 0, off.argmin(0)), np.arange(len(units))
        ]
        reason = place.inexact_reason or self.positions.places(self.reference)[axis].inexact_reason
        return np.where(np.isnan(nearest), natural, nearest), reason

    def nearest_unit(self, node: fx.Node, layout: Layout) -> tuple[int, ...]:
        """The unit whose centre is nearest to the reference's, (S - 1) / 2 along each axis; of two alike, the
        one with the larger index.
        """
        return self._once(("nearest", self.positions.key(node), layout), lambda: self._nearest_unit(node, layout))

    def _nearest_unit(self, node: fx.Node, layout: Layout) -> tuple[int, ...]:
        space = layout.space(shape_of(node))
        nearest = [side // 2 for side in space]
        for axis, size in enumerate(self.sizes) if len(space) == len(self.sizes) else ():
            units = np.zeros((space[axis], len(space)), dtype=np.intp)
            units[:, axis] = np.arange(space[axis])
            stride = self.stride(node, layout, axis)
            off = np.abs(self._center(node, layout, units, axis)[0] - (size - 1) / 2)
            # Rounding must not decide between two.
            nearest[axis] = int(np.flatnonzero(off <= off.min() + 1e-9 * abs(stride))[-1])
        return tuple(nearest)
