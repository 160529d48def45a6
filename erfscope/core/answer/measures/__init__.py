"""Numbers of one map, by name, with errors.

May import: ``maps`` beside it, and below.

Sizes are in the units of the reference's axes (pixels where that is an image), on the raw non-negative map, from the
unit's true centre."""

from erfscope.core.answer.measures.prepared import Geometry, Prepared
from erfscope.core.answer.measures.table import (
    INPUT_SHARE,
    MEASURES,
    SHOWN,
    SHOWN_WITHOUT_PLACE,
    Kind,
    Measure,
    Unit,
    Value,
    shown_of,
)
from erfscope.core.answer.measures.values import MeasureValue, measure_map, with_errors

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
    "measure_map",
    "shown_of",
    "with_errors",
]
