"""What units need of random nets, of nets with folded norms and of transformers: the maps of plain autograd."""

import math

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle import load
from plain import agrees, scrambled
from torch import nn

import erfscope

pytestmark = pytest.mark.usefixtures("memory_unplanned")

SPACE = (29, 34)


def conv(i=4, o=4, k=3):
    return nn.Conv2d(i, o, k, padding=k // 2)


class Does(nn.Module):
    """A function as a module; what else it is given are its submodules, parameters and buffers."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            if isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, x):
        return self.function(self, x)


class Chain(nn.Module):
    """Layers in a row between two convolutions, and a module whose output is the map."""

    def __init__(self, layers, channels=3):
        super().__init__()
        self.first, self.layers, self.then, self.last = conv(channels), nn.ModuleList(layers), conv(), nn.Identity()

    def forward(self, x):
        x = self.first(x).tanh()
        for layer in self.layers:
            x = layer(x)
        return self.last(self.then(x))


def device(x):
    return {"device": x.device, "dtype": x.dtype}


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
    rows = torch.linspace(-1, 1, h, **device(x)).view(1, 1, h, 1).expand(b, 1, h, w)
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


class Absolute(nn.BatchNorm2d):
    def forward(self, x):
        return F.batch_norm(
            x, self.running_mean, self.running_var, self.weight.abs() + 0.5, self.bias, False, 0.1, self.eps
        )


class OtherEps(nn.BatchNorm2d):
    def forward(self, x):
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.1, 0.3)


class ByKeyword(nn.BatchNorm2d):
    def forward(self, x):
        return F.batch_norm(
            x, running_mean=self.running_mean, running_var=self.running_var, weight=self.weight, bias=self.bias
        )


class OtherBias(nn.Conv2d):
    def forward(self, x):
        return F.conv2d(x, self.weight, self.bias * 3, 1, self.padding)


class Standardised(nn.Conv2d):
    def forward(self, x):
        return F.conv2d(x, self.weight - self.weight.mean((1, 2, 3), keepdim=True), self.bias, 1, self.padding)


def weight_twice(m, x):
    return F.conv2d(m.norm(m.conv(x)).tanh(), m.conv.weight, padding=1)


def norm_twice(m, x):
    y = m.conv(x)
    z = F.batch_norm(m.other(x), m.norm.running_mean, m.norm.running_var, m.norm.weight, m.norm.bias)
    return m.norm(y).tanh() + z.sin()


FOLDED = {
    "plain": lambda: nn.Sequential(conv(), nn.BatchNorm2d(4), nn.Tanh()),
    "without affine": lambda: nn.Sequential(conv(), nn.BatchNorm2d(4, affine=False), nn.Tanh()),
    "other gain": lambda: nn.Sequential(conv(), Absolute(4), nn.Tanh()),
    "other eps": lambda: nn.Sequential(conv(), OtherEps(4), nn.Tanh()),
    "by keyword": lambda: nn.Sequential(conv(), ByKeyword(4), nn.Tanh()),
    "other bias": lambda: nn.Sequential(OtherBias(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Tanh()),
    "standardised": lambda: nn.Sequential(Standardised(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Tanh()),
    "weight norm": lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(conv()), nn.BatchNorm2d(4), nn.Tanh()),
    "weight used by hand": lambda: Does(weight_twice, conv=conv(), norm=nn.BatchNorm2d(4)),
    "norm used by hand": lambda: Does(norm_twice, conv=conv(), other=conv(), norm=nn.BatchNorm2d(4)),
    "transposed": lambda: nn.Sequential(nn.ConvTranspose2d(4, 4, 3, 1, 1), nn.BatchNorm2d(4), nn.Tanh()),
    "read beside": lambda: Does(lambda m, x: m.norm(y := m.conv(x)).tanh() + y, conv=conv(), norm=nn.BatchNorm2d(4)),
    "weight read": lambda: Does(
        lambda m, x: m.norm(m.conv(x)).tanh() * m.conv.weight.sum(), conv=conv(), norm=nn.BatchNorm2d(4)
    ),
}


#: Norms that are not, as something else reads what they take, or as it is no convolution of theirs.
NOT_FOLDED = ("transposed", "read beside")


@pytest.fixture
def folding_pays(monkeypatch):
    monkeypatch.setattr("erfscope.core.graph.run.FOLDING_PAYS", 0)


@pytest.mark.parametrize("name", FOLDED)
def test_folding_a_norm_changes_nothing(name, folding_pays):
    torch.manual_seed(0)
    for crop in agrees(scrambled(Chain([FOLDED[name]()])), SPACE, "last", units=[(14, 17), (0, 0)]):
        assert any(convolution for _, convolution in crop.norms) is (name not in NOT_FOLDED)


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


# --- what follows an attention over all tokens


class Transformer(nn.Module):
    """Patches, one attention over all tokens, and what follows it."""

    def __init__(self, after, mlp):
        super().__init__()
        self.patches, self.attention = nn.Conv2d(3, 8, 4, 4), nn.MultiheadAttention(8, 2, batch_first=True)
        self.after, self.mlp, self.last = after, mlp, nn.Identity()

    def forward(self, x):
        y = self.patches(x)
        t = y.flatten(2).transpose(1, 2)
        t = t + self.attention(t, t, t, need_weights=False)[0]
        return self.last(self.after(self.mlp, t).transpose(1, 2).reshape(y.shape))


def feed_forward():
    return nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))


def gated(m, t):
    z = t * m(t)
    return z / z.norm(dim=-1, keepdim=True)


AFTER = {
    "residual": (lambda m, t: t + m(t), feed_forward),
    "flat batch": (lambda m, t: t + m(t.reshape(-1, 8)).view(t.shape), feed_forward),
    "tokens first": (lambda m, t: t + m(t.transpose(0, 1)).transpose(0, 1), feed_forward),
    "heads beside the batch": (lambda m, t: t + m(t.unflatten(1, (6, 7)).flatten(0, 1)).view(t.shape), feed_forward),
    "in place": (lambda m, t: t.mul(2).add_(m(t)), feed_forward),
    "twice": (lambda m, t: m(m(t)), feed_forward),
    "neighbour": (lambda m, t: t + m(t).roll(1, 1), feed_forward),
    "mean": (lambda m, t: t + m(t).mean(1, keepdim=True), feed_forward),
    "norm of zeros": (gated, feed_forward),
    "root of zeros": (lambda m, t: (t * m(t)).abs().sqrt(), feed_forward),
    "logarithm of zeros": (lambda m, t: (t * m(t)).square().log(), feed_forward),
    "division by zeros": (lambda m, t: t / m(t), feed_forward),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", AFTER)
@pytest.mark.parametrize("batch", [1, 2])
def test_a_transformers_last_block_is_exact(name, batch):
    torch.manual_seed(0)
    after, mlp = AFTER[name]
    net = scrambled(Transformer(after, mlp()))
    agrees(net, (24, 28), "last", batch=batch, units=[(2, 3), (5, 6)])


class Rows(nn.Module):
    """Every row of the map is a sequence of its own, beside the batch."""

    def __init__(self):
        super().__init__()
        self.first, self.mlp, self.last = (
            conv(3),
            nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4)),
            nn.Identity(),
        )

    def forward(self, x):
        x = self.first(x)
        x = x + x.mean((2, 3), keepdim=True)
        b, c, h, w = x.shape
        return self.last(self.mlp(x.permute(0, 2, 3, 1).reshape(b * h, w, c)).view(b, h, w, c).permute(0, 3, 1, 2))


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_positions_that_lie_beside_the_batch_are_exact(batch):
    torch.manual_seed(0)
    agrees(scrambled(Rows()), (20, 24), "last", batch=batch)


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
