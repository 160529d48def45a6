"""What a model is by its structure alone: ``layers`` and ``theoretical``."""

from __future__ import annotations

import warnings
from typing import Unpack

import torch

from erfscope.adapters.requested import Model
from erfscope.core.answer.layers import LayerTable
from erfscope.core.request.option import Building
from erfscope.core.request.request import Request
from erfscope.core.request.settings import lists_options
from erfscope.core.run.engine.layer_table import layer_table
from erfscope.core.run.models import caller_modules, load_structure
from erfscope.core.system.restore import restored
from erfscope.core.values.errors import ErfscopeError, ErfWarning
from erfscope.core.values.unit import Trf, UnitWord
from erfscope.core.values.unit_kind import kind_of


@torch.inference_mode(False)
@lists_options
def layers(
    model: Model,
    *,
    layer: str | None = None,
    unit: UnitWord = "centre",
    wrt: str = "image",
    **options: Unpack[Building],
) -> LayerTable:
    """Every layer that can be asked for, in order of execution, without weights or a forward pass on real data.

    Args:
        model: As for :func:`erfscope.analyze`.
        layer: Only this one.
        unit: The units of each layer whose theoretical receptive fields are given, one row each.
        wrt: Reference of sizes and centres: "image", or a module's output ("NAME") or input ("NAME:in").
        **options: Those that build the model, such as ``input_size``.

    Raises:
        ErfscopeError: unknown model, layer or reference.
    """
    with restored(*caller_modules(model)):
        return layer_table(load_structure(model, Request.parse(options)), layer=layer, unit=unit, wrt=wrt)


@torch.inference_mode(False)
@lists_options
def theoretical(
    model: Model, layer: str | None = None, unit: UnitWord = "centre", wrt: str = "image", **options: Unpack[Building]
) -> Trf:
    """The theoretical receptive field (TRF) of one unit, from one forward pass without numbers (shapes only).

    Args:
        model: As for :func:`erfscope.analyze`: a spec, an adapter, or a live module in any state, which is left as it
            is.
        layer: The layer; the model's default layer if None.
        unit: The unit: "centre", "corner", "edge" or its index.
        wrt: Reference of sizes and centres: "image", or a module's output ("NAME") or input ("NAME:in").
        **options: Those that build the model, such as ``input_size``.

    Returns:
        The TRF in cells of the reference: pixels where that is the image.

    Raises:
        ErfscopeError: unknown model, layer or reference, a layer that does not depend on the reference, or not exactly
            one unit in its map.
        MeasurementError: the layer has no spatial map, or the model fails.
    """
    with restored(*caller_modules(model)):
        loaded = load_structure(model, Request.parse(options))
        table = layer_table(loaded, layer=layer or loaded.default_layer_of(kind_of(unit)[0]), unit=unit, wrt=wrt)
    if len(several := list(dict.fromkeys(row.wrt for row in table.rows))) > 1:
        raise ErfscopeError(f"{table.model} takes several inputs, and theoretical takes one: wrt={several[0]!r}, say")
    if len(table.rows) != 1:
        raise ErfscopeError(
            f"{unit!r} are {len(table.rows)} units, and theoretical takes one; erfscope.layers gives the TRFs of"
            " several"
        )
    for note in table.notes:
        warnings.warn(note, ErfWarning, stacklevel=3)  # past inference_mode
    return table.rows[0].trf
