"""``squash``: images that are resized whole."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from nets import conv
from one_line import one_line
from PIL import Image
from torch import nn

import erfscope

QUICK = {"measures": "r50", "draws": 1}
pytestmark = pytest.mark.usefixtures("memory_unplanned")


@pytest.fixture
def net():
    return nn.Sequential(conv(3, 4, 5, 2), nn.ReLU(), conv(4, 4, 5, 2))


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


def test_squashed_and_cropped_images_are_not_compared_and_a_transform_of_ones_own_is_not_squashed(net, photograph):
    options = {"input_size": 32, "images": photograph, **QUICK}
    squashed, cropped = (erfscope.sweep(net, squash=each, **options) for each in (True, False))
    one_line(lambda: erfscope.compare([squashed, cropped]), "resize and crop")
    zeros, words = lambda picture: torch.zeros(3, 32, 32), "its own transform; leave it out"
    one_line(lambda: erfscope.analyze(net, transform=zeros, squash=True, **options), words)
