"""Files to 8-bit images: orientation, alpha, palettes and 16-bit files are handled here alone."""

from __future__ import annotations

import hashlib
import io
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from erfscope.core.images.picture import Pixels, Stimuli
from erfscope.core.images.synthetic import MID_GREY
from erfscope.core.values.errors import ErfscopeError

Crop = Callable[[Image.Image], Pixels]

#: Formats that Pillow may read a file as. Not all: EPS would start Ghostscript, some formats fit almost any
#: bytes, and in 16-bit RGB JPEG 2000 white comes out black.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM", "AVIF")
#: Bytes that an image file may have: more than any image of a size that is read, and what memory has room for.
LARGEST_FILE = 1 << 30
#: What to do where one image of many cannot be read.
PASSED_OVER = "keep_going=True (--keep-going) passes over images that cannot be read"
#: Baseline TIFF tags: bits per sample, and whether 0 is white.
_BITS, _PHOTOMETRIC = 258, 262


def read_picture(path: Path, *, channels: int) -> Image.Image:
    """Read an image file as :func:`decode` does.

    Args:
        path: The file.
        channels: The model's input channels, 1 or 3.

    Returns:
        The image, mode "L" for one channel, "RGB" for three.

    Raises:
        ErfscopeError: the file cannot be read or holds no image; the text names it.
    """
    refuse_channels(channels)
    try:
        if (size := path.stat().st_size) > LARGEST_FILE:
            raise ErfscopeError(
                f"cannot read {str(path)!r}: a file of {size >> 20} MiB is too large for an image; make it smaller"
            )
        return decode(path.read_bytes(), name=str(path), channels=channels)
    except OSError as error:
        raise ErfscopeError(f"cannot read {str(path)!r}: {error.strerror or error}; {PASSED_OVER}") from error
    except ErfscopeError as error:
        raise ErfscopeError(f"{error}; {PASSED_OVER}") from error


def decode(data: bytes, *, name: str, channels: int) -> Image.Image:
    """Turn the bytes of an image file into an upright 8-bit image.

    The first frame of an animation. Turned as EXIF says. Sixteen bits become eight by dropping the lower half, so that
    257 k becomes k, and a grey file and an RGB file (where Pillow itself does this) of one image agree. Transparency is
    laid over mid-grey (128). Colour profiles are not applied, as in timm's and torchvision's loaders. Grey becomes RGB
    by repetition, RGB grey by ITU-R 601 luminance.

    Args:
        data: The file's bytes.
        name: What to call it in an error.
        channels: The model's input channels, 1 or 3.

    Returns:
        The image, mode "L" for one channel, "RGB" for three.

    Raises:
        ErfscopeError: damaged, truncated, too large, not an image, or with a pixel type that has no stated white.
    """
    refuse_channels(channels)
    if not data:
        raise ErfscopeError(f"cannot read {name!r}: the file is empty; copy it again or leave it out")
    try:
        with warnings.catch_warnings():
            # Pillow warns of damaged EXIF and the like, which do not touch the pixels.
            # The filters are the whole process's: not for several threads at once.
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            # Here for WebP, whose reader makes room for the image before Pillow looks at its size; the others wait.
            _refuse_giant(*_webp_size(data))
            with Image.open(io.BytesIO(data), formats=_formats()) as image:
                return _upright_8_bit(image, channels)
    except ErfscopeError as error:
        raise ErfscopeError(f"cannot read {name!r}: {error}") from error
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        limit = f"the {Image.MAX_IMAGE_PIXELS} pixels that Pillow takes for safe"
        advice = "make it smaller, or raise PIL.Image.MAX_IMAGE_PIXELS from Python"
        raise ErfscopeError(f"cannot read {name!r}: it has more than {limit}; {advice}") from error
    except UnidentifiedImageError as error:
        raise ErfscopeError(
            f"cannot read {name!r}: it is not an image that Pillow reads; give one of {', '.join(FORMATS)}"
        ) from error
    except (
        Exception
    ) as error:  # On damaged files Pillow's readers raise whatever happens to go wrong: struct, zlib, Index, Value, ...
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ErfscopeError(
            f"cannot read {name!r}: damaged or of a rare kind ({reason}); save it again as PNG or leave it out"
        ) from error


def largest_value(path: Path) -> tuple[int, int]:
    """The largest value of the pixels that :func:`decode` makes of an image file, before 16 bits become eight, and the
    largest that they may have."""
    with Image.open(path, formats=_formats()) as image:
        if image.mode.startswith("I"):
            return int(np.asarray(_in_full_range(image, image)).max()), 65535
        return int(np.asarray(to_8_bit(image, channels=3)).max()), 255


def to_8_bit(image: Image.Image, *, channels: int) -> Image.Image:
    """Bring an image of any pixel type to what a model of this many channels takes.

    Args:
        image: Any Pillow image.
        channels: 1 or 3.

    Returns:
        An image of mode "L" or "RGB".

    Raises:
        ErfscopeError: 32-bit integers or floats, which do not say how bright white is.
    """
    if image.mode.startswith("I;16") or (
        image.mode == "I" and image.format in ("PNG", "PPM")
    ):  # Neither format goes beyond 16 bits.
        image = _from_16_bit(image)
    elif image.mode in ("I", "F"):
        kind = "32-bit integers" if image.mode == "I" else "floats"
        raise ErfscopeError(
            f"its pixels are {kind}, which do not say how bright white is; save it with 8 or 16 unsigned bits"
        )
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        ground = Image.new("RGBA", image.size, (MID_GREY, MID_GREY, MID_GREY, 255))
        image = Image.alpha_composite(ground, layer).convert("RGB")
    if image.mode not in ("1", "L", "RGB"):
        image = image.convert("RGB")
    return image.convert("L" if channels == 1 else "RGB")


def fit(image: Image.Image, crop: Crop, *, channels: int) -> Pixels:
    """Resize and crop an image with the model's own rule.

    Args:
        image: Mode "L" or "RGB".
        crop: Image -> uint8 (H, W, C), or (H, W) for one channel; for a model of clips (T, H, W, C), equal frames.
        channels: The model's input channels.

    Returns:
        uint8 (H, W, channels), or (T, H, W, channels).

    Raises:
        ErfscopeError: the rule gives something else.
    """
    pixels = np.asarray(crop(image))
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    if pixels.ndim not in (3, 4) or pixels.shape[-1] != channels or pixels.dtype != np.uint8:
        raise ErfscopeError(
            f"the model's crop gave {pixels.dtype} {pixels.shape}; for a model of {channels} channels it must give"
            f" uint8 (H, W, {channels})"
        )
    return pixels


def refuse_channels(channels: int) -> None:
    """Refuse image files for a model that takes neither grey nor RGB.

    Raises:
        ErfscopeError: ``channels`` is neither 1 nor 3.
    """
    if channels not in (1, 3):
        raise ErfscopeError(
            f"the model takes {channels} channels and an image has 3 (or 1, if grey); "
            "give a TIFF, zarr or .npy file of so many bands, or synthetic='leaves' (--synthetic leaves)"
        )


def _webp_size(data: bytes) -> tuple[int, int]:
    """Width and height that the header of a WebP file claims; (0, 0) for other files.

    Source: RFC 9649, sections 2.5 to 2.7.
    """
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP" or len(data) < 30:
        return 0, 0
    kind, head = data[12:16], data[20:30]
    if kind == b"VP8X":
        return 1 + int.from_bytes(head[4:7], "little"), 1 + int.from_bytes(head[7:10], "little")
    if kind == b"VP8L":
        bits = int.from_bytes(head[1:5], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    return int.from_bytes(head[6:8], "little") & 0x3FFF, int.from_bytes(head[8:10], "little") & 0x3FFF


def _refuse_giant(width: int, height: int) -> None:
    if Image.MAX_IMAGE_PIXELS is not None and width * height > Image.MAX_IMAGE_PIXELS:
        raise Image.DecompressionBombError(f"{width} x {height} pixels")


def _formats() -> list[str]:
    """The formats that this build of Pillow has: AVIF and WEBP are optional in it."""
    Image.init()
    return [name for name in FORMATS if name in Image.OPEN]


def _upright_8_bit(image: Image.Image, channels: int) -> Image.Image:
    image.load()
    upright = _in_full_range(ImageOps.exif_transpose(image), image)
    upright.format = image.format  # Lost in the copy that exif_transpose makes.
    return to_8_bit(upright, channels=channels)


def _in_full_range(image: Image.Image, file: Image.Image) -> Image.Image:
    """An image whose black is 0, and its white 65535 if it has more than 8 bits: of those Pillow ignores what a TIFF
    file says of both."""
    tags = getattr(file, "tag_v2", {})
    bits, zero_is_white = tags.get(_BITS, (16,))[0], tags.get(_PHOTOMETRIC) == 0
    if not image.mode.startswith("I;16") or (bits == 16 and not zero_is_white):
        return image
    values = np.asarray(image).astype(np.uint16) << (16 - bits)
    return Image.fromarray(np.uint16(65535) - values if zero_is_white else values)


def _from_16_bit(image: Image.Image) -> Image.Image:
    """Keep the upper byte. Pillow's own conversion to "L" clips at 255 instead, and forgets which grey stands for
    transparent."""
    values = np.asarray(image).astype(np.uint16)
    bright = (values >> 8).astype(np.uint8)
    if "transparency" in image.info:
        bright[values == image.info["transparency"]] = MID_GREY
    return Image.fromarray(bright)


Given = NDArray[np.uint8] | Image.Image


def open_arrays(arrays: Given | Sequence[Given] | io.IOBase, *, crop: Crop, channels: int) -> Stimuli:
    """Images from arrays, Pillow images or an open file.

    Args:
        arrays: One image or a sequence of them: uint8 (H, W, 3) RGB, (H, W, 4) RGBA or (H, W) grey; an array (N, H, W,
            C) is N images. Pillow images are turned and converted as files are
            (:func:`erfscope.core.images.decode.decode`). Copied. Or one image file that is open for reading bytes.
        crop: Image -> uint8 (H, W, C) at the model's input size.
        channels: The model's input channels, 1 or 3.

    Returns:
        The images, in order, named "array[0]" and so on.

    Raises:
        ErfscopeError: no images, another type or shape, or a model that takes neither grey nor RGB.
    """
    refuse_channels(channels)
    file = str(getattr(arrays, "name", "an open file")) if isinstance(arrays, io.IOBase) else ""
    listed = _listed(decode(arrays.read(), name=file, channels=channels) if isinstance(arrays, io.IOBase) else arrays)
    if not listed:
        raise ErfscopeError("images is an empty sequence; give at least one image")
    images = [_to_image(given, index, channels) for index, given in enumerate(listed)]
    sha256 = _sha256(listed)
    return Stimuli(
        kind="array",
        names=tuple(f"array[{index}]" for index in range(len(images))),
        source=file or ("1 array" if len(images) == 1 else f"{len(images)} arrays"),
        draw=partial(_draw, images, crop, channels),
        digest=lambda: sha256,
        is_one_file=bool(file),
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
