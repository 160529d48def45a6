"""What a model can be asked for: ``layers`` and ``theoretical``."""

from __future__ import annotations

from typing import Unpack

import torch

from erfscope.api.opening import Model, subject_of
from erfscope.layer_table import LayerTable, layer_table
from erfscope.options import Building, check, sizes
from erfscope.subject import Subject
from erfscope.trf.field import Trf
from erfscope.unit import UnitWord


@torch.inference_mode(False)
def layers(
    model: Model, *, layer: str | None = None, unit: UnitWord = "centre", wrt: str = "image", **options: Unpack[Building]
) -> LayerTable:
    """Every layer that can be asked for, in order of execution, without weights or a forward pass on real data.

    Args:
        model: As for :func:`analyze`.
        layer: Only this one.
        unit: The unit of each layer whose theoretical field is given.
        wrt: Reference of sizes and centres: "image", or a module's output ("NAME") or input ("NAME:in").
        **options: Those that build the model, such as ``input_size``.

    Raises:
        ErfscopeError: unknown model, layer or reference.
    """
    return layer_table(_bare(model, options), layer=layer, unit=unit, wrt=wrt)


@torch.inference_mode(False)
def theoretical(model: Model, layer: str | None = None, unit: UnitWord = "centre", wrt: str = "image", **options: Unpack[Building]) -> Trf:
    """The theoretical receptive field of one unit, from one forward pass without numbers.

    Arguments and errors are those of :func:`layers`; ``layer`` is the model's default layer if None.
    """
    subject = _bare(model, options)
    return layer_table(subject, layer=layer or subject.default_layer, unit=unit, wrt=wrt).rows[0].trf


def _bare(model: Model, options: Building) -> Subject:
    """A model whose weights do not matter."""
    check(options)
    return subject_of(model, {**options}, size=sizes(options.get("input_size"))[0], weights="random-raw")  # type: ignore[typeddict-item]
