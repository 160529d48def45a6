"""Units that go through as a batch, each with its own part of the image: gradients are those of autograd."""

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from nets import Does
from torch import nn

import erfscope
from erfscope.core.graph.moved import MovedForward, paces_of

SIZE = (27, 30)


def conv(given, made, kernel=3, **more):
    return nn.Conv2d(given, made, kernel, **{"padding": kernel // 2, **more})


def norm(channels):
    found = nn.BatchNorm2d(channels)
    with torch.no_grad():
        for each in (found.weight, found.bias, found.running_mean):
            each.normal_()
    return found


def branches(m, x):
    return torch.cat([m.one(x), m.other(x)], 1)


def residual(m, x):
    return m.near(x) + m.far(x)


def last(m, x):
    return m.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


#: What is between two convolutions of four channels.
PARTS = {
    "strided": lambda: conv(4, 4, stride=2),
    "dilated": lambda: conv(4, 4, dilation=2, padding=2),
    "even": lambda: conv(4, 4, 4, padding=1),
    "grouped": lambda: conv(4, 4, groups=2),
    "norm": lambda: norm(4),
    "relu": nn.ReLU,
    "max pool": lambda: nn.MaxPool2d(3, 2, 1),
    "max pool of all": lambda: nn.MaxPool2d(3, 2, ceil_mode=True),
    "average pool": lambda: nn.AvgPool2d(3, 1, 1),
    "average pool inside": lambda: nn.AvgPool2d(2),
    "padded": lambda: Does(lambda m, x: F.pad(x, (0, 1, 2, 1))),
    "padded with a value": lambda: Does(lambda m, x: F.pad(x, (1, 1, 1, 1), value=0.7)),
    "cut": lambda: Does(lambda m, x: x[:, :, 1:, :-2]),
    "every other": lambda: Does(lambda m, x: x[:, :, ::2, 1::2]),
    "branches": lambda: Does(branches, one=conv(4, 2), other=nn.Sequential(conv(4, 4), nn.Tanh(), conv(4, 2))),
    "residual": lambda: Does(
        residual, near=conv(4, 4, 1, stride=2), far=nn.Sequential(conv(4, 4, stride=2), conv(4, 4))
    ),
    "channels last": lambda: Does(last, norm=nn.LayerNorm(4)),
    "weighed": lambda: Does(lambda m, x: x * m.scale.view(1, 4, 1, 1), scale=torch.randn(4)),
}
#: What is another thing at another place.
REFUSED = {
    "reflected": lambda: nn.ReflectionPad2d(1),
    "rolled": lambda: Does(lambda m, x: x.roll(1, 2)),
    "flipped": lambda: Does(lambda m, x: x.flip(3)),
    "upsampled": lambda: nn.Upsample(scale_factor=2, mode="bilinear"),
    "transposed": lambda: nn.ConvTranspose2d(4, 4, 2, stride=2),
    "average of what is there": lambda: nn.AvgPool2d(3, 1, 1, count_include_pad=False),
    "average of some": lambda: nn.AvgPool2d(2, ceil_mode=True),
    "shuffled": lambda: nn.Sequential(conv(4, 16), nn.PixelShuffle(2)),
    "by place": lambda: Does(lambda m, x: x + m.places, places=torch.randn(4, *SIZE)),
    "gated": lambda: Does(lambda m, x: x * x.mean((2, 3), keepdim=True).sigmoid()),
    "normalised": lambda: nn.GroupNorm(2, 4),
    "of its own statistics": lambda: nn.InstanceNorm2d(4),
    "summed up": lambda: Does(lambda m, x: x.cumsum(3)),
    "padded and cut": lambda: Does(lambda m, x: x.unfold(2, 3, 2).mean(-1)),
}


def net_of(*parts):
    torch.manual_seed(0)
    return nn.Sequential(conv(3, 4), *parts, conv(4, 5), nn.Tanh()).double().eval()


def moved_of(net, size=SIZE, count=3):
    """The pass of moved units of the last layer, its unit and the space; None where there is none."""
    adapter = erfscope.wrap(net, input_size=size)
    site = adapter.site("output")
    crop = site.crop([tuple(side // 2 for side in site.space)], 1)
    paces = paces_of(crop)
    return (None if paces is None else MovedForward(crop, paces, count, adapter.tensors())), site.space


def check(net, x, moved, units):
    """Compare the values and the gradients of units with those of the net itself."""
    given = x.clone().requires_grad_()
    made = net(given)
    weights = torch.randn(made.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with torch.enable_grad():
        values, parts, firsts = moved(x, units)
        (gradients,) = torch.autograd.grad((values[:, :, 0] * weights).sum(), parts)
    for unit, value, gradient, first in zip(units, values, gradients, firsts, strict=True):
        torch.testing.assert_close(value[:, 0], made[0][:, *unit], rtol=1e-11, atol=1e-11)
        (expected,) = torch.autograd.grad((made[0][:, *unit] * weights).sum(), given, retain_graph=True)
        obtained = torch.zeros_like(expected[0])
        sides = zip(first, gradient.shape[1:], x.shape[2:], strict=True)
        ranges = [(int(low), max(low, 0), max(low, 0, min(low + side, whole))) for low, side, whole in sides]
        there = (slice(None), *(slice(start, stop) for _, start, stop in ranges))
        here = (slice(None), *(slice(start - low, stop - low) for low, start, stop in ranges))
        obtained[there] = gradient[here]
        torch.testing.assert_close(obtained, expected[0], rtol=1e-11, atol=1e-11)
        assert gradient.abs().sum() == pytest.approx(float(gradient[here].abs().sum()), rel=1e-12)


def image(size=SIZE, channels=3):
    return torch.randn(1, channels, *size, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def some(space):
    """Corners, edges and some between, three at a time."""
    numbers = np.unique(np.linspace(0, np.prod(space) - 1, 10).astype(int))
    units = [tuple(map(int, np.unravel_index(number, space))) for number in numbers]
    units += [(0, space[1] - 1), (space[0] - 1, 0)] if len(space) == 2 else []
    units += units[-1:] * (-len(units) % 3)
    return [units[first : first + 3] for first in range(0, len(units), 3)]


@pytest.mark.parametrize("name", PARTS)
def test_gradients_of_moved_units_are_autograds(name):
    net = net_of(PARTS[name]())
    moved, space = moved_of(net)
    assert moved is not None
    for units in some(space):
        check(net, image(), moved, units)


@pytest.mark.parametrize("name", REFUSED)
def test_what_depends_on_the_place_is_not_moved(name):
    moved, _ = moved_of(net_of(REFUSED[name]()))
    assert moved is None


def test_a_unit_that_the_border_cuts_is_not_moved():
    moved, _ = moved_of(net_of(*(conv(4, 4, 7) for _ in range(4))), size=(16, 40))
    assert moved is None


def test_lines_and_volumes_move_too():
    line = nn.Sequential(nn.Conv1d(2, 4, 5, padding=2), nn.Tanh(), nn.Conv1d(4, 3, 3, stride=2, padding=1)).double()
    volume = nn.Sequential(nn.Conv3d(1, 4, 3, padding=1), nn.Tanh(), nn.Conv3d(4, 3, (1, 3, 2), (1, 2, 2))).double()
    for net, size, channels in ((line, (26,), 2), (volume, (5, 11, 12), 1)):
        adapter = erfscope.wrap(net.eval(), input_size=size)
        site = adapter.site("output")
        crop = site.crop([tuple(side // 2 for side in site.space)], 1)
        moved = MovedForward(crop, paces_of(crop), 3, adapter.tensors())
        for units in some(site.space):
            check(net, image(size, channels), moved, units)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_random_nets(seed):
    """Parts in any order, of which some depend on the place: what is moved has the gradients of autograd."""
    choose = random.Random(seed)
    names = [choose.choice([*PARTS, *PARTS, *REFUSED] if seed % 3 == 0 else [*PARTS]) for _ in range(3)]
    try:
        net, size = net_of(*({**PARTS, **REFUSED}[name]() for name in names)), (71, 75)
        net(image(size))
    except RuntimeError:  # places of another size
        return
    moved, space = moved_of(net, size)
    assert moved is not None or any(name in REFUSED for name in names)
    for units in some(space) if moved else ():
        check(net, image(size), moved, units)
