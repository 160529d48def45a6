"""Numbers of one map, by name, with errors.

May import: ``maps`` and below.

Sizes are in cells of the reference (pixels where that is the image), on the raw non-negative map, from the unit's true
centre."""

from erfscope.measures.prepared import Geometry, Prepared
from erfscope.measures.table import INPUT_SHARE, MEASURES, SHOWN, SHOWN_WITHOUT_PLACE, Kind, Measure, Unit, Value
from erfscope.measures.values import MeasureValue, measure, value_of, with_errors

__all__ = [
    "INPUT_SHARE",
    "MEASURES",
    "SHOWN",
    "SHOWN_WITHOUT_PLACE",
    "Geometry",
    "Kind",
    "Measure",
    "MeasureValue",
    "Prepared",
    "Unit",
    "Value",
    "measure",
    "value_of",
    "with_errors",
]
