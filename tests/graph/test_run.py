"""What is computed for one unit equals the whole image's gradient, and the result says what was computed."""

import copy
import tracemalloc

import numpy as np
import pytest
import timm
import torch
import torchvision
from nets import Does
from oracle import load, plain_gradient, scrambled
from plain import agrees, noise, share
from torch import nn

import erfscope
from erfscope import ErfscopeError
from erfscope.core.run.engine.cost import cropped_giga_multiply_adds
from erfscope.core.system.restore import default_dtype

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
    ("resnet18", (96, 120), "layer3.0.conv1", "maxpool"),
    ("convnext_atto", (128, 97), "stages.1", "stages.0"),
    ("tf_efficientnet_lite0", (97, 83), "blocks.2", "image"),
    ("tf_mobilenetv3_small_minimal_100", (65, 83), "blocks.1", "image"),
    ("dla34", (96, 64), "level2", "image"),
    ("fastvit_t8", (128, 96), "stages.0", "image"),
]
#: Of the same kinds, for the night.
CROPPED_TOO = [
    ("densenet121", (96, 64), "features.denseblock1", "features.pool0"),
    ("inception_v3", (131, 115), "Mixed_5b", "Conv2d_3b_1x1"),
    ("hrnet_w18_small", (96, 64), "stage2.0.branches.0", "layer1"),
    ("resnet18", (96, 120), "layer2.1", "layer2.1:in"),
    ("resnet26d", (90, 75), "layer1.1.bn1", "layer1.0"),
    ("regnetx_002", (129, 96), "s2", "s1"),
    ("mobilenetv2_050", (97, 96), "blocks.3.0.conv_dw", "image"),
    ("efficientnet_lite0", (97, 96), "blocks.2", "image"),
    ("tf_efficientnet_lite0", (65, 70), "blocks.1", "conv_stem"),
    ("xception41", (97, 81), "blocks.0.stack.conv3", "image"),
    ("darknet17", (96, 80), "stages.1", "image"),
    ("repvgg_a0", (96, 90), "stages.1", "image"),
    ("hardcorenas_a", (96, 90), "blocks.1", "image"),
    ("resnetv2_50", (96, 64), "stages.0", "image"),
    ("nf_resnet26", (96, 64), "stages.0", "image"),
    ("ghostnet_050", (96, 64), "blocks.2", "image"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, space, layer, wrt", [*CROPPED, *(pytest.param(*row, marks=pytest.mark.more) for row in CROPPED_TOO)]
)
def test_what_a_unit_of_a_convolutional_net_needs_gives_the_whole_gradient(name, space, layer, wrt):
    assert all(share(crop) < 0.97 for crop in agrees(timm_net(name), space, layer, wrt=wrt))


#: Where everything is seen; the last block's feed-forward net may run on the unit alone.
SEEN_WHOLE = [
    ("regnety_002", (64, 64), "s2", {}),
    ("poolformer_s12", (64, 64), "stages.0", {}),
    ("test_maxvit", (64, 96), "stages.0", {"img_size": (64, 96)}),
    ("vit_tiny_patch16_224", (64, 64), "blocks.1", {"img_size": 64, "depth": 2}),
    ("swinv2_cr_tiny_ns_224", (112, 112), "stages.1", {"img_size": 112, "embed_dim": 24, "depths": (2, 2)}),
    ("pvt_v2_b0", (64, 64), "stages.0", {}),
]


@pytest.mark.slow
@pytest.mark.parametrize("name, space, layer, words", SEEN_WHOLE)
def test_nets_that_see_everything_are_exact_for_batches_too(name, space, layer, words):
    def to_map(y):
        side = space[0] // 16
        return y[:, -(side**2) :].transpose(1, 2).unflatten(2, (side, side)) if name.startswith("vit") else y

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
@pytest.mark.parametrize("wrt", ["image", "body", "body:in", "down:in"])
def test_every_result_is_that_of_the_model_itself(wrt):
    words = WORDS | {"unit": ["centre", "corner", "edge", "grid:2", (3, 4)], "wrt": wrt, "dtype": "float64"}
    by_graph, plain = (erfscope.sweep(net(), **words, plain=plain) for plain in (False, True))
    assert len(by_graph) == len(plain) == 8
    for one, other in zip(by_graph, plain, strict=True):
        assert (one.computed.path, one.computed.because) == ("graph", "")
        assert one.computed.share < 0.1
        assert (other.computed.path, other.computed.because) == ("plain", "plain was asked for")
        assert other.computed.share == 1
        assert np.abs(one.map.values - other.map.values).sum() <= 1e-10
        assert one["r90"].value == pytest.approx(other["r90"].value, rel=1e-9)
        assert one["r50"].se == pytest.approx(other["r50"].se, rel=1e-6, abs=1e-12)


@pytest.mark.slow
def test_references_inside_a_transformer_are_exact():
    """The last feed-forward net runs on the unit's token alone."""
    words = {"input_size": 64, "layer": "blocks.1", "samples": 2, "synthetic": "noise", "dtype": "float64"}
    model = erfscope.wrap(timm_net("vit_tiny_patch16_224", img_size=64, depth=2), input_size=64)
    for wrt in ("blocks.0", "blocks.1.norm2", "blocks.1.mlp.fc1", "blocks.1.mlp:in", "blocks.1.attn.proj"):
        one, other = (erfscope.analyze(model, **words, wrt=wrt, measures="r50", plain=plain) for plain in (False, True))
        assert one.status == other.status == "ok"
        assert one.computed.share < 0.97
        assert np.abs(one.map.values - other.map.values).sum() <= 1e-10, wrt


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
    assert crop.targets[0].units == tuple(near)
    assert crop.image == ((0, 24), (0, 24))
    far = [(0, 0), (23, 29)]
    model = load(net(), (96, 120))
    assert [crop.targets[0].units for crop in model.crops(model.site("last"), far)] == [(unit,) for unit in far]


@pytest.mark.slow
def test_verbose_says_what_was_computed(command):
    words = [
        "analyze",
        "test_resnet",
        "--weights",
        "random",
        "--layer",
        "layer1",
        "--input-size",
        "64",
        "--samples",
        "1",
        "-v",
    ]
    for more, text in (([], "path: graph"), (["--plain"], "path: plain (plain was asked for)")):
        code, _, said = command(*words, *more)
        assert not code
        assert text in " ".join(said.split())
        assert more or "% of the multiply-adds" in " ".join(said.split())


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
    for side in (512, 512, 2048):  # the first run fills caches
        tracemalloc.start()
        crop = crop_at(copy.deepcopy(model), side, "layer3")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert max(stop - first for first, stop in crop.image) < 512
    assert peaks[2] < 5 * peaks[1]
    assert peaks[2] < 2**25


# --- what goes another way


def test_what_has_no_path_or_several_devices_is_one_line():
    on_two = net()
    on_two.last.to("meta")
    constant = Does(
        lambda m, x: m.conv(x) + m.prior(torch.ones(len(x), 3, *x.shape[2:])),
        prior=nn.Conv2d(3, 3, 3, padding=1),
        conv=nn.Conv2d(3, 3, 3, padding=1),
    )
    for model, more, words in (
        (net(), {"unit": (24, 0)}, "outside"),
        (constant, {"layer": "prior", "in_chans": 3}, "does not depend on the image"),
        (net(), {"layer": "stem", "wrt": "last"}, "no path leads from one to the other"),
        (on_two, {}, "meta"),
    ):
        with pytest.raises(ErfscopeError, match=words) as caught:
            erfscope.analyze(model, **WORDS | more)
        assert "\n" not in str(caught.value)


def test_a_fourier_transform_before_a_convolution_is_made_whole():
    """Frequencies are weighed, as global filter networks do."""
    torch.manual_seed(0)
    spectrum = Does(
        lambda m, x: torch.fft.irfft2(torch.fft.rfft2(x) * m.weight, s=x.shape[-2:]),
        weight=nn.Parameter(torch.randn(4, 12, 7)),
    )
    module = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Tanh(), spectrum, nn.Conv2d(4, 4, 3, padding=1)).double()
    result = erfscope.analyze(module, input_size=12, samples=1, draws=1, unit=(3, 4), layer="3", verify=True)
    assert result.computed.path == "graph"
    assert max(result.verification.value, result.verification.map) < 1e-12


def test_a_recurrent_model_whose_state_is_of_the_default_type_runs_in_float64_and_can_be_verified_there():
    def forward(m, x):
        hidden = torch.zeros(len(x), 4, *x.shape[2:], device=x.device)
        for _ in range(2):
            hidden = (m.into(x) + m.back(hidden)).tanh()
        return m.last(hidden)

    torch.manual_seed(0)
    parts = {name: nn.Conv2d(c, 4, 3, padding=1) for name, c in (("into", 3), ("back", 4), ("last", 4))}
    model, x = Does(forward, **parts).eval(), noise((20, 24))[:1]
    words = {"layer": "last", "convention": "luo", "measures": "r50", "unit": (8, 9)}
    checked = erfscope.analyze(model, images=x.float(), verify=True, **words)
    assert checked.verification.holds
    found = erfscope.analyze(model, images=x, dtype="float64", **words)
    assert (found.status, found.dtype, torch.get_default_dtype()) == ("ok", "float64", torch.float32)
    with default_dtype(torch.float64):
        double = copy.deepcopy(model).double()
        truth = plain_gradient(double, x, lambda y: y[:, :, 8, 9]).abs().sum((0, 1))
    assert np.abs(found.map.values - (truth / truth.sum()).numpy()).sum() <= 1e-9
    assert np.abs(checked.map.values - found.map.values).sum() <= 1e-4


def test_a_model_that_cannot_be_recorded_is_measured_by_its_shapes_and_its_results_say_so():
    """The observer of PyTorch's quantisation writes to several of its buffers by one operation."""
    torch.manual_seed(0)
    observer = torch.ao.quantization.FusedMovingAvgObsFakeQuantize()
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), observer, nn.Conv2d(4, 4, 3, 2, 1)).eval()
    (row,) = erfscope.sweep(model, input_size=32, samples=2, draws=1, layer="2")
    assert (row.ok, row.computed.path) == (True, "plain")
    assert (row.trf.exact, row.trf.box_px, row.trf.center_px) == (False, ((0, 31), (0, 31)), (16.5, 16.5))
    assert {"assumed_layout", "centre_not_exact", "trf_inexact", "needed_numbers"} <= {f.code for f in row.findings}
    assert np.abs(row.map.values[14:20, 14:20]).sum() == pytest.approx(1)
