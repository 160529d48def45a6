"""From a model and a request to what can be measured: a loaded model, and a feed of images."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from erfscope.adapters import ModuleAdapter, split_label
from erfscope.adapters.requested import Model, name_of, open_adapter
from erfscope.adapters.sources.kinds import kind_of
from erfscope.adapters.weights.checkpoint_files import Saved
from erfscope.adapters.weights.weights import NO_NUMBERS, sha256
from erfscope.adapters.zero_branches import zero_branches
from erfscope.core.images import open_arrays, open_pictures
from erfscope.core.images import synthetic as draw
from erfscope.core.images.decode import read_picture
from erfscope.core.images.feed import Images, PictureImages, TensorImages
from erfscope.core.images.files import EVERY, by_input, image_files, paired_files, suffixes_of
from erfscope.core.images.several import SeveralImages
from erfscope.core.images.stored import is_values
from erfscope.core.images.values import open_values
from erfscope.core.request.request import Request
from erfscope.core.request.settings import SAMPLES, SEED_LIMIT, UNTIL_SE_LIMIT, Options
from erfscope.core.run.blocks import variant_of
from erfscope.core.run.engine.model import OpenModel
from erfscope.core.system.progress import stage
from erfscope.core.system.restore import restored
from erfscope.core.values.axes import TOKENS
from erfscope.core.values.errors import ErfscopeError, MeasurementError
from erfscope.core.values.model_facts import Preprocess
from erfscope.core.values.names import input_name
from erfscope.core.values.printable import one_line


def load_model(
    model: Model | Saved, request: Request, *, size: tuple[int, ...] | None, weights: str, label: str | None = None
) -> OpenModel:
    """A model on the device and in the dtype asked for, at one input size."""
    request = request.of_model(label)
    if isinstance(model, Saved):
        request = replace(request, building={**request.building, "checkpoint": model.file})
        model = model.spec
    with stage(request.progress, f"loading {one_line(label or request.label or name_of(model))}"):
        adapter, name = open_adapter(model, request, size=size, weights=weights)
    return OpenModel(
        adapter=adapter,
        label=one_line(label or request.label or name),
        weights_findings=lambda: zero_branches(adapter.module, adapter.weights),
        progress=request.progress,
    )


def open_model(
    model: Model,
    request: Request | None = None,
    *,
    with_numbers: bool = True,
    falls_back: bool = True,
    **options: Unpack[Options],
) -> OpenModel:
    """Open a model at one input size, with the blocks and edits that are asked for.

    A context manager in which the model may be run: a live module is lent, and handed back as found (training flags,
    buffers, hooks, gradients, random states, TF32), also after an exception. It can be entered again.

    Args:
        model: As for :func:`erfscope.analyze`: a spec, an adapter, a live module or an exported program.
        request: The options; with those that follow in the place of its own.
        with_numbers: Whether its weights matter: without, it is built without memory for them where it can be, to
            read what its structure says. The images that a request names by paths are read before a spec with them is
            opened: a broken one costs no model.
        falls_back: Whether random weights stand in, with a warning, for pretrained ones that cannot be had.
        **options: Those of :func:`erfscope.analyze` that say how a model is built, and of which weights.

    Raises:
        ErfscopeError: unknown model or option, several sizes or weights, weights that cannot be had or of a model that
            has its own, or an image that cannot be read.
        MeasurementError: it cannot be built.
    """
    asked = Request.parse(options) if request is None else request.with_options(**options) if options else request
    (weights, *others), (size, *sizes) = asked.weights, asked.sizes
    if with_numbers and (others or sizes):
        raise ErfscopeError("a model is opened at one input size with one kind of weights; give one of each")
    lent = caller_modules(model)
    if with_numbers:
        asked.refuse_weights(model)
        if not lent:
            check_images(asked)
    with restored(*lent), torch.inference_mode(False):
        if with_numbers:
            if weights == "auto" and not falls_back and not _has_own_weights(model, asked):
                weights = "pretrained"
            # The record of an adapter's weights is kept up to date here; the caller's own adapter stays as it is.
            own = copy.copy(model) if isinstance(model, ModuleAdapter) else model
            opened = variant_of(load_model(own, asked, size=size, weights=weights), asked)
        else:
            opened = load_structure(model, asked)
    return replace(opened, lent=tuple(lent), request=asked, has_numbers=with_numbers)


def _has_own_weights(model: Model, request: Request) -> bool:
    """Whether a model comes with weights: those of a checkpoint, or as a factory made them."""
    is_made = isinstance(model, str) and kind_of(split_label(model)[1]).runs_code
    return is_made or request.building.get("checkpoint") is not None


#: So many images are read before the model is loaded: a broken one costs no model, and many cost little time.
READ_FIRST = 50


def check_images(request: Request) -> None:
    """Read the first images that a request names by paths, unless broken ones are passed over, or are another shard's.
    Volumes and sound wait for the model, whose input says how they are read.

    Raises:
        ErfscopeError: no such file, or one that is no image.
    """
    settings, images = request.settings, by_input(request.images)
    if settings.keep_going or settings.shard is not None:
        return
    each = images.values() if isinstance(images, Mapping) else [images]
    files = [
        file
        for paths in each
        if are_paths(paths)
        for file in _pictures(paths, settings.samples, settings.seed)[:READ_FIRST]
        if not is_values(file)
    ]
    if not files:
        return
    for done, file in enumerate(files):
        request.progress("reading images", done, len(files))
        read_picture(file, channels=3)
    request.progress("reading images", len(files), len(files))


def _pictures(paths: Any, samples: int | None, seed: int) -> list[Path]:
    """The pictures that paths name; none where these hold volumes or sound alone."""
    try:
        return image_files(paths, samples=samples, seed=seed)
    except ErfscopeError:
        with contextlib.suppress(ErfscopeError):
            image_files(paths, samples=samples, seed=seed, suffixes=EVERY)
            return []
        raise


def caller_modules(*models: object) -> list[nn.Module]:
    """The modules of those models that are the caller's own: live ones, what :func:`erfscope.wrap` made of them, and
    those of open models."""
    found: list[nn.Module] = []
    for model in models:
        if isinstance(model, OpenModel):
            found += model.lent
        elif isinstance(model, nn.Module | ModuleAdapter):
            found.append(model.module if isinstance(model, ModuleAdapter) else model)
    return found


def reopened(model: OpenModel, request: Request) -> OpenModel:
    """An open model for another request, with the record of its weights as they are: those of the caller's module may
    have changed.

    Raises:
        ErfscopeError: the request asks for another model than it was opened as, or it was opened without numbers.
    """
    if not model.has_numbers:
        raise ErfscopeError(f"{model.label} is open without numbers, to read its structure; open it with them")
    if model.request is not None:
        was, now = model.request.opening(), request.opening()
        for name in was | now:
            drawn = name != "seed" or model.weights.seed is not None or model.insert
            if drawn and repr(was.get(name)) != repr(now.get(name)):
                raise ErfscopeError(
                    f"{model.label} is open with {name}={was.get(name)!r}, and the request asks for {now.get(name)!r};"
                    " open it with that request"
                )
    if model.lent:
        model.adapter.weights = replace(model.adapter.weights, sha256=sha256(model.adapter.module))
    return model


def open_images(request: Request, model: OpenModel) -> Images:
    """The images that a request names, cropped and normalised for a model; of several inputs those of each.

    Raises:
        ErfscopeError: no such file, an unreadable image, an unknown kind, or images for other inputs than there are.
    """
    return feed_of(request, model.adapter.preprocess)


def feed_of(request: Request, preprocess: Preprocess) -> Images:
    """The images that a request names, cropped and normalised for one model; of several inputs those of each.

    Raises:
        ErfscopeError: no such file, an unreadable image, an unknown kind, or images for other inputs than there are.
    """
    images, settings = by_input(request.images), request.settings
    if not preprocess.parts:
        if isinstance(images, Mapping):
            raise ErfscopeError(
                f"images were given for {', '.join(map(str, images))}, and the model takes one: leave NAME= out"
            )
        return _feed_of(request, images, preprocess, settings.seed)
    names = [input_name(name) for name in preprocess.parts]
    if images is not None and not (isinstance(images, Mapping) and {*images} == {*names}):
        given = ", ".join(map(str, images)) if isinstance(images, Mapping) else "no name"
        raise ErfscopeError(
            f"the model takes {', '.join(names)}, and images were given for {given}: give some for each, as in"
            f" images='{names[0]}=PATH' (--image {names[0]}=PATH)"
        )
    own = dict(images or dict.fromkeys(names))
    if any(map(are_paths, own.values())):
        limit = settings.samples if settings.until_se is None else settings.samples or UNTIL_SE_LIMIT
        paths = {name: each for name, each in own.items() if are_paths(each)}
        axes = {short: part.axes for short, part in zip(names, preprocess.parts.values(), strict=True)}
        suffixes = {name: suffixes_of(axes[name]) for name in paths}
        own |= paired_files(paths, samples=limit, seed=settings.seed, suffixes=suffixes)
    feeds = {
        # Synthetic images are others for each: what differs between inputs would vanish else.
        name: _feed_of(request, own[short], part, (settings.seed + number) % SEED_LIMIT)
        for number, (short, (name, part)) in enumerate(zip(names, preprocess.parts.items(), strict=True))
    }
    return SeveralImages(feeds, preprocess)


def _feed_of(request: Request, images: Any, preprocess: Preprocess, seed: int) -> Images:
    """The images of one input."""
    samples = request.settings.samples
    if isinstance(images, Tensor):
        if preprocess.axes.cell == TOKENS and images.dtype == torch.long:
            images = images[:, None].to(torch.float64)
        feed = TensorImages(images if samples is None else images[:samples])
        wanted, found = (preprocess.channels, *preprocess.size), tuple(images.shape[1:])
        if found != wanted:
            raise ErfscopeError(
                f"a ready tensor is used as it is: it holds inputs of {found}, and the model is set up for {wanted}"
            )
        return feed
    limit = samples if request.settings.until_se is None else samples or UNTIL_SE_LIMIT
    if images is None:
        kind = request.synthetic or "leaves"
        shape: Any = {"size": preprocess.size, "channels": preprocess.channels, "noun": preprocess.axes.noun}
        stimuli = draw(kind, samples=limit or SAMPLES, seed=seed, **shape)
    elif are_paths(images):
        paths = [images] if isinstance(images, str | Path) else list(images)
        values = open_values(paths, samples=limit, seed=seed, preprocess=preprocess)
        if values is not None:
            return values
        stimuli = open_pictures(
            paths,
            samples=limit,
            seed=seed,
            crop=preprocess.crop,
            channels=preprocess.channels,
            suffixes=suffixes_of(preprocess.axes),
        )
    else:
        is_many = isinstance(images, list | tuple) or getattr(images, "ndim", 0) == 4
        chosen = images[:samples] if is_many and samples is not None else images
        stimuli = open_arrays(chosen, crop=preprocess.crop, channels=preprocess.channels)
    if stimuli.n == 1:
        # It is shown again and again, and read once.
        stimuli = replace(stimuli, draw=cache(stimuli.draw))
    return PictureImages(stimuli, preprocess.normalise, pixelwise=preprocess.pixelwise)


def are_paths(images: Any) -> bool:
    """Whether images are given by paths."""
    if isinstance(images, str | Path):
        return True
    return isinstance(images, list | tuple) and len(images) > 0 and all(isinstance(item, str | Path) for item in images)


def load_structure(model: Model, request: Request, *, has_numbers: bool = False) -> OpenModel:
    """A model whose weights do not matter, with the blocks that are inserted: on the meta device where it can be built
    there, unless it is to have numbers, such as those of masks.

    Raises:
        ErfscopeError: unknown model or option.
    """
    size, *more = request.sizes
    if more:
        raise ErfscopeError(
            f"a theoretical receptive field (TRF) is found at one input size, not {1 + len(more)}; give one"
        )
    if isinstance(model, str) and request.building.get("checkpoint") is None and not has_numbers:
        loaded = load_model(model, request, size=size, weights=NO_NUMBERS)
        # A data-dependent model cannot run on the meta device; a factory's has them.
        if loaded.adapter.weights.source != NO_NUMBERS or _runs(loaded):
            return variant_of(loaded, request)
    return variant_of(load_model(model, request, size=size, weights="random-raw"), request)


def _runs(loaded: OpenModel) -> bool:
    try:
        return bool(loaded.recording.layers)
    except MeasurementError:
        return False
