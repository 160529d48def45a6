"""From a model and options to what can be measured: a loaded model on its device, and a feed of images."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL.Image import Image, Resampling
from torch import Tensor, nn
from torch.export import ExportedProgram

from erfscope.adapter import Preprocess
from erfscope.adapters import ModuleAdapter, load, split_label, wrap
from erfscope.adapters.weights.weights import NO_NUMBERS
from erfscope.adapters.zero_branches import zero_branches
from erfscope.engine.model import LoadedModel
from erfscope.errors import ErfscopeError, unknown
from erfscope.model_errors import WITHOUT_CHANNELS, first_line
from erfscope.options.keywords import MODEL, Options, is_size
from erfscope.options.settings import OPTIONS, SAMPLES, UNTIL_SE_LIMIT
from erfscope.printable import one_line
from erfscope.restore import default_dtype
from erfscope.stimuli import open_arrays, open_images
from erfscope.stimuli import synthetic as draw
from erfscope.stimuli.feed import Feed, PictureFeed, TensorFeed

Model = str | nn.Module | ExportedProgram | ModuleAdapter


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A model whose weights are one of several checkpoint files."""

    spec: str
    file: Path
    #: Of the training, where the file's name tells.
    step: int | None = None


DEVICES = OPTIONS["device"].option.words


def load_model(
    model: Model | Saved, options: Options, *, size: tuple[int, ...] | None, weights: str, label: str | None = None
) -> LoadedModel:
    """A model on the device and in the dtype asked for, at one input size."""
    if isinstance(model, Saved):
        return load_model(model.spec, {**options, "checkpoint": model.file}, size=size, weights=weights, label=label)
    given = {
        name: value for name, value in options.items() if name in MODEL and (name, value) != ("unsafe_load", False)
    }
    images = options.get("images")
    if isinstance(images, Tensor) and images.dim() < 3:
        raise ErfscopeError(
            f"images is a tensor of shape {tuple(images.shape)}, and a ready tensor is (B, C, *space), with a channel"
            f" axis: give images[:, None]; {WITHOUT_CHANNELS}"
        )
    if isinstance(images, Tensor) and size is None:
        size = tuple(images.shape[2:])
        if not isinstance(model, ModuleAdapter):
            given.setdefault("in_chans", images.shape[1])
    name = label or options.get("label")
    if isinstance(model, str):
        found, spec = split_label(model)
        layer = options.get("layer")
        named = layer if isinstance(layer, str) and layer != "stages" and "," not in layer else None
        adapter = load(spec, weights=weights, seed=options.get("seed", 0), input_size=size, layer=named, **given)  # type: ignore[arg-type]
        name = name or found
    elif isinstance(model, ModuleAdapter):
        adapter = model
        for option, value in given.items():
            if value is not None:
                raise ErfscopeError(
                    f"{option} is for models that erfscope builds or wraps; this adapter is made already"
                )
        if size is not None and not is_size(size, model.preprocess.size):
            raise ErfscopeError(
                f"this adapter was made for inputs of {model.preprocess.size}, not {size}; give input_size to"
                " erfscope.wrap"
            )
    elif not isinstance(model, nn.Module | ExportedProgram):
        raise ErfscopeError(
            "a model is a spec, an nn.Module, an exported program or what erfscope.wrap makes of a module, not"
            f" {type(model).__name__}{_other_object(model)}"
        )
    else:
        for option in ("checkpoint", "model_kwargs", "unsafe_load"):
            if given.pop(option, None) is not None:
                raise ErfscopeError(
                    f"{option} is for models that erfscope builds; a live module has its weights already"
                )
        adapter = wrap(model, input_size=size, **given)  # type: ignore[arg-type]
    owned = isinstance(model, str)
    device = _device(options.get("device", "auto"), adapter if not owned else None)
    dtype = getattr(torch, options.get("dtype", "float32")) if owned or "dtype" in options else None
    if adapter.weights.source == NO_NUMBERS:
        device = None
    # The caller holds an adapter that was given, so its module stays as it is.
    adapter = adapter.to(device=device, dtype=dtype, copied=not owned)
    if options.get("squash"):
        adapter = copy.copy(adapter)
        adapter.preprocess = _squashing(adapter.preprocess)
    loaded = LoadedModel(
        adapter=adapter,
        label=one_line(name or adapter.spec),
        weights_findings=lambda: zero_branches(adapter.module, adapter.weights),
    )
    return _in_default_dtype(loaded) if dtype == torch.float64 else loaded


def _other_object(model: object) -> str:
    """What to do with an object that is no model."""
    if isinstance(model, type):
        return f"; {model.__name__} is a class: give what calling it makes"
    if isinstance(model, Mapping):
        return "; load a state_dict into the module that it is of, and give that"
    if callable(model):
        return "; give the module that it calls: erfscope.wrap(module, forward=lambda m, x: ...)"
    return ""


def _squashing(preprocess: Preprocess) -> Preprocess:
    """The same preprocessing, but for a resize that cuts nothing off.

    Raises:
        ErfscopeError: the model has no image of two axes, or a transform of its own makes the whole input.
    """
    if len(preprocess.size) < 2 or not preprocess.pixelwise:
        raise ErfscopeError("squash resizes images, and this model's input is made by its own transform; leave it out")
    height, width = preprocess.size[-2:]

    def resize(picture: Image) -> NDArray[np.uint8]:
        return np.asarray(picture.resize((width, height), Resampling.BICUBIC))

    return replace(preprocess, crop=resize, resize_text=f"bicubic resize, whole, to {height}x{width}")


def refuse_weights(model: Model, options: Options) -> None:
    """Refuse weights by name for a model that is no spec.

    Raises:
        ErfscopeError: the model is there already, with its weights.
    """
    if not isinstance(model, str) and options.get("weights", "auto") != "auto":
        raise ErfscopeError(
            "weights is for models that erfscope builds; a live module or an adapter has its weights already"
        )


def _in_default_dtype(loaded: LoadedModel) -> LoadedModel:
    """A model that was put into float64 and cannot run, with float64 as the type of the tensors that it makes without
    naming one.

    The model as it was where it can run so, or cannot either way.
    """
    try:
        loaded.recording  # noqa: B018
    except ErfscopeError:
        adapter: Any = copy.copy(loaded.adapter)
        plain = adapter.forward

        def forward(module: nn.Module, x: Tensor) -> Any:
            with default_dtype(torch.float64):
                return plain(module, x)

        adapter.forward = forward
        adapter.notes = (
            *adapter.notes,
            "float64 is also the type of the tensors that its forward makes without naming one",
        )
        other = replace(loaded, adapter=adapter)
        try:
            other.recording  # noqa: B018
        except ErfscopeError:
            return loaded
        return other
    return loaded


def live(*models: Any) -> list[nn.Module]:
    """The modules of those models that are the caller's own: live ones, and what :func:`erfscope.wrap` made of them."""
    return [m.module if isinstance(m, ModuleAdapter) else m for m in models if isinstance(m, nn.Module | ModuleAdapter)]


def feed_of(options: Options, preprocess: Preprocess) -> Feed:
    """The images that the options name, cropped and normalised for one model.

    Raises:
        ErfscopeError: no such file, an unreadable image, or an unknown kind.
    """
    images, samples, seed = options.get("images"), options.get("samples"), options.get("seed", 0)
    endless = options.get("until_se") is not None
    if isinstance(images, Tensor):
        feed = TensorFeed(images if samples is None else images[:samples])
        wanted, found = (preprocess.channels, *preprocess.size), tuple(images.shape[1:])
        if found != wanted:
            raise ErfscopeError(
                f"a ready tensor is used as it is: it holds inputs of {found}, and the model is set up for {wanted}"
            )
        return feed
    if images is None:
        count = samples or (UNTIL_SE_LIMIT if endless else SAMPLES)
        kind = options.get("synthetic") or "leaves"
        stimuli = draw(kind, samples=count, seed=seed, size=preprocess.size, channels=preprocess.channels)
    elif are_paths(images):
        paths = [images] if isinstance(images, str | Path) else list(images)
        count_of_files = UNTIL_SE_LIMIT if endless and samples is None else samples
        stimuli = open_images(
            paths, samples=count_of_files, seed=seed, crop=preprocess.crop, channels=preprocess.channels
        )
    else:
        is_many = isinstance(images, list | tuple) or getattr(images, "ndim", 0) == 4
        chosen = images[:samples] if is_many and samples is not None else images
        stimuli = open_arrays(chosen, crop=preprocess.crop, channels=preprocess.channels)
    return PictureFeed(stimuli, preprocess.normalise, pixelwise=preprocess.pixelwise)


def are_paths(images: Any) -> bool:
    """Whether images are given by paths."""
    if isinstance(images, str | Path):
        return True
    return isinstance(images, list | tuple) and len(images) > 0 and all(isinstance(item, str | Path) for item in images)


def _device(asked: str, live: ModuleAdapter | None) -> torch.device | None:
    """The device asked for; ``auto`` is a live module's own, else the fastest there is."""
    if asked == "auto":
        if live is not None:
            return None
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if asked.partition(":")[0] not in DEVICES:
        raise unknown("device", asked, DEVICES)
    try:
        device = torch.device(asked)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ErfscopeError(
            f"device {asked!r} cannot be used here ({first_line(error)}); `erfscope doctor` lists the devices, auto"
            " chooses one"
        ) from error
    return device
