"""The structure of a model: ``layers`` and ``theoretical``."""

from __future__ import annotations

import warnings
from typing import Unpack

import torch

from erfscope.adapters.weights.weights import NO_NUMBERS
from erfscope.api.blocks import with_blocks
from erfscope.api.models import Model, live, load_model
from erfscope.engine.layer_table import LayerTable, layer_table
from erfscope.engine.model import LoadedModel
from erfscope.errors import ErfscopeError, ErfWarning, MeasurementError
from erfscope.geometry.unit import Trf, UnitWord
from erfscope.options.keywords import Building, check, sizes
from erfscope.restore import restored


@torch.inference_mode(False)
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
    with restored(*live(model)):
        return layer_table(bare(model, options), layer=layer, unit=unit, wrt=wrt)


@torch.inference_mode(False)
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
    with restored(*live(model)):
        loaded = bare(model, options)
        table = layer_table(loaded, layer=layer or loaded.default_layer, unit=unit, wrt=wrt)
    if len(table.rows) != 1:
        raise ErfscopeError(
            f"{unit!r} are {len(table.rows)} units, and theoretical takes one; erfscope.layers gives the TRFs of"
            " several"
        )
    for note in table.notes:
        warnings.warn(note, ErfWarning, stacklevel=3)  # past inference_mode
    return table.rows[0].trf


def bare(model: Model, options: Building, *, has_numbers: bool = False) -> LoadedModel:
    """A model whose weights do not matter, with the blocks that are inserted: on the meta device where it can be built
    there, unless it is to have numbers, such as those of masks.

    Raises:
        ErfscopeError: unknown model or option.
    """
    loaded = _host(model, options, has_numbers=has_numbers)
    return next(iter(with_blocks(loaded, options)), loaded)


def _host(model: Model, options: Building, *, has_numbers: bool) -> LoadedModel:
    check(options)
    size, *more = sizes(options.get("input_size"))
    if more:
        raise ErfscopeError(
            f"a theoretical receptive field (TRF) is found at one input size, not {1 + len(more)}; give one"
        )
    if isinstance(model, str) and options.get("checkpoint") is None and not has_numbers:
        loaded = load_model(model, {**options}, size=size, weights=NO_NUMBERS)  # type: ignore[typeddict-item]
        # A data-dependent model cannot run on the meta device; a factory's has them.
        if loaded.adapter.weights.source != NO_NUMBERS or _runs(loaded):
            return loaded
    return load_model(model, {**options}, size=size, weights="random-raw")  # type: ignore[typeddict-item]


def _runs(loaded: LoadedModel) -> bool:
    try:
        return bool(loaded.recording.layers)
    except MeasurementError:
        return False
