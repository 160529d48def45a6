"""Models of torchvision, with its own presets for images."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

from torch import nn

from erfscope.adapters.libraries import import_library
from erfscope.adapters.preprocess import input_config, torchvision_words
from erfscope.adapters.sources.source import Source, SourceOptions
from erfscope.adapters.weights.store import Store, url_store
from erfscope.adapters.weights.weights import check_room, obtain
from erfscope.errors import ErfscopeError, unknown
from erfscope.model_errors import errors_as_one_line


def torchvision_model(spec: str, options: SourceOptions) -> Source:
    """Build the model that ``torchvision:NAME`` names, one of ``torchvision.models.list_models()``.

    Raises:
        ErfscopeError: no such model, weights that cannot be had, options or a size that the model does not take.
    """
    if options.in_chans not in (None, 3):
        raise ErfscopeError(
            f"takes 3 input channels, not {options.in_chans}; timm's models take --in-chans", model=spec
        )
    models, name, best = _known(spec)
    is_video = models.get_model_builder(name).__module__.startswith("torchvision.models.video")
    words = torchvision_words(best.transforms() if best else None, frames=_frames(best) if is_video else None)
    kwargs, sized = dict(options.model_kwargs), name.startswith(("vit_", "mvit_"))
    config = input_config(words, size=options.input_size, mean=options.mean, std=options.std, fixed=sized)
    if sized and options.input_size is not None:
        kwargs |= _sized(name, config.size)
    if "weights_backbone" in inspect.signature(models.get_model_builder(name)).parameters:
        kwargs.setdefault(
            "weights_backbone", None
        )  # else torchvision fetches a backbone for a model that is to be random

    def make(pretrained: bool) -> nn.Module:
        module: nn.Module = models.get_model(name, weights=best if pretrained else None, **kwargs)
        return module

    with errors_as_one_line(f"torchvision could not build {name!r}", kwargs):
        if sized:
            check_room(make)
        module, weights = obtain(make, torchvision_store(spec), policy=options.weights, seed=options.seed)
    return Source(module=module, spec=spec, weights=weights, config=config)


def torchvision_store(spec: str) -> Store:
    """Where the pretrained weights of ``torchvision:NAME`` are.

    Raises:
        ErfscopeError: no such model.
    """
    best = _known(spec)[2]
    return url_store(spec, best.url if best else None)


def _known(spec: str) -> tuple[ModuleType, str, Any]:
    """torchvision's models, the name of the one that is meant, and its best weights, None where there are none."""
    models, name = import_library("torchvision.models"), spec.partition(":")[2].lower()
    if name not in models.list_models():
        raise unknown("torchvision model", name, models.list_models(), limit=3)
    choices = models.get_model_weights(name)
    return models, name, choices.DEFAULT if list(choices) else None


def _sized(name: str, size: tuple[int, ...]) -> dict[str, object]:
    """The options that build a transformer of torchvision for an input size; its other models take any."""
    if name.startswith("mvit_"):
        return {"spatial_size": size[-2:], "temporal_size": size[0]}
    if size[0] != size[1]:
        raise ErfscopeError(f"torchvision:{name} takes square inputs only, not {size[0]}x{size[1]}")
    return {"image_size": size[0]}


def _frames(best: Any) -> int:
    """Clip length of a video model: the 16 frames that torchvision trains on, or what the model needs at least."""
    return max(16, best.meta.get("min_temporal_size") or 0)
