"""Studies as JSON files that hold the table and the figure too, and those of real runs that the package ships."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from erfscope.errors import ErfscopeError
from erfscope.figures.chart_data import Chart, Curve, Picture, Shown
from erfscope.maps.erf_map import FloatArray
from erfscope.results.json_values import plain
from erfscope.studies.study import Claim, Column, Row, StudyResult

#: One NAME.json per study, written by ``erfscope study NAME -o erfscope/studies/kept/NAME.json --force``.
FOLDER = Path(__file__).parent / "kept"


def document_of(result: StudyResult) -> dict[str, Any]:
    """Return a study as JSON values, with the texts of its table and its figure.

    Args:
        result: A study that was run, or a kept one.
    """
    columns = [{each.name: getattr(column, each.name) for each in fields(Column)[2:]} for column in result.columns]
    for column, given in zip(columns, result.columns, strict=True):
        column |= {"title": given.title, "cells": [given.text(row) for row in result.rows]}
    picture = {name: getattr(result.picture, name) for name in ("title", "headings", "note")}
    panels = [[_encoded(panel) for panel in row] for row in result.picture.rows]
    table = {"section": result.section, "columns": columns, "holds_overall": result.holds_overall}
    return plain({**result.to_json(), "table": table, "picture": {**picture, "rows": panels}})  # type: ignore[no-any-return]


def kept_study(name: str) -> StudyResult:
    """Read the study of a real run that the package ships; nothing is computed.

    Args:
        name: Name of a study.

    Raises:
        ErfscopeError: the package ships no run of it.
    """
    file = FOLDER / f"{name}.json"
    if not file.is_file():
        raise ErfscopeError(f"no run of the study {name} is kept; leave out --show to run it")
    found = json.loads(file.read_text(encoding="utf-8"))
    rows = [Row(**{key: _tuples(value) for key, value in row.items()}, maps={}) for row in found["rows"]]
    table, picture, settings = found["table"], found["picture"], found["settings"]
    panels = tuple(tuple(_decoded(panel) for panel in row) for row in picture["rows"])
    return StudyResult(
        **{key: found[key] for key in ("study", "seconds", "environment")},
        **{key: settings[key] for key in ("seed", "effort", "data")},
        columns=tuple(_column(given, rows) for given in table["columns"]),
        section=table["section"],
        holds_overall=table["holds_overall"],
        rows=rows,
        claims=[Claim(**each) for each in found["claims"]],
        picture=Picture(**{**picture, "headings": tuple(picture["headings"]), "rows": panels}),
    )


def _column(given: dict[str, Any], rows: list[Row]) -> Column:
    cells = {row.name: text for row, text in zip(rows, given.pop("cells"), strict=True)}
    return Column(given.pop("title"), lambda row: cells[row.name], **given)


def _encoded(panel: Chart | Shown) -> dict[str, Any]:
    """Return a panel; the values of a map are halves of its largest one, packed."""
    if isinstance(panel, Chart):
        curves = [{**asdict(curve), "x": list(curve.x), "y": list(curve.y)} for curve in panel.curves]
        return {**asdict(panel), "curves": curves}
    largest = float(np.abs(panel.values).max()) or 1.0
    packed = zlib.compress((panel.values / largest).astype("<f2").tobytes(), 9)
    values = {"shape": panel.values.shape, "largest": largest, "halves": base64.b64encode(packed).decode()}
    return {**{each.name: getattr(panel, each.name) for each in fields(Shown)}, "values": values}


def _decoded(panel: dict[str, Any]) -> Chart | Shown:
    given = {key: _tuples(value) for key, value in panel.items()}
    if "curves" in panel:
        return Chart(**{**given, "curves": tuple(Curve(**curve) for curve in panel["curves"])})
    packed = panel["values"]
    halves = np.frombuffer(zlib.decompress(base64.b64decode(packed["halves"])), "<f2").astype(np.float64)
    values: FloatArray = halves.reshape(packed["shape"]) * packed["largest"]
    return Shown(**{**given, "values": values})


def _tuples(value: Any) -> Any:
    """Return lists, which JSON has in place of tuples, as tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
