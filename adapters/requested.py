"""From a model, as the public functions take it, and a request to an adapter on its device."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL.Image import Image, Resampling
from torch import Tensor, nn
from torch.export import ExportedProgram

from erfscope.adapters.module import ModuleAdapter
from erfscope.adapters.opening import load, wrap
from erfscope.adapters.sources.sources import split_label
from erfscope.adapters.weights.weights import NO_NUMBERS
from erfscope.core.request.request import Request
from erfscope.core.request.settings import OPTIONS
from erfscope.core.system.model_errors import WITHOUT_CHANNELS, first_line
from erfscope.core.system.restore import default_dtype
from erfscope.core.values.errors import ErfscopeError, unknown
from erfscope.core.values.input_size import is_size
from erfscope.core.values.model_facts import Preprocess

#: What is measured: a spec, a live module, an exported program, or what :func:`erfscope.wrap` makes of a module.
Model = str | nn.Module | ExportedProgram | ModuleAdapter


def open_adapter(
    model: Model, request: Request, *, size: tuple[int, ...] | None, weights: str
) -> tuple[ModuleAdapter, str]:
    """The adapter of a model on the device and in the dtype asked for, at one input size, and what the model is called.

    Raises:
        ErfscopeError: no model, or one that cannot be opened so.
    """
    label, adapter = _opened(model, request, size, weights)
    is_built = isinstance(model, str)
    device = None if adapter.weights.source == NO_NUMBERS else _device(request.settings.device, is_built=is_built)
    dtype = getattr(torch, request.settings.dtype) if is_built or "dtype" in request.given else None
    # The caller holds an adapter that was given, so its module stays as it is.
    adapter = adapter.to(device=device, dtype=dtype, copied=not is_built)
    if adapter.preprocess.with_channels is not None:
        with contextlib.suppress(ErfscopeError):  # found by recording it, before images are made for them
            adapter.recording  # noqa: B018
    if request.settings.squash:
        adapter = copy.copy(adapter)
        adapter.preprocess = _squashing(adapter.preprocess)
    return _in_default_dtype(adapter) if dtype == torch.float64 else adapter, label or adapter.spec


def _opened(
    model: Model, request: Request, size: tuple[int, ...] | None, weights: str
) -> tuple[str | None, ModuleAdapter]:
    """The label that a spec gives a model, and its adapter."""
    building, images = dict(request.building), request.images
    if isinstance(images, Tensor):
        # Token ids are (B, T).
        if images.dim() < 3 and not (images.dim() == 2 and images.dtype == torch.long):
            raise ErfscopeError(
                f"images is a tensor of shape {tuple(images.shape)}, and a ready tensor, such as (B, C, H, W), has a"
                f" channel axis: give images[:, None]; {WITHOUT_CHANNELS}"
            )
        size = size or tuple(images.shape[min(2, images.dim() - 1) :])
        if not isinstance(model, ModuleAdapter):
            building.setdefault("in_chans", images.shape[1])
    if isinstance(model, str):
        label, spec = split_label(model)
        layer = None if "layer" in request.several() else request.layers[0]
        return label, load(spec, weights=weights, seed=request.settings.seed, input_size=size, layer=layer, **building)
    if isinstance(model, ModuleAdapter):
        _refuse_changes(model, building, size)
        others, channels = model.preprocess.with_channels, images.shape[1] if isinstance(images, Tensor) else None
        if others is not None and channels not in (None, model.preprocess.channels):
            other = copy.copy(model)
            other.preprocess = replace(others(channels), size=model.preprocess.size, with_channels=None)
            model = other if _runs(other) else model
        return None, model
    if not isinstance(model, nn.Module | ExportedProgram):
        raise ErfscopeError(
            "a model is a spec, an nn.Module, an exported program or what erfscope.wrap makes of a module, not"
            f" {type(model).__name__}{_other_object(model)}"
        )
    for option in ("checkpoint", "model_kwargs", "unsafe_load"):
        if building.pop(option, None) is not None:
            raise ErfscopeError(f"{option} is for models that erfscope builds; a live module has its weights already")
    return None, wrap(model, input_size=size, **building)


def _refuse_changes(adapter: ModuleAdapter, building: Mapping[str, Any], size: tuple[int, ...] | None) -> None:
    """Refuse what would make another adapter of one that is made already."""
    for option, value in building.items():
        if value is not None:
            raise ErfscopeError(f"{option} is for models that erfscope builds or wraps; this adapter is made already")
    if size is not None and not is_size(size, adapter.preprocess.size):
        raise ErfscopeError(
            f"this adapter was made for inputs of {adapter.preprocess.size}, not {size}; give input_size to"
            " erfscope.wrap"
        )


def _other_object(model: object) -> str:
    """What to do with an object that is no model."""
    if isinstance(model, type):
        return f"; {model.__name__} is a class: give what calling it makes"
    if isinstance(model, Mapping):
        return "; load a state_dict into the module that it is of, and give that"
    if callable(model):
        return "; give the module that it calls: erfscope.wrap(module, forward=lambda m, x: ...)"
    return ""


def name_of(model: object) -> str:
    """What a model is called that has no label: as it is given, else by its spec or its class."""
    return str(model) if isinstance(model, str | Path) else str(getattr(model, "spec", type(model).__name__))


def _device(asked: str, *, is_built: bool) -> torch.device | None:
    """The device asked for; ``auto`` is a live module's own, else the fastest there is."""
    if asked == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu") if is_built else None
    names = OPTIONS["device"].option.words
    if asked.partition(":")[0] not in names:
        raise unknown("device", asked, names)
    try:
        device = torch.device(asked)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ErfscopeError(
            f"device {asked!r} cannot be used here ({first_line(error)}); `erfscope doctor` lists the devices, auto"
            " chooses one"
        ) from error
    return device


def _squashing(preprocess: Preprocess) -> Preprocess:
    """The same preprocessing, of several inputs of each, but for a resize that cuts nothing off.

    Raises:
        ErfscopeError: the model has no image of two axes, or a transform of its own makes the whole input.
    """
    if preprocess.parts:
        return replace(preprocess, parts={name: _squashing(part) for name, part in preprocess.parts.items()})
    if len(preprocess.size) < 2 or not preprocess.pixelwise:
        raise ErfscopeError("squash resizes images, and this model's input is made by its own transform; leave it out")
    height, width = preprocess.size[-2:]

    def resize(picture: Image) -> NDArray[np.uint8]:
        return np.asarray(picture.resize((width, height), Resampling.BICUBIC))

    return replace(preprocess, crop=resize, resize_text=f"bicubic resize, whole, to {height}x{width}")


def _in_default_dtype(adapter: ModuleAdapter) -> ModuleAdapter:
    """A model that was put into float64 and cannot run, with float64 as the type of the tensors that it makes without
    naming one.

    The model as it was where it can run so, or cannot either way.
    """
    if _runs(adapter):
        return adapter
    other, plain = copy.copy(adapter), adapter.forward

    def forward(module: nn.Module, x: Tensor) -> Any:
        with default_dtype(torch.float64):
            return plain(module, x)

    other.forward, other.structure = forward, ()
    note = "float64 is also the type of the tensors that its forward makes without naming one"
    other.notes = (*other.notes, note)
    return other if _runs(other) else adapter


def _runs(adapter: ModuleAdapter) -> bool:
    """Whether a forward pass of a model can be recorded."""
    try:
        return bool(adapter.recording)
    except ErfscopeError:
        return False
