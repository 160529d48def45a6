"""Results as JSON values and back. The format is ``schema/report-1.json``; non-finite numbers become null."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from erfscope.core.answer.comparability import partners
from erfscope.core.answer.json_values import from_json, to_json
from erfscope.core.answer.maps.accumulator import GroupSums
from erfscope.core.answer.maps.erf_map import ErfMap, FloatArray
from erfscope.core.answer.maps.hops import HopProfile
from erfscope.core.answer.maps.trust import Trust
from erfscope.core.answer.measures import MEASURES, MeasureValue
from erfscope.core.answer.partial import PartialSums
from erfscope.core.answer.positions import MEASURED, Positions
from erfscope.core.answer.report import Report
from erfscope.core.answer.result import Result, UnitRecord, image_cell, with_provenance
from erfscope.core.answer.storage.documents import (
    SAME,
    StoredDifference,
    StoredHops,
    StoredMap,
    StoredMeasure,
    StoredPositions,
    StoredResult,
    StoredSums,
    StoredTrust,
)
from erfscope.core.values.finding import Finding
from erfscope.core.values.shard import Shard
from erfscope.core.values.unit import Trf

#: Prefix of the arrays' names in the map file.
PREFIX = "positions_"


def stored_positions(positions: Positions) -> StoredPositions:
    """The stored positions without their arrays, see :func:`position_arrays`."""
    return StoredPositions(
        shape=positions.r50.shape,
        without_gradient=positions.without_gradient,
        passes=positions.passes,
        alone=positions.alone,
        **{name: positions.border_effect(name) for name in MEASURED},
    )


def position_arrays(positions: Positions) -> dict[str, NDArray[Any]]:
    """Sizes by unit, NaN where there are none, and whether a unit's TRF lies inside the reference; the layer's
    shape."""
    return {f"{PREFIX}{name}": getattr(positions, name) for name in (*MEASURED, "inside")}


def positions_from(
    stored: StoredPositions | None, arrays: Mapping[str, NDArray[Any]], space: Sequence[int]
) -> Positions | None:
    """Stored positions; None if there are none, and if their arrays are missing.

    Args:
        stored: See :func:`stored_positions`.
        arrays: See :func:`position_arrays`.
        space: Spatial size of the layer's map.

    Raises:
        ValueError: the arrays do not go together, or hold what is no size.
    """
    names = [f"{PREFIX}{name}" for name in (*MEASURED, "inside")]
    if stored is None or any(name not in arrays for name in names):
        return None
    r50, context_r50, inside = (arrays[name] for name in names)
    if {r50.shape, context_r50.shape, inside.shape, stored.shape} != {tuple(space)}:
        raise ValueError(f"the sizes of units are not those of a layer of {tuple(space)}")
    if any(bool(np.isinf(values).any() or (values < 0).any()) for values in (r50, context_r50)):
        raise ValueError("a unit's size is negative or infinite")
    return Positions(r50=r50, context_r50=context_r50, inside=inside, passes=stored.passes, alone=stored.alone)


#: Fields of the sums of a shard, or of a stopped run, that are stored as they are.
_SAME_OF_PART = (
    "n_all",
    "seen",
    "unreadable",
    "names",
    "nan_cause",
    "zero_cause",
    "ratio",
    "text",
    "measures",
    "stopped",
)


def sums_of_part(part: PartialSums) -> StoredSums:
    """The stored part of a run without its arrays, see :func:`part_arrays`."""
    average, sums = part.average, part.average.sums
    return StoredSums(
        number=None if part.shard is None else part.shard.number,
        of=None if part.shard is None else part.shard.of,
        dead=tuple(average.zero_gradient_images),
        nan=tuple(average.nan_images),
        n_used=average.n_images,
        leaked=average.outside_trf,
        looks=average.looks,
        box=tuple((side.start, side.stop - 1) for side in sums.box or ()),
        groups={group: count for group, (_, count) in sums.items()},
        **{name: getattr(part, name) for name in _SAME_OF_PART},
    )


def part_arrays(part: PartialSums) -> dict[str, FloatArray]:
    """The sums by group, (groups, *box), and the hops."""
    sums = [total for _, (total, _) in part.average.sums.items()]
    arrays = {"sums": np.stack(sums)} if sums else {}
    return arrays if part.hops is None else {**arrays, "hops": part.hops}


def part_from_sums(
    stored: StoredSums | None,
    arrays: Mapping[str, FloatArray],
    *,
    convention: str,
    space: Sequence[int],
    masses: Mapping[int, float] | None = None,
) -> PartialSums | None:
    """A stored part of a run; None for a whole run, and if its sums are missing.

    Args:
        stored: See :func:`sums_of_part`.
        arrays: See :func:`part_arrays`.
        convention: Name of the convention.
        space: Spatial size of the reference.
        masses: As a :class:`Result` has them; None where there are none.

    Raises:
        ValueError: there are not as many sums as groups.
    """
    if stored is None or (stored.groups and "sums" not in arrays):
        return None
    # Late, because they load torch, which reading a whole run's report does not need.
    from erfscope.core.answer.convention import CONVENTIONS
    from erfscope.core.answer.maps.accumulator import MapAccumulator

    average = MapAccumulator(CONVENTIONS[convention], stored.n_all, space, None)
    sums = _group_sums(stored, arrays)
    lost = {"zero_gradient_images": stored.dead, "nan_images": stored.nan}
    average.restore(sums, n_images=stored.n_used, outside_trf=stored.leaked, masses=masses, **lost)
    average.looks = stored.looks
    return PartialSums(
        average=average,
        hops=arrays.get("hops"),
        shard=None if stored.number is None or stored.of is None else Shard(number=stored.number, of=stored.of),
        **{name: getattr(stored, name) for name in _SAME_OF_PART},
    )


def _group_sums(stored: StoredSums, arrays: Mapping[str, FloatArray]) -> GroupSums:
    box = tuple(slice(first, last + 1) for first, last in stored.box)
    sums = GroupSums(shape=tuple(side.stop - side.start for side in box), box=box)
    for group, total in zip(sorted(stored.groups), arrays["sums"] if stored.groups else (), strict=True):
        sums.add(group, total, stored.groups[group])
    return sums


SCHEMA = "erfscope.report/1"
#: Shared by the many results that have none.
_NO_OPTIONS: Mapping[str, Any] = {}

#: No place of a unit or a field lies further from the origin, in cells of the reference.
FARTHEST = 1 << 40


def report_to_json(report: Report, maps: Mapping[str, str] | None = None) -> dict[str, Any]:
    """A report as JSON values.

    Args:
        report: The report.
        maps: The sha256 of every map file, by the results' ids.

    Returns:
        What ``schema/report-1.json`` describes.
    """
    digests = maps or {}
    others = partners(report.results)
    differences = [
        {"to": other.id, **row} if row and other else None
        for row, other in zip(report.differences(), others, strict=True)
    ]
    rows = zip(report.results, differences, strict=True)
    return {
        "schema": SCHEMA,
        "environment": to_json(report.environment),
        "settings": to_json(report.settings),
        "results": [result_to_json(result, map_sha256=digests.get(result.id), differences=row) for result, row in rows],
    }


def result_to_json(
    result: Result, *, map_sha256: str | None = None, differences: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """One result as JSON values; the map itself lies in a file of its own, named by the id.

    Args:
        result: The result.
        map_sha256: Of the file that holds its map; None where there is none.
        differences: ``"to"``, the id of the result it is compared with, and (difference, standard error) by measure;
            None if with none.

    Returns:
        What ``schema/report-1.json`` describes as an item of ``results``.
    """
    hops, erf = result.hops, result.map
    stored = StoredResult(
        **{name: getattr(result, name) for name in SAME},
        hops=None
        if hops is None
        else StoredHops(mass=tuple(hops.mass), unreachable=hops.unreachable, total=hops.total, mean_hop=hops.mean_hop),
        measures={name: _stored_measure(name, measure, result) for name, measure in result.measures.items()},
        in_plane=result.is_in_plane,
        timing=result.timing or UNSET,
        differences=None
        if differences is None
        else {
            name: difference if isinstance(difference, str) else StoredDifference(value=difference[0], se=difference[1])
            for name, difference in differences.items()
        },
        positions=None if result.positions is None else stored_positions(result.positions),
        trust=None if result.trust is None else _stored_trust(result.trust),
        map=None if erf is None else StoredMap(cell_px=erf.cell_px, shape=erf.values.shape),
        map_file=None if map_sha256 is None else f"{result.id}.npz",
        map_sha256=map_sha256,
        shard=None if result.part is None else sums_of_part(result.part),
        masses=result.masses or UNSET,
        seconds=round(result.seconds, 3),
    )
    document: dict[str, Any] = to_json(stored)
    if result.trf is not None:
        # A finding says why a centre is not exact.
        del document["trf"]["center_inexact_reason"]
        document["trf"]["global"] = result.trf.is_global
    return document


def _stored_measure(name: str, measure: MeasureValue, result: Result) -> StoredMeasure:
    unit: str = MEASURES[name].unit if name in MEASURES else ""
    axis = MEASURES[name].axis if name in MEASURES else ""
    stored: dict[str, Any] = {field: getattr(measure, field) for field in MeasureValue.__dataclass_fields__}
    cell = image_cell(result)
    power = {"px": 1, "px2": 2}.get(unit, 0)
    if cell is not None and power and isinstance(measure.value, float):
        stored["image_px"] = measure.value * cell**power
    stored["unit"] = result.axes.unit_of(unit, axis, result.sides.rank)
    return StoredMeasure(**stored, se_over=None if measure.se is None else result.se_over)


def result_from_json(
    entry: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray[Any, Any]] | None = None,
) -> Result:
    """A stored result; ``arrays`` holds its "map", "picture" and a shard's sums where they were stored too.

    Raises:
        KeyError, TypeError, ValueError: the entry is not of this format.
    """
    arrays = arrays or {}
    stored: Any = from_json(entry, StoredResult, "result")
    trf, unit, hops, masses = stored.trf, stored.unit, stored.hops, stored.masses or {}
    if trf is not None and unit is not None:
        _refuse_other_axes(trf, unit, arrays.get("map"))
    erf = None
    if "map" in arrays and unit is not None:
        if stored.map is None:
            raise ValueError("a map lies beside the report, which says nothing of it")
        erf = ErfMap(
            values=arrays["map"],
            center_px=unit.center_px,
            stride_px=unit.stride_px,
            scale=stored.scale,
            cell_px=stored.map.cell_px,
            trf=trf,
        )
    result = Result(
        **{name: getattr(stored, name) for name in SAME if name not in ("options", "findings", "versions")},
        options={name: tuple(value) if isinstance(value, list) else value for name, value in stored.options.items()}
        or _NO_OPTIONS,
        findings=(*stored.findings, *_lost_map(stored, arrays)),
        hops=None
        if hops is None
        else HopProfile(mass=np.array(hops.mass), unreachable=hops.unreachable, total=hops.total),
        measures={
            name: MeasureValue(**{field: getattr(measure, field) for field in MeasureValue.__dataclass_fields__})
            for name, measure in stored.measures.items()
        },
        se_over=next((measure.se_over for measure in stored.measures.values() if measure.se_over), "images"),
        positions=None if unit is None else positions_from(stored.positions, arrays, unit.map_shape[1:]),
        trust=None if stored.trust is None else stored.trust.measured,
        map=erf,
        # A shard whose sums do not lie beside it has numbers, and nothing to add to others.
        part=None
        if trf is None
        else part_from_sums(
            stored.shard,
            arrays,
            convention=stored.convention,
            space=trf.reference_px,
            masses=masses or None,
        ),
        masses=masses,
        picture=arrays.get("picture"),
        seconds=stored.seconds,
    )
    if result.map is not None:
        result = replace(result, map=replace(result.map, axes=result.axes, own_time=result.own_time))
    return result if stored.versions is None else with_provenance(result, stored.versions)


def _refuse_other_axes(trf: Trf, unit: UnitRecord, values: np.ndarray[Any, Any] | None) -> None:
    """Refuse a unit, a field and a map that cannot be of one reference.

    Raises:
        ValueError: they have other axes, coordinates that no pixel has, or a map that is empty or not finite.
    """
    sizes = (trf.reference_px, trf.size_px, trf.local_size_px)
    places = (*zip(*trf.box_px, strict=True), *zip(*trf.local_box_px, strict=True))
    placed = (trf.center_px, trf.stride_px, unit.center_px, unit.stride_px)
    if unit.kind and any(placed):
        raise ValueError(f"a unit {unit.kind} has no place")
    for along_axes in (*sizes, *(() if unit.kind else placed), *places, trf.box_px, trf.local_box_px):
        if len(along_axes) != len(trf.reference_px):
            raise ValueError(f"{list(along_axes)} are not {len(trf.reference_px)} axes")
    if any(side < 1 for along_axes in sizes for side in along_axes) or any(
        abs(at) > FARTHEST for along_axes in (*places, trf.center_px, unit.center_px) for at in along_axes
    ):
        raise ValueError("sizes are positive, and coordinates those of pixels")
    if values is not None and (values.shape != trf.reference_px or not np.isfinite(values).all()):
        raise ValueError(f"its map of shape {values.shape} is not a finite one of {trf.reference_px}")


def _stored_trust(trust: Trust) -> StoredTrust:
    value, se = trust.ratio or (None, None)
    return StoredTrust(ratio=value, se=se, disagrees=trust.disagrees, linear_to=trust.linear_to, measured=trust)


def _lost_map(stored: Any, arrays: Mapping[str, np.ndarray[Any, Any]]) -> list[Finding]:
    """That a map was stored beside the report and is not there now."""
    known = any(finding.code == "map_missing" for finding in stored.findings)
    if known or stored.map is None or not stored.map_file or "map" in arrays:
        return []
    text = f"its map {stored.map_file} does not lie beside the report: the numbers stand, and there is nothing to draw"
    return [Finding(code="map_missing", text=text)]
