"""From an image to a model's input: timm's own evaluation transform, split where pixels become numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL.Image import Image
from torch import Tensor, nn

from erfscope.adapters.timm_internals import traits_of
from erfscope.core.values.axes import NAMES, Axes
from erfscope.core.values.errors import ErfscopeError
from erfscope.core.values.input_size import EverySide, size_words
from erfscope.core.values.model_facts import Preprocess
from erfscope.core.values.unit import size_text

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
#: timm's defaults, for what neither the model nor the user states.
DEFAULT_SIZE = (224, 224)
#: An example of a clip's size.
CLIP_SIZE = (16, 112, 112)
DEFAULT_CROP_PCT = 0.875

#: Pixels along the longer side of a resized image.
LONGEST_SIDE = 1 << 18

Numbers = Sequence[float] | float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InputConfig:
    """What a model expects of an image."""

    #: Spatial size of the input, one to three axes, (row, col) last.
    size: tuple[int, ...]
    channels: int
    #: One number per channel, for values in [0, 1].
    mean: tuple[float, ...]
    std: tuple[float, ...]
    #: timm's word: "bicubic", "bilinear", ...
    interpolation: str = "bicubic"
    #: Size / side the image is resized to before the crop.
    crop_pct: float = DEFAULT_CROP_PCT
    #: timm's word: "center", "squash" or "border".
    crop_mode: str = "center"
    #: The model accepts this size only.
    fixed: bool = False
    #: The same for another number of channels, where that is a guess, by a first convolution if there is one.
    with_channels: Callable[[int], InputConfig] | None = None
    #: Those of "size", "mean" and "std" that neither the model nor the user states.
    assumed: tuple[str, ...] = ()


def input_config(
    known: Mapping[str, Any],
    *,
    size: Sequence[int] | None = None,
    channels: int | None = None,
    mean: Numbers = None,
    std: Numbers = None,
    fixed: bool = False,
    rank: int = 2,
) -> InputConfig:
    """Combine the model's own configuration with the user's options, which come first, and ImageNet's numbers, which
    come last.

    Args:
        known: The model's configuration in timm's words (``input_size`` with the channels first, ``mean``, ``std``,
            ``interpolation``, ``crop_pct``, ``crop_mode``); may be empty.
        size: Spatial size asked for; one number stands for that side on every axis, and a clip keeps its own length.
        channels: Input channels asked for.
        mean: One number, or one per channel, for values in [0, 1].
        std: As ``mean``.
        fixed: The model accepts its own size only.
        rank: How many spatial axes the input has where the model states no size.

    Returns:
        The configuration. ``assumed`` names what neither the model nor the user states.

    Raises:
        ErfscopeError: a size or a number of channels that is not positive, or a mean or std of the wrong length.

    Source: timm's ``resolve_input_data_config``, also for a mean of another length than the channels: its mean value
    for each of them."""
    stated = tuple(known.get("input_size") or ())
    space = _space(size, stated[1:], rank)
    bands = channels or (int(stated[0]) if stated else 3)
    if bands < 1:
        raise ErfscopeError(f"a model with {bands} input channels was asked for; it takes at least 1")
    assumed = [] if size or stated else ["size"]
    numbers = {}
    for name, asked, standard in (("mean", mean, IMAGENET_MEAN), ("std", std, IMAGENET_STD)):
        given = asked if asked is not None else known.get(name)
        if given is None:
            given = standard
            assumed.append(name)
        if asked is None and isinstance(given, Sequence) and len(given) not in (0, 1, bands):
            given = sum(given) / len(given)
            assumed.append(name)
        numbers[name] = _per_channel(name, given, bands)
    return InputConfig(
        size=space,
        channels=bands,
        mean=numbers["mean"],
        std=numbers["std"],
        interpolation=known.get("interpolation") or "bicubic",
        crop_pct=float(known.get("crop_pct") or DEFAULT_CROP_PCT),
        crop_mode=known.get("crop_mode") or "center",
        fixed=fixed,
        assumed=tuple(dict.fromkeys(assumed)),
    )


def module_config(
    module: nn.Module,
    name: str,
    *,
    input_size: Sequence[int] | None = None,
    in_chans: int | None = None,
    mean: Numbers = None,
    std: Numbers = None,
) -> InputConfig:
    """Find what a live module expects of an image: a timm model's own configuration, else ImageNet's numbers.

    A model of transformers has its size from ``config.image_size``, or from that of ``config.vision_config``. Without a
    configuration the first convolution gives the number of spatial axes and, where neither ``in_chans`` nor several
    numbers of ``mean`` or ``std`` do, the channels: a guess, of which ``with_channels`` gives others. Where
    ``input_size`` is a tuple of one number there is one axis, and one channel beside convolutions of more axes. A
    module without a convolution takes images.

    Args:
        module: Any module. A timm model built with ``img_size=`` has that size, whatever its pretrained configuration
            says.
        name: Name of the model in errors.
        input_size: As ``size`` of :func:`input_config`.
        in_chans: As ``channels`` there.
        mean: As there.
        std: As there.

    Raises:
        ErfscopeError: as :func:`input_config`, or no size for a first convolution with three axes.
    """
    found = getattr(module, "pretrained_cfg", None)
    cfg: dict[str, Any] = dict(found) if isinstance(found, Mapping) else {}
    if not cfg:
        convolutions = (part for part in module.modules() if isinstance(part, nn.Conv1d | nn.Conv2d | nn.Conv3d))
        first = next(convolutions, None)
        is_line = input_size is not None and len(input_size) == 1 and not isinstance(input_size, EverySide)
        channels, rank = (None, 2) if first is None else (first.in_channels, len(first.kernel_size))
        if is_line and rank > 1:  # sound, of which the model makes a spectrogram itself
            channels, rank = None if first is None else 1, 1
        if rank == 3 and input_size is None:
            raise ErfscopeError(
                "states no input size, and its first convolution takes three axes (frames or slices, height, width):"
                f" name one, such as {size_words(CLIP_SIZE)}",
                model=name,
            )
        size = _own_size(module) if input_size is None and rank == 2 else input_size
        counts = [len(each) for each in (mean, std) if isinstance(each, Sequence)]
        stated = in_chans or next((count for count in counts if count > 1), None)
        of_channels = partial(_of_channels, size=size, mean=mean, std=std, rank=rank)
        found = of_channels(stated or channels)
        return found if stated else replace(found, with_channels=of_channels)
    traits = traits_of(module)
    patches: Any = getattr(module, "patch_embed", None)
    built = traits.get("img_size") or getattr(patches, "img_size", None)
    fixed = bool(traits.get("fixed_input_size", cfg.get("fixed_input_size", False)))
    channels, *space = cfg.get("input_size") or (3, *DEFAULT_SIZE)
    own: Any = getattr(module, "in_chans", None)
    known = cfg | {"input_size": (own if isinstance(own, int) else channels, *(built or space))}
    return input_config(known, size=input_size, channels=in_chans, mean=mean, std=std, fixed=fixed)


def _of_channels(channels: int | None, **given: Any) -> InputConfig:
    return input_config({}, channels=channels, **given)


def preprocess(config: InputConfig, transform: Callable[[Image], Tensor] | None = None) -> Preprocess:
    """The two steps from an image to a model's input.

    Together they equal timm's evaluation transform for this configuration, to rounding. An image shown to a model with
    a time axis is a clip of equal frames; one for a model with other than 1 or 3 channels repeats red, green, blue, as
    timm repeats its first filters.

    Args:
        config: What the model expects.
        transform: The user's own, image -> (C, H, W); it then does everything, and ``crop`` only hands over the RGB
            pixels.

    Returns:
        The steps. ``crop`` raises ErfscopeError for a model with a single spatial axis.
    """
    sides = "x".join(map(str, config.size))
    rank = len(config.size)
    # Of three axes the channels tell frames, which have colours, from slices.
    axes = Axes.named(NAMES["dhw"]) if rank == 3 and config.channels != 3 else Axes.of_rank(rank)
    steps = Preprocess(
        axes=axes,
        size=config.size,
        channels=config.channels,
        mean=config.mean,
        std=config.std,
        crop=_crop_of(config),
        normalise=_normalise_of(config),
        resize_text=f"{config.interpolation} resize, {config.crop_mode} crop {config.crop_pct:.4g} to {sides}",
        scale_text=f"mean {_listed(config.mean)}, std {_listed(config.std)}",
        assumed=(*config.assumed, *(("axes",) if rank == 3 else ())),
    )
    if (others := config.with_channels) is not None:
        steps = replace(steps, with_channels=lambda channels: preprocess(others(channels), transform))
    if transform is None:
        return steps
    return replace(
        steps,
        crop=lambda picture: np.array(picture.convert("RGB"), dtype=np.uint8),
        normalise=_through(transform, (config.channels, *config.size)),
        pixelwise=False,
        resize_text="the user's own transform",
        scale_text="",
        assumed=(),
    )


def _own_size(module: nn.Module) -> tuple[int, int] | None:
    """The size of images that a module's configuration states, that of its vision part included, as transformers'
    models have it; None where it states none."""
    config: Any = getattr(module, "config", None)
    stated = (getattr(each, "image_size", None) for each in (config, getattr(config, "vision_config", None)))
    return next(filter(None, map(config_sides, stated)), None)


def config_sides(size: Any) -> tuple[int, int] | None:
    """Height and width of a size as transformers' configurations state it; None for anything else."""
    if isinstance(size, Mapping):
        if "height" in size and "width" in size:
            return int(size["height"]), int(size["width"])
        size = size.get("shortest_edge")
    if isinstance(size, list | tuple) and len(size) == 2:
        return int(size[0]), int(size[1])
    return (int(size), int(size)) if isinstance(size, int) else None


def _space(size: Sequence[int] | None, stated: Sequence[int], rank: int) -> tuple[int, ...]:
    """Size of the input: the one asked for, else the one stated, else 224 on each axis of an image or a sequence."""
    rank = len(stated) or rank
    space = tuple(int(side) for side in size or stated or DEFAULT_SIZE[:rank])
    if len(space) == 1:
        space *= min(rank, 2) if stated else rank
    if len(space) == 2 and len(stated) == 3:
        # A video model asked for a frame size keeps its own length.
        space = (int(stated[0]), *space)
    if not 1 <= len(space) <= 3 or min(space) < 1:
        raise ErfscopeError(
            f"input size {'x'.join(map(str, space))} is not one to three positive numbers, such as 224x224"
        )
    if stated and len(space) != len(stated):
        raise ErfscopeError(
            f"input size {size_text(space)} has {len(space)} axes; the model takes {len(stated)}, as in"
            f" {size_words(tuple(stated))}"
        )
    return space


def _per_channel(name: str, given: Sequence[float] | float, channels: int) -> tuple[float, ...]:
    """One number for each channel."""
    values = (float(given),) if isinstance(given, int | float) else tuple(float(value) for value in given)
    if name == "std" and min(values, default=0.0) <= 0:
        raise ErfscopeError(f"std {values} was given; every value must be positive")
    if len(values) not in (1, channels):
        raise ErfscopeError(
            f"{name} has {len(values)} values, but the input has {channels} channels; give 1 or {channels}"
        )
    return values if len(values) == channels else values * channels


def _crop_of(config: InputConfig) -> Callable[[Image], NDArray[np.uint8]]:
    """Resize and crop as timm does, up to the point where it would scale the values."""
    bands = 1 if config.channels == 1 else 3

    @cache
    def resize_and_crop() -> Callable[[Image], Tensor]:
        from timm.data.transforms_factory import create_transform

        made: Callable[[Image], Tensor] = create_transform(
            (config.size[-2], config.size[-1]),
            interpolation=config.interpolation,
            mean=(config.mean * bands)[:bands],  # the colour of the border
            crop_pct=config.crop_pct,
            crop_mode=config.crop_mode,
            normalize=False,
        )
        return made

    def crop(picture: Image) -> NDArray[np.uint8]:
        if len(config.size) == 1:
            raise ErfscopeError(
                "an image was given to a model with one spatial axis; give sound (.wav, .flac, .ogg, .npy), from Python"
                " also a ready tensor (B, C, N), or leave images out for synthetic stimuli"
            )
        _refuse_long(picture.size, config)
        pixels = resize_and_crop()(picture.convert("L" if bands == 1 else "RGB")).movedim(0, -1).numpy()
        if config.channels not in (1, 3):
            pixels = pixels[..., [band % 3 for band in range(config.channels)]]
        if len(config.size) == 3:
            pixels = np.broadcast_to(pixels, (config.size[0], *pixels.shape))
        return np.ascontiguousarray(pixels, dtype=np.uint8)

    return crop


def _refuse_long(sides: tuple[int, int], config: InputConfig) -> None:
    """Refuse an image that would be too long once its shorter side is resized: a file of a few bytes may have a
    million pixels in a row."""
    longer = max(config.size[-2:]) / config.crop_pct * max(sides) / min(sides)
    if config.crop_mode == "center" and longer > LONGEST_SIDE:
        size = f"{sides[0]}x{sides[1]}"
        raise ErfscopeError(
            f"resized by its shorter side, an image of {size} would be {longer:.0f} pixels long; crop it first"
        )


def _normalise_of(config: InputConfig) -> Callable[[NDArray[np.uint8]], Tensor]:
    mean, std = (torch.tensor(values, dtype=torch.float64) for values in (config.mean, config.std))

    def normalise(pixels: NDArray[np.uint8]) -> Tensor:
        # A copy: the pixels may be read-only. float64, so that a float64 model gets inputs that are right to its own
        # precision.
        scaled = torch.from_numpy(np.array(pixels)).to(torch.float64).div_(255)
        return scaled.sub_(mean).div_(std).movedim(-1, 1).contiguous()

    return normalise


def _through(transform: Callable[[Image], Tensor], shape: tuple[int, ...]) -> Callable[[NDArray[np.uint8]], Tensor]:
    """The user's transform, image by image, to inputs of a shape (C, *space)."""

    def normalise(pixels: NDArray[np.uint8]) -> Tensor:
        from PIL import Image as images

        inputs = [
            transform(images.fromarray(picture.squeeze(-1) if picture.shape[-1] == 1 else picture))
            for picture in pixels
        ]
        made = {tuple(item.shape) if isinstance(item, Tensor) else type(item).__name__ for item in inputs}
        if len(made) != 1 or not isinstance(inputs[0], Tensor):
            raise ErfscopeError(
                f"transform= returned {', '.join(map(str, made))}; it must turn every image into a tensor of one shape"
                " (C, H, W)"
            )
        if made != {shape}:
            given, wanted = ("x".join(map(str, each)) for each in (inputs[0].shape, shape))
            raise ErfscopeError(
                f"transform= returned a tensor of {given}, and the model is measured on {wanted}; let it make that, or"
                " give the size and channels that it makes as input_size= and in_chans="
            )
        return torch.stack(inputs).to(torch.float64)

    return normalise


def _listed(values: Sequence[float]) -> str:
    shown = values[:1] if len(set(values)) == 1 else values
    return " ".join(f"{value:.4g}" for value in shown)
