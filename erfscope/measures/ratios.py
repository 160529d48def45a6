"""The sides that sizes are divided by: that of the reference, and that of the TRF. A ratio is the two printed numbers
divided."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from erfscope.geometry.receptive_field import Trf

#: Kinds of measures that have ratios: lengths to a side, areas to its square (to the side itself along a line).
SIZED = ("radius", "width", "sigma", "area")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """The two sides that sizes of one unit are compared with, in cells of the reference."""

    #: Side of the square as large as the reference's plane, sqrt(HW); the length of a one-dimensional one.
    reference: float
    #: The same of the whole theoretical receptive field, whatever of it lies outside the reference; None if it is
    #: global or unknown.
    field: float | None
    #: Axes of the plane on which the reference has more than one cell, at least 1: its area is the side to this power.
    rank: int

    def of_input(self, kind: str, value: object) -> float | None:
        """A size as a share of the reference's side (an area of its area); None for other kinds, and for what is no
        number."""
        return self._ratio(kind, value, self.reference)

    def of_trf(self, kind: str, value: object) -> float | None:
        """A size as a share of the theoretical receptive field's side (an area of its area); None too where that is
        global or unknown."""
        return self._ratio(kind, value, self.field)

    def _ratio(self, kind: str, value: object, side: float | None) -> float | None:
        if kind not in SIZED or not side or not isinstance(value, int | float):
            return None
        return value / side ** (self.rank if kind == "area" else 1)


def sides_of(reference: Sequence[int], trf: Trf | None) -> Sides:
    """The sides that sizes are compared with.

    Args:
        reference: Spatial size of the reference; of three axes the last two count, since sizes are in-plane.
        trf: The theoretical receptive field, with as many axes; None if it is unknown.
    """
    plane = reference[-2:]
    axes = [axis for axis, length in enumerate(plane) if length > 1] or [0]
    field = None if trf is None or trf.is_global else _mean([trf.size_px[-2:][axis] for axis in axes])
    return Sides(reference=_mean([plane[axis] for axis in axes]), field=field or None, rank=len(axes))


def _mean(lengths: Sequence[int]) -> float:
    """Geometric mean."""
    return float(math.prod(lengths) ** (1 / len(lengths)))
