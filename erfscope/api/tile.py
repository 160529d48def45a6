"""Tiles of models, from Python and for files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Unpack, cast

import torch

from erfscope.adapters import ModuleAdapter
from erfscope.adapters.requested import Model
from erfscope.adapters.weights.checkpoint_files import Saved
from erfscope.engine.model import LoadedModel
from erfscope.engine.outcome import failed
from erfscope.errors import ErfscopeError, unknown
from erfscope.geometry.input_size import Size
from erfscope.geometry.names import IMAGE, ONE_INPUT
from erfscope.graph.graph import name_of
from erfscope.options.option import Building
from erfscope.options.request import Request
from erfscope.options.settings import Options, lists_options
from erfscope.restore import restored
from erfscope.results.result import Halo, Result
from erfscope.run.blocks import variant_of
from erfscope.run.models import caller_modules, load_model, load_structure
from erfscope.tiling import TilePlan, find_plan
from erfscope.tiling.files import run_file
from erfscope.view import words


@torch.inference_mode(False)
@lists_options
def tile(
    model: Model,
    tile: Size = 256,
    *,
    layer: str | None = None,
    image_size: Size | None = None,
    wrt: str = IMAGE,
    **options: Unpack[Building],
) -> TilePlan:
    """How a model is run on tiles of a large image: the exact overlap (halo) that they need, or why there is none.

    The model is taken in evaluation mode, as :func:`erfscope.analyze` measures it, and handed back as found. The halo
    is that of every unit's theoretical receptive field, from forward passes without numbers (shapes only).

    Args:
        model: As for :func:`erfscope.analyze`.
        tile: Side of the part of the output that each tile gives, in input cells: a number, or one for each axis. It is
            rounded up to what the model's strides allow.
        layer: The layer whose map is put together; what the model returns if None.
        image_size: Size of the images, or of one that leaves the same when divided by the total stride; the model's
            own size if None.
        wrt: Of several inputs the one that is cut, ``"input:NAME"``: sizes are in its pixels, and the others grow with
            it.
        **options: Those that build the model, such as ``input_size``.

    Returns:
        The plan, for :func:`erfscope.run_tiled`; ``possible`` is False where tiles differ from the whole image.

    Raises:
        ErfscopeError: unknown model, option or layer, a size with another number of axes, or several inputs of which
            none is named.
        MeasurementError: the model fails, or returns no map.
    """
    plan, *others = plans_of(model, Request.parse(options), tile=tile, layer=layer, image_size=image_size, wrt=wrt)
    if others:
        raise ErfscopeError(f"{plan.model} takes several inputs, and a plan is of one: wrt={plan.wrt!r}, say")
    return plan


def plans_of(
    model: Model,
    request: Request,
    *,
    tile: Size = 256,
    layer: str | None = None,
    image_size: Size | None = None,
    wrt: str = IMAGE,
) -> list[TilePlan]:
    """The same, of a model that a request builds: a plan for each of several inputs that the layer depends on, where
    none is named."""

    def opened(size: tuple[int, ...] | None) -> LoadedModel:
        own = request if size is None else replace(request, sizes=(size,))
        sized = model.at_size(size) if isinstance(model, ModuleAdapter) and size is not None else model
        loaded = load_structure(sized, own)
        # The masks of shifted windows are known by their numbers.
        is_rolled = isinstance(model, str) and any(name_of(node) == "roll" for node in loaded.recording.graph.live)
        return load_structure(model, own, has_numbers=True) if is_rolled else loaded

    with restored(*caller_modules(model)):
        first = opened(None)
        every = [*first.adapter.preprocess.parts]
        if wrt not in (IMAGE, *every):
            raise unknown("input", wrt, every or [IMAGE], where=first.label)

        def open_at(cut: str, size: tuple[int, ...] | None) -> LoadedModel:
            if size is None:
                return first
            return replace(first, adapter=first.adapter.at_size(size, wrt=cut)) if every else opened(size)

        cuts = [wrt] if wrt in every or not every else first.references(layer) if layer else every
        return [
            find_plan(partial(open_at, cut), tile=tile, layer=layer, image_size=image_size, wrt=cut) for cut in cuts
        ]


def halo_of(model: Model, request: Request, layer: str | None, wrt: str = IMAGE) -> Halo:
    """The halo of tiles with which they give a layer's map, or what makes them impossible.

    Args:
        model: As for :func:`erfscope.tile`.
        request: What builds the model.
        layer: The layer; what the model returns if None.
        wrt: The input that is cut, of several.

    Raises:
        ErfscopeError: as :func:`erfscope.tile`.
    """
    plan, *_ = plans_of(model, replace(request, alphas=(None,)), layer=layer, wrt=wrt)
    return Halo(px=plan.halo, alignment_px=plan.alignment, blockers=plan.blockers)


def with_halos(results: Sequence[Result], model: Model | Saved, request: Request) -> list[Result]:
    """The results of a model, with the halo of each one's layer."""

    @cache
    def found(layer: str, size: tuple[int, ...] | None, has_blocks: bool, wrt: str) -> Halo:
        own = replace(request, sizes=(size,), insert=request.insert if has_blocks else None)
        try:
            return halo_of(model.spec if isinstance(model, Saved) else model, own, layer, wrt)
        except ErfscopeError as error:
            return Halo(px=(), alignment_px=(), blockers=(error.reason,))

    def of(row: Result) -> Halo:
        is_one_of_several = row.wrt.startswith(ONE_INPUT)
        size, wrt = (None, row.wrt) if is_one_of_several else (row.input.size, IMAGE)
        return found(row.layer, size, row.insert is not None, wrt)

    return [row if row.status == "error" else replace(row, halo=of(row)) for row in results]


def tile_file(
    model: Model,
    plan: TilePlan,
    source: str | Path,
    target: str | Path,
    *,
    goes_on: bool = False,
    called: Callable[[int, int], None] | None = None,
    **options: Unpack[Options],
) -> None:
    """Run a model tile by tile on an image in a file, and write its output to another of its kind.

    The output stands in its place from the first tile on, with the count of tiles beside it until it is whole. One that
    was there before stays until then: the new one is called ``TARGET.part`` meanwhile.

    Args:
        model: As for :func:`erfscope.analyze`.
        plan: Its plan.
        source: (C, *space) or (B, C, *space) as the model takes it, in .npy; or one image in TIFF or zarr.
        target: The file that is written; one of that name is replaced.
        goes_on: Go on with the output of a run that was stopped.
        called: Called with the number of tiles done and of all.
        **options: Those of :func:`erfscope.analyze` that build the model, its weights and device.

    Raises:
        ErfscopeError: a file that cannot be read, an output that is the image, or as :func:`erfscope.run_tiled`.
        MeasurementError: the model fails.
    """
    request, opened = Request.parse(options), list[Result]()

    def open_model() -> ModuleAdapter:
        loaded = load_model(model, request, size=request.sizes[0], weights=request.weights[0])
        opened.append(failed(loaded, request.settings, None, ErfscopeError("nothing is measured")))
        return cast(ModuleAdapter, variant_of(loaded, request).adapter)

    with restored(*caller_modules(model)):
        run_file(open_model, plan, source, target, goes_on=goes_on, called=called)
    for row in opened:
        request.tell(f"{row.label}: {words.random_weights(row) or words.weights_condition(row).alone}")
