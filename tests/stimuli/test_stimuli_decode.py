"""Every kind of image file gives the pixels it should, and every broken one a single line."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from erfscope import ErfscopeError
from erfscope.adapters.preprocess import input_config, preprocess
from erfscope.core.images import open_arrays, open_pictures
from erfscope.core.images.decode import _webp_size, decode, fit, read_picture, to_8_bit

#: 256 steps of 16-bit grey whose 8-bit value is exact: 257 k -> k.
RAMP = np.tile(np.arange(256, dtype=np.uint16) * 257, (8, 1))
COLOURS = np.random.default_rng(0).integers(0, 256, (6, 5, 3), dtype=np.uint8)


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


LARGE_PNG, LARGE_JPEG = (encoded(Image.fromarray(np.tile(COLOURS, (9, 9, 1))), kind) for kind in ("PNG", "JPEG"))
NO_WHITE = "which do not say how bright white is; save it with 8 or 16"


def whole(image: Image.Image) -> np.ndarray:
    return np.asarray(image)


def pixels(data: bytes, channels: int = 3) -> np.ndarray:
    return np.asarray(decode(data, name="x", channels=channels)).astype(int)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_16(values: np.ndarray, transparent: tuple[int, ...]) -> bytes:
    """A 16-bit PNG, grey or RGB, one colour of which stands for transparent."""
    height, width = values.shape[:2]
    head = struct.pack(">IIBBBBB", width, height, 16, 0 if values.ndim == 2 else 2, 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    key = struct.pack(f">{len(transparent)}H", *transparent)
    body = chunk(b"IHDR", head) + chunk(b"tRNS", key) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def tiff(body: bytes, shape: tuple[int, ...], order: str, photometric: int, bits: int) -> bytes:
    """An uncompressed grey TIFF, written by hand."""
    height, width = shape
    shorts = {256: width, 257: height, 258: bits, 259: 1, 262: photometric, 277: 1, 278: height}
    longs = {273: 8, 279: len(body)}
    directory = struct.pack(f"{order}H", len(shorts) + len(longs))
    for tag, value in sorted((shorts | longs).items()):
        packed = struct.pack(f"{order}HH", value, 0) if tag in shorts else struct.pack(f"{order}I", value)
        directory += struct.pack(f"{order}HHI", tag, 3 if tag in shorts else 4, 1) + packed
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}I", 8 + len(body))
    return head + body + directory + bytes(4)


def test_lossless_rgb_files_give_their_own_pixels_and_lossy_ones_those_that_opencv_reads() -> None:
    for kind in ("PNG", "BMP", "TIFF", "PPM"):
        assert np.array_equal(pixels(encoded(Image.fromarray(COLOURS), kind)), COLOURS)
    smooth = cv2.resize(COLOURS, (40, 48), interpolation=cv2.INTER_CUBIC)
    for kind, options in (("WEBP", {"lossless": True}), ("JPEG", {"quality": 95, "subsampling": 0})):
        data = encoded(Image.fromarray(smooth), kind, **options)
        reference = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)[..., ::-1].astype(int)
        assert np.abs(pixels(data) - reference).max() <= 2


@pytest.mark.parametrize("suffix", [".png", ".tiff"])
def test_a_16_bit_ramp_becomes_the_8_bit_ramp(suffix: str) -> None:
    colours = np.stack([RAMP, RAMP[:, ::-1], RAMP // 2 // 257 * 257], axis=-1)
    grey, rgb = (cv2.imencode(suffix, values)[1].tobytes() for values in (RAMP, colours[..., ::-1]))
    assert np.array_equal(pixels(grey, 1), RAMP // 257)
    assert np.array_equal(pixels(grey, 3), np.repeat(RAMP[..., None] // 257, 3, axis=-1))
    assert np.array_equal(pixels(rgb), colours // 257)


def test_16_bit_tiff_of_either_byte_order_and_either_white_and_12_bits_span_the_whole_range() -> None:
    for order, photometric in (("<", 1), (">", 1), ("<", 0)):
        data = tiff(RAMP.astype(f"{order}u2").tobytes(), RAMP.shape, order, photometric, 16)
        assert np.array_equal(pixels(data, 1), RAMP // 257 if photometric else 255 - RAMP // 257)
    # Two samples in three bytes, most significant bits first; Pillow leaves them at 0 ... 4095 in a 16-bit image.
    first, second = np.arange(0, 4096, 32), np.arange(16, 4096, 32)
    body = np.stack([first >> 4, (first & 15) << 4 | second >> 8, second & 255], axis=-1).astype(np.uint8).tobytes()
    assert np.array_equal(pixels(tiff(body, (1, 256), "<", 1, 12), 1)[0], np.arange(256))
    # A PGM file states its own maximum.
    values = np.arange(0, 1024, 4, dtype=">u2")
    assert np.abs(pixels(b"P5 256 1 1023 " + values.tobytes(), 1)[0] - values.astype(int) * 255 / 1023).max() <= 1


def test_alpha_is_laid_over_mid_grey_and_a_transparent_colour_becomes_it_in_every_mode() -> None:
    alpha = np.array([[0, 255, 51, 128, 200]] * 6, dtype=np.uint8)
    expected = COLOURS * (alpha[..., None] / 255) + 128 * (1 - alpha[..., None] / 255)
    rgba = encoded(Image.fromarray(np.dstack([COLOURS, alpha])))
    assert np.abs(pixels(rgba) - expected).max() <= 1
    grey = encoded(Image.merge("LA", [Image.fromarray(COLOURS[..., 0]), Image.fromarray(alpha)]))
    assert np.abs(pixels(grey, 1) - expected[..., 0]).max() <= 1
    palette = Image.fromarray(COLOURS[:1]).quantize(5)
    key = palette.getpixel((2, 0))
    shown = pixels(encoded(palette, transparency=key))[0]
    assert shown[2].tolist() == [128, 128, 128]
    assert np.array_equal(np.delete(shown, 2, axis=0), np.delete(COLOURS[0], 2, axis=0))
    grey = Image.fromarray(np.array([[10, 20, 30]], dtype=np.uint8))
    assert pixels(encoded(grey, transparency=20), 1).tolist() == [[10, 128, 30]]
    assert pixels(png_16(RAMP[:1, :4], (514,)), 1).tolist() == [[0, 1, 128, 3]]
    rgb = np.array([[[0, 257, 514], [257, 257, 257]]])
    assert pixels(png_16(rgb, (0, 257, 514))).tolist() == [[[128, 128, 128], [1, 1, 1]]]


def test_palette_one_bit_cmyk_and_grey_pictures_give_their_colours() -> None:
    palette = Image.fromarray(COLOURS[:2]).quantize(16)
    assert np.array_equal(pixels(encoded(palette)), COLOURS[:2])
    bits = np.array([[0, 1, 1], [1, 0, 1]], dtype=bool)
    for kind in ("PNG", "TIFF"):
        assert np.array_equal(pixels(encoded(Image.fromarray(bits), kind), 1), bits * 255)
    cmyk = Image.frombytes("CMYK", (16, 16), bytes([255, 0, 0, 0]) * 256)
    for kind, options, most in (("TIFF", {}, 0), ("JPEG", {"quality": 95}, 3)):
        assert np.abs(pixels(encoded(cmyk, kind, **options)) - [0, 255, 255]).max() <= most
    grey = np.arange(256, dtype=np.uint8)[None]
    assert np.array_equal(pixels(encoded(Image.fromarray(grey))), np.repeat(grey[..., None], 3, axis=-1))
    luminance = COLOURS @ np.array([0.299, 0.587, 0.114])
    assert np.abs(pixels(encoded(Image.fromarray(COLOURS)), 1) - luminance).max() <= 0.51


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
def test_an_animation_shows_its_first_frame(kind: str) -> None:
    frames = [Image.new("RGB", (8, 8), (level, level, level)) for level in (40, 200, 90)]
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    with Image.open(io.BytesIO(data)) as image:
        assert image.n_frames == 3
    assert np.all(pixels(data) == 40)


#: EXIF 2.32, tag 0x0112: which side of the scene the first row and the first column of the file are.
SIDES = ("top left", "top right", "bottom right", "bottom left", "left top", "right top", "right bottom", "left bottom")


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP", "16-bit PNG"])
def test_each_exif_orientation_puts_the_marked_corner_where_it_belongs(kind: str) -> None:
    stored = np.zeros((24, 40), dtype=np.uint8)
    stored[:8, :8] = 255
    image = Image.fromarray(stored.astype(np.uint16) * 257) if kind.startswith("16") else Image.fromarray(stored)
    for orientation, sides in enumerate(SIDES, 1):
        exif = Image.Exif()
        exif[0x0112] = orientation
        options = {"lossless": True} if kind == "WEBP" else {}
        shown = pixels(encoded(image, kind.split()[-1], exif=exif, **options), 1)
        assert shown.shape == ((24, 40) if orientation <= 4 else (40, 24))
        bright = np.argwhere(shown > 128).mean(axis=0) < np.array(shown.shape) / 2
        assert {"top" if bright[0] else "bottom", "left" if bright[1] else "right"} == {*sides.split()}


@pytest.mark.slow
def test_what_is_too_large_is_refused_before_it_is_read_or_resized(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    text = "^cannot read 'x': it has more than the 100 pixels that Pillow takes for safe; make it smaller"
    for side in (12, 40):
        with pytest.raises(ErfscopeError, match=text):
            decode(encoded(Image.new("L", (side, side))), name="x", channels=3)
    assert pixels(encoded(Image.new("L", (10, 10)))).shape == (10, 10, 3)
    monkeypatch.undo()
    with (tmp_path / "x.png").open("wb") as file:
        file.truncate(1 << 31)
    text = "a file of 2048 MiB is too large for an image; make it smaller; keep_going=True passes"
    with pytest.raises(ErfscopeError, match=text):
        read_picture(tmp_path / "x.png", channels=3)
    Image.new("L", (1_000_000, 1)).save(tmp_path / "row.png")
    crop = preprocess(input_config({})).crop
    stimuli = open_pictures(tmp_path / "row.png", samples=None, seed=0, crop=crop, channels=3)
    text = "row.png': resized by its shorter side, an image of 1000000x1 would be 256000000 pixels long"
    with pytest.raises(ErfscopeError, match=text):
        stimuli.pixels(0)
    Image.new("L", (100, 1)).save(tmp_path / "row.png")
    assert stimuli.pixels(0).shape == (224, 224, 3)


def test_the_header_of_a_webp_file_says_its_size() -> None:
    for options in ({}, {"lossless": True}, {"exif": Image.Exif().tobytes() + bytes(8)}):
        assert _webp_size(encoded(Image.new("RGB", (37, 5)), "WEBP", **options)) == (37, 5)
    assert _webp_size(encoded(Image.new("RGB", (37, 5)))) == (0, 0)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "the file is empty; copy it again or leave it out"),
        (b"hello world", "it is not an image that Pillow reads; give one of PNG, JPEG"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "it is not an image that Pillow reads"),
        (LARGE_PNG[:-200], r"damaged or of a rare kind \(.*truncated.*\); save it again as PNG or leave it out"),
        (LARGE_JPEG[:-200], r"damaged or of a rare kind \(.*truncated.*\)"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line(data: bytes, text: str) -> None:
    with pytest.raises(ErfscopeError, match=f"^cannot read 'x.png': {text}") as caught:
        decode(data, name="x.png", channels=3)
    assert "\n" not in str(caught.value)


def test_arrays_pillow_images_and_open_files_give_their_pixels(tmp_path: Path) -> None:
    grey, alpha = COLOURS[..., 0], np.dstack([COLOURS, np.full((6, 5), 255, np.uint8)])
    stimuli = open_arrays(
        [COLOURS, grey, alpha, Image.fromarray(COLOURS), grey[..., None], COLOURS[:, ::-1]], crop=whole, channels=3
    )
    shown = [stimuli.pixels(index) for index in range(stimuli.n)]
    repeated = np.repeat(grey[..., None], 3, axis=-1)
    for got, expected in zip(shown, [COLOURS, repeated, COLOURS, COLOURS, repeated, COLOURS[:, ::-1]], strict=True):
        assert np.array_equal(got, expected)
    assert stimuli.kind == "array"
    assert stimuli.names[5] == "array[5]"
    assert open_arrays(grey, crop=whole, channels=1).pixels(0).shape == (6, 5, 1)
    assert open_arrays(np.stack([COLOURS] * 4), crop=whole, channels=3).n == 4
    Image.fromarray(COLOURS).save(tmp_path / "x.png")
    with (tmp_path / "x.png").open("rb") as file:
        stimuli = open_arrays(file, crop=whole, channels=3)
    assert np.array_equal(stimuli.pixels(0), COLOURS)
    assert (stimuli.source, stimuli.is_one_file) == (str(tmp_path / "x.png"), True)
    with pytest.raises(ErfscopeError, match="cannot read 'an open file': it is not an image"):
        open_arrays(io.BytesIO(b"x"), crop=whole, channels=3)
    other = COLOURS.copy()
    other[0, 0, 0] ^= 1
    variants = [COLOURS, other, COLOURS.reshape(5, 6, 3), [COLOURS, other], [other, COLOURS]]
    assert len({open_arrays(given, crop=whole, channels=3).sha256 for given in variants}) == 5
    alike = [(COLOURS, 3), (COLOURS, 1), (Image.fromarray(COLOURS), 3)]
    assert len({open_arrays(given, crop=whole, channels=channels).sha256 for given, channels in alike}) == 1


@pytest.mark.parametrize(
    ("given_", "text"),
    [
        (COLOURS.astype(np.float32), r"array\[0\] is float32 \(6, 5, 3\); give uint8 \(0 \.\.\. 255\), or a ready"),
        (COLOURS.transpose(2, 0, 1), r"array\[0\] has shape \(3, 6, 5\); give \(H, W, 3\)"),
        ([], "empty sequence"),
        ([COLOURS, "x.png"], r"array\[1\] is a str"),
        (Image.new("F", (3, 3)), r"cannot use array\[0\]: its pixels are floats"),
    ],
)
def test_arrays_that_are_no_pictures_are_refused_by_place(given_: object, text: str) -> None:
    with pytest.raises(ErfscopeError, match=text):
        open_arrays(given_, crop=whole, channels=3)  # type: ignore[arg-type]


def test_crop_gets_the_models_mode_and_must_give_its_shape_and_other_channels_are_told_what_to_do(
    tmp_path: Path,
) -> None:
    (tmp_path / "x.png").write_bytes(encoded(Image.fromarray(COLOURS)))
    text = r"6 channels and an image has 3 .*; give a TIFF, zarr or .npy file of so many bands, or synthetic='leaves'"
    with pytest.raises(ErfscopeError, match=text):
        open_pictures([tmp_path / "x.png"], samples=None, seed=0, crop=whole, channels=6)
    with pytest.raises(ErfscopeError, match=text):
        open_arrays(COLOURS, crop=whole, channels=6)
    modes = []

    def crop(image: Image.Image) -> np.ndarray:
        modes.append(image.mode)
        return np.asarray(image.resize((4, 3)))

    assert open_arrays(COLOURS, crop=crop, channels=1).pixels(0).shape == (3, 4, 1)
    assert open_arrays(COLOURS, crop=crop, channels=3).pixels(0).shape == (3, 4, 3)
    assert modes == ["L", "RGB"]
    with pytest.raises(ErfscopeError, match=r"the model's crop gave float64 \(6, 5, 3\).*must give uint8 \(H, W, 3\)"):
        fit(Image.fromarray(COLOURS), lambda image: np.asarray(image) / 255, channels=3)  # type: ignore[arg-type,return-value]
    with pytest.raises(ErfscopeError, match="crop gave"):
        fit(to_8_bit(Image.fromarray(COLOURS), channels=1), whole, channels=3)
