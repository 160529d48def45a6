"""What an input does not state: the guess of its channels by the first convolution and its correction, and axes of
examples that may be meant otherwise, which are read as documented and said."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from nets import Does, conv
from one_line import one_line
from oracle import plain_gradient
from torch import nn

import erfscope
from erfscope import MeasurementError
from erfscope.adapters.channels import next_guess

SIZE = (8, 12)


def before(function, channels, groups=1):
    """A convolution that takes other channels than the image has."""
    return Does(lambda m, x: m.conv(function(x)), conv=conv(channels, 6, groups=groups))


def recurrent(m, x):
    """A cell that joins each frame with its state."""
    state, states = x.new_zeros(len(x), 4, *x.shape[3:]), []
    for frame in x.unbind(2):
        state = torch.tanh(m.cell(torch.cat([frame, state], 1)))
        states.append(state)
    return torch.stack(states, 2)


def with_coordinates(x):
    rows = torch.linspace(-1, 1, x.shape[2]).to(x)[:, None].expand(len(x), 1, *x.shape[2:])
    return torch.cat([x, rows, rows.flip(2)], 1)


def to_depth(x):
    return torch.cat([x[..., i::2, j::2] for i in (0, 1) for j in (0, 1)], 1)


NETS = {
    "coordinates": (lambda: before(with_coordinates, 5), 3),
    "coordinates of a grey image": (lambda: before(with_coordinates, 3), 1),
    "a mask": (lambda: before(lambda x: torch.cat([x, torch.ones_like(x[:, :1])], 1), 4), 3),
    "pixels unshuffled": (lambda: before(lambda x: F.pixel_unshuffle(x, 2), 12), 3),
    "space to depth, in groups": (lambda: before(to_depth, 12, groups=2), 3),
    "unshuffled, with coordinates": (lambda: before(lambda x: with_coordinates(F.pixel_unshuffle(x, 2)), 14), 3),
    "two images in one": (lambda: before(lambda x: x[:, :3] - x[:, 3:], 3), 6),
    "groups": (lambda: before(lambda x: x, 6, groups=2), 6),
    # The first registered convolution is not the first that runs.
    "head first": (lambda: Does(lambda m, x: m.head(m.stem(x)), head=conv(16, 4, 1), stem=conv(3, 16)), 3),
}


@pytest.mark.parametrize("name", NETS)
def test_the_channels_are_those_that_the_model_takes_and_the_map_is_that_of_plain_autograd(name):
    make, channels = NETS[name]
    torch.manual_seed(0)
    module = make().double().eval()
    x = torch.randn(1, channels, *SIZE, dtype=torch.float64)
    truth = plain_gradient(module, x, lambda y: y[0, :, 2, 3]).abs().sum((0, 1))
    adapter = erfscope.wrap(module, input_size=SIZE)
    words = {"layer": "output", "unit": (2, 3), "convention": "luo", "measures": "r50"}
    if name != "two images in one":  # four run too: three of one image less one of another
        assert len(erfscope.analyze(adapter, samples=1, **words).map.values) == SIZE[0]
        assert (adapter.preprocess.channels, len(adapter.preprocess.mean)) == (channels, channels)
    found = erfscope.analyze(adapter, images=x, **words).map.values
    assert np.abs(found - (truth / truth.sum()).numpy()).sum() <= 1e-9


def test_a_recurrent_cell_sees_the_frames_before_its_own():
    trf = erfscope.theoretical(Does(recurrent, cell=conv(7, 4)), layer="output", unit=(2, 6, 6), input_size=(5, 12, 12))
    assert trf.clipped_box_px == ((0, 2), (3, 9), (3, 9))


def test_a_corrected_guess_is_said_and_a_stated_number_is_no_guess():
    module = before(with_coordinates, 5)
    result = erfscope.analyze(module, layer="output", samples=1, input_size=SIZE, measures="r50")
    text = "its input has 3 channels: it fails on 5, which were a guess"
    assert text in [each.text for each in result.findings]
    for stated in ({"in_chans": 5}, {"mean": (0.0,) * 5}):
        call = lambda stated=stated: erfscope.wrap(module, input_size=SIZE, **stated).recording  # noqa: E731
        assert "guess" not in one_line(call, r"got 7 channels", MeasurementError)
    assert erfscope.wrap(module, input_size=SIZE, mean=(0.5, 0.4, 0.3)).preprocess.channels == 3
    flat = erfscope.wrap(before(lambda x: x.flatten(), 5), input_size=SIZE)
    one_line(lambda: flat.recording, r"5 channels.*its 5 channels are a guess.*in_chans=", MeasurementError)


def test_guesses_follow_from_what_a_layer_takes_and_gets():
    joined = "expected input[1, 11, 16, 16] to have 7 channels, but got 11 channels instead"
    assert next_guess([7], joined) == 3
    assert next_guess([12], "expected input[1, 48, 8, 8] to have 12 channels, but got 48 channels instead") == 3
    assert next_guess([7, 3], joined) == 1
    assert next_guess([3], "mat1 and mat2 shapes cannot be multiplied (64x48 and 64x8)") == 19
    assert next_guess([3, 19], "mat1 and mat2 shapes cannot be multiplied (64x304 and 64x8)") == 4
    assert next_guess([4, 3, 1, 2], "anything") is None


@pytest.mark.parametrize(
    ("shape", "is_said"),
    [((4, 3, 8, 8), True), ((3, 4, 8, 8), False), ((1, 3, 8, 8), False), ((3, 3, 8, 8), False), ((8, 2, 8, 8), False)],
)
def test_frames_before_channels_are_pointed_out(shape, is_said):
    clips = erfscope.wrap(nn.Conv3d(shape[0], 2, 3, padding=1), inputs={"input": torch.zeros(1, *shape)})
    result = erfscope.analyze(clips, samples=1, measures="r50")
    said = [finding.text for finding in result.findings if finding.text.startswith("input is read as (B, C, T, H, W)")]
    assert bool(said) is is_said


class Warped(nn.Module):
    """A view beside another that is moved by a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 3, padding=1)

    def forward(self, view, other, cameras):
        moved = nn.functional.affine_grid(cameras[:, 1, :2, :3], view.shape, align_corners=True)
        return self.conv(view) * self.conv(nn.functional.grid_sample(other, moved, align_corners=True))


@pytest.mark.parametrize("shape", [(2, 4, 4), (2, 3, 3)])
def test_matrices_of_cameras_are_no_maps_beside_images(shape):
    """Images in their place would be nonsense."""
    cameras = torch.eye(shape[-1]).expand(1, *shape)
    image = torch.zeros(1, 3, 8, 8)
    adapter = erfscope.wrap(Warped(), inputs={"view": image, "other": image, "cameras": cameras})
    assert list(adapter.preprocess.parts) == ["input:view", "input:other"]
    assert list(adapter.passed) == ["input:cameras"]
    assert {row.trf.clipped_box_px for row in erfscope.sweep(adapter, samples=1, layer="output", measures="r50")} > {
        ((3, 5), (3, 5))
    }
    # Small maps are maps where there are no larger ones.
    adapter = erfscope.wrap(Warped(), inputs={each: torch.zeros(1, 3, 4, 4) for each in ("view", "other", "cameras")})
    assert len(adapter.preprocess.parts) == 3
