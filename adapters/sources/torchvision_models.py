"""Models of torchvision, with its own presets for images."""

from __future__ import annotations

import inspect
import math
from types import ModuleType
from typing import Any

from torch import nn

from erfscope.adapters.libraries import import_library
from erfscope.adapters.preprocess import input_config
from erfscope.adapters.sources.source import Source, SourceOptions
from erfscope.adapters.weights.weights import Store, check_room, obtain, url_store
from erfscope.core.system.model_errors import errors_as_one_line
from erfscope.core.values.errors import ErfscopeError, unknown


def build(spec: str, options: SourceOptions) -> Source:
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
    # A clip has the 16 frames that torchvision trains on, or what the model needs at least.
    frames = max(16, best.meta.get("min_temporal_size") or 0) if is_video else None
    words = torchvision_words(best.transforms() if best else None, frames=frames)
    kwargs, sized = dict(options.model_kwargs), name.startswith(("vit_", "mvit_"))
    config = input_config(words, size=options.input_size, mean=options.mean, std=options.std, fixed=sized)
    if sized and options.input_size is not None:
        kwargs |= _sized(name, config.size)
    if "weights_backbone" in inspect.signature(models.get_model_builder(name)).parameters:
        # Otherwise torchvision fetches a backbone for a model of random weights.
        kwargs.setdefault("weights_backbone", None)

    def make(pretrained: bool) -> nn.Module:
        module: nn.Module = models.get_model(name, weights=best if pretrained else None, **kwargs)
        return module

    with errors_as_one_line(f"torchvision could not build {name!r}", kwargs):
        if sized:
            check_room(make, "use a smaller --input-size")
        module, weights = obtain(make, store(spec), policy=options.weights, seed=options.seed)
    return Source(module=module, spec=spec, weights=weights, config=config)


def store(spec: str) -> Store:
    """Where the pretrained weights of ``torchvision:NAME`` are.

    Raises:
        ErfscopeError: no such model.
    """
    _, name, best = _known(spec)
    fetch = f"python -c \"import torchvision; torchvision.models.get_model('{name}', weights='DEFAULT')\""
    return url_store(spec, best.url if best else None, fetch=fetch)


def _known(spec: str) -> tuple[ModuleType, str, Any]:
    """torchvision's models, the name that the spec means, and its best weights; None where it has none."""
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


def torchvision_words(preset: object, *, frames: int | None = None) -> dict[str, Any]:
    """A torchvision transform preset in timm's words, as :func:`input_config` takes them.

    Args:
        preset: What ``weights.transforms()`` returns.
        frames: Length of the clip, for video models.

    Returns:
        The words that the preset defines; {} for None.
    """
    if preset is None:
        return {}
    resize = tuple(getattr(preset, "resize_size", None) or ())
    crop = tuple(getattr(preset, "crop_size", None) or resize)
    # torchvision's detectors take any size and normalise inside the model: their preset has neither sizes nor a mean.
    words: dict[str, Any] = {
        "mean": getattr(preset, "mean", (0.0, 0.0, 0.0)),
        "std": getattr(preset, "std", (1.0, 1.0, 1.0)),
    }
    if crop and resize:
        words["input_size"] = (3, *((frames,) if frames else ()), crop[0], crop[-1])
        words["crop_pct"] = _crop_pct(crop[0], resize[0])
    if hasattr(preset, "interpolation"):
        words["interpolation"] = preset.interpolation.value
    return words


def _crop_pct(crop: int, resize: int) -> float:
    """Ratio from which timm's floor(crop / ratio) gives back ``resize``."""
    ratio = crop / resize
    return ratio if math.floor(crop / ratio) == resize else crop / (resize + 0.5)
