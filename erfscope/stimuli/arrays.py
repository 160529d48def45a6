"""Images that a Python caller holds already."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from erfscope.errors import ErfscopeError
from erfscope.stimuli.decode import Crop, fit, refuse_channels, to_8_bit
from erfscope.stimuli.picture import Pixels, Stimuli

Given = NDArray[np.uint8] | Image.Image


def open_arrays(arrays: Given | Sequence[Given], *, crop: Crop, channels: int) -> Stimuli:
    """Images from arrays or Pillow images.

    Args:
        arrays: One image or a sequence of them: uint8 (H, W, 3) RGB, (H, W, 4) RGBA or (H, W) grey; an array (N, H, W,
            C) is N images. Pillow images are turned and converted as files are
            (:func:`erfscope.stimuli.decode.decode`). Copied.
        crop: Image -> uint8 (H, W, C) at the model's input size.
        channels: The model's input channels, 1 or 3.

    Returns:
        The images, in order, named "array[0]" and so on.

    Raises:
        ErfscopeError: no images, another type or shape, or a model that takes neither grey nor RGB.
    """
    refuse_channels(channels)
    listed = _listed(arrays)
    if not listed:
        raise ErfscopeError("images is an empty sequence; give at least one image")
    images = [_to_image(given, index, channels) for index, given in enumerate(listed)]
    sha256 = _sha256(listed)
    return Stimuli(
        kind="array",
        names=tuple(f"array[{index}]" for index in range(len(images))),
        source="1 array" if len(images) == 1 else f"{len(images)} arrays",
        draw=partial(_draw, images, crop, channels),
        digest=lambda: sha256,
    )


def _listed(arrays: object) -> Sequence[object]:
    if isinstance(arrays, Image.Image) or (isinstance(arrays, np.ndarray) and arrays.ndim != 4):
        return [arrays]
    if isinstance(arrays, (np.ndarray, list, tuple)):
        return list(arrays)
    raise ErfscopeError(
        f"images is a {type(arrays).__name__}; give uint8 arrays (H, W, 3), Pillow images, paths, or a ready tensor"
    )


def _to_image(given: object, index: int, channels: int) -> Image.Image:
    if isinstance(given, np.ndarray):
        shape = given.shape
        if given.dtype != np.uint8:
            raise ErfscopeError(
                f"array[{index}] is {given.dtype} {shape}; give uint8 (0 ... 255), "
                "or a ready tensor (B, C, H, W) in the model's own input space"
            )
        if 0 in shape or not (given.ndim == 2 or (given.ndim == 3 and shape[2] in (1, 3, 4))):
            raise ErfscopeError(
                f"array[{index}] has shape {shape}; give (H, W, 3), (H, W, 4) or (H, W), or a list of such arrays"
            )
        given = Image.fromarray(np.ascontiguousarray(given[..., 0] if given.ndim == 3 and shape[2] == 1 else given))
    if not isinstance(given, Image.Image):
        raise ErfscopeError(f"array[{index}] is a {type(given).__name__}; give uint8 arrays (H, W, 3) or Pillow images")
    try:
        return to_8_bit(ImageOps.exif_transpose(given), channels=channels)
    except (ErfscopeError, OSError, ValueError, SyntaxError) as error:
        raise ErfscopeError(f"cannot use array[{index}]: {error}") from error


def _draw(images: list[Image.Image], crop: Crop, channels: int, index: int) -> Pixels:
    return fit(images[index], crop, channels=channels)


def _sha256(listed: Sequence[object]) -> str:
    """Hash of the images as they were given, the same for models of one and of three channels."""
    digest = hashlib.sha256()
    for given in listed:
        pixels = np.asarray(given)
        digest.update(f"{pixels.shape} ".encode() + pixels.tobytes())
    return digest.hexdigest()
