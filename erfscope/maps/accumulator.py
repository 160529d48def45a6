"""From single contributions to one map with leave-one-group-out maps, for one unit."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from erfscope.geometry.receptive_field import Trf
from erfscope.maps.erf_map import FloatArray
from erfscope.maps.jackknife import GROUPS, GroupSums, Over

if TYPE_CHECKING:
    from erfscope.attribution.convention import Convention


class MapAccumulator:
    """Sums of contributions by group, on the part of the reference that the unit can see.

    Constant memory: at most ten maps of the clipped TRF box, whatever the number of images. A dead (all-zero) or NaN
        image is in no group.

    Args:
        convention: Says how images are averaged.
        n_images: How many images there will be; with one, the groups are its draws.
        space: Spatial size of the reference.
        trf: The unit's TRF; contributions outside its clipped box are zero. None where it is not known.
    """

    def __init__(self, convention: Convention, n_images: int, space: Sequence[int], trf: Trf | None) -> None:
        self.convention = convention
        self.over: Over = "images" if n_images > 1 else "draws"
        self.zero_gradient_images: list[int] = []
        self.nan_images: list[int] = []
        #: Whether a contribution was found outside the clipped box, which then is not used.
        self.outside_trf = False
        self._space = tuple(space)
        self._groups = min(GROUPS, n_images) if n_images > 1 else GROUPS
        box = trf.clipped_box_px if trf is not None else tuple((0, side - 1) for side in space)
        self._sums = _sums_on(tuple(slice(first, last + 1) for first, last in box))
        #: Images in the map: neither dead nor NaN.
        self.n_images = 0

    def takes(self, image: int, total: float) -> bool:
        """Whether an image is in the map; it is noted otherwise.

        Args:
            image: Its global index.
            total: The sum of the magnitudes of its mean contribution.
        """
        if not math.isfinite(total):
            self.nan_images.append(image)
        elif total == 0:
            self.zero_gradient_images.append(image)
        return math.isfinite(total) and total > 0

    def is_outside(self, total: float, inside: float) -> bool:
        """Whether a contribution lies outside the box, of which ``inside`` of ``total`` is on it."""
        return not self.outside_trf and total - inside > 1e-9 * total

    def group_of(self, image: int) -> int:
        """The group of an image."""
        return image % self._groups

    @property
    def box(self) -> tuple[slice, ...]:
        """The part of the reference that is summed up."""
        assert self._sums.box is not None
        return self._sums.box

    @property
    def groups(self) -> int:
        """Groups with anything in them."""
        return len(self._sums.counts)

    def values(self) -> FloatArray:
        """The map (*space): sum 1, or sum of absolute values 1 where signed.

        The root is taken of the mean over images and draws, not the mean of roots: noise of single draws then averages
        out. An image's contribution before it is divided by its total is an unbiased estimate of the squared Jacobian;
        its share of the total, and the root, are biased by the noise that the draws leave."""
        return self._finish(self._sums.mean())

    def leave_one_out(self) -> Iterator[FloatArray]:
        """The map without each group in turn, made when it is asked for; none with fewer than two groups."""
        if self.groups >= 2:
            yield from map(self._finish, self._sums.leave_one_out())

    def raw(self) -> FloatArray:
        """Mean of the contributions as they are, (*space): no root, no division by the total, dead images counted as
        zeros."""
        return self._sums.full(self._space) * (self.n_images / (self.n_images + len(self.zero_gradient_images)))

    @property
    def nbytes(self) -> int:
        """Bytes of the sums."""
        return sum(total.nbytes for total in self._sums.sums.values())

    @property
    def sums(self) -> GroupSums:
        """The sums by group, and the box they lie on."""
        return self._sums

    def restore(
        self,
        sums: GroupSums,
        *,
        n_images: int,
        zero_gradient_images: Sequence[int],
        nan_images: Sequence[int],
        outside_trf: bool,
    ) -> None:
        """Take the sums that another object of the same run has made."""
        self._sums, self.n_images, self.outside_trf = sums, n_images, outside_trf
        self.zero_gradient_images, self.nan_images = (
            [int(index) for index in zero_gradient_images],
            [int(index) for index in nan_images],
        )

    def copy(self) -> MapAccumulator:
        """Another object with the same sums."""
        return copy.deepcopy(self)

    def merge(self, other: MapAccumulator) -> None:
        """Add what was summed up over other images of the same run.

        Raises:
            ValueError: the sums belong to another box.
        """
        if self.outside_trf != other.outside_trf:
            other = other.copy()
            for each in (self, other):
                each.drop_box()
        self._sums.merge(other._sums)
        self.n_images += other.n_images
        self.zero_gradient_images, self.nan_images = (
            sorted([*self.zero_gradient_images, *other.zero_gradient_images]),
            sorted([*self.nan_images, *other.nan_images]),
        )

    def _finish(self, mean: FloatArray) -> FloatArray:
        values = np.sqrt(mean) if self.convention.root else mean
        total = np.abs(values).sum()
        return self._sums.full(self._space, values / total if total > 0 else values)

    def drop_box(self) -> None:
        """Give up the box: something outside it contributes, so that the TRF was wrong."""
        self.outside_trf = True
        moved = _sums_on(tuple(slice(0, side) for side in self._space))
        for group, total in self._sums.sums.items():
            moved.sums[group] = self._sums.full(self._space, total)
            moved.counts[group] = self._sums.counts[group]
        self._sums = moved


def _sums_on(box: tuple[slice, ...]) -> GroupSums:
    return GroupSums(shape=tuple(part.stop - part.start for part in box), box=box)
