"""The ERF map of one unit: what every measure is computed from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from erfscope.core.values.axes import Axes
from erfscope.core.values.errors import unknown
from erfscope.core.values.unit import Trf

#: Arrays of maps and of numbers.
FloatArray = NDArray[np.float64]
#: Stands for the axes of a map that nothing is said of.
NO_AXES = Axes(names=(), spacing=(), units=())
Scale = Literal["amplitude", "energy", "signed"]


def refuse_scale(scale: str) -> None:
    """Refuse a word that is no scale.

    Raises:
        ErfscopeError: it is none.
    """
    if scale not in get_args(Scale):
        raise unknown("scale", str(scale), get_args(Scale))


@dataclass(frozen=True, slots=True, kw_only=True)
class ErfMap:
    """Contribution of every cell of the reference to one unit, with the geometry that gives it meaning.

    Positions are (row, col) with pixel centres at integers, in cells of the reference: pixels where the reference is
    the image."""

    #: (H, W), or one to three axes as the reference has; float64, read-only. Non-negative with sum 1; a signed map has
    #: sum of |.| 1.
    values: FloatArray
    #: The unit's true centre, one number per axis; () of a unit without a place.
    center_px: tuple[float, ...]
    #: Distance between neighbouring units, one number per axis; () of a unit without a place.
    stride_px: tuple[float, ...]
    #: What the values are: root of the mean energy (or a plain amplitude), energy, or signed.
    scale: Scale = "amplitude"
    #: Size of one cell of the reference in image pixels; 1 where the reference is the image.
    cell_px: tuple[float, ...] = (1.0, 1.0)
    #: The unit's theoretical receptive field; None if it is not known.
    trf: Trf | None = None
    #: What the axes are, which decides what distances are taken over and what they are in; if left out those of a
    #: sequence, an image or a clip.
    axes: Axes = NO_AXES
    #: First and last cell of the unit's own step along the axis of time; None if it is not known, as without such an
    #: axis.
    own_time: tuple[float, float] | None = None
    #: Where the numbers come from: model, weights, layer, unit, convention, images, seed, versions.
    provenance: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        refuse_scale(self.scale)
        values = np.ascontiguousarray(self.values, dtype=np.float64)
        if values is self.values or values.base is not None:
            values = values.copy()
        values.flags.writeable = False
        object.__setattr__(self, "values", values)
        if not self.axes.names:
            object.__setattr__(self, "axes", Axes.of_rank(values.ndim))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """The values, as :func:`numpy.asarray` takes them; read-only unless they are copied."""
        # NumPy 1 has no copy=None.
        return np.asarray(self.values, dtype) if copy is None else np.array(self.values, dtype, copy=copy)

    @property
    def magnitude(self) -> FloatArray:
        """Non-negative map with sum 1: the values, or their absolute value where they are signed."""
        return magnitude_of(self.values)

    @property
    def measured(self) -> ErfMap:
        """The map on the axes that distances are taken over: of a clip (T, H, W) summed over time."""
        kept = self.axes.measured
        return self if len(kept) == self.values.ndim else self.onto(kept, measured_of(self.values, self.axes))

    @property
    def plane(self) -> ErfMap:
        """The map as a picture of two axes: summed over the first of three, one row for a one-dimensional
        reference."""
        rank = self.values.ndim
        kept = (None, 0) if rank == 1 else (rank - 2, rank - 1)
        return self if rank == 2 else self.onto(kept, plane_of(self.values))

    def onto(self, kept: Sequence[int | None], values: FloatArray) -> ErfMap:
        """The map with other values, on some of its axes.

        Args:
            kept: The axes, in order; None is a new one of one cell.
            values: Of as many axes.
        """
        rank = self.values.ndim

        def only(entries: tuple, filler: Any) -> tuple:  # type: ignore[type-arg]
            each = (*[filler] * rank, *entries)[-rank:]
            return tuple(filler if axis is None else each[axis] for axis in kept) if entries else ()

        trf = self.trf
        fields: dict[str, Any] = (
            {name: only(getattr(trf, name), each) for name, each in PER_AXIS.items()} if trf else {}
        )
        return replace(
            self,
            values=values,
            center_px=only(self.center_px, 0.0),
            stride_px=only(self.stride_px, 1.0),
            cell_px=only(self.cell_px, 1.0),
            trf=None if trf is None else replace(trf, **fields),
            axes=self.axes.plane if None in kept else self.axes.only([axis for axis in kept if axis is not None]),
            own_time=None,
        )


def magnitude_of(values: FloatArray) -> FloatArray:
    """Non-negative numbers with sum 1, in proportion to those given without their signs; zeros where there is nothing
    else."""
    weights = np.abs(values)
    total = weights.sum()
    return weights / total if total > 0 else weights


def plane_of(values: FloatArray) -> FloatArray:
    """The values of :attr:`ErfMap.plane`, (H, W), for values (W,), (H, W) or (T, H, W)."""
    return values[None, :] if values.ndim == 1 else values.sum(axis=0) if values.ndim == 3 else values


#: Fields of a TRF that have an entry for each axis, and that of an axis of one cell.
PER_AXIS: dict[str, Any] = {
    **dict.fromkeys(("size_px", "local_size_px", "reference_px"), 1),
    "stride_px": 1.0,
    "unseen_share": 0.0,
    "center_px": 0.0,
    "offset_px": 0.0,
    **dict.fromkeys(("box_px", "local_box_px", "clipped_box_px"), (0, 0)),
}


def measured_of(values: FloatArray, axes: Axes) -> FloatArray:
    """The values of :attr:`ErfMap.measured`."""
    kept = axes.measured
    return values if len(kept) == values.ndim else values.sum(axis=tuple({*range(values.ndim)} - {*kept}))
