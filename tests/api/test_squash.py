"""``squash``: images that are resized whole."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import erfscope
from erfscope import ErfscopeError

QUICK = {"measures": "r50", "draws": 1}
pytestmark = pytest.mark.usefixtures("memory_unplanned")


@pytest.fixture
def net():
    return nn.Sequential(nn.Conv2d(3, 4, 5, 2, 2), nn.ReLU(), nn.Conv2d(4, 4, 5, 2, 2))


@pytest.fixture
def photograph():
    """As wide as three inputs are."""
    noise = np.random.default_rng(0).integers(0, 256, (32, 96, 3), dtype=np.uint8)
    return Image.fromarray(noise)


def test_a_squashed_image_is_the_whole_image_resized(net, photograph):
    adapter = erfscope.wrap(net, input_size=32)
    pixels = np.asarray(photograph.resize((32, 32), Image.Resampling.BICUBIC))
    expected = erfscope.analyze(adapter, images=adapter.preprocess.normalise(pixels[None]).to(torch.float32), **QUICK)
    obtained, cropped = (
        erfscope.analyze(adapter, images=photograph, squash=squash, **QUICK) for squash in (True, False)
    )
    np.testing.assert_array_equal(obtained.map.values, expected.map.values)
    assert np.abs(cropped.map.values - expected.map.values).max() > 1e-4
    assert obtained.input.resize == "bicubic resize, whole, to 32x32"
    assert "whole" not in adapter.preprocess.text


def test_squashed_and_cropped_images_are_not_compared(net, photograph):
    squashed, cropped = (
        erfscope.sweep(net, input_size=32, images=photograph, squash=each, **QUICK) for each in (True, False)
    )
    with pytest.raises(ErfscopeError, match="resize and crop"):
        erfscope.compare([squashed, cropped])


def test_a_transform_of_ones_own_is_not_squashed(net, photograph):
    def halve(picture: Image.Image) -> torch.Tensor:
        return torch.zeros(3, 32, 32)

    with pytest.raises(ErfscopeError, match="its own transform; leave it out"):
        erfscope.analyze(net, input_size=32, images=photograph, transform=halve, squash=True)
