"""How the ERF of one model grows from layer to layer: what each layer adds, where that ends, where the border begins to
clip it, and how much of the theoretical receptive field (TRF) it fills."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest

from erfscope.core.answer.comparability import Use, values
from erfscope.core.answer.measures.values import MeasureValue
from erfscope.core.answer.result import Result

#: A growth that is none: at most this share of it, or so many standard errors of the paired difference.
NEGLIGIBLE, NOISE = 0.02, 2.0
#: A number that may not exist, and its standard error.
Difference = tuple[float | None, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthStep:
    """One layer."""

    result: Result
    #: The size minus that of the layer before, with the error of the paired difference; None for the first layer.
    added: Difference
    #: What lies within r90 of a unit (an interval, a circle, a ball) as a share of the whole TRF; None where r90 or the
    #: TRF is unknown, and where that is global.
    filled: float | None
    #: Whether the layer reads no cells that the layer before does not: the TRF of that one covers the whole reference,
    #: global operations left out.
    is_covered: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """The layers of one model in network order, of one unit and one setting."""

    steps: tuple[DepthStep, ...]
    #: The size that growth is judged by: ``r50``, or ``context_r50`` where the unit's own cell sets r50 of a layer.
    measure: str
    #: Position of the layer at which this size stops growing: the first that no later one exceeds by more than
    #: :data:`NEGLIGIBLE` of it and :data:`NOISE` standard errors. The last where it grows to the end.
    stops_at: int
    #: The size of the last layer minus that of this one, and whether it is smaller by as much as counts.
    rest: Difference
    shrinks: bool
    #: Position of the first layer whose ERF the border clips, by its finding; None where there is none.
    clips_at: int | None


def depth_of(results: Sequence[Result]) -> Depth:
    """The growth of the ERF over some layers.

    It ends at the first layer whose size no later layer exceeds, not only the last one, by more than the larger of 2 %
    and two standard errors of the paired difference: a growth that is lost again is growth, 2 % cannot be seen in a
    figure, and less than two errors is noise. With few images a slow growth hides in the errors; without errors 2 %
    alone count.

    Args:
        results: One of :func:`in_depth`: at least one, all with an r50.
    """
    has_own_cell = any(_has(result, "own_cell_dominated") for result in results)
    name = "context_r50" if has_own_cell and all(_has_size(r, "context_r50") for r in results) else "r50"
    sizes = [result.measures[name] for result in results]
    ends = (n for n, size in enumerate(sizes) if not any(_exceeds(later, size) for later in sizes[n + 1 :]))
    stops_at = next(ends)
    added = [(None, None), *(size.minus(before) for before, size in pairwise(sizes))]
    return Depth(
        steps=tuple(
            DepthStep(result=result, added=change, filled=_filled(result), is_covered=is_covered)
            for result, change, is_covered in zip(results, added, covered(results), strict=True)
        ),
        measure=name,
        stops_at=stops_at,
        rest=sizes[-1].minus(sizes[stops_at]),
        shrinks=_exceeds(sizes[stops_at], sizes[-1]),
        clips_at=next((n for n, result in enumerate(results) if _has(result, "clipped")), None),
    )


def _has(result: Result, code: str) -> bool:
    return any(finding.code == code for finding in result.findings)


def _has_size(result: Result, name: str) -> bool:
    """Whether a result has a number for a measure."""
    return name in result.measures and isinstance(result.measures[name].value, float)


def in_depth(results: Sequence[Result]) -> list[tuple[Result, ...]]:
    """The usable results with an r50, a series for each model, setting and unit, by layer in network order."""
    groups: dict[tuple[object, ...], list[Result]] = {}
    for result in results:
        if result.ok and _has_size(result, "r50"):
            settings = [pair for pair in values(result, Use.COMPARE | Use.SWEEP) if pair[0] not in ("layer", "unit")]
            groups.setdefault((result.label, result.alpha, *settings), []).append(result)
    return [series for group in groups.values() for series in by_layer(group)]


def by_layer(results: Sequence[Result]) -> list[tuple[Result, ...]]:
    """Results of one model and setting by layer in network order, a series for each unit where a layer has several.

    A unit word, such as centre, has other indices in other layers, but its place in their order is the same."""
    layers: dict[str, list[Result]] = {}
    for result in results:
        layers.setdefault(result.layer, []).append(result)
    units = zip_longest(*sorted(layers.values(), key=lambda layer: reach(layer[0])))
    return [tuple(result for result in unit if result is not None) for unit in units]


def reach(result: Result) -> float:
    """Side of the local TRF: it never shrinks along a network. Layers of one size keep their order."""
    return 0.0 if result.trf is None else math.prod(result.trf.local_size_px) ** (1 / len(result.trf.local_size_px))


def covered(results: Sequence[Result]) -> list[bool]:
    """Whether the layer before each one covers the whole reference by its TRF, global operations left out, along every
    axis. A TRF that is an upper bound covers nothing for certain."""
    fields = [result.trf for result in results[:-1]]
    cover = [
        trf is not None
        and trf.exact
        and all(low <= 0 and high >= n - 1 for (low, high), n in zip(trf.local_box_px, trf.reference_px, strict=True))
        for trf in fields
    ]
    return [False, *cover]


def _exceeds(later: MeasureValue, size: MeasureValue) -> bool:
    difference, se = later.minus(size)
    return difference is not None and difference > max(NEGLIGIBLE * float(later), NOISE * (se or 0.0))


def _filled(result: Result) -> float | None:
    r90, axes = result.measures.get("r90"), len(result.axes.measured)
    ratio = None if r90 is None else r90.of_trf
    return None if ratio is None else math.pi ** (axes / 2) / math.gamma(axes / 2 + 1) * ratio**axes
