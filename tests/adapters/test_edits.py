"""Edited models, against nets that are built so and against brute force; and models left as they were found."""

from __future__ import annotations

import io

import pytest
import torch
from one_line import one_line
from oracle import support
from torch import Tensor, nn

import erfscope
from erfscope import MeasurementError
from erfscope.adapters.edits import parse_edits

pytestmark = pytest.mark.usefixtures("memory_unplanned")
CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def conv(inputs: int, outputs: int, kernel: int, dilation: int = 1, *, axes: int = 2, **more: int) -> nn.Module:
    padding = dilation * (kernel // 2)
    return CONVS[axes - 1](inputs, outputs, kernel, padding=padding, dilation=dilation, **more)


class Net(nn.Module):
    """A stem, which no test edits, and a body."""

    space: tuple[int, ...] = (24, 22)

    def __init__(self, kernel: int = 3, dilation: int = 1, stride: int = 2) -> None:
        super().__init__()
        self.stem = conv(1, 2, 3, axes=len(self.space))
        self.build(kernel, dilation, stride)

    def build(self, k: int, d: int, s: int) -> None:
        self.body = nn.Sequential(conv(2, 2, k, d, stride=s), nn.AvgPool2d(3, s, 1), conv(2, 3, 1), conv(3, 2, k, d))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.stem(x))


class Residual(Net):
    def build(self, k: int, d: int, s: int) -> None:
        main = nn.Sequential(conv(2, 3, k, d, stride=s), conv(3, 3, k, d))
        down = nn.Sequential(nn.AvgPool2d(s, s, ceil_mode=True), conv(2, 3, 1))
        self.body = nn.ModuleDict({"main": main, "down": down})

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.body["main"](x) + self.body["down"](x)


class Squeezed(Net):
    """Depthwise convolutions and squeeze-and-excitation."""

    is_cut = False

    def build(self, k: int, d: int, s: int) -> None:
        self.body = nn.Sequential(conv(2, 6, 1), conv(6, 6, k, d, stride=s, groups=6), conv(6, 6, k, d, groups=3))
        self.gate = conv(6, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        mean = x.mean((2, 3), keepdim=True)
        return x * self.gate(mean.detach() if self.is_cut else mean)


class Shaped(Net):
    """As a U-Net: a patch convolution, a transposed one and a skip, all of which stay, around two convolutions."""

    def build(self, k: int, d: int, s: int) -> None:
        last = nn.ConvTranspose2d(4, 2, 4, 2, 1)
        self.body = nn.Sequential(nn.Conv2d(2, 4, 2, 2), conv(4, 4, k, d), conv(4, 4, k, d), last)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return x + self.body(x)


class Line(Net):
    space = (60,)

    def build(self, k: int, d: int, s: int) -> None:
        one = {"axes": 1}
        pool = nn.AvgPool1d(2, s) if s == 2 else nn.AvgPool1d(1)
        self.body = nn.Sequential(conv(2, 2, k, d, stride=s, **one), pool, conv(2, 2, k, d, **one))


class Volume(Net):
    """Kernels of 1 along time, which stay."""

    space = (7, 20, 20)

    def build(self, k: int, d: int, s: int) -> None:
        window = {"kernel_size": (1, k, k), "padding": (0, d * (k // 2), d * (k // 2)), "dilation": (1, d, d)}
        self.body = nn.Sequential(nn.Conv3d(2, 2, stride=(1, s, s), **window), conv(2, 2, k, d, axes=3))


CASES = [
    *((net, {"dilation": 3}) for net in (Net, Residual, Squeezed, Shaped, Line, Volume)),
    *((net, {"kernel": 5}) for net in (Net, Residual, Squeezed, Shaped, Line, Volume)),
    *((net, {"stride": 1, "dilation": 2}) for net in (Net, Residual, Squeezed, Line, Volume)),
    (Net, {"kernel": 1}),
]


@pytest.mark.parametrize(("kind", "settings"), CASES, ids=str)
def test_an_edited_net_is_the_net_built_so_and_its_trf_is_what_moves_a_unit(kind, settings):
    host, built = kind().double(), kind(**settings).double()
    edited = erfscope.edited(host, f"body: {','.join(f'{name}={value}' for name, value in settings.items())}")
    built.load_state_dict(edited.state_dict())
    x = torch.randn(2, 1, *kind.space, dtype=torch.float64)
    assert torch.equal(edited(x), built(x))
    with torch.no_grad():
        for tensor in built.parameters():
            tensor.fill_(0.1)
    built.is_cut = True
    unit = tuple(side // 2 for side in built(x).shape[2:])
    trf = erfscope.theoretical(edited, layer="output", unit=unit, input_size=kind.space)
    box = trf.local_box_px if kind is Squeezed else trf.clipped_box_px
    clipped = [(max(first, 0), min(last, side - 1)) for (first, last), side in zip(box, kind.space, strict=True)]
    x = torch.ones(1, 1, *kind.space, dtype=torch.float64)
    assert clipped == [*support(built, x, lambda y: y[(0, slice(None), *unit)])]
    assert trf.is_global == (kind is Squeezed)


@pytest.mark.parametrize(("kernel", "dilation"), [(7, 2), (5, 3)])
def test_a_stack_of_n_convolutions_sees_1_plus_n_k_minus_1_d(kernel, dilation):
    stack = nn.Sequential(nn.Sequential(*(conv(1, 1, 3) for _ in range(4))), nn.Identity())
    edited = erfscope.edited(stack, f"0: kernel={kernel}, dilation={dilation}")
    trf = erfscope.theoretical(edited, layer="0", input_size=(64, 64))
    assert trf.size_px == (1 + 4 * (kernel - 1) * dilation,) * 2


def test_drawn_weights_keep_the_variance_of_sums_and_are_those_of_the_seed():
    host = nn.Sequential(conv(64, 64, 3), conv(64, 32, 3, groups=32))
    for part in host:
        part.weight.data *= torch.linspace(0.1, 2, len(part.weight)).reshape(-1, 1, 1, 1)
    host[1].weight.requires_grad_(False)
    text = "0: kernel=7; 1: kernel=7"
    one, same, other = (erfscope.edited(host, text, seed=seed) for seed in (1, 1, 2))
    for index, rtol in ((0, 0.1), (1, 0.5)):
        old, new = host[index].weight, one[index].weight
        squares = [weight.square().sum((1, 2, 3)) for weight in (old, new)]
        torch.testing.assert_close(squares[1], squares[0], rtol=rtol, atol=0)
        assert torch.equal(new, same[index].weight)
        assert not torch.equal(new, other[index].weight)
        assert new.requires_grad == old.requires_grad
    on_meta = erfscope.edited(nn.Sequential(conv(2, 2, 3)).to("meta", torch.float16), "0: kernel=5")[0].weight
    assert (on_meta.is_meta, on_meta.dtype, on_meta.shape) == (True, torch.float16, (2, 2, 5, 5))


def test_convolutions_that_share_a_weight_still_do():
    net = nn.Sequential(nn.Sequential(conv(2, 2, 3), conv(2, 2, 3)))
    net[0][1].weight = net[0][0].weight
    edited = erfscope.edited(net, "0: kernel=5")
    assert edited[0][0].weight is edited[0][1].weight
    assert net[0][0].weight.shape[-1] == 3


@pytest.mark.parametrize("mode", ["zeros", "circular", "reflect"])
@pytest.mark.parametrize("padding", [1, "same"])
def test_every_way_to_pad_follows(mode, padding):
    def one(kernel: int, dilation: int) -> nn.Sequential:
        padded = "same" if padding == "same" else dilation * (kernel // 2)
        return nn.Sequential(nn.Conv2d(1, 2, kernel, padding=padded, dilation=dilation, padding_mode=mode))

    edited, built = erfscope.edited(one(3, 1), "0: kernel=5,dilation=2"), one(5, 2)
    built.load_state_dict(edited.state_dict())
    x = torch.randn(1, 1, 16, 17)
    assert torch.equal(edited(x), built(x))
    assert repr(edited) == repr(built)


class Mixed(nn.Module):
    """What real nets hold beside plain convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv(3, 4, 3, stride=2)
        self.normed = nn.utils.parametrizations.weight_norm(conv(4, 4, 3))
        self.pooled = nn.Sequential(nn.MaxPool2d(3, 2, 1), nn.BatchNorm2d(4))
        self.patches = nn.Conv2d(4, 4, 2, 2)
        self.even = nn.Conv2d(4, 4, 4, padding=2)
        self.called = nn.Sequential(nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        x = self.normed(self.stem(x))
        return nn.functional.conv2d(self.called(self.even(self.patches(self.pooled(x)))), x.new_ones(4, 4, 1, 1))


def found(net: nn.Module) -> dict[str, object]:
    """All attributes of all modules, with the items of containers and their order."""
    return {
        f"{name}.{key}": list(value.items()) if isinstance(value, dict) else value
        for name, part in net.named_modules()
        for key, value in vars(part).items()
        if not isinstance(value, Tensor)
    }


ALL = "stem: kernel=5,stride=1; normed: dilation=2; gcn@pooled; pooled: stride=1; even: dilation=3"


@pytest.mark.slow
def test_a_live_module_is_edited_until_the_block_ends():
    net, x = Mixed(), torch.randn(2, 3, 32, 32)
    net.pooled.register_forward_hook(lambda *_: None)
    net.train()
    net.even.eval()
    state, before = [*net.state_dict(keep_vars=True).items()], found(net)
    output = net.stem(x)
    with erfscope.edit(net, ALL, input_size=32) as edited:
        assert edited is net
        assert net.stem.weight.shape[-1] == 5
        assert (net.normed.dilation, net.pooled[0].stride, net.even.padding) == ((2, 2), 1, (5, 5))
        assert erfscope.theoretical(net, layer="even", input_size=32).is_global is False
        assert "gcn" in dict(net.named_children())
    with pytest.raises(ZeroDivisionError), erfscope.edit(net, ALL, input_size=32):
        _ = 1 / 0
    # The first edit is made, and the last is refused; and the model does not run with the other.
    for text in ("stem: stride=1; even: dilation=2", "stem: dilation=2; gcn@nowhere", "pooled: stride=99; gcn@stem"):
        one_line(erfscope.edit(net, text, input_size=32).__enter__)
    assert all(a is b for (_, a), (_, b) in zip(net.state_dict(keep_vars=True).items(), state, strict=True))
    assert found(net) == before
    assert torch.equal(net.stem(x), output)


@pytest.mark.slow
def test_a_copy_shares_the_weights_that_stay_and_can_be_saved_and_loaded():
    net, x = Mixed().eval(), torch.randn(1, 3, 32, 32)
    before, output = found(net), net(x)
    edited = erfscope.edited(net, ALL, input_size=32)
    assert found(net) == before
    assert torch.equal(net(x), output)
    assert edited.even.weight is net.even.weight
    assert edited.stem.weight is not net.stem.weight
    other = erfscope.edited(Mixed().eval(), ALL, input_size=32, seed=5)
    other.load_state_dict(edited.state_dict())
    assert torch.equal(other(x), edited(x))
    # PyTorch saves no parametrised module whole.
    plain = erfscope.edited(Residual(), "body: kernel=5,stride=1")
    file = io.BytesIO()
    torch.save(plain, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    x = torch.randn(1, 1, *Residual.space)
    assert torch.equal(loaded(x), plain(x))


def test_an_adapter_gives_an_adapter_that_runs_with_its_host_beside_it():
    host = erfscope.wrap(Residual(), input_size=Residual.space)
    edited = erfscope.edited(host, "body.main: dilation=2", "gcn@stem")
    assert edited.inserted == {"gcn": "stem"}
    assert edited.default_layer == host.default_layer
    words = r"Residual does not run with body.main: stride=1: The size of tensor"
    one_line(lambda: erfscope.edited(host, "body.main: stride=1"), words, MeasurementError)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "there is no edit and no block"),
        ("stem", "cannot read 'stem'"),
        ("stem:", "cannot read 'stem:'"),
        ("stem: dilation=2,dilation=3", "cannot read"),
        ("stem: size=2", "unknown setting 'size' in 'stem: size=2'; there is: dilation, kernel, stride"),
        ("stem: dilation=0", "dilation is a whole number from 1 to 999, not '0'"),
        ("stem: stride=1.5", "stride is a whole number"),
        ("stom: dilation=2", "unknown layer 'stom' in Mixed; .*did you mean 'stem'"),
        ("stages[-1]: dilation=2", r"there is no stages\[-1\]"),
        ("stem: dilation=1", r"changes nothing in 'stem' of Mixed; there is: stem \(kernel 3x3, stride 2x2, dilation"),
        ("pooled: dilation=2", r"there is: 0 \(kernel 3, stride 2\)"),
        ("patches: dilation=2", "cut no patches"),
        ("even: kernel=5", "keep the map's size"),
        ("called: dilation=2", "F.conv2d cannot be edited; choose one of: stem, normed, pooled, patches, even"),
        ("normed: kernel=5", "its weight is computed"),
    ],
)
def test_what_cannot_be_edited_is_refused_in_one_line(text, words):
    one_line(lambda: erfscope.edited(Mixed(), text, input_size=32), words)


def test_only_modules_with_a_gradient_are_edited():
    one_line(lambda: erfscope.edited("resnet18", "layer4: stride=1"), r"edits are of an nn\.Module, not of str")
    lazy = nn.Sequential(nn.LazyConv2d(3, 3))
    one_line(lambda: erfscope.edited(lazy, "0: dilation=2"), "has lazy parameters")
    wrapped = nn.DataParallel(Net())
    with erfscope.edit(wrapped, "body: dilation=2"):
        assert wrapped.module.body[0].dilation == (2, 2)
    one_line(erfscope.edit(nn.Sequential(wrapped), "0: dilation=2").__enter__, "wrapped for parallel training")


def test_edits_and_blocks_stand_in_one_text():
    requests = parse_edits("my/file.py:Mix@a.b:k=1; layer4 : stride = 1, dilation=2;", "stages[-1]:kernel=7")
    texts = [request.text for request in requests]
    assert texts == ["my/file.py:Mix@a.b:k=1", "layer4: stride=1,dilation=2", "stages[-1]: kernel=7"]
    assert [request.text for request in parse_edits(*texts)] == texts


@pytest.mark.slow
def test_an_edited_model_is_measured_beside_its_host():
    options = {"input_size": Net.space, "samples": 2, "measures": "r50"}
    texts = ["body: dilation=2; gcn@stem"]
    host, row = report = erfscope.sweep(Net(), insert=texts, **options)
    assert (row.insert, row.host, row.layer) == ("body: dilation=2, gcn@stem", host.id, host.layer)
    assert row.label == "Net + body: dilation=2 + gcn"
    assert report.differences()[1]["r50"][0] > 0
    assert report.settings["insert"] == ["body: dilation=2", "gcn@stem"]
    one_line(lambda: report.figure(kind="alpha"), "needs a model with an inserted block at two or more alphas")
    words = "alpha scales what blocks add, and the edit 'body: dilation=2'"
    one_line(lambda: erfscope.sweep(Net(), insert=texts, alpha=0.5, **options), words)


@pytest.mark.slow
def test_every_command_takes_an_edit(command):
    edit = ("test_resnet", "--input-size", "64", "--insert", "stages[-1]: stride=1,dilation=2")
    analyze = ("analyze", "--weights", "random", "--samples", "1", "--measures", "r50", "-q")
    for name, *options in (analyze, ("layers",), ("tile", "--layer", "layer1")):
        code, out, err = command(name, *edit, *options)
        assert (code, "stages[-1]: stride=1,dilation=2" in out) == (0, True), err
