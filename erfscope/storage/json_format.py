"""Results as JSON values and back. The format is ``schema/report-2.json``; non-finite numbers become null."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from erfscope.adapter import Weights
from erfscope.finding import Finding
from erfscope.geometry.receptive_field import Trf
from erfscope.maps.erf_map import ErfMap
from erfscope.maps.hops import HopProfile
from erfscope.measures import MEASURES, MeasureValue
from erfscope.results.json_values import fields, plain
from erfscope.results.pairing import partners
from erfscope.results.partial import PartialSums, part_from_json, part_to_json
from erfscope.results.report import Report
from erfscope.results.result import ConeRecord, Cost, InputRecord, Result, UnitRecord, image_cell, with_provenance
from erfscope.storage.validate import check_consistency, refuse_unsound_part

SCHEMA = "erfscope.report/2"


def report_to_json(report: Report, map_files: Mapping[str, str] | None = None) -> dict[str, Any]:
    """A report as JSON values.

    Args:
        report: The report.
        map_files: Names of the files that hold the maps, by the results' ids.

    Returns:
        What ``schema/report-2.json`` describes.
    """
    files = map_files or {}
    others = partners(report.results)
    differences = [{"to": other.id, **row} if row and other else None for row, other in zip(report.differences(), others, strict=True)]
    rows = zip(report.results, differences, strict=True)
    return {
        "schema": SCHEMA,
        "environment": plain(report.environment),
        "settings": plain(report.settings),
        "results": [result_to_json(result, map_file=files.get(result.id), differences=row) for result, row in rows],
    }


def result_to_json(result: Result, *, map_file: str | None = None, differences: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """One result as JSON values; the map itself goes into ``map_file``.

    Args:
        result: The result.
        map_file: Name of the file that holds its map.
        differences: ``"to"``, the id of the result it is compared with, and (difference, standard error) by measure; None if with none.

    Returns:
        What ``schema/report-2.json`` describes as an item of ``results``.
    """
    unit = result.unit
    document: dict[str, Any] = plain(
        {
            "id": result.id,
            "label": result.label,
            "model": result.model,
            "status": result.status,
            "error": result.error,
            "error_cause": result.error_cause,
            "warnings": [{"code": w.code, "text": w.text} for w in result.warnings],
            "weights": fields(result.weights),
            "insert": result.insert,
            "alpha": result.alpha,
            "host": result.host,
            "step": result.step,
            "input": fields(result.input),
            "layer": result.layer,
            "layer_chosen": result.layer_chosen,
            "wrt": result.wrt,
            "unit": None if unit is None else fields(unit),
            "convention": result.convention,
            "scale": result.scale,
            "method": result.method,
            "seed": result.seed,
            "dtype": result.dtype,
            "amp_dtype": result.amp_dtype,
            "device": result.device,
            "gradient_ratio": result.gradient_ratio,
            "hops": None if result.hops is None else {**fields(result.hops), "mean_hop": result.hops.mean_hop},
            "rank_correlation": result.rank_correlation,
            "trf": None if result.trf is None else _trf_to_json(result.trf),
            "measures": {name: _measure_to_json(name, m, result) for name, m in result.measures.items()},
            "in_plane": result.is_in_plane,
            "differences": None if differences is None else _differences_to_json(differences),
            "frame_mass": result.frame_mass,
            "published": result.published,
            "cost": None if result.cost is None else fields(result.cost),
            "cone": None if result.cone is None else fields(result.cone),
            "map": None if result.map is None else {"cell_px": result.map.cell_px, "shape": result.map.values.shape},
            "map_file": map_file,
            "shard": None if result.part is None else part_to_json(result.part),
            "versions": result.versions,
            "seconds": round(result.seconds, 3),
        }
    )
    return document


def result_from_json(
    entry: Mapping[str, Any],
    stored: Mapping[str, np.ndarray[Any, Any]] | None = None,
    *,
    versions: Mapping[str, Any] | None = None,
) -> Result:
    """A stored result; ``stored`` holds its "map", "picture" and a shard's sums where they were stored too, ``versions`` what it was
    measured with.

    Raises:
        KeyError, TypeError, ValueError: the entry is not of this format, or its parts do not go together.
    """
    trf = None if entry["trf"] is None else trf_from_json(entry["trf"])
    unit = None if entry["unit"] is None else UnitRecord(**_tuples(entry["unit"]))
    erf = None
    stored = stored or {}
    if "map" in stored and unit is not None:
        erf = ErfMap(
            values=stored["map"],
            center_px=unit.center_px,
            stride_px=unit.stride_px,
            scale=entry["scale"],
            cell_px=tuple(entry["map"]["cell_px"]),
            trf=trf,
        )
    same = ("id", "label", "model", "status", "error", "insert", "alpha", "layer", "layer_chosen", "wrt", "convention", "scale", "method")
    more = ("seed", "dtype", "device", "gradient_ratio", "published", "seconds")
    result = Result(
        **{name: entry[name] for name in (*same, *more)},
        warnings=(*(Finding(**w) for w in entry["warnings"]), *_lost_map(entry, stored)),
        # Reports that were stored before these were recorded lack them.
        error_cause=entry.get("error_cause"),
        amp_dtype=entry.get("amp_dtype"),
        host=entry.get("host"),
        step=entry.get("step"),
        hops=None if entry.get("hops") is None else _hops_from_json(entry["hops"]),
        rank_correlation=entry.get("rank_correlation"),
        cone=None if entry.get("cone") is None else ConeRecord(**_tuples(entry["cone"])),
        weights=Weights(**entry["weights"]),
        input=InputRecord(**_tuples(entry["input"])),
        unit=unit,
        trf=trf,
        measures={name: _measure_from_json(m) for name, m in entry["measures"].items()},
        se_over=next((m["se_over"] for m in entry["measures"].values() if m["se_over"]), "images"),
        frame_mass=None if entry["frame_mass"] is None else tuple(entry["frame_mass"]),
        cost=None if entry["cost"] is None else Cost(**entry["cost"]),
        map=erf,
        part=_part_from_json(entry, trf, stored),
        picture=stored.get("picture"),
    )
    check_consistency(result)
    measured_with = entry.get("versions") or versions
    return result if measured_with is None else with_provenance(result, measured_with)


def _lost_map(entry: Mapping[str, Any], stored: Mapping[str, np.ndarray[Any, Any]]) -> list[Finding]:
    """That a map was stored beside the report and is not there now."""
    known = any(w["code"] == "map_missing" for w in entry["warnings"])
    if known or entry.get("map") is None or not entry.get("map_file") or "map" in stored:
        return []
    text = f"its map {entry['map_file']} does not lie beside the report: the numbers stand, and there is nothing to draw"
    return [Finding(code="map_missing", text=text)]


def _part_from_json(entry: Mapping[str, Any], trf: Trf | None, stored: Mapping[str, np.ndarray[Any, Any]]) -> PartialSums | None:
    """What a shard has summed up, where its sums were stored beside it."""
    if entry.get("shard") is None or trf is None or (entry["shard"]["groups"] and "sums" not in stored):
        return None
    part = part_from_json(entry["shard"], stored, convention=entry["convention"], space=trf.reference_px)
    refuse_unsound_part(part, trf.reference_px)
    return part


def _hops_from_json(entry: Mapping[str, Any]) -> HopProfile:
    return HopProfile(mass=np.asarray(entry["mass"], dtype=np.float64), unreachable=entry["unreachable"], total=entry["total"])


def _measure_to_json(name: str, m: MeasureValue, result: Result) -> dict[str, Any]:
    unit = MEASURES[name].unit if name in MEASURES else ""
    on_image = result.wrt == "image"
    entry = {
        "value": m.value,
        "se": m.se,
        "se_over": result.se_over if m.se is not None else None,
        "in": unit if on_image else unit.replace("px", "cells"),
        "kind": m.kind,
        "of_input": m.of_input,
        "of_trf": m.of_trf,
        "leave_one_out": list(m.leave_one_out),
    }
    cell = image_cell(result)
    power = {"px": 1, "px2": 2}.get(unit, 0)
    if cell is not None and power and isinstance(m.value, float):
        entry["image_px"] = m.value * cell**power
    return entry


def _differences_to_json(differences: Mapping[str, Any]) -> dict[str, Any]:
    return {name: entry if name == "to" else {"value": entry[0], "se": entry[1]} for name, entry in differences.items()}


def _measure_from_json(entry: Mapping[str, Any]) -> MeasureValue:
    return MeasureValue(
        value=entry["value"],
        se=entry["se"],
        leave_one_out=tuple(entry["leave_one_out"]),
        kind=entry["kind"],
        of_input=entry["of_input"],
        of_trf=entry["of_trf"],
    )


def _trf_to_json(trf: Trf) -> dict[str, Any]:
    # A finding says why a centre is not exact.
    return {**{name: value for name, value in fields(trf).items() if name != "center_doubt"}, "global": trf.is_global}


def trf_from_json(entry: Mapping[str, Any]) -> Trf:
    """A stored theoretical field.

    Raises:
        KeyError, TypeError, ValueError: the entry is not of this format.
    """
    kept = {name: value for name, value in entry.items() if name != "global"}
    return Trf(**_tuples(kept))


def _tuples(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Lists back to tuples, one level of nesting deep."""

    def tuples(value: Any) -> Any:
        return tuple(tuples(item) for item in value) if isinstance(value, list) else value

    return {name: tuples(value) for name, value in entry.items()}
