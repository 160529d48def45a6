"""Images of another range than the model takes are said to be so, and are measured as they are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import erfscope

NOISE = np.random.default_rng(0)


def texts(images) -> list[str]:
    torch.manual_seed(0)
    model = erfscope.wrap(nn.Conv2d(3, 4, 3, padding=1).eval(), input_size=(16, 16))
    result = erfscope.analyze(model, layer="output", images=images)
    return [each.text for each in result.findings if each.code == "value_range"]


@pytest.mark.parametrize(
    ("bits", "largest", "times"), [(10, "1,023", 64), (12, "4,095", 16), (14, "16,383", 4), (16, None, None)]
)
def test_few_bits_in_a_file_of_sixteen_are_nearly_black(tmp_path, bits, largest, times):
    values = NOISE.integers(0, 2**bits, (16, 16)).astype(np.uint16)
    values[8, 8] = 2**bits - 1
    Image.fromarray(values).save(tmp_path / "x.png")
    found = texts(tmp_path / "x.png")
    assert len(found) == (largest is not None)
    assert all(f"x.png is {largest} of 65,535; multiply the values by {times} and save" in text for text in found)


def test_zeros_and_ones_in_eight_bits_are_nearly_black():
    (text,) = texts((NOISE.random((16, 16, 3)) > 0.5).astype(np.uint8))
    assert "the largest value of array[0] is 1 of 255; multiply the values by 255" in text
    assert texts(NOISE.integers(0, 256, (16, 16, 3), dtype=np.uint8)) == []


def test_a_tensor_of_zero_to_255_is_of_another_scale():
    (text,) = texts(255 * torch.rand(4, 3, 16, 16))
    assert "divide by 255, subtract mean and divide by std, or give uint8 arrays" in text
    assert texts(torch.randn(4, 3, 16, 16)) == []
