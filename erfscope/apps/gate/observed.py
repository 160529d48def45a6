"""What a check finds of a model, over as many images as it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from erfscope.adapters import split_label
from erfscope.adapters.requested import Model
from erfscope.adapters.sources.kinds import kind_of as kind_of_spec
from erfscope.apps.gate.baseline import BaselineEntry, entry_of
from erfscope.apps.gate.structure import Structure, structure
from erfscope.apps.gate.tolerance import Tolerance, guarded
from erfscope.core.answer.comparability import one_unit_word
from erfscope.core.answer.json_values import plain
from erfscope.core.answer.result import Result
from erfscope.core.graph.in_words import operations_in_words
from erfscope.core.request.request import Request
from erfscope.core.run.blocks import variant_of
from erfscope.core.run.engine.layer_table import layer_table
from erfscope.core.run.engine.model import OpenModel
from erfscope.core.run.executor import measure_layer
from erfscope.core.run.models import check_images, feed_of, load_model, load_structure
from erfscope.core.run.opening import Opened
from erfscope.core.values.errors import ErfscopeError
from erfscope.core.values.unit_kind import by_kind, kind_of


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
    loaded, reason = None, None
    try:
        if not trf_only:
            check_images(request)
            loaded = _with_numbers(model, request)
    except ErfscopeError as error:
        reason = str(error)
    try:
        variant = load_structure(model, request) if loaded is None else variant_of(loaded, request)
        geometry = _structure(variant, request)
    except ErfscopeError as error:
        return Observed(entry=BaselineEntry(unusable=reason or str(error)))
    settings = request.settings
    asked = {
        "layer": request.layers[0],
        "unit": one_unit_word([("", settings.unit)]),
        "model_kwargs": plain(request.building.get("model_kwargs")),
    }
    question = {"model": variant.adapter.spec, "insert": variant.insert, "wrt": settings.wrt}
    protocol = {**question, **asked, "input_size": list(variant.adapter.preprocess.of(settings.wrt).size)}
    blank = BaselineEntry(protocol=protocol, structure=geometry)
    if loaded is None:
        return Observed(entry=replace(blank, unusable=reason))
    # The measures that are guarded, and others that were asked for.
    more = [] if settings.measures is None else settings.measure_names()
    guards = guarded(has_place=bool(geometry.center_px)) if allowed is None else allowed
    names = list(dict.fromkeys([*guards, *more]))

    def observed(request: Request, *, more_than: int = 0) -> Observed | None:
        try:
            feed = feed_of(request, variant.adapter.preprocess)
            if feed.n <= more_than:
                return None
            wanted = replace(request.settings, layer=geometry.layer, measures=names)
            result = measure_layer(Opened(model=variant, feed=feed), wanted, request)[0]
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


def _with_numbers(model: Model, request: Request) -> OpenModel:
    """The model with its weights, and never with others that stand in for them."""
    (weights,), (size,) = request.weights, request.sizes
    is_factory = isinstance(model, str) and kind_of_spec(split_label(model)[1]).module == "factory"
    if weights == "auto" and request.building.get("checkpoint") is None and not is_factory:
        weights = "pretrained"
    return load_model(model, request, size=size, weights=weights)


def _structure(loaded: OpenModel, request: Request) -> Structure:
    unit = request.settings.unit
    kind, _ = kind_of(unit)
    layer = request.layers[0] or loaded.default_layer_of(kind)
    references = loaded.references(by_kind(layer, kind), request.settings.wrt)
    if len(references) > 1:
        raise ErfscopeError(
            f"a check is of one reference, and the model takes {', '.join(references)}: name one with --wrt, and write"
            " one check for each"
        )
    table = layer_table(loaded, layer=layer, unit=unit, wrt=request.settings.wrt)
    if len(table.rows) != 1:
        raise ErfscopeError(f"a check is of one unit, and {unit!r} are {len(table.rows)}; write one check for each")
    row, last = table.rows[0], loaded.layer(by_kind(layer, kind)).order
    rows = layer_table(loaded, wrt=request.settings.wrt).rows
    before = {each.name: each.trf for each in rows if loaded.layer(each.name).order <= last}
    graph, node = loaded.recording.graph, loaded.recording.find(by_kind(layer, kind))
    operations = {} if node is None else operations_in_words(graph, node.node)
    return structure(row.name, row.shape, row.unit, row.trf, before, operations=operations)
