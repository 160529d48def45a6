"""Hostile image files: decoded, or refused in one line before much memory is taken."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from fuzzing import fuzz, works_or_refuses
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from erfscope import ErfscopeError
from erfscope.core.images.decode import decode

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP", "PPM")


def saved(kind: str) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 255, (24, 17, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


SAVED = {kind: saved(kind) for kind in FORMATS}
SIDES = (0, 1, 2**15, 2**16 - 1, 2**31 - 1, 2**32 - 1)


def with_size(kind: str, width: int, height: int) -> bytes:
    """A file whose header claims another size; sides are cut to what the format can hold."""
    content = bytearray(SAVED[kind])
    if kind == "PNG":
        content[16:24] = struct.pack(">II", width, height)
        content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    elif kind == "BMP":
        content[18:26] = struct.pack("<II", width, height)
    elif kind == "GIF":
        content[6:10] = struct.pack("<HH", width & 0xFFFF, height & 0xFFFF)
    elif kind == "JPEG":
        at = content.index(b"\xff\xc0") + 5
        content[at : at + 4] = struct.pack(">HH", height & 0xFFFF, width & 0xFFFF)
    elif kind == "PPM":
        return b"P6\n%d %d\n255\n" % (width, height) + bytes(content[-60:])
    elif kind == "WEBP":
        at = content.index(b"VP8 ") + 14
        content[at : at + 4] = struct.pack("<HH", width & 0x3FFF, height & 0x3FFF)
    else:
        # Tags 256 and 257 of the first directory, as 32-bit numbers.
        for tag, value in ((256, width), (257, height)):
            at = max(content.find(struct.pack("<HH", tag, kind)) for kind in (3, 4))
            content[at : at + 12] = struct.pack("<HHII", tag, 4, 1, value)
    return bytes(content)


def assert_decoded_or_refused(content: bytes, channels: int) -> None:
    made = works_or_refuses(lambda: decode(content, name="x\x1b[31m.png", channels=channels))
    if not isinstance(made, ErfscopeError):
        assert made.mode == ("L" if channels == 1 else "RGB")
        assert min(made.size) >= 1
        made.load()


@pytest.mark.slow
@fuzz(100)
@given(
    kind=st.sampled_from(FORMATS),
    width=st.sampled_from(SIDES) | st.integers(0, 2**32 - 1),
    height=st.sampled_from(SIDES),
    channels=st.sampled_from([1, 3]),
)
def test_a_header_of_any_size_is_decoded_or_refused(kind, width, height, channels):
    assert_decoded_or_refused(with_size(kind, width, height), channels)


@pytest.mark.slow
@fuzz(250)
@given(
    kind=st.sampled_from(FORMATS),
    kept=st.floats(0, 1) | st.just(1.0),
    changes=st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), max_size=6),
    early=st.booleans(),
    channels=st.sampled_from([1, 3]),
)
def test_a_damaged_picture_is_decoded_or_refused(kind, kept, changes, early, channels):
    content = bytearray(SAVED[kind])
    del content[round(kept * len(content)) :]
    for at, value in changes:
        if content:
            # Headers are where the harm is.
            content[(at % 64 if early else at) % len(content)] = value
    assert_decoded_or_refused(bytes(content), channels)


@pytest.mark.slow
@fuzz(100)
@given(
    head=st.sampled_from(
        [b"", *(content[:12] for content in SAVED.values()), b"II*\0", b"P5 ", b"\0\0\0\x1cftypavif", b"%!PS"]
    ),
    rest=st.binary(max_size=80),
)
def test_any_bytes_are_decoded_or_refused(head, rest):
    assert_decoded_or_refused(head + rest, 3)


@pytest.mark.parametrize("kind", FORMATS)
def test_giant_dimensions_are_refused_by_the_header(kind):
    side = 16_383 if kind == "WEBP" else 30_000
    error = works_or_refuses(lambda: decode(with_size(kind, side, side), name="bomb", channels=3))
    assert isinstance(error, ErfscopeError)
    assert "pixels that Pillow takes for safe" in str(error)
