"""What units need of random nets, of nets with folded norms and of transformers: the maps of plain autograd."""

import math

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nets import NETS, Does, kind_of
from nets.ordinary import FOLDED, Chain, conv
from oracle import load, scrambled
from plain import agrees
from torch import nn

import erfscope

pytestmark = pytest.mark.usefixtures("memory_unplanned")

SPACE = (29, 34)


# --- blocks of ordinary nets


class Residual(nn.Module):
    """The shortcut lies outside the modules, and the sum is made in place."""

    def __init__(self, kernel, dilation):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(4, 4, kernel, padding=kernel // 2 * dilation, dilation=dilation), nn.BatchNorm2d(4), nn.GELU()
        )

    def forward(self, x):
        return self.body(x).add_(x)


class InPlace(nn.Module):
    """Works in place on what it was given, which its shortcut then reads."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.LeakyReLU(0.3, inplace=True), conv())

    def forward(self, x):
        x = x * 1
        return self.body(x) + x


class Branches(nn.Module):
    def __init__(self, stride, up):
        super().__init__()
        self.one, self.two = nn.Conv2d(4, 2, 1, stride), nn.Conv2d(4, 2, 5, stride, 2)
        self.up = up

    def forward(self, x):
        y = torch.cat([self.one(x), self.two(x)], 1)
        return F.interpolate(y, scale_factor=2, mode="nearest") if self.up else y


class ChannelsLast(nn.Module):
    """A ConvNeXt block."""

    def __init__(self):
        super().__init__()
        self.depthwise, self.norm = nn.Conv2d(4, 4, 5, padding=2, groups=4), nn.LayerNorm(4)
        self.mlp = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))

    def forward(self, x):
        return x + self.mlp(self.norm(self.depthwise(x).permute(0, 2, 3, 1))).permute(0, 3, 1, 2)


class WindowAttention(nn.Module):
    """Attention within windows of a shifted map that is padded to whole ones."""

    def __init__(self, size, shift):
        super().__init__()
        self.size, self.shift = size, shift
        self.qkv, self.proj = nn.Linear(4, 12), nn.Linear(4, 4)

    def forward(self, x):
        b, c, h, w = x.shape
        s = self.size
        y = F.pad(x, (0, -w % s, 0, -h % s)).permute(0, 2, 3, 1).roll((-self.shift, -self.shift), (1, 2))
        rows, cols = y.shape[1] // s, y.shape[2] // s
        y = y.view(b, rows, s, cols, s, c).transpose(2, 3).reshape(-1, s * s, c)
        q, k, v = self.qkv(y).chunk(3, -1)
        y = self.proj((q @ k.transpose(1, 2) / 2).softmax(-1) @ v)
        y = y.view(b, rows, cols, s, s, c).transpose(2, 3).reshape(b, rows * s, cols * s, c)
        return x + y.roll((self.shift, self.shift), (1, 2))[:, :h, :w].permute(0, 3, 1, 2)


class SqueezeExcite(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = conv(k=1)

    def forward(self, x):
        return x * self.gate(x.mean((2, 3), keepdim=True)).sigmoid()


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared, self.between = conv(), nn.Conv2d(4, 4, 3, padding=2, dilation=2)

    def forward(self, x):
        return self.shared(self.between(self.shared(x)).tanh())


class Keywords(nn.Module):
    """A module with two inputs, one by keyword."""

    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = conv()

        def forward(self, one, *, other):
            return self.inner(one) + other

    def __init__(self):
        super().__init__()
        self.before, self.sum = conv(), self.Sum()

    def forward(self, x):
        return self.sum(self.before(x), other=x)


class Catches(nn.Module):
    """Runs a module that fails, and another one then."""

    class Failing(nn.Module):
        def forward(self, x):
            raise ValueError

    def __init__(self):
        super().__init__()
        self.failing, self.good, self.after = self.Failing(), conv(), conv()

    def forward(self, x):
        try:
            x = self.failing(x)
        except ValueError:
            x = self.good(x)
        return self.after(x)


class Counts(nn.Module):
    """Keeps what it saw."""

    def __init__(self):
        super().__init__()
        self.inner, self.runs, self.kept = conv(), 0, None

    def forward(self, x):
        self.runs, self.kept = self.runs + 1, tuple(x.shape)
        return self.inner(x)


def samelike(m, x):
    """Padding as TensorFlow's "SAME", before a pooling with stride 2."""
    rows, cols = (max((math.ceil(s / 2) - 1) * 2 + 3 - s, 0) for s in x.shape[2:])
    return F.avg_pool2d(F.pad(x, (cols // 2, cols - cols // 2, rows // 2, rows - rows // 2)), 3, 2)


def coordinates(m, x):
    """CoordConv."""
    b, _, h, w = x.shape
    rows = torch.linspace(-1, 1, h, **kind_of(x)).view(1, 1, h, 1).expand(b, 1, h, w)
    return m.inner(torch.cat([x, rows], 1)).sin()


ORDINARY = st.one_of(
    st.builds(Residual, st.sampled_from([1, 3, 5]), st.integers(1, 3)),
    st.builds(
        lambda k, s, d, mode: nn.Conv2d(4, 4, k, s, min(k // 2 * d, 4), d, padding_mode=mode),
        st.integers(1, 4),
        st.integers(1, 2),
        st.integers(1, 2),
        st.sampled_from(["zeros", "reflect", "replicate", "circular"]),
    ),
    st.builds(lambda k, ceil: nn.MaxPool2d(k, 2, k // 2, ceil_mode=ceil), st.integers(2, 3), st.booleans()),
    st.builds(
        lambda k, ceil, counts: nn.AvgPool2d(k, 2, k // 2, ceil_mode=ceil, count_include_pad=counts),
        st.integers(2, 3),
        st.booleans(),
        st.booleans(),
    ),
    st.builds(lambda k, s: nn.ConvTranspose2d(4, 4, k, s, k // 3), st.integers(2, 4), st.integers(1, 2)),
    st.builds(
        lambda mode, corners: nn.Upsample(
            scale_factor=2, mode=mode, align_corners=corners if mode != "nearest" else None
        ),
        st.sampled_from(["nearest", "bilinear", "bicubic"]),
        st.booleans(),
    ),
    st.builds(Branches, st.integers(1, 2), st.booleans()),
    st.builds(WindowAttention, st.integers(2, 4), st.integers(0, 1)),
    st.builds(lambda s: Does(lambda m, x: x + x.roll(s, 3)), st.integers(-3, 3)),
    st.sampled_from(
        [
            InPlace,
            ChannelsLast,
            SqueezeExcite,
            Twice,
            Keywords,
            Catches,
            Counts,
            lambda: nn.GroupNorm(2, 4),
            lambda: nn.InstanceNorm2d(4, affine=True),
            lambda: nn.AdaptiveAvgPool2d(9),
            lambda: Does(lambda m, x: F.adaptive_max_pool2d(x, [max(s // 3, 1) for s in x.shape[2:]])),
            lambda: Does(lambda m, x: x + x.flip(3)),
            lambda: Does(samelike),
            lambda: Does(coordinates, inner=conv(5)),
            lambda: Does(
                lambda m, x: (x + m.map[:, :, : x.shape[2], : x.shape[3]]).sin(),
                map=nn.Parameter(torch.randn(1, 4, 160, 160)),
            ),
            lambda: Does(lambda m, x: x / x.shape[-1] ** 0.5),
            lambda: Does(lambda m, x: x * 2 if x.shape[-1] > 20 else x),
            lambda: Does(lambda m, x: F.unfold(x, 3, padding=1).view(len(x), 4, 9, *x.shape[2:]).mean(2)),
            lambda: Does(lambda m, x: F.local_response_norm(x, 3) + x.cumsum(2) / 9),
        ]
    ).map(lambda make: make()),
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_nets_are_exact(data):
    torch.manual_seed(data.draw(st.integers(0, 99)))
    net = scrambled(Chain(data.draw(st.lists(ORDINARY, min_size=1, max_size=4))))
    try:
        with torch.no_grad():
            space = net(torch.zeros(1, 3, *SPACE, dtype=torch.float64)).shape[2:]
    except RuntimeError:  # padding larger than what is left of the map
        return
    units = {tuple(data.draw(st.integers(0, s - 1)) for s in space), (0, space[1] // 2)}
    agrees(net, SPACE, "last", units=sorted(units))


@pytest.mark.parametrize(
    "make", [lambda: nn.GroupNorm(2, 4), lambda: nn.InstanceNorm2d(4), SqueezeExcite], ids=["group", "instance", "se"]
)
def test_above_a_global_operation_all_of_the_image_is_needed(make):
    torch.manual_seed(0)
    for crop in agrees(scrambled(Chain([conv(), make()])), SPACE, "last"):
        assert crop.image == ((0, SPACE[0]), (0, SPACE[1]))


# --- norms folded into convolutions


#: Norms that are not, as something else reads what they take, or as it is no convolution of theirs.
NOT_FOLDED = ("transposed", "read beside")


@pytest.fixture
def folding_pays(monkeypatch):
    monkeypatch.setattr("erfscope.core.graph.run.FOLDING_PAYS", 0)


@pytest.mark.parametrize("net", [net for net in NETS if net.kind == "folded"], ids=lambda net: net.name)
def test_folding_a_norm_changes_nothing(net, folding_pays):
    for crop in agrees(net.build(), net.size, "last", units=[(14, 17), (0, 0)]):
        assert any(convolution for _, convolution in crop.norms) is not net.called.endswith(NOT_FOLDED)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [("resnet18", 20), ("resnet50", 53), ("mobilenetv3_small_100", 34)])
def test_every_norm_of_a_residual_network_can_be_folded(name, count, folding_pays):
    layer = "layer4" if "resnet" in name else "blocks.5"
    model = load(timm.create_model(name).eval(), (64, 64))
    (crop,) = model.crops(model.site(layer), [(0, 0)])
    assert sum(convolution is not None for _, convolution in crop.norms) == count


@pytest.mark.parametrize("wrt", ["layers.0.0", "layers.0.1", "layers.0.1:in", "layers.0.0:in"])
def test_folding_does_not_touch_the_reference(wrt):
    torch.manual_seed(0)
    agrees(scrambled(Chain([FOLDED["plain"]()])), SPACE, "last", wrt=wrt, units=[(14, 17), (0, 0)])


def test_a_buffer_without_numbers_may_say_its_shape():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3, padding=1)
            self.register_buffer("shape", torch.empty(4, 1, 1, device="meta"))

        def forward(self, x):
            return self.conv(x) * (1 + torch.zeros_like(self.shape, device="cpu"))

    asked = {"input_size": 12, "synthetic": "noise", "samples": 2, "dtype": "float64"}
    torch.manual_seed(0)
    net = Net().double()
    found, plain = (erfscope.analyze(erfscope.wrap(net, input_size=12), **{**asked, "plain": p}) for p in (False, True))
    assert (found.computed.path, plain.computed.path) == ("graph", "plain")
    np.testing.assert_allclose(found.map.values, plain.map.values, atol=1e-14)
