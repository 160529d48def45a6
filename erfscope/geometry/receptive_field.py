"""The theoretical receptive field (TRF) of one unit: a plain result."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Trf:
    """What a unit can see at all. One entry per spatial axis of the reference; cells of the reference, pixels where
    that is the image."""

    #: Side of the box. The reference's own size where a global operation makes it the whole reference.
    size_px: tuple[int, ...]
    #: First and last cell, inclusive; not clipped to the reference (0 .. size-1 where global).
    box_px: tuple[tuple[int, int], ...]
    #: Step of the TRF from one unit to the next.
    stride_px: tuple[float, ...]
    #: The unit's true centre: the affine coordinate that the operations carry from the image to the unit.
    center_px: tuple[float, ...]
    #: Where unit 0 has its centre: centre = offset + unit * stride. The centre itself along an axis that the layer's
    #: map lacks.
    offset_px: tuple[float, ...] = ()
    #: Whether every path from the image gives the unit this centre. Else it is that of the branch which the operation
    #: where they meet names first, or of that nearest to (u + 1/2) S / s - 1/2 if the first is further than a stride
    #: from it, or that where none tells.
    center_exact: bool
    #: Why it is not exact: the branches that disagree, with what each says, or the operation that does not tell.
    center_inexact_reason: str = field(default="", compare=False)
    #: First operation, seen from the image, that mixes all positions; None if there is none.
    global_by: str | None = None
    #: The same with global operations left out.
    local_size_px: tuple[int, ...]
    local_box_px: tuple[tuple[int, int], ...]
    #: False if an operation was not understood: the box is then a superset. Numbers are not looked at: weights and
    #: constants, masks of attention among them, count as nowhere zero.
    exact: bool
    #: Names of the operations that were not understood.
    inexact_by: tuple[str, ...] = ()
    #: Spatial size of the reference.
    reference_px: tuple[int, ...]
    #: False if some path from the image to the unit avoids the reference.
    all_paths: bool = True
    #: First and last cell that exist and are read; an empty side is (0, -1). It may be smaller than the box inside the
    #: reference, where strides do not divide a size or borders wrap around; where nothing else is given, it is that.
    clipped_box_px: tuple[tuple[int, int], ...] = ()

    @property
    def is_global(self) -> bool:
        """Whether the TRF covers the whole reference by a global operation."""
        return self.global_by is not None

    def __post_init__(self) -> None:
        if not self.clipped_box_px:
            inside = [
                _within(first, last, size) for (first, last), size in zip(self.box_px, self.reference_px, strict=True)
            ]
            object.__setattr__(self, "clipped_box_px", tuple(inside))


def _within(first: int, last: int, size: int) -> tuple[int, int]:
    low, high = max(first, 0), min(last, size - 1)
    return (low, high) if low <= high else (0, -1)
