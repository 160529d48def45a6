"""A row of the table of measures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from erfscope.measures.prepared import Prepared

Value = float | str | None
Kind = Literal["radius", "width", "sigma", "area", "share", "angle", "score", "shape"]
Unit = Literal["px", "px2", "deg", ""]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One measure. To add your own: ``MEASURES["mine"] = Measure(name="mine", ...)``."""

    name: str
    #: What it is a size of, which decides its ratio to the input and to the TRF.
    kind: Kind
    #: +1 if a larger ERF makes it larger, -1 if smaller, None if neither.
    wider: Literal[1, -1] | None
    #: Whether the jackknife applies: not to counts of cells above a threshold, which are step functions of the map, and
    #: not to words.
    has_se: bool = True
    #: Whether the value is corrected by the jackknife estimate of its bias.
    bias_corrected: bool = False
    #: What that bias is estimated of: a length that noise can only add to has an unbiased square, and none itself where
    #: it is near 0.
    corrected_as: Literal["value", "square"] = "value"
    #: Whether it moves in steps, such as a count of cells, which rounding moves further than anything smooth.
    has_steps: bool = False
    #: Whether it is fitted by iterations, which end within about the root of the rounding error of the best fit.
    is_fit: bool = False
    #: "px" and "px2" are cells of the reference.
    unit: Unit = ""
    #: One line.
    formula: str
    source: str = "erfscope"
    #: Wrong uses of it; continues the words "not for".
    not_for: str = ""
    #: None where the measure does not exist for a map; non-finite numbers count as None.
    function: Callable[[Prepared], Value]
