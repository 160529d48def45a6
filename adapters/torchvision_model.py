"""Models of torchvision, with its own presets for images."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn

from erfscope.adapter import Weights
from erfscope.adapters.libraries import import_library
from erfscope.adapters.preprocess import InputConfig, Numbers, input_config, torchvision_words
from erfscope.adapters.weights.store import Store, url_store
from erfscope.adapters.weights.weights import check_room, obtain
from erfscope.errors import ErfscopeError, unknown
from erfscope.model_errors import errors_as_one_line


def torchvision_model(
    spec: str,
    *,
    policy: str,
    seed: int,
    options: Mapping[str, object],
    size: tuple[int, ...] | None = None,
    mean: Numbers = None,
    std: Numbers = None,
) -> tuple[nn.Module, Weights, InputConfig]:
    """Build the model that ``torchvision:NAME`` names.

    Args:
        spec: NAME is one of ``torchvision.models.list_models()``.
        policy: As for :func:`erfscope.adapters.weights.weights.obtain`.
        seed: Seed of random weights.
        options: Passed to whatever builds the model.
        size: Spatial size asked for; transformers are built for it.
        mean: As for :func:`erfscope.adapters.preprocess.input_config`.
        std: As there.

    Returns:
        The model, its weights' origin and what it expects of an image.

    Raises:
        ErfscopeError: no such model, weights that cannot be had, options or a size that the model does not take.
    """
    models = import_library("torchvision.models")
    name = spec.partition(":")[2].lower()
    if name not in models.list_models():
        raise unknown("torchvision model", name, models.list_models(), limit=3)
    choices = list(models.get_model_weights(name))
    best = models.get_model_weights(name).DEFAULT if choices else None
    is_video = models.get_model_builder(name).__module__.startswith("torchvision.models.video")
    words = torchvision_words(best.transforms() if best else None, frames=_frames(best) if is_video else None)
    kwargs, sized = dict(options), name.startswith(("vit_", "mvit_"))
    config = input_config(words, size=size, mean=mean, std=std, fixed=sized)
    if sized and size is not None:
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
        module, weights = obtain(make, url_store(spec, best.url if best else None), policy=policy, seed=seed)
    return module, weights, config


def torchvision_store(spec: str) -> Store:
    """Where the pretrained weights of ``torchvision:NAME`` are.

    Raises:
        ErfscopeError: no such model.
    """
    models, name = import_library("torchvision.models"), spec.partition(":")[2].lower()
    if name not in models.list_models():
        raise unknown("torchvision model", name, models.list_models(), limit=3)
    choices = models.get_model_weights(name)
    return url_store(spec, choices.DEFAULT.url if list(choices) else None)


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
