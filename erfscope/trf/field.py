"""The theoretical receptive field (TRF) of one unit: a plain result."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Trf:
    """What a unit can see at all. One entry per spatial axis of the reference; cells of the reference, pixels where that is the image."""

    #: Side of the box. The reference's own size where a global operation makes it the whole reference.
    size_px: tuple[int, ...]
    #: First and last cell, inclusive; not clipped to the reference (0 .. size-1 where global).
    box_px: tuple[tuple[int, int], ...]
    #: Step of the field from one unit to the next.
    stride_px: tuple[float, ...]
    #: The unit's true centre: midpoint of the local box.
    center_px: tuple[float, ...]
    #: Whether the centre is known from the recorded operations (else it is (u + 1/2) S / s - 1/2).
    center_exact: bool
    #: First operation, seen from the image, that mixes all positions; None if there is none.
    global_by: str | None = None
    #: The same with global operations left out.
    local_size_px: tuple[int, ...]
    local_box_px: tuple[tuple[int, int], ...]
    #: False if an operation was not understood: the box is then a superset.
    exact: bool
    #: Names of the operations that were not understood.
    inexact_by: tuple[str, ...] = ()
    #: Spatial size of the reference.
    reference_px: tuple[int, ...]
    #: False if some path from the image to the unit avoids the reference.
    all_paths: bool = True

    @property
    def is_global(self) -> bool:
        """Whether a global operation makes the field the whole reference."""
        return self.global_by is not None

    @property
    def clipped_box_px(self) -> tuple[tuple[int, int], ...]:
        """The box inside the reference; an empty side is (0, -1)."""
        clipped = []
        for (first, last), size in zip(self.box_px, self.reference_px, strict=True):
            low, high = max(first, 0), min(last, size - 1)
            clipped.append((low, high) if low <= high else (0, -1))
        return tuple(clipped)
