"""Shorter halos of tiles: ``halo_budget``."""

from __future__ import annotations

from typing import Any, Unpack

from erfscope import sweep
from erfscope.apps.tile.budget import HaloBudget, border_units
from erfscope.apps.tile.budget import halo_budget as budget_of
from erfscope.apps.tile.tile_plan import TilePlan
from erfscope.core import IMAGE, OUTPUT, ErfscopeError, Model, ModuleAdapter, Options

#: Options that follow from the plan.
FIXED = ("layer", "unit", "input_size", "shard", "convention", "measures")


def halo_budget(model: Model, plan: TilePlan, **options: Unpack[Options]) -> HaloBudget:
    """Measure which share of the ERF shorter halos cut off, by the units next to the border of a tile.

    Args:
        model: As for :func:`erfscope.analyze`.
        plan: Its plan, from :func:`erfscope.tile`.
        **options: Those of :func:`erfscope.analyze`, but for those that follow from the plan: layer, unit, input size,
            shard, convention and measures. The ERF depends on the weights and, in general, on the images.

    Returns:
        The share for every halo, with its standard error over images.

    Raises:
        ErfscopeError: an option that follows from the plan, or a plan without a halo.
        MeasurementError: a unit has no usable ERF.
    """
    fixed = [name for name in FIXED if options.get(name) is not None]
    if fixed:
        raise ErfscopeError(f"{fixed[0]} follows from the plan here; leave it out")
    if plan.wrt != IMAGE:
        raise ErfscopeError(f"shorter halos are measured for models of one input, and the plan is of {plan.wrt}")
    if not plan.axes:
        raise ErfscopeError(f"{plan.model} has no halo to shorten: {plan.blockers[0]}")
    layer = plan.layer or OUTPUT + "".join(f"[{key}]" for key in plan.path)
    size = tuple(axis.size for axis in plan.axes)
    if isinstance(model, ModuleAdapter):
        model = model.at_size(size)
    # A shard keeps the sums of its groups of images; the only one holds all images.
    kept: Any = {"layer": layer, "unit": border_units(plan), "input_size": [size], "shard": "1/1", "measures": ["r50"]}
    report = sweep(model, **{**options, **kept})
    return budget_of(list(report), plan)
