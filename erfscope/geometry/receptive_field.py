"""The theoretical receptive field (TRF) of one unit: a plain result."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Trf:
    """All cells that can move a unit. One entry per spatial axis of the reference, in cells of the reference: pixels if
    the reference is the image."""

    #: Side of the box; the reference's size if a global operation makes the TRF the whole reference.
    size_px: tuple[int, ...]
    #: First and last cell, inclusive; not clipped to the reference (0 .. size-1 where global).
    box_px: tuple[tuple[int, int], ...]
    #: Step of the TRF from one unit to the next.
    stride_px: tuple[float, ...]
    #: The unit's true centre: the affine coordinate that the operations carry from the image to the unit.
    center_px: tuple[float, ...]
    #: Centre of unit 0: centre = offset + unit * stride. Along an axis that the layer's map lacks, the centre itself.
    offset_px: tuple[float, ...] = ()
    #: Whether every path from the image gives the unit this centre. If False, it is the centre of the first branch of
    #: the operation where branches meet; or, if that is further than a stride from (u + 1/2) S / s - 1/2, of the branch
    #: nearest to this point; or this point, if no branch has a centre.
    center_exact: bool
    #: Why the centre is not exact: the branches that disagree, with their centres, or the operation without one.
    center_inexact_reason: str = field(default="", compare=False)
    #: The first operation after the image that mixes all positions; None if there is none.
    global_by: str | None = None
    #: The same with global operations left out.
    local_size_px: tuple[int, ...]
    local_box_px: tuple[tuple[int, int], ...]
    #: False if erfscope has no rule for an operation: the box is then a superset. Values are not used: weights and
    #: constants, masks of attention among them, count as non-zero everywhere.
    exact: bool
    #: Names of the operations without a rule.
    inexact_by: tuple[str, ...] = ()
    #: Spatial size of the reference.
    reference_px: tuple[int, ...]
    #: False if some path from the image to the unit avoids the reference.
    all_paths: bool = True
    #: First and last cell inside the reference that the unit reads; an empty side is (0, -1). It may be smaller than
    #: the box clipped to the reference, if strides do not divide a size or borders wrap around. Default: the clipped
    #: box.
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
