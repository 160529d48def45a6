"""What is computed for one unit equals the whole image's gradient, and the result says what was computed."""

import copy
import json
import tracemalloc
from importlib.resources import files

import jsonschema
import numpy as np
import pytest
import timm
import torch
import torchvision
from oracle import load, plain_map, scrambled
from plain import agrees, graph_map, noise, share
from torch import nn

import erfscope
from erfscope import ErfscopeError
from erfscope.cli.main import main
from erfscope.core.run.engine.cost import cropped_giga_multiply_adds

pytestmark = pytest.mark.usefixtures("memory_unplanned")


def timm_net(name, **kwargs):
    torch.manual_seed(0)
    return scrambled(timm.create_model(name, pretrained=False, num_classes=0, **kwargs))


class Pyramid(nn.Module):
    """Two stages of a ResNet under a feature pyramid: a top-down path by up-sampling."""

    def __init__(self):
        super().__init__()
        net = timm.create_model("resnet10t", pretrained=False)
        self.stem = nn.Sequential(net.conv1, net.bn1, net.act1, net.maxpool)
        self.layer1, self.layer2 = net.layer1, net.layer2
        self.pyramid = torchvision.ops.FeaturePyramidNetwork([64, 128], 16)
        self.finest = nn.Conv2d(16, 8, 3, padding=1)

    def forward(self, x):
        one = self.layer1(self.stem(x))
        return self.finest(self.pyramid({"one": one, "two": self.layer2(one)})["one"])


# Each is cropped, at the image or further up. The size is above the field, or the layer in the middle.
CROPPED = [
    ("resnet18", (96, 121), "layer2", "image"),
    ("resnet18", (96, 120), "layer2", "layer1"),
    ("resnet18", (96, 120), "layer2.1", "layer2.1:in"),
    ("resnet18", (96, 120), "layer3.0.conv1", "maxpool"),
    ("resnet26d", (90, 75), "layer1.1.bn1", "layer1.0"),
    ("convnext_atto", (128, 97), "stages.1", "stages.0"),
    ("regnetx_002", (129, 96), "s2", "s1"),
    ("mobilenetv2_050", (97, 96), "blocks.3.0.conv_dw", "image"),
    ("efficientnet_lite0", (97, 96), "blocks.2", "image"),
    ("tf_efficientnet_lite0", (97, 83), "blocks.2", "image"),
    ("tf_efficientnet_lite0", (65, 70), "blocks.1", "conv_stem"),
    ("tf_mobilenetv3_small_minimal_100", (65, 83), "blocks.1", "image"),
    ("densenet121", (96, 64), "features.denseblock1", "features.pool0"),
    ("inception_v3", (131, 115), "Mixed_5b", "Conv2d_3b_1x1"),
    ("xception41", (97, 81), "blocks.0.stack.conv3", "image"),
    ("darknet17", (96, 80), "stages.1", "image"),
    ("repvgg_a0", (96, 90), "stages.1", "image"),
    ("hardcorenas_a", (96, 90), "blocks.1", "image"),
    ("dla34", (96, 64), "level2", "image"),
    ("hrnet_w18_small", (96, 64), "stage2.0.branches.0", "layer1"),
    ("resnetv2_50", (96, 64), "stages.0", "image"),
    ("nf_resnet26", (96, 64), "stages.0", "image"),
    ("ghostnet_050", (96, 64), "blocks.2", "image"),
    ("fastvit_t8", (128, 96), "stages.0", "image"),
]


@pytest.mark.slow
@pytest.mark.parametrize("name, space, layer, wrt", CROPPED)
def test_what_a_unit_of_a_convolutional_net_needs_gives_the_whole_gradient(name, space, layer, wrt):
    assert all(share(crop) < 0.97 for crop in agrees(timm_net(name), space, layer, wrt=wrt))


#: Where everything is seen; the last block's feed-forward net may run on the unit alone.
SEEN_WHOLE = [
    ("regnety_002", (64, 64), "s2", {}, None),
    ("poolformer_s12", (64, 64), "stages.0", {}, None),
    ("coatnet_pico_rw_224", (64, 64), "stages.2", {"img_size": 64}, None),
    ("maxvit_rmlp_pico_rw_256", (64, 96), "stages.0", {"img_size": (64, 96)}, None),
    ("vit_tiny_patch16_224", (64, 64), "blocks.1", {"img_size": 64, "depth": 2}, "tokens"),
    (
        "swin_tiny_patch4_window7_224",
        (112, 112),
        "layers.0",
        {"img_size": 112, "embed_dim": 24, "depths": (2, 2), "num_heads": (3, 6)},
        "NHWC",
    ),
    ("swinv2_cr_tiny_ns_224", (112, 112), "stages.1", {"img_size": 112, "embed_dim": 24, "depths": (2, 2)}, None),
    ("pvt_v2_b0", (64, 64), "stages.0", {}, None),
]


@pytest.mark.slow
@pytest.mark.parametrize("name, space, layer, words, order", SEEN_WHOLE)
def test_nets_that_see_everything_are_exact_for_batches_too(name, space, layer, words, order):
    def to_map(y):
        if order == "tokens":
            side = space[0] // 16
            return y[:, -(side**2) :].transpose(1, 2).unflatten(2, (side, side))
        return y.permute(0, 3, 1, 2) if order == "NHWC" else y

    agrees(timm_net(name, **words), space, layer, to_map=to_map)


@pytest.mark.slow
def test_torchvision_nets_and_a_feature_pyramid_are_exact():
    torch.manual_seed(0)
    googlenet = scrambled(
        torchvision.models.googlenet(weights=None, init_weights=False, aux_logits=False, num_classes=2)
    )
    assert all(share(crop) < 0.9 for crop in agrees(googlenet, (160, 129), "inception3a"))
    vgg = scrambled(torchvision.models.vgg11(weights=None, num_classes=2).features)
    assert all(share(crop) < 0.5 for crop in agrees(vgg, (97, 80), "8", wrt="3"))
    assert all(
        share(crop) < 0.97
        for crop in agrees(scrambled(Pyramid()), (160, 192), "finest", units=[(0, 0), (20, 24), (39, 47)])
    )


@pytest.mark.slow
@pytest.mark.parametrize("channels", [1, 6])
def test_nets_with_one_and_six_channels_are_exact(channels):
    agrees(timm_net("resnet10t", in_chans=channels), (96, 75), "layer1", channels=channels)


@pytest.mark.slow
def test_nets_on_lines_and_volumes_are_exact():
    torch.manual_seed(0)
    line = nn.Sequential(
        nn.Conv1d(2, 4, 5, 2, 2), nn.BatchNorm1d(4), nn.ReLU(), nn.MaxPool1d(3, 2, 1), nn.Conv1d(4, 4, 3, dilation=2)
    )
    assert all(share(crop) < 0.5 for crop in agrees(scrambled(line), (151,), "4", channels=2))
    volume = nn.Sequential(
        nn.Conv3d(1, 4, 3, (1, 2, 2), 1),
        nn.BatchNorm3d(4),
        nn.ReLU(),
        nn.AvgPool3d(2, ceil_mode=True),
        nn.Conv3d(4, 4, 3),
    )
    assert all(share(crop) < 0.5 for crop in agrees(scrambled(volume), (12, 33, 41), "4", channels=1))


def test_layers_in_containers_are_exact():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Conv2d(3, 4, 3, 2), nn.Conv2d(4, 4, 3)

        def forward(self, x):
            return {"fine": (one := self.one(x)), "coarse": [self.two(one), 1.0]}

    net, x = scrambled(Two()), noise((40, 50))
    model = load(net, (40, 50))
    for layer, module in (("output[coarse][0]", "two"), ("output[fine]", "one")):
        (crop,) = model.crops(site := model.site(layer), [(5, 6)], images=len(x))
        whole = plain_map(net, x, module, (5, 6))
        assert torch.allclose(graph_map(model, site, crop, x, whole.shape), whole, rtol=1e-10, atol=1e-13)
    with pytest.raises(ErfscopeError, match=r"unknown layer|holds|output") as caught:
        model.site("output[coarse]")
    assert "\n" not in str(caught.value)


# --- the measurement as a whole


class Net(nn.Module):
    """A residual net with an in-place activation and a norm, with strides 2 and 4."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)
        self.act = nn.ReLU(inplace=True)
        self.body = nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.down = nn.Conv2d(8, 12, 3, 2, 1)
        self.last = nn.Conv2d(12, 12, 3, 1, 1)

    def forward(self, x):
        x = self.act(self.stem(x))
        return self.last(self.down(x + self.body(x)))


def net(seed=0):
    torch.manual_seed(seed)
    return scrambled(Net())


WORDS = {"input_size": (96, 120), "layer": "last", "synthetic": "leaves", "samples": 4, "seed": 1}


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["centre", "corner", "edge", "0,0,3,4", "grid:2"])
@pytest.mark.parametrize("wrt", ["image", "body", "body:in", "down:in"])
def test_every_result_is_that_of_the_model_itself(unit, wrt):
    words = WORDS | {"unit": unit, "wrt": wrt, "dtype": "float64"}
    by_graph, plain = (list(erfscope.sweep(net(), **words, plain=plain)) for plain in (False, True))
    assert len(by_graph) == len(plain) == {"0,0,3,4": 2, "grid:2": 4}.get(unit, 1)
    for one, other in zip(by_graph, plain, strict=True):
        assert (one.computed.path, one.computed.because) == ("graph", "")
        assert one.computed.share < 0.1
        assert (other.computed.path, other.computed.because) == ("plain", "plain was asked for")
        assert other.computed.share == 1
        assert np.abs(one.map.values - other.map.values).sum() <= 1e-10
        assert one["r90"].value == pytest.approx(other["r90"].value, rel=1e-9)
        assert one["r50"].se == pytest.approx(other["r50"].se, rel=1e-6, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrt", ["blocks.0", "blocks.1.norm2", "blocks.1.mlp.fc1", "blocks.1.mlp:in", "blocks.1.attn.proj"]
)
def test_references_inside_a_transformer_are_exact(wrt):
    """The last feed-forward net runs on the unit's token alone."""
    words = {
        "input_size": (64, 64),
        "layer": "blocks.1",
        "samples": 2,
        "synthetic": "noise",
        "dtype": "float64",
        "wrt": wrt,
    }
    model = timm_net("vit_tiny_patch16_224", img_size=64, depth=2)
    one, other = (erfscope.analyze(model, **words, plain=plain) for plain in (False, True))
    assert one.status == other.status == "ok"
    assert one.computed.share < 0.97
    assert np.abs(one.map.values - other.map.values).sum() <= 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("convention", ["luo", "signed", "replknet", "kim", "energy"])
def test_every_convention_is_that_of_the_model_itself(convention):
    words = WORDS | {"convention": convention, "dtype": "float64"}
    one, other = (erfscope.analyze(net(), **words, plain=plain).map.values for plain in (False, True))
    assert np.abs(one - other).sum() <= 1e-10 * np.abs(other).sum()


@pytest.mark.slow
def test_sizes_in_float32_agree_to_a_fifth_of_a_percent():
    model = timm_net("resnet18").float()
    words = {"input_size": (192, 192), "layer": "layer2", "synthetic": "leaves", "samples": 4}
    one, other = (erfscope.analyze(model, **words, plain=plain) for plain in (False, True))
    assert one.computed.share < 0.5
    for name in ("r50", "r90", "sigma_row", "luo_size"):
        assert one[name].value == pytest.approx(other[name].value, rel=2e-3)


def test_units_share_a_pass_where_that_is_less():
    near = [(r, c) for r in range(6) for c in range(6)]
    model = load(net(), (24, 24))
    (crop,) = model.crops(model.site("last"), near)
    assert crop.units == tuple(near)
    assert crop.image == ((0, 24), (0, 24))
    far = [(0, 0), (23, 29)]
    model = load(net(), (96, 120))
    assert [crop.units for crop in model.crops(model.site("last"), far)] == [(unit,) for unit in far]


# --- reports


@pytest.mark.slow
def test_the_report_says_how_much_was_computed_and_reads_back(tmp_path):
    report = erfscope.sweep(net(), **WORDS, unit="0,0,3,4", verify=True)
    report.save(tmp_path)
    document = json.loads((tmp_path / "report.json").read_text())
    jsonschema.validate(
        document,
        json.loads((files("erfscope.core.answer.storage") / "schema" / "report-1.json").read_text()),
    )
    blocks = [entry["computed"] for entry in document["results"]]
    assert [set(block) for block in blocks] == [{"path", "because", "share", "gmacs", "input_size"}] * 2
    assert [(result.computed, result.verification) for result in erfscope.read(tmp_path)] == [
        (r.computed, r.verification) for r in report
    ]
    assert blocks[0]["input_size"] != [96, 120]


@pytest.mark.slow
def test_verbose_says_what_was_computed(capsys):
    words = [
        "analyze",
        "resnet10t",
        "--weights",
        "random",
        "--layer",
        "layer1",
        "--input-size",
        "128",
        "--samples",
        "1",
        "-v",
    ]
    texts = []
    for more in ([], ["--plain"]):
        with pytest.raises(SystemExit) as stop:
            main([*words, *more])
        assert not stop.value.code
        texts.append(" ".join(capsys.readouterr().err.split()))
    assert "path: graph" in texts[0]
    assert "% of the multiply-adds" in texts[0]
    assert "path: plain (plain was asked for)" in texts[1]


# --- what it costs


def crop_at(model, side, layer):
    loaded = load(model, (side, side))
    (crop,) = loaded.crops(loaded.site(layer), [loaded.site(layer).nearest_unit()])
    return crop


@pytest.mark.slow
def test_the_cost_is_flat_once_the_image_is_larger_than_the_field():
    torch.manual_seed(0)
    model = timm.create_model("resnet18", pretrained=False)
    (small, whole), (large, four_times) = (
        cropped_giga_multiply_adds(crop_at(model, side, "layer4")) for side in (512, 1024)
    )
    assert small == large
    assert four_times == pytest.approx(4 * whole)
    # One multiply-add per weight and output position: counted by hand for the first convolution alone.
    first, whole = cropped_giga_multiply_adds(crop_at(model, 512, "conv1"))
    assert whole == pytest.approx(64 * 3 * 49 * 256**2 / 1e9)
    assert first < whole / 1e3


@pytest.mark.slow
def test_the_memory_of_planning_grows_with_the_side_and_not_with_the_pixels():
    torch.manual_seed(0)
    model, peaks = timm.create_model("resnet10t", pretrained=False), []
    for side in (1024, 1024, 4096):  # the first run fills caches
        tracemalloc.start()
        crop = crop_at(copy.deepcopy(model), side, "layer3")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert max(stop - first for first, stop in crop.image) < 512
    assert peaks[2] < 5 * peaks[1]
    assert peaks[2] < 2**25


# --- the model is left as found


class Fails(Net):
    """Runs without numbers and fails with them."""

    def forward(self, x):
        y = super().forward(x)
        if type(y) is torch.Tensor and not y.is_meta:
            raise ValueError("not with numbers")
        return y


@pytest.mark.slow
@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("kind", [Net, Fails])
def test_the_model_is_left_as_found(kind, plain):
    torch.manual_seed(0)
    model = kind().train()
    model.body[1].eval()
    model.stem.weight.requires_grad_(False)

    def state():
        hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        counts = [tuple(len(getattr(m, name)) for name in hooks) for m in model.modules()]
        flags = [m.training for m in model.modules()] + [p.requires_grad for p in model.parameters()]
        return counts, flags, [p.grad for p in model.parameters()]

    before, numbers = state(), {name: t.clone() for name, t in model.state_dict().items()}
    result = erfscope.analyze(model, **WORDS | {"layer": "output"}, plain=plain, errors="row")
    if kind is Fails and plain:
        assert result.status == "error"
        assert "not with numbers" in result.error
        assert "\n" not in result.error
    else:
        assert result.ok
    assert state() == before
    assert all(torch.equal(t, numbers[name]) for name, t in model.state_dict().items())


# --- what cannot be recorded, and bad input


class Chooses(nn.Module):
    """Looks at numbers."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x):
        return self.one(x) if float(x.detach().mean()) > -1e3 else self.two(x)


@pytest.mark.filterwarnings("ignore:.*has data-dependent control flow")
def test_a_model_that_looks_at_numbers_is_measured_whole():
    torch.manual_seed(0)
    model = Chooses().double()
    result = erfscope.analyze(model, input_size=(24, 30), layer="one", convention="luo", samples=1, synthetic="noise")
    assert result.ok, result.error
    assert (result.computed.path, result.computed.share) == ("plain", 1)
    assert result.computed.because == "it cannot be recorded without numbers"
    # A linear layer's map does not depend on the picture: the sum of its absolute kernels over the outputs' sum.
    kernel = model.one.weight.detach().sum(0).abs().sum(0).numpy()
    assert np.allclose(result.map.values[11:14, 14:17], kernel / kernel.sum(), rtol=1e-9)


def test_a_unit_outside_the_map_is_one_line():
    with pytest.raises(ErfscopeError, match="outside") as caught:
        erfscope.analyze(net(), **WORDS | {"unit": (24, 0)})
    assert "\n" not in str(caught.value)


def test_a_layer_without_a_path_from_the_image_is_one_line():
    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.prior, self.conv = nn.Conv2d(1, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)

        def forward(self, x):
            return self.conv(x) + self.prior(torch.ones(len(x), 1, *x.shape[2:], dtype=x.dtype, device=x.device))

    with pytest.raises(ErfscopeError, match="does not depend on the image") as caught:
        erfscope.analyze(Constant(), **WORDS | {"layer": "prior", "in_chans": 3})
    assert "\n" not in str(caught.value)
    with pytest.raises(ErfscopeError, match="no path leads from one to the other") as caught:
        erfscope.analyze(net(), **WORDS | {"layer": "stem", "wrt": "last"})
    assert "\n" not in str(caught.value)


def test_a_module_on_several_devices_is_one_line():
    model = net()
    model.last.to("meta")
    with pytest.raises(ErfscopeError, match="meta") as caught:
        erfscope.analyze(model, **WORDS)
    assert "\n" not in str(caught.value)


def test_a_fourier_transform_before_a_convolution_is_made_whole():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Tanh(), Spectrum(), nn.Conv2d(4, 4, 3, padding=1)).double()
    result = erfscope.analyze(net, input_size=12, samples=1, draws=1, unit=(3, 4), layer="3", verify=True)
    assert result.computed.path == "graph"
    assert result.verification.value < 1e-12
    assert result.verification.map < 1e-12


class Spectrum(nn.Module):
    """Weighs frequencies, as global filter networks do."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 12, 7))

    def forward(self, x):
        return torch.fft.irfft2(torch.fft.rfft2(x) * self.weight, s=x.shape[-2:])
