"""The figure of a study as JSON values, and back."""

from __future__ import annotations

import base64
import zlib
from dataclasses import asdict, fields
from typing import Any

import numpy as np

from erfscope.core import FloatArray
from erfscope.show import Chart, ChartMap, Curve, Picture


def encoded(picture: Picture) -> dict[str, Any]:
    """Return a figure as JSON values; the values of maps are packed with seven bits each."""
    texts = {name: getattr(picture, name) for name in ("title", "headings", "note")}
    return {**texts, "rows": [[_encoded(panel) for panel in row] for row in picture.rows]}


def decoded(stored: dict[str, Any]) -> Picture:
    """Return the figure of :func:`encoded`."""
    rows = tuple(tuple(_decoded(panel) for panel in row) for row in stored["rows"])
    return Picture(**{**stored, "headings": tuple(stored["headings"]), "rows": rows})


def _encoded(panel: Chart | ChartMap) -> dict[str, Any]:
    """Return a panel; the values of a map are shares of its largest one, halves of which a figure needs seven bits."""
    if isinstance(panel, Chart):
        curves = [{**asdict(curve), "x": list(curve.x), "y": list(curve.y)} for curve in panel.curves]
        return {**asdict(panel), "curves": curves}
    largest = float(np.abs(panel.values).max()) or 1.0
    halves = (panel.values / largest).astype("<f2").view("<u2") & 0xFFF0
    packed = zlib.compress(halves.tobytes(), 9)
    values = {"shape": panel.values.shape, "largest": largest, "halves": base64.b64encode(packed).decode()}
    return {**{each.name: getattr(panel, each.name) for each in fields(ChartMap)}, "values": values}


def _decoded(panel: dict[str, Any]) -> Chart | ChartMap:
    given = {key: tuples(value) for key, value in panel.items()}
    if "curves" in panel:
        return Chart(**{**given, "curves": tuple(Curve(**curve) for curve in panel["curves"])})
    packed = panel["values"]
    halves = np.frombuffer(zlib.decompress(base64.b64decode(packed["halves"])), "<f2").astype(np.float64)
    values: FloatArray = halves.reshape(packed["shape"]) * packed["largest"]
    return ChartMap(**{**given, "values": values})


def tuples(value: Any) -> Any:
    """Return lists, which JSON has in place of tuples, as tuples."""
    return tuple(map(tuples, value)) if isinstance(value, list) else value
