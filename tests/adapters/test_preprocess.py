"""Claims about what happens to an image before a model sees it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import timm
import torch
from one_line import one_line
from PIL import Image
from releases import needs_channels
from timm.data import create_transform, resolve_data_config
from torch import nn
from torchvision import models

import erfscope
from erfscope.adapters.preprocess import InputConfig, input_config, module_config, preprocess
from erfscope.adapters.sources.torchvision_models import torchvision_words
from erfscope.core.values.input_size import input_size, input_sizes, is_size

RGB = Image.fromarray(np.random.default_rng(0).integers(0, 256, (301, 420, 3), dtype=np.uint8))


def shown(config: InputConfig, picture: Image.Image = RGB) -> torch.Tensor:
    steps = preprocess(config)
    return steps.normalise(steps.crop(picture)[None])[0]


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("resnet18", "center"),
        ("vit_tiny_patch16_224", "center"),  # mean 0.5, crop 0.9
        ("inception_v3", "center"),  # 299 px
        ("inception_v3", "squash"),
        ("coat_lite_medium_384", "squash"),
        ("resnet18", "border"),
    ],
)
@pytest.mark.parametrize("size", [None, (96, 128)])
def test_crop_and_normalise_together_are_timms_own_transform(name, mode, size):
    cfg = timm.get_pretrained_cfg(name).to_dict() | {"crop_mode": mode}
    known = resolve_data_config({"input_size": (3, *size)} if size else {}, pretrained_cfg=cfg)
    expected = create_transform(**known)(RGB)
    found = shown(input_config(cfg, size=size))
    torch.testing.assert_close(found, expected.double(), rtol=0, atol=1e-6)
    if mode != "center":  # the modes differ on this picture
        assert not torch.equal(found, shown(input_config(cfg | {"crop_mode": "center"}, size=size)))


@pytest.mark.parametrize("name", ["resnet18", "inception_v3", "efficientnet_b0", "swin_v2_t"])
def test_torchvision_pictures_equal_torchvisions_own_preset(name):
    preset = models.get_model_weights(name).DEFAULT.transforms()
    config = input_config(torchvision_words(preset))
    torch.testing.assert_close(shown(config), preset(RGB).double(), rtol=0, atol=1e-6)


def test_a_grey_picture_for_one_channel_takes_timms_rule_of_the_mean_value_and_says_so():
    cfg = timm.get_pretrained_cfg("resnet18").to_dict()
    config = input_config(cfg, channels=1)
    assert config.mean == pytest.approx(((0.485 + 0.456 + 0.406) / 3,))
    assert config.std == pytest.approx(((0.229 + 0.224 + 0.225) / 3,))
    assert config.assumed == ("mean", "std")
    grey = RGB.convert("L")
    known = resolve_data_config({"in_chans": 1, "mean": config.mean, "std": config.std}, pretrained_cfg=cfg)
    expected = create_transform(**known | {"input_size": (1, 224, 224)})(grey)
    torch.testing.assert_close(shown(config, grey), expected.double(), rtol=0, atol=1e-6)


def test_the_channel_rule_is_that_of_timms_resolver():
    resolver = pytest.importorskip("timm.data.model_config").resolve_input_data_config
    model = timm.create_model("test_resnet", in_chans=5)
    model.pretrained_cfg |= {"mean": (0.1, 0.2, 0.6), "std": (0.2, 0.3, 0.4)}
    timms, ours = resolver(model, args={"in_chans": 5}), module_config(model, "net", in_chans=5)
    assert ours.mean == pytest.approx(timms["mean"])
    assert ours.std == pytest.approx(timms["std"])


def test_five_bands_repeat_red_green_blue():
    steps = preprocess(input_config({}, size=(32, 48), channels=5, mean=0.5, std=0.25))
    pixels = steps.crop(RGB)
    assert pixels.shape == (32, 48, 5)
    assert pixels.dtype == np.uint8
    np.testing.assert_array_equal(pixels[..., 3:], pixels[..., :2])
    three = preprocess(input_config({}, size=(32, 48))).crop(RGB)
    np.testing.assert_array_equal(pixels[..., :3], three)


@pytest.mark.parametrize("space", [(7,), (4, 6), (3, 4, 6)])
def test_normalise_moves_the_last_axis_to_the_second_place(space):
    pixels = np.random.default_rng(1).integers(0, 256, (2, *space, 3), dtype=np.uint8)
    pixels.flags.writeable = False
    result = preprocess(input_config({}, size=space, rank=len(space))).normalise(pixels)
    assert result.shape == (2, 3, *space)
    assert result.dtype == torch.float64
    by_hand = (pixels / 255 - np.array([0.485, 0.456, 0.406])) / np.array([0.229, 0.224, 0.225])
    np.testing.assert_allclose(result.numpy(), np.moveaxis(by_hand, -1, 1), atol=1e-12)


def test_a_picture_is_a_still_clip_for_a_video_model_and_nothing_for_a_one_dimensional_one():
    clip = preprocess(input_config({}, size=(4, 32, 32))).crop(RGB)
    assert clip.shape == (4, 32, 32, 3)
    assert all(np.array_equal(frame, clip[0]) for frame in clip)
    words = r"one spatial axis; give sound \(.*\), from Python also a ready tensor \(B, C, N\)"
    text = one_line(lambda: preprocess(input_config({}, size=(32,), rank=1)).crop(RGB), words)
    assert "arrays" not in text  # an array is a picture too, and meets this very error


def test_a_users_transform_does_everything():
    own = create_transform((3, 40, 40), crop_pct=1.0)
    steps = preprocess(input_config({}, size=(40, 40)), own)
    np.testing.assert_array_equal(steps.crop(RGB.convert("P")), np.array(RGB.convert("P").convert("RGB")))
    torch.testing.assert_close(steps.normalise(steps.crop(RGB)[None])[0], own(RGB).double(), rtol=0, atol=0)
    odd = preprocess(input_config({}), lambda picture: np.zeros(3))  # type: ignore[arg-type, return-value]
    one_line(lambda: odd.normalise(np.zeros((1, 4, 4, 3), np.uint8)), "transform= returned ndarray")


def test_what_nobody_stated_is_listed_and_printed():
    assert input_config({}).assumed == ("size", "mean", "std")
    assert input_config({}, size=(64, 64), mean=0.5, std=(0.5, 0.5, 0.5)).assumed == ()
    assert "assumed: size, mean, std" in preprocess(input_config({})).text
    known = timm.get_pretrained_cfg("resnet18").to_dict()
    assert input_config(known).assumed == ()
    assert "assumed" not in preprocess(input_config(known)).text
    half = {"interpolation": "bicubic", "crop_pct": 0.9, "mean": 0.5, "std": 0.25, "input_size": (3, 224, 192)}
    assert preprocess(input_config(half)).text == "bicubic resize, center crop 0.9 to 224x192, mean 0.5, std 0.25"


@pytest.mark.parametrize(
    ("wish", "text"),
    [
        ({"size": (0, 4)}, "0x4"),
        ({"size": (4, 4, 4, 4)}, "4x4x4x4"),
        ({"mean": (0.1, 0.2)}, "mean has 2 values, but the input has 3 channels"),
        ({"std": (0.1, 0.0, 0.1)}, "must be positive"),
        ({"channels": -1}, "at least 1"),
    ],
)
def test_an_impossible_wish_is_one_line(wish, text):
    one_line(lambda: input_config({}, **wish), text)


def test_a_size_needs_the_axes_of_the_model():
    known = {"input_size": (3, 16, 112, 112)}
    assert input_config(known, size=(64, 80)).size == (16, 64, 80)
    assert input_config({"input_size": (3, 8, 8)}, size=(32,)).size == (32, 32)
    words = "3 axes; the model takes 2"
    one_line(lambda: input_config({"input_size": (3, 8, 8)}, size=(4, 4, 4)), words)
    # One number is this side on every axis that the configuration states but for a clip's length.
    for stated, size in (((2, 64), (32,)), ((3, 64, 80), (32, 32)), ((3, 16, 64, 80), (16, 32, 32))):
        assert input_config({"input_size": stated}, size=(32,), rank=1).size == size


@pytest.mark.parametrize(
    ("net", "alone", "asked"),
    [
        (nn.Conv1d(2, 4, 3), (224,), (32,)),
        (nn.Conv2d(2, 4, 3), (224, 224), (32, 32)),
        (nn.Conv3d(2, 4, 3), None, (32, 32, 32)),
        (nn.Linear(2, 4), (224, 224), (32, 32)),
    ],
)
def test_one_number_is_this_side_on_every_axis_of_the_first_convolution(net, alone, asked):
    if alone is not None:
        assert module_config(nn.Sequential(nn.ReLU(), net), "net").size == alone
    assert module_config(nn.Sequential(nn.ReLU(), net), "net", input_size=input_size(32)).size == asked
    assert module_config(net, "net", input_size=(8, 16)).size == (8, 16)


@pytest.mark.parametrize("given", [32, "32", (32,)])
def test_one_number_stays_one_until_the_model_is_known(given):
    assert input_sizes(given) == [(32,)]
    assert input_sizes([given, "24x32"]) == [(32,), (24, 32)]
    options = {"input_size": given, "samples": 2, "measures": "r50", "errors": "row"}
    one, two = (erfscope.analyze(nn.Sequential(conv(2, 4, 5, 2, 2)), **options) for conv in (nn.Conv1d, nn.Conv2d))
    assert (one.status, one.input.size, one.map.values.shape) == ("ok", (32,), (32,))
    if isinstance(given, tuple):  # one axis, whatever the first convolution takes
        assert (two.status, two.input.size) == ("error", (32,))
        return
    assert (two.status, two.input.size, two.map.values.shape) == ("ok", (32, 32), (32, 32))


def test_a_size_asked_for_is_recognised_in_the_full_one():
    same = [((32,), (32,)), ((32,), (32, 32)), ((32,), (16, 32, 32)), ((32, 48), (32, 48)), ((32, 48), (16, 32, 48))]
    other = [((32,), (32, 48)), ((48, 32), (32, 48)), ((32, 32), (32,)), ((8, 32, 48), (16, 32, 48))]
    assert [is_size(*each) for each in same + other] == [True] * len(same) + [False] * len(other)


@needs_channels
def test_a_live_module_states_its_own_size_and_channels():
    fixed = timm.create_model("test_vit2", img_size=96, in_chans=2, dynamic_img_size=False)
    config = module_config(fixed, "net")
    assert (config.size, config.channels, config.fixed) == ((96, 96), 2, True)
    assert module_config(timm.create_model("test_vit2", img_size=96), "net").size == (96, 96)
    assert module_config(timm.create_model("test_resnet"), "net", input_size=(64, 96)).size == (64, 96)
    bare = module_config(nn.Sequential(nn.ReLU(), nn.Conv2d(6, 8, 3)), "net")
    assert (bare.size, bare.channels, bare.assumed) == ((224, 224), 6, ("size", "mean", "std"))


@pytest.mark.parametrize(
    ("config", "size", "assumed"),
    [
        (SimpleNamespace(image_size=96), (96, 96), ("mean", "std")),
        (SimpleNamespace(image_size=[64, 96]), (64, 96), ("mean", "std")),
        (SimpleNamespace(image_size=None, vision_config=SimpleNamespace(image_size=48)), (48, 48), ("mean", "std")),
        (SimpleNamespace(hidden_size=96), (224, 224), ("size", "mean", "std")),
        ({"image_size": 96}, (224, 224), ("size", "mean", "std")),
    ],
)
def test_a_module_of_transformers_states_its_size_in_its_configuration(config, size, assumed):
    net = nn.Sequential(nn.Conv2d(3, 8, 3))
    net.config = config
    found = module_config(net, "net")
    assert (found.size, found.assumed) == (size, assumed)
    assert module_config(net, "net", input_size=(32, 40)).size == (32, 40)
