"""What a check finds of a model, over as many images as it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from erfscope.apps.gate.baseline import BaselineEntry, entry_of
from erfscope.apps.gate.structure import Structure, structure
from erfscope.apps.gate.tolerance import Tolerance, guarded
from erfscope.core import (
    ErfscopeError,
    Model,
    OpenModel,
    Request,
    Result,
    layer_table,
    measure,
    open_images,
    open_model,
    rows,
    to_json,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What a check finds over some images."""

    entry: BaselineEntry
    #: None where only the structure was asked for, or nothing could be measured.
    result: Result | None = None
    #: Finds the same over so many images; None where there are no more than the first, or nothing was measured.
    over: Callable[[int], Observed | None] = lambda _samples: None


def observe(model: Model, request: Request, allowed: Mapping[str, Tolerance] | None, *, trf_only: bool) -> Observed:
    """Find the structure of a model, even if its weights cannot be had, and its measures.

    Args:
        model: The model.
        request: How it is measured.
        allowed: The tolerances, whose measures are found; those of the defaults if None.
        trf_only: Whether the structure is all.
    """
    opened, reason = None, None
    try:
        if not trf_only:
            opened = open_model(model, request, falls_back=False)
    except ErfscopeError as error:
        reason = str(error)
    try:
        variant = opened or open_model(model, request, with_numbers=False)
        with variant:
            geometry = _structure(variant, request)
    except ErfscopeError as error:
        return Observed(entry=BaselineEntry(unusable=reason or str(error)))
    settings = request.settings
    asked = {
        "layer": request.layers[0],
        "unit": settings.unit_word,
        "model_kwargs": to_json(request.building.get("model_kwargs")),
    }
    question = {"model": variant.adapter.spec, "insert": variant.insert, "wrt": settings.wrt}
    protocol = {**question, **asked, "input_size": list(variant.adapter.preprocess.of(settings.wrt).size)}
    blank = BaselineEntry(protocol=protocol, structure=geometry)
    if opened is None:
        return Observed(entry=replace(blank, unusable=reason))
    # The measures that are guarded, and others that were asked for.
    more = [] if settings.measures is None else settings.measure_names()
    guards = guarded(has_place=bool(geometry.center_px)) if allowed is None else allowed
    names = list(dict.fromkeys([*guards, *more]))

    def observed(request: Request, *, more_than: int = 0) -> Observed | None:
        try:
            images = open_images(request, variant)
            if images.n <= more_than:
                return None
            wanted = replace(request, settings=replace(request.settings, measures=names))
            (result,) = measure(rows({variant.label: variant}, wanted), wanted, images)
        except ErfscopeError as error:
            return Observed(entry=replace(blank, unusable=str(error)))
        found = entry_of(result, asked=asked, names=names)
        entry = replace(found, protocol={**found.protocol, **protocol}, structure=geometry)
        return Observed(entry=entry, result=result)

    first = observed(request)
    assert first is not None
    result = first.result
    if result is None:
        return first

    def over(samples: int) -> Observed | None:
        longer = replace(request, settings=replace(settings, samples=samples), resume=None, keep_in=None)
        return observed(longer, more_than=result.input.n_images)

    return replace(first, over=over)


def _structure(model: OpenModel, request: Request) -> Structure:
    settings = request.settings
    site, *others = model.sites(request.layers[0], settings.wrt, unit=settings.unit)
    if others:
        raise ErfscopeError(
            f"a check is of one reference, and the model takes {', '.join(each.wrt for each in (site, *others))}: name"
            " one with --wrt, and write one check for each"
        )
    unit, *more = site.units(settings.unit)
    if more:
        raise ErfscopeError(
            f"a check is of one unit, and {settings.unit!r} are {1 + len(more)}; write one check for each"
        )
    every = layer_table(model, wrt=settings.wrt).rows
    before = {row.name: row.trf for row in every if row.order <= site.tensor.order}
    operations = site.operations_in_words()
    return structure(site.name, site.shape[1:], unit.index, site.trf(unit.index), before, operations=operations)
