"""Every layer of a model with what its units can see at all."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial

from erfscope.engine.model import LoadedModel
from erfscope.errors import ErfscopeError
from erfscope.geometry.names import IMAGE
from erfscope.geometry.unit import UnitWord, resolve_units
from erfscope.results.layers import LayerRow, LayerTable


def layer_table(
    model: LoadedModel, *, layer: str | None = None, unit: UnitWord = "centre", wrt: str = IMAGE
) -> LayerTable:
    """The layers that can be asked for.

    Args:
        model: The model.
        layer: Only this one.
        unit: The units whose TRFs are given, one row each.
        wrt: Reference of sizes and centres; layers that do not depend on it are left out, and a note counts them.

    Raises:
        ErfscopeError: unknown layer or reference, nothing that depends on the reference, or a unit outside the map.
    """
    entries = [model.layer(layer)] if layer is not None else model.recording.layers
    rows: list[LayerRow] = []
    unseen: dict[str, ErfscopeError] = {}
    for entry in entries:
        try:
            centre = model.recording.default_unit(entry.name, wrt)
        except ErfscopeError as error:
            unseen[entry.name] = error
            continue
        shape = tuple(entry.shape[1:])
        nearest = partial(model.recording.default_unit, entry.name, wrt)
        for found in resolve_units(unit, shape[1:], centre, layer=entry.name, nearest=nearest):
            trf = model.trf(entry.name, found.index, wrt)
            rows.append(LayerRow(name=entry.name, shape=shape, stage=entry.stage, unit=found.index, trf=trf))
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
    )


def _notes(unseen: Sequence[str], wrt: str) -> tuple[str, ...]:
    if not unseen:
        return ()
    some = ", ".join(unseen[:3]) + (", ..." if len(unseen) > 3 else "")
    count = "1 layer does" if len(unseen) == 1 else f"{len(unseen)} layers do"
    return (f"{count} not depend on {'the image' if wrt == IMAGE else wrt}, so there is no row for {some}",)
