"""Sums of contributions by group of images, and the jackknife's errors from them."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from erfscope.core.answer.maps.erf_map import FloatArray
from erfscope.core.values.unit import Trf

#: What the groups are made of.
Over = Literal["images", "draws"]
#: Images are dealt to this many groups (fewer if there are fewer images): group = global image index mod GROUPS.
GROUPS = 10
#: A jackknife over fewer groups is meaningless: no error is given.
MIN_GROUPS = 4
#: A bias that is a smaller share of a value, or of 1, is rounding.
ROUNDING = 1e-12
#: Axes are the same after half a turn: the period of an angle, in degrees.
HALF_TURN = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Averaging:
    """How the contributions of images and draws become one map; a convention is one of these."""

    #: Whether the readout uses random signs, fresh per draw; the exact form is one backward pass per channel.
    random: bool = False
    #: Whether each image's map is divided by its total before images are averaged.
    per_image: bool = False
    #: Whether the map is the square root of the mean.
    root: bool = False


@dataclass(kw_only=True)
class GroupSums:
    """Running sums of contributions per group: memory for at most ten maps, however many images come.

    The maps may cover only a box of the reference, such as the clipped theoretical receptive field.
    Sums are float64, so shards merge in any order to about 1e-15 of the sums, times the root of the number of terms.
    """

    #: Shape of one contribution: that of the box. Taken from the first one if left out.
    shape: tuple[int, ...] | None = None
    #: Where the box lies in the full map, one slice per axis; None if it is the full map, or the caller keeps the box.
    box: tuple[slice, ...] | None = None
    #: Sum of the contributions per group; groups without any are absent.
    sums: dict[int, FloatArray] = field(default_factory=dict)
    #: Sum of the weights per group.
    counts: dict[int, float] = field(default_factory=dict)

    def add(self, group: int, contribution: FloatArray, weight: float = 1.0) -> None:
        """Count one contribution, or the sum of several.

        Args:
            group: 0 .. 9.
            contribution: Of the box's shape.
            weight: How many contributions it is the sum of: the mean is sum(contribution) / sum(weight).

        Raises:
            ValueError: another shape, a group out of range, or a weight that is not positive.
        """
        if self.shape is None:
            self.shape = contribution.shape
        if contribution.shape != self.shape:
            raise ValueError(f"a contribution has shape {contribution.shape}, but the sums have {self.shape}")
        if not 0 <= group < GROUPS:
            raise ValueError(f"group {group} is not in 0 .. {GROUPS - 1}")
        if not weight > 0:
            raise ValueError(f"a contribution has weight {weight}, which is not positive")
        if group not in self.sums:
            self.sums[group], self.counts[group] = np.zeros(self.shape), 0.0
        self.sums[group] += contribution
        self.counts[group] += weight

    def items(self) -> Iterator[tuple[int, tuple[FloatArray, float]]]:
        """Every group that holds anything, in order, with its sum and its count: what ``add`` takes."""
        return ((group, (self.sums[group], self.counts[group])) for group in sorted(self.sums))

    def merge(self, other: GroupSums) -> None:
        """Add what another shard has counted of the same map.

        Raises:
            ValueError: the shards cover different boxes.
        """
        if other.box != self.box or (None not in (self.shape, other.shape) and self.shape != other.shape):
            raise ValueError(
                f"sums over {self.box or self.shape} cannot be merged with sums over {other.box or other.shape}"
            )
        for group, (total, count) in other.items():
            self.add(group, total, weight=count)

    def mean(self) -> FloatArray:
        """Mean of all contributions, of the box's shape.

        Raises:
            ValueError: nothing was counted.
        """
        return self._mean_of(sorted(self.sums))

    def leave_one_out(self) -> list[FloatArray]:
        """Means without one group, for every group that holds anything, in the order of the groups; none if there is
        only one group."""
        groups = sorted(self.sums)
        # Summed anew rather than subtracted from the total: a difference could fall below zero by rounding.
        return (
            [self._mean_of([other for other in groups if other != group]) for group in groups]
            if len(groups) > 1
            else []
        )

    def full(self, shape: Sequence[int], values: FloatArray | None = None) -> FloatArray:
        """Place values of the box in a map that is zero elsewhere.

        Args:
            shape: Shape of the full map.
            values: Of the box's shape, e.g. a leave-one-out map; the mean if left out.

        Returns:
            (*shape).
        """
        inside = self.mean() if values is None else values
        full = np.zeros(tuple(shape))
        target = full if self.box is None else full[self.box]
        if target.shape != inside.shape:
            raise ValueError(
                f"values of shape {inside.shape} do not fill {self.box or 'the map'} of a map of shape {tuple(shape)}"
            )
        target[...] = inside
        return full

    def _mean_of(self, groups: Sequence[int]) -> FloatArray:
        if not groups:
            raise ValueError("no contribution was counted: there is no mean")
        total = self.sums[groups[0]].copy()
        for group in groups[1:]:
            total += self.sums[group]
        return total / math.fsum(self.counts[group] for group in groups)


def jackknife_se(leave_one_out: Sequence[float], *, period: float | None = None) -> float:
    """Standard error from the values without one group each: sqrt((g - 1) / g * sum (x_i - mean)^2).

    Args:
        leave_one_out: The g values, two at least.
        period: For a cyclic quantity, after how much it is the same again (an axis' angle: 180 degrees).

    Returns:
        The standard error, in the values' unit.

    Raises:
        ValueError: fewer than two values.

    Source: Tukey's delete-one-group jackknife; Efron & Stein 1981.
    """
    if len(leave_one_out) < 2:
        raise ValueError(f"a jackknife needs two groups at least, not {len(leave_one_out)}")
    return math.sqrt(jackknife(leave_one_out[0], leave_one_out, period=period)[0])


def error_bar(value: float, leave_one_out: Sequence[float], *, period: float | None = None) -> float:
    """What is printed behind ±: q sqrt(v + b^2), with the jackknife's variance v and bias b.

    b = (g - 1) (mean of x_i - value): the root of a noisy mean lies below the root of the mean, so that a size of few
    images lies beside that of many. q = t / z is the 95 % quantile of Student's t of g - 1 degrees of freedom over that
    of the normal distribution, 1.11 for ten groups and 1.43 for four: a variance of few groups is uncertain itself.

    Args:
        value: Of all groups together.
        leave_one_out: The g values x_i without one group each, two at least.
        period: As for :func:`jackknife_se`.

    Returns:
        The error, in the values' unit: 1.64 of them on each side hold nine of ten cases, one about 70 %.

    Raises:
        ValueError: fewer than two values.

    Source: Quenouille 1956 (bias), Tukey 1958 (variance); decided by ``benchmarks/coverage.py``.
    """
    variance, bias = jackknife(value, leave_one_out, period=period)
    return widening(len(leave_one_out) - 1) * math.hypot(math.sqrt(variance), bias)


def jackknife(value: float, leave_one_out: Sequence[float], *, period: float | None = None) -> tuple[float, float]:
    """Variance and bias of a value, from the g values without one group each; see :func:`error_bar`."""
    differences = [each - value if period is None else wrap_cyclic(each - value, period) for each in leave_one_out]
    mean, degrees = math.fsum(differences) / len(differences), len(differences) - 1
    variance = degrees / len(differences) * math.fsum((each - mean) ** 2 for each in differences)
    # Means over other groups differ by rounding where no image differs from another.
    return variance, degrees * mean if degrees * abs(mean) > ROUNDING * max(1.0, abs(value)) else 0.0


@functools.cache
def widening(degrees: float) -> float:
    """The 95 % quantile of Student's t of so many degrees of freedom over that of the normal distribution."""
    from scipy.special import ndtri, stdtrit  # late: it takes long to import

    return float(stdtrit(degrees, 0.95) / ndtri(0.95))


def signed_noise_floor(images: int) -> float:
    """The rest of pure noise in the mean of signed maps, relative to one image's: 1 / sqrt(n).

    Sizes taken from the absolute value of a signed mean contain this floor everywhere in the field; it vanishes only
    slowly.

    Args:
        images: Number n of images averaged, at least 1.
    """
    if images < 1:
        raise ValueError(f"a mean needs one image at least, not {images}")
    return 1 / math.sqrt(images)


def wrap_cyclic(difference: float, period: float) -> float:
    """A cyclic difference in [-period / 2, period / 2)."""
    return (difference + period / 2) % period - period / 2


class MapAccumulator:
    """Sums of contributions by group, on the part of the reference that the unit can see.

    Constant memory: at most ten maps of the clipped TRF box, whatever the number of images. A dead (all-zero) or NaN
        image is in no group.

    Args:
        convention: How images are averaged.
        n_images: How many images there will be; with one, the groups are its draws.
        space: Spatial size of the reference.
        trf: The unit's TRF; contributions outside its clipped box are zero. None where it is not known.
    """

    def __init__(self, convention: Averaging, n_images: int, space: Sequence[int], trf: Trf | None) -> None:
        self.convention = convention
        few = n_images == 1 or (n_images < MIN_GROUPS and convention.random)
        self.over: Over = "draws" if few else "images"
        self.zero_gradient_images: list[int] = []
        self.nan_images: list[int] = []
        #: Whether a contribution was found outside the clipped box, which then is not used.
        self.outside_trf = False
        self._space = tuple(space)
        self._groups = GROUPS if few else min(GROUPS, n_images)
        box = trf.clipped_box_px if trf is not None else tuple((0, side - 1) for side in space)
        self._sums = _sums_on(tuple(slice(first, last + 1) for first, last in box))
        #: Images in the map: neither dead nor NaN.
        self.n_images = 0
        #: Of a run that ends at an error: the images and the variance of each look at it, and what the values without
        #: each group are spread by; see ``core/run/engine/looks.py``.
        self.looks: tuple[tuple[int, float], ...] = ()
        self.spread = 1.0
        #: By group the magnitudes of the contributions in all, before any division; None where they are not kept.
        self.masses: dict[int, float] | None = None

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
        masses: Mapping[int, float] | None = None,
    ) -> None:
        """Take the sums that another object of the same run has made."""
        self.masses = None if masses is None else dict(masses)
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
        if self.masses is not None and other.masses is not None:
            self.masses = added(self.masses, other.masses)
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


def added(*masses: Mapping[int, float]) -> dict[int, float]:
    """Numbers by group added up."""
    groups = sorted({group for each in masses for group in each})
    return {group: math.fsum(each.get(group, 0.0) for each in masses) for group in groups}


def _sums_on(box: tuple[slice, ...]) -> GroupSums:
    return GroupSums(shape=tuple(part.stop - part.start for part in box), box=box)
