"""Units that no path leads to from one of several inputs, while other units of their layer see it: blind ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from erfscope.core.answer.result import Result, UnitRecord, slug
from erfscope.core.images.feed import Images
from erfscope.core.request.settings import Settings
from erfscope.core.run.engine.model import OpenModel
from erfscope.core.run.engine.outcome import failed
from erfscope.core.values.errors import MeasurementError
from erfscope.core.values.names import input_name
from erfscope.core.values.unit import Unit, is_every_unit
from erfscope.core.values.unit_kind import VECTOR, by_kind, kind_of


def blind_units(model: OpenModel, settings: Settings, layer: str) -> list[Unit]:
    """Those of the units asked for that do not see the reference; none of all units of a layer, which are measured
    together."""
    if is_every_unit(settings.unit):
        return []
    site = model.site(_named(settings, layer), settings.wrt)
    return [unit for unit in site.units(settings.unit) if not site.sees(unit)]


def without(settings: Settings, blind: Sequence[Unit], model: OpenModel, layer: str) -> Settings | None:
    """The settings for the other units; None where there are none."""
    if not blind:
        return settings
    kind, _ = kind_of(settings.unit)
    left = [unit.index for unit in _units(model, settings, layer) if unit not in blind]
    words = [f"{kind}:{index[0]}" if index else VECTOR for index in left] if kind else left
    return replace(settings, unit=words) if left else None


def with_blind(
    rows: Sequence[Result], blind: Sequence[Unit], model: OpenModel, settings: Settings, feed: Images
) -> Iterator[Result]:
    """The results of the other units, with a result for each blind one in its place, unless the run was stopped before
    the first image. The settings name the layer."""
    left, (kind, _), layer = iter(rows), kind_of(settings.unit), settings.layer or ""
    units = _units(model, settings, layer) if blind else []
    if len(rows) + len(blind) != len(units):
        yield from rows
        return
    error = MeasurementError(f"does not see {settings.wrt} at this unit: no path leads from one to the other")
    shape = tuple(model.layer(_named(settings, layer)).shape[1:])
    for unit in units:
        if unit not in blind:
            yield next(left)
            continue
        record = UnitRecord(
            index=unit.index, center_px=(), center_exact=False, stride_px=(), map_shape=shape, kind=kind
        )
        name = slug(model.label, layer, record.slug, input_name(settings.wrt))
        row = failed(model, settings, feed, error, layer=layer)
        yield replace(row, id=name, status="degenerate", unit=record)


def _named(settings: Settings, layer: str) -> str:
    return by_kind(layer, kind_of(settings.unit)[0])


def _units(model: OpenModel, settings: Settings, layer: str) -> list[Unit]:
    return model.site(_named(settings, layer), settings.wrt).units(settings.unit)
