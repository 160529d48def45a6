"""The halo of tiles with which they give a layer's map, of the models that a request builds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from erfscope.adapters import ModuleAdapter
from erfscope.adapters.requested import Model
from erfscope.adapters.weights.checkpoint_files import Saved
from erfscope.core.answer.result import Halo, Result
from erfscope.core.graph.graph import name_of
from erfscope.core.request.request import Request
from erfscope.core.run.engine.model import OpenModel
from erfscope.core.run.models import caller_modules, load_structure
from erfscope.core.run.tiling.find import find_plan
from erfscope.core.run.tiling.plan import Tiling
from erfscope.core.system.restore import restored
from erfscope.core.values.errors import ErfscopeError, unknown
from erfscope.core.values.input_size import Size
from erfscope.core.values.names import IMAGE, ONE_INPUT


def find_tilings(
    model: Model,
    request: Request,
    *,
    tile: Size = 256,
    layer: str | None = None,
    image_size: Size | None = None,
    wrt: str = IMAGE,
) -> list[Tiling]:
    """How a model is run on tiles of a large image, so that the output is that of the whole image; found in passes
    without numbers (shapes only). Live modules are handed back as found.

    Args:
        model: As for :func:`erfscope.analyze`.
        request: What builds it.
        tile: Side of the part of the output that each tile gives, in input cells: a number, or one for each axis. It is
            rounded up to what the model's strides allow.
        layer: The layer whose map is put together; what the model returns if None.
        image_size: Size of the images, or of one that leaves the same when divided by the total stride; the model's
            own size if None.
        wrt: Of several inputs the one that is cut, ``"input:NAME"``.

    Returns:
        One; of a model that takes several inputs, of which ``wrt`` names none, one for each that the layer depends on.

    Raises:
        ErfscopeError: unknown model, option, layer or input, or a size with another number of axes.
        MeasurementError: the model fails, or returns no map.
    """

    def opened(size: tuple[int, ...] | None) -> OpenModel:
        own = request if size is None else replace(request, sizes=(size,))
        sized = model.at_size(size) if isinstance(model, ModuleAdapter) and size is not None else model
        loaded = load_structure(sized, own)
        # The masks of shifted windows are known by their numbers.
        is_rolled = isinstance(model, str) and any(name_of(node) == "roll" for node in loaded.recording.graph.live)
        return load_structure(model, own, has_numbers=True) if is_rolled else loaded

    with restored(*caller_modules(model)), torch.inference_mode(False):
        first = opened(None)
        every = [*first.adapter.preprocess.parts]
        if wrt not in (IMAGE, *every):
            raise unknown("input", wrt, every or [IMAGE], where=first.label)

        def open_at(cut: str, size: tuple[int, ...] | None) -> OpenModel:
            if size is None:
                return first
            return replace(first, adapter=first.adapter.at_size(size, wrt=cut)) if every else opened(size)

        cuts = [wrt] if wrt in every or not every else first.references(layer) if layer else every
        return [
            find_plan(partial(open_at, cut), tile=tile, layer=layer, image_size=image_size, wrt=cut) for cut in cuts
        ]


def halo_of(model: Model, request: Request) -> Halo:
    """The halo of tiles with which they give a layer's map, or what makes them impossible.

    Args:
        model: As for :func:`find_tilings`.
        request: What builds the model; its layer, of none what the model returns, and its reference, of several inputs
            the one that is cut.

    Raises:
        ErfscopeError: as :func:`erfscope.tile`.
    """
    own = replace(request, alphas=(None,))
    plan, *_ = find_tilings(model, own, layer=request.layers[0], wrt=request.references[0])
    return Halo(px=plan.halo, alignment_px=plan.alignment, blockers=plan.blockers)


def with_halos(results: Sequence[Result], model: Model | Saved, request: Request) -> list[Result]:
    """The results of a model, with the halo of each one's layer."""
    found = dict[tuple[object, ...], Halo]()

    def of(row: Result) -> Halo:
        is_one_of_several = row.wrt.startswith(ONE_INPUT)
        size, wrt = (None, row.wrt) if is_one_of_several else (row.input.size, IMAGE)
        key = (row.layer, size, row.insert is not None, wrt)
        if key not in found:
            insert = None if row.insert is None else request.insert
            own = replace(request, layers=(row.layer,), sizes=(size,), insert=insert, references=(wrt,))
            try:
                found[key] = halo_of(model.spec if isinstance(model, Saved) else model, own)
            except ErfscopeError as error:
                found[key] = Halo(px=(), alignment_px=(), blockers=(error.reason,))
        return found[key]

    return [row if row.status == "error" else replace(row, halo=of(row)) for row in results]
