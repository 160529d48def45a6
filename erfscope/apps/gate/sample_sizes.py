"""More images, where the first ones may not decide a check: how many a baseline keeps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from erfscope.apps.gate.baseline import BaselineEntry, BaselineMeasure, MoreImages
from erfscope.apps.gate.tolerance import Tolerance, defaults

#: A baseline keeps the measures of so many times the samples of a check at most.
LIMIT = 16
#: Standard errors of the difference that a tolerance has to hold, so that nearly every check is decided.
ENOUGH = 4.0


def sizes(samples: int) -> Iterator[int]:
    """Numbers of images after the first: twice as many each time, up to the limit."""
    for power in range(1, LIMIT.bit_length()):
        yield samples * 2**power


def is_enough(entry: BaselineEntry, allowed: Mapping[str, Tolerance] | None) -> bool:
    """Whether an entry has no need of more images: four standard errors of the difference between it and another
    measurement like it, over other images, are within every tolerance that more images could decide.

    Args:
        entry: What was found.
        allowed: By measure; the defaults of other weights if None, since equal ones leave hardly any noise.
    """
    has_place = entry.structure is None or bool(entry.structure.center_px)
    guards = defaults(same_weights=False, has_place=has_place) if allowed is None else allowed
    return not any(_is_noisy(name, guards[name], found) for name, found in entry.measures.items() if name in guards)


def _is_noisy(name: str, tolerance: Tolerance, found: BaselineMeasure) -> bool:
    """Whether the noise of a measure is more than its tolerance, and more images would lessen it."""
    se = found.as_measured(name).jackknife_se()
    if found.value is None or found.over != "images" or se is None:
        return False
    return tolerance.guards(name, found.value) and 0 < tolerance.limit(found.value) < ENOUGH * math.sqrt(2) * se


def more_images(entry: BaselineEntry) -> MoreImages:
    """What the baseline keeps of a measurement over more images."""
    return MoreImages(samples=entry.protocol["samples"], stimuli=entry.protocol["stimuli"], measures={**entry.measures})


def growth_notice(entry: BaselineEntry, *, is_enough: bool) -> str:
    """The notice on how many images an entry was measured over; "" for the first alone."""
    first = entry.protocol.get("samples")
    if not entry.more:
        return "" if is_enough else f"{first} images leave more noise than a tolerance, and there are no more images"
    last = entry.more[-1].samples
    text = f"measured over up to {last} images, since the noise of {first} is more than a tolerance"
    return text if is_enough else f"{text}; that of {last} is too, and no more are tried: a check may be inconclusive"
