"""Channels of an input that nothing states: the guess by the first convolution, and its correction."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import erfscope
from erfscope import MeasurementError
from erfscope.adapters.channels import next_guess

SIZE = (8, 12)


class Before(nn.Module):
    """A convolution that takes other channels than the image has."""

    def __init__(self, before, channels, groups=1):
        super().__init__()
        self.before, self.conv = before, nn.Conv2d(channels, 6, 3, padding=1, groups=groups)

    def forward(self, x):
        return self.conv(self.before(x))


class Recurrent(nn.Module):
    """A cell that joins each frame with its state."""

    def __init__(self):
        super().__init__()
        self.cell = nn.Conv2d(3 + 4, 4, 3, padding=1)

    def forward(self, x):
        state, states = x.new_zeros(len(x), 4, *x.shape[3:]), []
        for frame in x.unbind(2):
            state = torch.tanh(self.cell(torch.cat([frame, state], 1)))
            states.append(state)
        return torch.stack(states, 2)


class HeadFirst(nn.Module):
    """Whose first registered convolution is not the first that runs."""

    def __init__(self):
        super().__init__()
        self.head, self.stem = nn.Conv2d(16, 4, 1), nn.Conv2d(3, 16, 3, padding=1)

    def forward(self, x):
        return self.head(self.stem(x))


def with_coordinates(x):
    rows = torch.linspace(-1, 1, x.shape[2]).to(x)[:, None].expand(len(x), 1, *x.shape[2:])
    return torch.cat([x, rows, rows.flip(2)], 1)


def to_depth(x):
    return torch.cat([x[..., i::2, j::2] for i in (0, 1) for j in (0, 1)], 1)


NETS = {
    "coordinates": (lambda: Before(with_coordinates, 5), 3),
    "coordinates of a grey image": (lambda: Before(with_coordinates, 3), 1),
    "a mask": (lambda: Before(lambda x: torch.cat([x, torch.ones_like(x[:, :1])], 1), 4), 3),
    "pixels unshuffled": (lambda: Before(lambda x: F.pixel_unshuffle(x, 2), 12), 3),
    "space to depth, in groups": (lambda: Before(to_depth, 12, groups=2), 3),
    "unshuffled, with coordinates": (lambda: Before(lambda x: with_coordinates(F.pixel_unshuffle(x, 2)), 14), 3),
    "two images in one": (lambda: Before(lambda x: x[:, :3] - x[:, 3:], 3), 6),
    "groups": (lambda: Before(lambda x: x, 6, groups=2), 6),
    "head first": (HeadFirst, 3),
}


@pytest.mark.parametrize("name", NETS)
def test_the_channels_are_those_that_the_model_takes_and_the_map_is_that_of_plain_autograd(name):
    make, channels = NETS[name]
    torch.manual_seed(0)
    module = make().double().eval()
    x = torch.randn(1, channels, *SIZE, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(module(x)[0, :, 2, 3].sum(), x)
    truth = gradient.abs().sum((0, 1))
    adapter = erfscope.wrap(module, input_size=SIZE)
    words = {"layer": "output", "unit": (2, 3), "convention": "luo", "measures": "r50"}
    if name != "two images in one":  # four run too: three of one image less one of another
        assert len(erfscope.analyze(adapter, samples=1, **words).map.values) == SIZE[0]
        assert (adapter.preprocess.channels, len(adapter.preprocess.mean)) == (channels, channels)
    found = erfscope.analyze(adapter, images=x.detach(), **words).map.values
    assert np.abs(found - (truth / truth.sum()).numpy()).sum() <= 1e-9


def test_a_recurrent_cell_sees_the_frames_before_its_own():
    trf = erfscope.theoretical(Recurrent(), layer="output", unit=(2, 6, 6), input_size=(5, 12, 12))
    assert trf.clipped_box_px == ((0, 2), (3, 9), (3, 9))


def test_a_corrected_guess_is_said_and_a_stated_number_is_no_guess():
    module = Before(with_coordinates, 5)
    result = erfscope.analyze(module, layer="output", samples=1, input_size=SIZE, measures="r50")
    text = "its input has 3 channels: it fails on 5, which were a guess"
    assert text in [each.text for each in result.findings]
    for stated in ({"in_chans": 5}, {"mean": (0.0,) * 5}):
        with pytest.raises(MeasurementError, match=r"got 7 channels") as error:
            _ = erfscope.wrap(module, input_size=SIZE, **stated).recording
        assert "guess" not in str(error.value)
    assert erfscope.wrap(module, input_size=SIZE, mean=(0.5, 0.4, 0.3)).preprocess.channels == 3


def test_a_model_that_fails_on_all_guesses_is_refused_with_the_first_and_what_to_give():
    module = Before(lambda x: x.flatten(), 5)
    with pytest.raises(MeasurementError, match=r"5 channels.*its 5 channels are a guess.*in_chans="):
        _ = erfscope.wrap(module, input_size=SIZE).recording


def test_guesses_follow_from_what_a_layer_takes_and_gets():
    joined = "expected input[1, 11, 16, 16] to have 7 channels, but got 11 channels instead"
    assert next_guess([7], joined) == 3
    assert next_guess([12], "expected input[1, 48, 8, 8] to have 12 channels, but got 48 channels instead") == 3
    assert next_guess([7, 3], joined) == 1
    assert next_guess([3], "mat1 and mat2 shapes cannot be multiplied (64x48 and 64x8)") == 19
    assert next_guess([3, 19], "mat1 and mat2 shapes cannot be multiplied (64x304 and 64x8)") == 4
    assert next_guess([4, 3, 1, 2], "anything") is None
