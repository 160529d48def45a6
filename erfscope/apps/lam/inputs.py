"""The inputs of a model that restores images: pictures at their own size, from 0 to 1, and arrays as they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from erfscope.core import ErfscopeError, FloatArray, OpenModel, Request, open_images, open_model
from erfscope.show import size_text

#: Of a picture, (H, W, C).
Pixels = NDArray[np.uint8]


class LamInput(NamedTuple):
    """One input of a model."""

    name: str
    #: (C, *space), float64, as the model takes it.
    values: Tensor
    #: What it should be restored to, (C, H', W') from 0 to 1; None where that is not known.
    target: FloatArray | None = None
    #: What was done to it that a reader must know.
    note: str = ""


def inputs_of(model: OpenModel, images: Any, request: Request, hr: Any, scale: int | None) -> list[LamInput]:
    """The inputs that images stand for, for one model.

    Args:
        model: The model.
        images: Ready tensors, .npy files and floating arrays, which are used as they are; pictures; or what is read at
            the input's size, where the request names one or the model takes no pictures.
        request: The other options.
        hr: The pictures that the model should restore, one for each.
        scale: Without images: by this factor these are made smaller, bicubic, as the demo does.

    Raises:
        ErfscopeError: an image that cannot be read or does not fit the model, or not as many targets as images.
    """
    steps, arrays = model.adapter.preprocess, arrays_of(images)
    targets = [] if hr is None else _pictures(hr, 1 if steps.channels == 1 else 3, request)
    if arrays is not None:
        inputs = [LamInput(f"array[{n}]", each) for n, each in enumerate(_apart(arrays, len(model.input_size)))]
    elif request.sizes != (None,) or len(model.input_size) != 2 or (images is None and not targets):
        feed = open_images(request.with_options(images=images), model)
        inputs = [LamInput(feed.name(n), _plain(model, feed.batch([n])[0])) for n in range(feed.n)]
    else:
        pictures = _pictures(images, steps.channels, request) if images is not None else targets
        if images is None:
            both = [(name, *_smaller(pixels, scale)) for name, pixels in targets]
            pictures, targets = [(name, small) for name, small, _ in both], [(name, cut) for name, _, cut in both]
        inputs = [LamInput(name, _plain(model, steps.normalise(p[None])[0]), None, _note(name)) for name, p in pictures]
    if targets and len(targets) != len(inputs):
        raise ErfscopeError(f"hr= (--hr) names {len(targets)} images for {len(inputs)}; give one for each")
    for number, (_, pixels) in enumerate(targets):
        inputs[number] = inputs[number]._replace(target=np.moveaxis(pixels, -1, 0) / 255)
    return inputs


def arrays_of(images: Any) -> list[Tensor] | None:
    """Images that are given as numbers: a tensor, a floating array or a .npy file, or several; None of anything else.

    Raises:
        ErfscopeError: a file that holds no array.
    """
    numbers = [_numbers(each) for each in (images if isinstance(images, list | tuple) else [images])]
    return None if any(each is None for each in numbers) else [each for each in numbers if each is not None]


def _numbers(given: Any) -> Tensor | None:
    """One of them, float64; integers of a file are divided by their largest value."""
    try:
        values = np.load(given) if isinstance(given, str | Path) and str(given).endswith(".npy") else given
    except (OSError, ValueError) as error:
        raise ErfscopeError(f"cannot read {str(given)!r}: {error}") from error
    if isinstance(values, Tensor):
        return values.detach().cpu().double()
    if not isinstance(values, np.ndarray) or (values is given and values.dtype == np.uint8):
        return None
    return torch.as_tensor(values / (np.iinfo(values.dtype).max if values.dtype.kind in "iu" else 1)).double()


def _apart(arrays: Sequence[Tensor], rank: int) -> list[Tensor]:
    """Arrays (C, *space) of so many axes, those of batches one by one."""
    for each in arrays:
        if each.ndim not in (rank + 1, rank + 2):
            text = f"an array of {size_text(each.shape)} was given, and the model's inputs are (C, *space) or (B, C,"
            raise ErfscopeError(f"{text} *space) with {rank} axes of space")
    return [part for each in arrays for part in (each if each.ndim == rank + 2 else [each])]


def _pictures(images: Any, channels: int, request: Request) -> list[tuple[str, Pixels]]:
    """Pictures at their own size with their names, in colours or in grey, as erfscope decodes them."""
    if channels not in (1, 3):
        raise ErfscopeError(
            f"the model takes {channels} channels, and a picture has 3: give a tensor or a .npy file (C, H, W)"
        )
    # A transform of one's own is given pictures as they are; it is never called here.
    chosen = {"samples": request.settings.samples, "seed": request.settings.seed}
    asked = Request.parse({"images": images, "transform": torch.as_tensor, **chosen})
    feed, pictures = open_images(asked, open_model(nn.Identity(), asked)), []
    for number in range(feed.n):
        name, pixels = feed.name(number), feed.pixels(number)
        if pixels is None or pixels.shape[2:] != (3,):
            raise ErfscopeError(f"{name} is no picture of one frame; bands and volumes need input_size= (--input-size)")
        grey = np.asarray(Image.fromarray(pixels).convert("L"))[..., None]
        pictures.append((name, pixels if channels == 3 else grey))
    return pictures


def _note(path: str) -> str:
    """What of a file its 8-bit colours do not hold, and what they add; "" of what is no file."""
    if not Path(path).is_file():
        return ""
    with Image.open(path) as file:
        is_deep, is_grey = file.mode.startswith("I"), file.mode in ("1", "L") or file.mode.startswith("I")
    notes = ["16 bit, of which the upper 8 are read: give a .npy file for all"] * is_deep
    return ", ".join(notes + ["grey, repeated where the model takes three channels"] * is_grey)


def _smaller(pixels: Pixels, scale: int | None) -> tuple[Pixels, Pixels]:
    """A picture made smaller by a factor, and what of the picture it shows."""
    if scale is None or scale < 1:
        raise ErfscopeError("pictures of high resolution alone need scale= (--scale), by which they are made smaller")
    height, width = (side // scale for side in pixels.shape[:2])
    kept = np.ascontiguousarray(pixels[: height * scale, : width * scale])
    small = Image.fromarray(np.squeeze(kept)).resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(small).reshape(height, width, -1), kept


def _plain(model: OpenModel, values: Tensor) -> Tensor:
    """An input without ImageNet's mean and std, where neither the model nor the options state these."""
    steps = model.adapter.preprocess
    shape = (-1, *[1] * (values.ndim - 1))
    mean, std = (torch.tensor(numbers, dtype=torch.float64).reshape(shape) for numbers in (steps.mean, steps.std))
    values = values * std if "std" in steps.assumed else values
    return values + mean if "mean" in steps.assumed else values
