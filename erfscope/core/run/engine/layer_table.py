"""Every layer of a model with what its units can see at all."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import product

from erfscope.core.answer.layers import LayerRow, LayerTable
from erfscope.core.graph.recording import LayerRecord
from erfscope.core.run.engine.model import OpenModel
from erfscope.core.values.errors import ErfscopeError
from erfscope.core.values.names import IMAGE, INPUT
from erfscope.core.values.unit import UnitWord
from erfscope.core.values.unit_kind import KINDS, by_kind, kind_of, split_kind


def layer_table(
    model: OpenModel, *, layer: str | None = None, unit: UnitWord = "centre", wrt: str = IMAGE
) -> LayerTable:
    """The layers that can be asked for.

    Args:
        model: The model.
        layer: Only this one.
        unit: The units whose TRFs are given, one row each.
        wrt: Reference of sizes and centres; layers that do not depend on it are left out, and a note counts them. Of
            several inputs there is a row for each if none is named.

    Raises:
        ErfscopeError: unknown layer or reference, nothing that depends on the reference, or a unit outside the map.
    """
    kind, _ = kind_of(unit)
    entries = _entries(model, kind) if layer is None else [model.layer(by_kind(layer, kind))]
    parts = model.parts
    rows: list[LayerRow] = []
    unseen: dict[str, ErfscopeError] = {}
    for entry in entries:
        try:
            sites = model.sites(entry.name, wrt)
            sites[0].nearest_unit()
        except ErfscopeError as error:
            unseen[entry.name] = error
            continue
        shape, name = tuple(entry.shape[1:]), split_kind(entry.name)[0]
        for found, site in product(sites[0].units(unit), sites):
            try:
                trf = site.trf(found)
            except ErfscopeError as error:  # a class token that nothing was added to yet
                unseen[name] = error
                continue
            own = site.wrt if model.adapter.preprocess.parts else ""
            row = LayerRow(
                name=name,
                shape=shape,
                stage=entry.stage,
                part=name in parts,
                unit=found.index,
                kind=kind,
                trf=trf,
                wrt=own,
                order=entry.order,
            )
            rows.append(row)
    if unseen and not rows:
        # What is wrong with the first is wrong with all: the name of the reference, say.
        raise next(iter(unseen.values()))
    default: str | None = None
    with contextlib.suppress(ErfscopeError):
        default = model.default_layer
    return LayerTable(
        model=model.label,
        input_size=model.adapter.preprocess.size,
        default_layer=default,
        wrt=wrt,
        rows=tuple(rows),
        notes=(*_notes(list(unseen), wrt), *filter(None, [model.needed_numbers()])),
        without_place=tuple(_without_place(model)) if layer is None else (),
        axes=model.adapter.preprocess.axes,
    )


def _without_place(model: OpenModel) -> Iterator[tuple[str, str]]:
    """The kinds of units without a place that a model has, with the layer where they are found by default."""
    for kind in KINDS:
        with contextlib.suppress(ErfscopeError):
            name = model.default_layer_of(kind)
            space = model.layer(by_kind(name, kind)).shape[2:]
            yield (f"{kind}:0 to {space[0] - 1}" if space else kind), name


def _entries(model: OpenModel, kind: str) -> Sequence[LayerRecord]:
    """The layers with a map, or with units of a kind."""
    recording = model.recording
    if not kind:
        return [each for entry in recording.layers for each in _of_inputs(model, entry)]
    names = [by_kind(name, kind) for name in recording.modules if not name.endswith(INPUT)]
    return [model.layer(name) for name in names if recording.reading(name).layout is not None]


def _of_inputs(model: OpenModel, entry: LayerRecord) -> list[LayerRecord]:
    """The calls of a module that several inputs share, where they depend on different ones; else the layer itself."""
    seen = model.recording.modules.get(entry.name)
    if not model.adapter.preprocess.parts or seen is None or seen.calls < 2:
        return [entry]
    with contextlib.suppress(ErfscopeError):
        calls = [model.layer(f"{entry.name}@{call}") for call in range(seen.calls)]
        if len({tuple(model.references(call.name)) for call in calls}) > 1:
            return calls
    return [entry]


def _notes(unseen: Sequence[str], wrt: str) -> tuple[str, ...]:
    if not unseen:
        return ()
    some = ", ".join(unseen[:3]) + (", ..." if len(unseen) > 3 else "")
    count = "1 layer does" if len(unseen) == 1 else f"{len(unseen)} layers do"
    return (f"{count} not depend on {'the image' if wrt == IMAGE else wrt}, so there is no row for {some}",)
