"""Halos shorter than the exact one: the share of the ERF that they cut off, and the error at the seams of tiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from erfscope.apps.tile.run import run_tiled
from erfscope.core import ErfscopeError, FloatArray, MeasurementError, Result, Tiling


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HaloBudget:
    """What halos of 0, 1, 2 ... cells cut off, before and after a tile along each axis.

    Arrays are (axes, 2, halos), up to the longest exact halo.
    """

    #: Share of the ERF beyond the halo, of the unit at the tile's border that loses most, and its standard error over
    #: images, or random draws of few; not-a-number with fewer than four groups of these.
    share: FloatArray
    se: FloatArray
    #: Root of the mean share of the squared ERF, over the units of one total stride at the border: the error at a seam
    #: relative to the output's standard deviation, if cells of the image were independent and the model linear.
    seam: FloatArray
    #: (*space): the ERF of the first unit of a tile, from the first cell of the tile's halo on.
    corner: FloatArray | None = None
    #: The first unit's result without its map: weights, images and settings.
    measured: Result | None = None

    def predicted(self, halo: int) -> float:
        """The error at seams that is expected of a halo, relative to the output's standard deviation."""
        return math.sqrt(float((self.seam[..., min(halo, self.seam.shape[-1] - 1)] ** 2).mean()))

    def least(self, plan: Tiling, tolerance: float) -> tuple[tuple[int, int], ...] | None:
        """The shortest halos that cut off less than a share on each side, its standard error included; None where not
        even the exact ones do, since an operation that makes tiles impossible carries the ERF beyond them.
        """
        above = self.share + np.nan_to_num(self.se) >= tolerance
        if any(above[row, side, halo] for row, axis in enumerate(plan.axes) for side, halo in enumerate(axis.halo)):
            return None
        cells = [[int(side.nonzero()[0].max(initial=-1)) + 1 for side in sides] for sides in above]
        return tuple(axis.shortened(sides) for axis, sides in zip(plan.axes, cells, strict=True))

    def shortest(self, plan: Tiling, tolerance: float) -> tuple[tuple[int, int], ...] | None:
        """Those of :meth:`least` in steps of the alignment, in which crops begin and end, or the exact ones where these
        are shorter."""
        least = self.least(plan, tolerance)
        if least is None:
            return None
        return tuple(
            axis.shortened([math.ceil(cells / axis.alignment) * axis.alignment for cells in sides])
            for axis, sides in zip(plan.axes, least, strict=True)
        )

    def longest_share(self, plan: Tiling) -> float:
        """The share that the exact halos cut off, on the side where it is largest."""
        halos = ((row, side, halo) for row, axis in enumerate(plan.axes) for side, halo in enumerate(axis.halo))
        return max(float(self.share[place]) for place in halos)


class Seam(NamedTuple):
    """How tiles with one halo differ from the whole image."""

    halo: int
    #: The largest difference, and the root mean square next to seams, relative to the output's standard deviation.
    largest: float
    rms: float
    #: The root mean square that a :class:`HaloBudget` predicts; None without one.
    predicted: float | None


def border_units(plan: Tiling) -> list[tuple[int, ...]]:
    """Units in the middle of the image, one for each phase of the total stride: they stand for those at the borders of
    a tile.
    """
    phases = range(max(axis.units_per_alignment for axis in plan.axes))
    return [tuple(axis.middle_unit + phase % axis.units_per_alignment for axis in plan.axes) for phase in phases]


def halo_budget(results: Sequence[Result], plan: Tiling) -> HaloBudget:
    """What shorter halos cut off.

    Args:
        results: The measured units of :func:`border_units`, with their sums over images.
        plan: The plan, with a halo, possible or not: global operations then show as a share that no halo gets rid of.

    Raises:
        MeasurementError: a unit has no usable ERF.
    """
    shares, errors, squares = [], [], []
    for number, result in enumerate(results):
        if not result.ok or result.map is None or result.unit is None:
            raise MeasurementError(f"unit {result.unit and result.unit.index} has no ERF ({result.error})")
        index = result.unit.index
        shares.append(_cut(plan, index, result.map.magnitude))
        squares.append(_cut(plan, index, result.map.magnitude**2))
        errors.append(result.errors_of(partial(_cut, plan, index)))
        if number == 0:
            starts = (axis.start_of(at) - axis.halo[0] for axis, at in zip(plan.axes, index, strict=True))
            corner = result.map.magnitude[tuple(slice(start, None) for start in starts)]
    share = np.stack(shares)
    worst = share.argmax(0)[None]
    return HaloBudget(
        share=np.take_along_axis(share, worst, 0)[0],
        se=np.take_along_axis(np.stack(errors), worst, 0)[0],
        seam=np.sqrt(np.mean(squares, 0)),
        corner=corner,
        measured=replace(results[0], map=None, sums=None, part=None),
    )


def seams(
    model: Callable[[Tensor], Any], x: Any, plan: Tiling, halos: Sequence[int], *, budget: HaloBudget | None = None
) -> tuple[Seam, ...]:
    """Run an image whole and on tiles, and compare the outputs.

    Args:
        model: As for :func:`run_tiled`.
        x: The image (C, *space) or (B, C, *space), small enough to be run whole.
        plan: The plan; one that is not possible is run nevertheless, since the difference is what is asked for.
        halos: Halos in input cells, the same on all sides, at most the exact one and at least what convolutions
            without padding cut off; crops are rounded up to whole steps of the alignment.
        budget: What the prediction is taken from.

    Raises:
        ErfscopeError: as :func:`run_tiled`, or the image holds one tile alone.
    """
    plan = replace(plan, possible=True)
    space = tuple(x.shape[-len(plan.axes) :])
    if len(plan.windows(space)) < 2:
        raise ErfscopeError(f"an image of {space} is one tile, without seams; give a larger image or a smaller tile")

    def output(plan: Tiling) -> FloatArray:
        tiled: FloatArray = torch.as_tensor(run_tiled(model, x, plan)).double().cpu().numpy()
        return tiled

    whole = output(plan.with_tile(space))
    near = _near_seams(plan, space)
    seams_of_halos = []
    for halo in halos:
        axes = tuple(replace(axis, halo=axis.shortened((halo, halo))) for axis in plan.axes)
        difference = (output(replace(plan, axes=axes)) - whole) / (whole.std() or 1.0)
        rms = math.sqrt(float((difference[..., near] ** 2).mean()))
        seams_of_halos.append(
            Seam(halo, float(np.abs(difference).max()), rms, None if budget is None else budget.predicted(halo))
        )
    return tuple(seams_of_halos)


def _near_seams(plan: Tiling, space: tuple[int, ...]) -> NDArray[np.bool_]:
    """The units within one total stride of a border between two tiles."""
    near = np.zeros(plan.output_size(space), dtype=bool)
    for window in plan.windows(space):
        inner = []
        for axis, part, units in zip(plan.axes, window.target, plan.output_size(space), strict=True):
            period = axis.units_per_alignment
            inner.append(slice(part.start + period * (part.start > 0), part.stop - period * (part.stop < units)))
        near[window.target] = True
        near[tuple(inner)] = False
    return near


def _cut(plan: Tiling, unit: tuple[int, ...], values: FloatArray) -> FloatArray:
    """The share of a map beyond each halo, (axes, 2, halos), if the unit's tile began, or ended, as near as it can."""
    length = 1 + max(max(axis.halo) for axis in plan.axes)
    beyond = np.zeros((len(plan.axes), 2, length))
    for number, (axis, index) in enumerate(zip(plan.axes, unit, strict=True)):
        line = values.sum(tuple(other for other in range(values.ndim) if other != number))
        line = line / line.sum()
        period = axis.units_per_alignment
        last = axis.tile_units - 1 - (axis.tile_units - 1 - index) % period
        stop = math.ceil(axis.tile_units * axis.stride) + axis.offset + int((index - last) * axis.stride)
        halos = np.arange(length)
        beyond[number, 0] = np.append(0.0, line.cumsum())[np.clip(axis.start_of(index) - halos, 0, len(line))]
        beyond[number, 1] = np.append(line[::-1].cumsum()[::-1], 0.0)[np.clip(stop + halos, 0, len(line))]
    return beyond
