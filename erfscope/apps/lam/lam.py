"""Local attribution maps of models that restore images: ``lam``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from erfscope.apps.lam.attribution import MAPS, BlurPath, LamWindow, attribute
from erfscope.apps.lam.inputs import LamInput, arrays_of, inputs_of
from erfscope.apps.lam.maps import Lam, joined, read
from erfscope.apps.lam.records import LamMap
from erfscope.apps.lam.sizes import sizes
from erfscope.apps.lam.windows import SIZE, place_of, refuse_no_image, windows_of
from erfscope.core import (
    OUTPUT,
    ErfscopeError,
    MeasurementError,
    Model,
    OpenModel,
    Request,
    Site,
    named_models,
    open_model,
    unknown,
)
from erfscope.show import size_text

#: Options that a local attribution map takes: how a model is built, and of which weights; which images; how it is run.
TAKEN = {
    *("weights", "checkpoint", "unsafe_load", "model_kwargs", "input_size", "in_chans", "label", "transform"),
    *("mean", "std", "axes", "spacing", "unit_name", "fps", "sample_rate", "layout", "prefix_tokens", "insert"),
    *("synthetic", "samples", "seed", "squash", "device", "dtype", "batch_size", "layer"),
}
#: What stands behind the label of a model whose weights were shuffled.
SHUFFLED = ", shuffled"


def lam(
    models: Model | Sequence[Model] | Mapping[str, Model],
    images: Any = None,
    window: Any = "centre",
    *,
    window_size: int = SIZE,
    hr: Any = None,
    scale: int | None = None,
    null: bool = False,
    path: BlurPath | Mapping[str, Any] | None = None,
    tolerance: float | None = None,
    **options: Any,
) -> Lam:
    """Local attribution maps (LAM): where the input gives a window of a restored image its edges.

    Args:
        models: As for :func:`erfscope.compare`: one, several, or by their labels. All return images of one size. Of
            several, .json files of stored maps stand before those that are measured now.
        images: Pictures (files, folders, uint8 arrays) at their own size; tensors, floating arrays and .npy files
            (C, *space), which are used as they are; volumes and bands of other files with ``input_size``. Pictures go
            in from 0 to 1, unless the model or ``mean`` and ``std`` state a normalisation.
        window: ``"r,c,size"`` in pixels of the output, ``"centre"``, ``"grid:N"``, ``"texture:K"``, or several.
        window_size: Side of windows that are named without one.
        hr: What each picture should be restored to, for the figure; without images what these are made of.
        scale: By how much ``hr`` is made smaller where there are no images.
        null: Whether each model is measured again with its weights shuffled inside of each tensor.
        path: ``steps``, ``sigma``, ``kernel``, ``gradient_at`` ("end", "start", "middle") and ``map_of`` ("sum",
            "channels", "root") of the path, where they are not the demo's.
        tolerance: By which share of the first model's the DI and r90 of each other may differ: see
            :meth:`Lam.verdicts`.
        **options: Those of :func:`erfscope.analyze` that say how a model is built and run.

    Returns:
        A map for each model, image and window; it prints, draws and saves itself.

    Raises:
        ErfscopeError: unknown model or option, an image that does not fit, or a window outside the output.
        MeasurementError: a model fails, or returns no image.

    Source: Gu and Dong 2021, arXiv:2011.11036, and their demo.
    """
    for name in options:
        if name not in TAKEN:
            raise unknown("option", name, sorted(TAKEN), where="lam", limit=len(TAKEN))
    path = path if isinstance(path, BlurPath) else BlurPath(**(path or {}))
    several: Any = models if isinstance(models, Mapping | list | tuple) else [models]
    kept = [] if isinstance(several, Mapping) else [read(each) for each in several if is_stored(each)]
    live = [each for each in several if not is_stored(each)] if kept else several
    if kept and not live:
        if images is not None or hr is not None or null:
            raise ErfscopeError("stored maps are compared as they are: leave out images and --null, or name a model")
        return joined(kept, tolerance)
    entries, own = named_models(live, options)
    request, maps, agreed = Request.parse(own), list[LamMap](), dict[int, Any]()
    for label, model in entries:
        asked = request.of_model(label)
        arrays = arrays_of(images)
        if arrays and arrays[0].ndim == 5 and asked.sizes == (None,):
            asked = asked.with_options(input_size=[tuple(arrays[0].shape[2:])])
        with open_model(model, asked) as opened:
            inputs = list(inputs_of(opened, images, asked, hr, scale))
            ask = partial(_maps_of, opened, inputs, asked=asked, path=path, words=(window, window_size), agreed=agreed)
            maps += ask(label)
            if null:
                with shuffled(opened.module, asked.settings.seed):
                    maps += ask(label + SHUFFLED)
    return joined([*kept, Lam(maps=maps, path=path)], tolerance)


def is_stored(model: Any) -> bool:
    """Whether a model is named by a file of stored maps."""
    return isinstance(model, str | Path) and Path(model).suffix == ".json"


def _maps_of(
    model: OpenModel,
    inputs: Sequence[LamInput],
    label: str,
    *,
    asked: Request,
    path: BlurPath,
    words: tuple[Any, int],
    agreed: dict[int, tuple[tuple[int, ...], list[LamWindow]]],
) -> Iterator[LamMap]:
    """The maps of one model: of each image each window. ``agreed`` holds what models share, the output's size and the
    windows, by the number of the image.

    Raises:
        ErfscopeError: a window outside the output, or an output of another size than the model before it gave.
    """
    sites: dict[tuple[int, ...], tuple[OpenModel, Site]] = {}
    for number, given in enumerate(inputs):
        x, shape = given.values, tuple(given.values.shape)
        if shape not in sites:
            sites[shape] = _site(model, label, shape, asked.layers[0] or OUTPUT)
        sized, site = sites[shape]
        if number not in agreed:
            agreed[number] = site.space, windows_of(words[0], site.space, x, words[1])
        (space, windows), target = agreed[number], given.target
        for name, other in (
            ("the model before it", space),
            ("hr (--hr)", space if target is None else target.shape[1:]),
        ):
            if other != site.space:
                text = f"returns {size_text(site.space)} pixels for {given.name}, and {name} has {size_text(other)}"
                raise ErfscopeError(f"{text}: give models of one scale, and images that fit", model=label)
        found = attribute(sized, site, x, windows, path, batch_size=asked.settings.batch_size)
        for window, each in zip(windows, found, strict=True):
            place, values = place_of(site, window), MAPS[path.map_of](each.signed).numpy()
            numbers = sizes(values, place.centre, sized.adapter.preprocess.axes)
            yield LamMap(
                model=label,
                image=given.name,
                window=(*window.start, window.size),
                **numbers,
                trf=place.size_text,
                values=values,
                place=place,
                completeness=each.completeness,
                picture=x.numpy(),
                restored=each.restored.numpy(),
                target=None if target is None else window.of(target),
                note=given.note,
                is_random=model.weights.source == "random",
            )


def _site(model: OpenModel, label: str, shape: tuple[int, ...], layer: str) -> tuple[OpenModel, Site]:
    """A model for inputs of a shape (C, *space), and what it returns.

    Raises:
        MeasurementError: it takes several inputs, or returns no image.
    """
    if len(model.inputs) > 1:
        text = f"takes several inputs, {', '.join(model.inputs)}; let erfscope.wrap(model, forward=...) take one"
        raise MeasurementError(text, model=label)
    adapter: Any = model.adapter
    if shape != (adapter.preprocess.channels, *adapter.preprocess.size):
        model = replace(model, adapter=adapter.at_size(shape[1:], shape[0]))
    try:
        site = model.site(layer)
    except MeasurementError as error:
        found = error.reason.partition(": ")[0]
        raise MeasurementError(
            f"returns no image: {found}; name an output with layer= (--layer)", model=label
        ) from error
    refuse_no_image(site, label)
    return model, site


@contextmanager
def shuffled(module: nn.Module, seed: int) -> Iterator[None]:
    """Within it the numbers of each parameter are in another order; afterwards they are as they were."""
    generator = torch.Generator().manual_seed(seed)
    kept = [(each, each.detach().clone()) for each in module.parameters()]
    try:
        with torch.no_grad():
            for parameter, values in kept:
                order = torch.randperm(values.numel(), generator=generator).to(values.device)
                parameter.copy_(values.flatten()[order].reshape(values.shape))
        yield
    finally:
        with torch.no_grad():
            for parameter, values in kept:
                parameter.copy_(values)
