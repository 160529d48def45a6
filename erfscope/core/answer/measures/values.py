"""From a map to numbers: plain values, or values with jackknife errors and ratios to the input and to the TRF."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import SupportsFloat

import numpy as np

from erfscope.core.answer.maps.accumulator import (
    HALF_TURN,
    MIN_GROUPS,
    error_bar,
    jackknife,
    jackknife_se,
    widening,
    wrap_cyclic,
)
from erfscope.core.answer.maps.erf_map import ErfMap, FloatArray
from erfscope.core.answer.measures.prepared import Geometry, Prepared
from erfscope.core.answer.measures.table import MEASURES, Kind, Measure, Value
from erfscope.core.values.axes import TIME, Axes, unit_sign
from erfscope.core.values.errors import unknown
from erfscope.core.values.printable import with_error

#: An effective number of cells of which the bias is a larger share has no error: where nearly every image has cells of
#: its own, it counts images, and leaving some out tells nothing of the cells that others would have.
MOST_BIAS = 2 / 3


#: After how much a measure of a kind is the same again.
PERIODS: Mapping[Kind, float] = {"angle": HALF_TURN}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureValue:
    """One measure of one map, which is printed as ``62.1 ± 0.2 px``, and otherwise formatted and ordered as its number
    is."""

    #: A word for ``best_shape``; None where the measure does not exist for the map.
    value: Value
    #: Standard error, with the bias of few images in it (:func:`erfscope.core.answer.maps.accumulator.error_bar`); None
    #: if it does not apply, there are fewer than four groups, or these say nothing (:data:`MOST_BIAS`).
    se: float | None = None
    #: Values without one group of images each, in the order of the groups; () where the jackknife does not apply.
    leave_one_out: tuple[float, ...] = field(default=(), repr=False)
    kind: Kind
    #: r/S, w/S, s/S or a/S^2 of a radius, width, sigma or area, with S = sqrt(HW) of the reference; None for other
    #: kinds, and for lengths of time of a clip, whose sides are in-plane.
    of_input: float | None = None
    #: Ratios as in ``of_input``, with S = sqrt(hw) of the whole TRF, h x w, clipped nowhere; None if the TRF is global
    #: or unknown.
    of_trf: float | None = None
    #: "px", "px2", "cells", "cells2", "voxels", "samples", "frames", "ms", a unit of the user's, or "deg"; "" for a
    #: plain number, and where it is not known.
    unit: str = ""

    def __str__(self) -> str:
        return f"{with_error(self.value, self.se)} {unit_sign(self.unit)}".rstrip()

    def __format__(self, spec: str) -> str:
        return format(float(self), spec) if spec else str(self)

    def __lt__(self, other: SupportsFloat) -> bool:
        return float(self) < float(other)

    def __le__(self, other: SupportsFloat) -> bool:
        return float(self) <= float(other)

    def __gt__(self, other: SupportsFloat) -> bool:
        return float(self) > float(other)

    def __ge__(self, other: SupportsFloat) -> bool:
        return float(self) >= float(other)

    def __float__(self) -> float:
        """The value; raises TypeError where it is a word or None."""
        if isinstance(self.value, float):
            return self.value
        raise TypeError(f"this {self.kind} is {self.value!r}, not a number")

    def minus(self, other: MeasureValue) -> tuple[float | None, float | None]:
        """Difference of one measure between two maps over the same images, with the error of the difference itself.

        What the images do to both maps alike cancels, so the error is usually much smaller than that of either value.

        Args:
            other: The value that is subtracted, over the same images in the same groups.

        Returns:
            (difference, standard error), angles in [-90, 90). The difference is None where a value is None or a word;
            the error also where the numbers of groups differ or are below four.
        """
        if isinstance(self.value, str | None) or isinstance(other.value, str | None):
            return None, None
        period, without = PERIODS.get(self.kind), self._without(other)
        difference = self.value - other.value if period is None else wrap_cyclic(self.value - other.value, period)
        return difference, error_bar(difference, without, period=period) if without else None

    def jackknife_se(self, minus: MeasureValue | None = None) -> float | None:
        """The jackknife's standard error alone, without the bias and the widening that are in ``se``.

        Args:
            minus: A value that is subtracted: the error is that of the difference, in pairs of groups where both have
                as many, else of two separate measurements.

        Returns:
            The error; None where a value has fewer than four groups.
        """
        without, period = self.leave_one_out if minus is None else self._without(minus), PERIODS.get(self.kind)
        if len(without) >= MIN_GROUPS:
            return jackknife_se(without, period=period)
        if minus is None:
            return None
        ours, theirs = self.jackknife_se(), minus.jackknife_se()
        return None if ours is None or theirs is None else math.hypot(ours, theirs)

    @property
    def widening(self) -> float:
        """What widens an error of so few groups, two at least, as it does that behind ±: see
        :func:`erfscope.core.answer.maps.accumulator.error_bar`."""
        return widening(len(self.leave_one_out) - 1)

    def _without(self, other: MeasureValue) -> tuple[float, ...]:
        """The differences without one group each; () where there are fewer than four, or not as many of both."""
        ours, theirs = self.leave_one_out, other.leave_one_out
        return tuple(a - b for a, b in zip(ours, theirs, strict=True)) if len(ours) == len(theirs) >= MIN_GROUPS else ()


def measure_map(erf: ErfMap, names: Sequence[str] | None = None) -> dict[str, Value]:
    """Measure one map.

    Args:
        erf: The map, of any scale and with one to three axes; sizes are in the units of its axes.
        names: Which measures; if left out all that maps of these axes have.

    Returns:
        Name -> number, word, or None where a measure does not exist for this map; all None for a map that is zero or
        not finite.

    Raises:
        ErfscopeError: a name that is not in ``MEASURES``.
    """
    return {name: value.value for name, value in with_errors(erf, (), names).items()}


def with_errors(
    erf: ErfMap,
    leave_one_out: Iterable[FloatArray] = (),
    names: Sequence[str] | None = None,
    *,
    groups: int | None = None,
    spread: float = 1.0,
    whole: Prepared | None = None,
) -> dict[str, MeasureValue]:
    """Measure one map, with delete-one-group jackknife errors.

    Args:
        erf: The map over all images.
        leave_one_out: The map without one group of images each, of the shape of ``erf.values`` and made in the same
            way; at most ten. May be empty: there are no errors then. Taken one at a time, so that an iterator saves
            memory.
        names: Which measures; if left out all that maps of these axes have.
        groups: How many groups there are: the number of maps in ``leave_one_out``, or anything if that is empty.
        spread: What the values without each group are spread by, around their mean.
        whole: The map over all images, if it is made ready already.

    Returns:
        Name -> value, which is that of ``erf`` itself; what few images make of it is part of the error.

    Raises:
        ErfscopeError: a name that is not in ``MEASURES``.
        ValueError: a leave-one-out map of another shape, or not one per group.
    """
    chosen, whole = _chosen(names, erf), whole or Prepared.of(erf)
    results = {entry.name: entry.of(whole) for entry in chosen}
    numeric = [entry for entry in chosen if entry.has_se and isinstance(results[entry.name], float)]
    without: dict[str, list[Value]] = {entry.name: [] for entry in chosen}
    count = 0
    for values in leave_one_out:
        if np.shape(values) != erf.values.shape:
            raise ValueError(f"a leave-one-out map has shape {np.shape(values)}, the map itself {erf.values.shape}")
        count += 1
        part = Prepared.of(erf, np.asarray(values), whole)
        for entry in numeric:
            without[entry.name].append(entry.of(part))
    if count and groups not in (None, count):
        raise ValueError(f"{count} leave-one-out maps were given for {groups} groups")
    return {
        entry.name: _with_error(entry, results[entry.name], without[entry.name], whole.geometry, erf, spread=spread)
        for entry in chosen
    }


def of_axes(names: Iterable[str], axes: Axes) -> list[str]:
    """Those of some measures that maps of these axes have, and those that are not in ``MEASURES``."""
    own = ("", *axes.names)
    return [name for name in names if name not in MEASURES or MEASURES[name].axis in own]


def _chosen(names: Sequence[str] | None, erf: ErfMap) -> list[Measure]:
    if names is None:
        names = of_axes(MEASURES, erf.axes)
    for name in names:
        if name not in MEASURES:
            raise unknown("measure", name, MEASURES)
    return [MEASURES[name] for name in names]


def _with_error(
    entry: Measure, value: Value, without: Sequence[Value], geometry: Geometry, erf: ErfMap, *, spread: float
) -> MeasureValue:
    numbers = tuple(number for number in without if isinstance(number, float))
    if numbers and spread != 1 and entry.kind != "angle":
        mean = math.fsum(numbers) / len(numbers)
        numbers = tuple(mean + spread * (number - mean) for number in numbers)
    # A measure that does not exist without some group has no error: the groups that remain would understate it.
    if len(numbers) < len(without) or (entry.kind == "area" and _counts_images(value, numbers)):
        numbers = ()
    has_error = isinstance(value, float) and len(numbers) >= MIN_GROUPS
    # Of a clip the sides are in-plane: a length of time is no share of them.
    is_sized = entry.axis != TIME or not erf.axes.is_in_plane
    return MeasureValue(
        value=value,
        se=error_bar(value, numbers, period=PERIODS.get(entry.kind)) if has_error else None,  # type: ignore[arg-type]
        leave_one_out=numbers,
        kind=entry.kind,
        of_input=geometry.sides.of_input(entry.kind, value) if is_sized else None,
        of_trf=geometry.sides.of_trf(entry.kind, value) if is_sized else None,
        unit=erf.axes.unit_of(entry.unit, entry.axis, geometry.sides.rank),
    )


def _counts_images(area: Value, without: Sequence[float]) -> bool:
    """Whether an effective number of cells is mostly that of the images; see :data:`MOST_BIAS`."""
    if not isinstance(area, float) or len(without) < MIN_GROUPS:
        return False
    _, bias = jackknife(area, without)
    return abs(bias) > MOST_BIAS * area
