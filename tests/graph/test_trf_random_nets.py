"""Random small nets: the box is the gradient's support, brute force."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle import Seen, positive, units_of
from torch import nn

pytestmark = pytest.mark.slow

SPACE = (21, 18)


class Layers(nn.Module):
    """Layers in a row; one that would leave nothing of the map is skipped."""

    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Residual(nn.Module):
    def __init__(self, kernel, dilation):
        super().__init__()
        self.conv = nn.Conv2d(2, 2, kernel, padding=kernel // 2 * dilation, dilation=dilation)

    def forward(self, x):
        return self.conv(x).add_(x)


class Branches(nn.Module):
    def __init__(self, one, two, stride):
        super().__init__()
        self.one = nn.Conv2d(2, 1, one, stride, one // 2)
        self.two = nn.Conv2d(2, 3, two, stride, two // 2)
        self.join = nn.Conv2d(4, 2, 1)

    def forward(self, x):
        return self.join(torch.cat([self.one(x), self.two(x)], 1))


class Windows(nn.Module):
    """A linear layer over the positions of each window, after a cyclic shift, channels last; the map is padded to whole
    windows."""

    def __init__(self, size, shift):
        super().__init__()
        self.size, self.shift = size, shift
        self.mix = nn.Linear(size * size, size * size)

    def forward(self, x):
        b, c, h, w = x.shape
        s = self.size
        y = F.pad(x, (0, -w % s, 0, -h % s)).permute(0, 2, 3, 1)
        y = torch.roll(y, (-self.shift, -self.shift), (1, 2))
        rows, cols = y.shape[1] // s, y.shape[2] // s
        y = y.view(b, rows, s, cols, s, c).permute(0, 1, 3, 5, 2, 4).reshape(-1, c, s * s)
        y = self.mix(y).view(b, rows, cols, c, s, s).permute(0, 1, 4, 2, 5, 3).reshape(b, rows * s, cols * s, c)
        y = torch.roll(y, (self.shift, self.shift), (1, 2))[:, :h, :w]
        return x + y.permute(0, 3, 1, 2)


class WindowAttention(nn.Module):
    """Attention inside each window, as a residual branch; the map is padded to whole windows."""

    def __init__(self, size):
        super().__init__()
        self.size = size
        self.mix = nn.Linear(2, 2)

    def forward(self, x):
        b, c, h, w = x.shape
        s = self.size
        y = F.pad(x, (0, -w % s, 0, -h % s))
        rows, cols = y.shape[2] // s, y.shape[3] // s
        y = y.view(b, c, rows, s, cols, s).permute(0, 2, 4, 3, 5, 1).reshape(-1, s * s, c)
        y = self.mix(y) @ y.transpose(1, 2) / 100 @ y
        y = y.view(b, rows, cols, s, s, c).permute(0, 5, 1, 3, 2, 4).reshape(b, c, rows * s, cols * s)
        return x + y[:, :, :h, :w]


class WindowConvolution(nn.Module):
    """A convolution inside each window, with zeros around the window; the map is cut to whole windows."""

    def __init__(self, size, stride):
        super().__init__()
        self.size = size
        self.conv = nn.Conv2d(2, 2, 3, stride, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        s = self.size
        rows, cols = h // s, w // s
        y = (
            x[:, :, : rows * s, : cols * s]
            .reshape(b, c, rows, s, cols, s)
            .permute(0, 2, 4, 1, 3, 5)
            .reshape(-1, c, s, s)
        )
        y = self.conv(y)
        k = y.shape[-1]
        return y.view(b, rows, cols, c, k, k).permute(0, 3, 1, 4, 2, 5).reshape(b, c, rows * k, cols * k)


class SideBySide(nn.Module):
    """Two halves that go different ways, put side by side."""

    def __init__(self, kernel, dim):
        super().__init__()
        self.dim = dim
        self.conv = nn.Conv2d(2, 2, kernel, padding=kernel // 2)

    def forward(self, x):
        size = x.shape[self.dim] // 2
        return torch.cat(
            [x.narrow(self.dim, 0, size), self.conv(x.narrow(self.dim, size, x.shape[self.dim] - size))], self.dim
        )


class Unshuffle(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 2, 1)

    def forward(self, x):
        x = F.pad(x, (0, x.shape[3] % 2, 0, x.shape[2] % 2))
        return self.conv(torch.cat([x[:, :, i::2, j::2] for i in (0, 1) for j in (0, 1)], 1))


def convolution(kernel, stride, dilation):
    return nn.Conv2d(2, 2, kernel, stride, (kernel - 1) * dilation // 2, dilation)


ODD = st.sampled_from([1, 3, 5])
WIDE = st.sampled_from([3, 5])
#: Layers that read every cell and pad with zeros by half a kernel: for them the clipped box is the support at every
#: unit, borders included.
LAYER = st.one_of(
    st.builds(convolution, WIDE, st.sampled_from([1, 2]), st.just(1)),
    st.builds(Residual, ODD, st.just(1)),
    st.builds(Branches, WIDE, ODD, st.sampled_from([1, 2])),
    st.builds(nn.AvgPool2d, st.just(3), st.sampled_from([1, 2]), st.just(1)),
    st.builds(nn.ConvTranspose2d, st.just(2), st.just(2), st.just(4), st.just(2), st.just(1)),
    st.builds(nn.Upsample, scale_factor=st.just(2), mode=st.sampled_from(["nearest", "bilinear"])),
)
#: Layers that leave gaps, drop cells at a border, or wrap around: near borders the box may be larger than the support,
#: never smaller.
ROUGH = st.one_of(
    LAYER,
    st.builds(convolution, ODD, st.sampled_from([1, 2, 3]), st.sampled_from([1, 2, 3])),
    st.builds(Residual, ODD, st.sampled_from([1, 2, 3])),
    st.builds(Windows, st.sampled_from([2, 3, 4]), st.sampled_from([0, 1, 2])),
    st.builds(WindowAttention, st.sampled_from([2, 3, 4])),
    st.builds(WindowConvolution, st.sampled_from([3, 4]), st.sampled_from([1, 2])),
    st.builds(SideBySide, ODD, st.sampled_from([2, 3])),
    st.builds(Unshuffle),
    st.builds(nn.AvgPool2d, st.sampled_from([2, 3]), st.just(2), ceil_mode=st.booleans()),
    st.builds(
        nn.ConvTranspose2d, st.just(2), st.just(2), st.sampled_from([2, 3, 5]), st.sampled_from([1, 2]), st.just(1)
    ),
    st.builds(
        nn.Conv2d,
        st.just(2),
        st.just(2),
        st.just(3),
        padding=st.just(1),
        padding_mode=st.sampled_from(["circular", "replicate"]),
    ),
)
QUIET = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


def fields(layers):
    """(field, support) of several units of a net, at a size that keeps it fast."""
    net, space = Layers([]), SPACE
    for layer in layers:
        net.layers.append(layer)
        try:
            shape = net(torch.empty(1, 2, *space)).shape[2:]
        except RuntimeError:  # a kernel larger than the map
            shape = (0,)
        if min(shape) < 2 or max(shape) > 60:
            del net.layers[-1]
    seen = Seen(positive(net), space)
    for unit in units_of(seen.grid):
        yield seen.trf(unit), seen.support(unit)


@QUIET
@given(st.lists(LAYER, min_size=1, max_size=5))
def test_random_chains_see_exactly_the_clipped_box(layers):
    for field, support in fields(layers):
        assert field.exact
        assert field.global_by is None
        assert field.clipped_box_px == support


@QUIET
@given(st.lists(ROUGH, min_size=1, max_size=5))
def test_random_nets_with_gaps_windows_and_wraps_see_exactly_the_clipped_box(layers):
    for field, support in fields(layers):
        assert field.exact
        if support is not None:
            assert field.clipped_box_px == support
