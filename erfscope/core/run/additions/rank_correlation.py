"""Beside a map of removed nodes: its rank correlation with the gradient's map of the same images."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from erfscope.core.answer.maps.erf_map import ErfMap
from erfscope.core.answer.result import Result
from erfscope.core.run.engine.measure import measure_units
from erfscope.core.run.engine.plan import Callbacks, Plan, Sums


def with_rank_correlation(plan: Plan, _sums: Sums, results: list[Result], _callbacks: Callbacks) -> list[Result]:
    """The results, one per unit, with Spearman's rank correlation over the nodes."""
    settings = replace(plan.settings, method="gradient", until_se=None)
    gradients = measure_units(plan.model, plan.feed, replace(settings, layer=plan.site.layer))
    pairs = zip(results, gradients, strict=True)
    return [replace(result, rank_correlation=_rank_correlation(result.map, gradient.map)) for result, gradient in pairs]


def _rank_correlation(ours: ErfMap | None, theirs: ErfMap | None) -> float | None:
    """None where one of the maps is missing or the same everywhere."""
    if ours is None or theirs is None or np.ptp(ours.magnitude) == 0 or np.ptp(theirs.magnitude) == 0:
        return None
    from scipy.stats import spearmanr

    return float(spearmanr(ours.magnitude.ravel(), theirs.magnitude.ravel()).statistic)
