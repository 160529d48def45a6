"""Units that do not see one of several inputs at all, while other units of their layer do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from erfscope.engine.model import LoadedModel
from erfscope.engine.outcome import failed
from erfscope.errors import ErfscopeError, MeasurementError
from erfscope.geometry.names import input_name
from erfscope.geometry.unit import Unit, is_every_unit
from erfscope.geometry.unit_kind import VECTOR, by_kind, kind_of
from erfscope.options.settings import Settings
from erfscope.results.result import Result, UnitRecord, slug
from erfscope.stimuli.feed import Feed


def unseeing(model: LoadedModel, settings: Settings, layer: str) -> list[tuple[Unit, bool]]:
    """The units that are asked for, and whether no path leads to each from the reference; none where all see it."""
    name = by_kind(layer, kind_of(settings.unit)[0])
    if is_every_unit(settings.unit):
        return []
    found = []
    for unit in model.units(name, settings.unit, settings.wrt):
        try:
            model.trf(name, unit.index, settings.wrt)
            found.append((unit, False))
        except ErfscopeError:
            found.append((unit, True))
    return found if any(is_blind for _, is_blind in found) else []


def of_seeing(settings: Settings, units: Sequence[tuple[Unit, bool]]) -> Settings:
    """The settings for those units that see the reference."""
    if not units:
        return settings
    kind, _ = kind_of(settings.unit)
    seeing = [unit.index for unit, is_blind in units if not is_blind]
    words = [f"{kind}:{index[0]}" if index else VECTOR for index in seeing] if kind else seeing
    return replace(settings, unit=words)


def with_unseeing(
    rows: Sequence[Result], units: Sequence[tuple[Unit, bool]], model: LoadedModel, settings: Settings, feed: Feed
) -> Iterator[Result]:
    """The results of the units that see the reference, with a result for each of the others in its place."""
    if not units:
        yield from rows
        return
    left, (kind, _) = iter(rows), kind_of(settings.unit)
    layer = settings.layer or ""
    error = MeasurementError(f"does not see {settings.wrt} at this unit: no path leads from one to the other")
    shape = tuple(model.layer(by_kind(layer, kind)).shape[1:])
    for unit, is_blind in units:
        if not is_blind:
            yield next(left)
            continue
        record = UnitRecord(
            index=unit.index, center_px=(), center_exact=False, stride_px=(), map_shape=shape, kind=kind
        )
        row = failed(model, settings, feed, error, layer=layer)
        yield replace(
            row, id=slug(model.label, layer, record.slug, input_name(settings.wrt)), status="degenerate", unit=record
        )
