"""Images of another range than the model takes are said to be so, and are measured as they are."""

from __future__ import annotations

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image
from torch import nn

import erfscope


def noise(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def texts(images) -> list[str]:
    torch.manual_seed(0)
    model = erfscope.wrap(nn.Conv2d(3, 4, 3, padding=1).eval(), input_size=(16, 16))
    result = erfscope.analyze(model, layer="output", images=images)
    return [each.text for each in result.findings if each.code == "value_range"]


@pytest.mark.parametrize(
    ("bits", "largest", "times"), [(10, "1,023", 64), (12, "4,095", 16), (14, "16,383", 4), (16, None, None)]
)
def test_few_bits_in_a_file_of_sixteen_are_nearly_black(tmp_path, bits, largest, times):
    # Resampled, its brightest cells overshoot a quarter of the range.
    values = noise(18).integers(0, 2**bits, (16, 16)).astype(np.uint16)
    values[8, 8] = 2**bits - 1
    Image.fromarray(values).save(tmp_path / "x.png")
    found = texts(tmp_path / "x.png")
    assert len(found) == (largest is not None)
    assert all(f"x.png is {largest} of 65,535; multiply the values by {times} and save" in text for text in found)


#: Pictures that show nothing above 9 of 255, as they may be stored.
DARK = noise().integers(0, 10, (16, 16), dtype=np.uint8)
DARK[8, 8] = 9
RGB = Image.fromarray(np.repeat(DARK[..., None], 3, 2))
PALETTE = Image.fromarray(DARK + np.uint8(240)).convert("P")
PALETTE.putpalette([value for index in range(256) for value in [max(index - 240, 0)] * 3])
OPAQUE = Image.fromarray(np.full((16, 16), 255, np.uint8))
STORED = {
    "palette.png": PALETTE,
    "rgba.png": Image.merge("RGBA", (*RGB.split(), OPAQUE)),
    "la.png": Image.merge("LA", (Image.fromarray(DARK), OPAQUE)),
    "cmyk.tif": RGB.convert("CMYK"),
    "grey.png": Image.fromarray(DARK),
}


@pytest.mark.parametrize("name", STORED)
def test_the_largest_value_is_that_of_the_colours_whatever_the_file_holds(tmp_path, name):
    STORED[name].save(tmp_path / name)
    (text,) = texts(tmp_path / name)
    assert f"{name} is 9 of 255 (8 bits are read); multiply the values by 17" in text
    Image.new("1", (16, 16)).save(tmp_path / "bits.png")
    assert "is 0 of 255 (8 bits are read); give other images" in texts(tmp_path / "bits.png")[0]


def test_white_that_is_stored_as_zero_is_white(tmp_path):
    values = np.uint16(65535) - noise().integers(0, 4096, (16, 16)).astype(np.uint16)
    values[8, 8] = 65535 - 4095
    tifffile.imwrite(tmp_path / "x.tif", values, photometric="miniswhite")
    assert "x.tif is 4,095 of 65,535; multiply the values by 16" in texts(tmp_path / "x.tif")[0]


def test_a_dark_clip_is_nearly_black_by_the_frames_that_are_shown(tmp_path):
    for frame, value in enumerate((200, 5, 9, 200)):
        Image.new("RGB", (16, 16), (value,) * 3).save(tmp_path / f"{frame}.png")
    model = erfscope.wrap(nn.Conv3d(3, 4, 3, padding=1).eval(), input_size=(2, 16, 16), axes="thw")
    found = [each.text for each in erfscope.analyze(model, layer="output", images=tmp_path).findings]
    assert any(f"the largest value of {tmp_path} is 9 of 255 (8 bits are read)" in text for text in found)


def test_zeros_and_ones_in_eight_bits_are_nearly_black():
    (text,) = texts((noise().random((16, 16, 3)) > 0.5).astype(np.uint8))
    assert "the largest value of array[0] is 1 of 255; multiply the values by 255" in text
    assert texts(noise().integers(0, 256, (16, 16, 3), dtype=np.uint8)) == []


def test_a_tensor_of_zero_to_255_is_of_another_scale():
    (text,) = texts(255 * torch.rand(4, 3, 16, 16))
    assert "divide by 255, subtract mean and divide by std, or give uint8 arrays" in text
    assert texts(torch.randn(4, 3, 16, 16)) == []
