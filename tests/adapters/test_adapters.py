"""Adapters: layers are found and read rightly, and the model is left as it was found."""

from __future__ import annotations

import numpy as np
import pytest
import timm
import torch
from loaded import adapter_of
from nets import Does, conv
from one_line import one_line
from torch import Tensor, nn

import erfscope
from erfscope import ErfWarning, MeasurementError
from erfscope.adapters import ModuleAdapter, load
from erfscope.adapters.weights.checkpoint import needed_keys
from erfscope.core.values.layout import Layout, guess_layout, named_layout

pytestmark = pytest.mark.usefixtures("memory_unplanned")


@pytest.mark.parametrize(
    ("shape", "space", "channels"),
    [
        ((1, 512, 7, 7), (224, 224), 512),
        ((1, 7, 7, 768), (224, 224), 768),
        ((1, 7, 14, 512), (224, 448), 512),
        ((1, 96, 56, 56), (224, 224), 96),
        ((1, 1, 224, 224), (224, 224), 1),
        ((2, 16, 4, 14, 14), (8, 112, 112), 16),
        ((2, 4, 14, 14, 16), (8, 112, 112), 16),
        ((2, 8, 50), (100,), 8),
    ],
)
def test_layouts_are_recognised_by_even_strides(shape, space, channels):
    layout = guess_layout(shape, space)
    assert layout is not None
    assert layout.map_shape(shape)[1] == channels


@pytest.mark.parametrize(
    ("length", "space", "prefix", "grid"),
    [
        (197, (224, 224), 1, (14, 14)),
        (196, (224, 224), 0, (14, 14)),
        (98, (112, 224), 0, (7, 14)),
        (202, (224, 224), 6, (14, 14)),
    ],
)
def test_tokens_that_a_user_names_form_the_grid_of_one_stride(length, space, prefix, grid):
    layout = named_layout("NLC", (1, length, 64), space, prefix=prefix)
    assert layout == Layout(dims=(1,), grid=grid, prefix=prefix)


def test_tokens_keep_their_rows_and_columns_and_how_many_there_are_says_nothing_of_where_they_stand():
    for shape in ((1, 100, 64), (1, 197, 64), (1, 13, 64), (1, 1000)):
        assert guess_layout(shape, (224, 224)) is None
    tokens = torch.arange(1 + 6).float().reshape(1, 7, 1)
    grid = Layout(dims=(1,), grid=(2, 3), prefix=1).to_map(tokens)
    assert grid.tolist() == [[[[1, 2, 3], [4, 5, 6]]]]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "test_vit_relpos", "test_maxvit", "test_mambaout"])
def test_a_stage_read_by_a_hook_equals_forward_intermediates(name):
    """Positions of NHWC maps and of tokens with a prefix, read off the operations, against timm's own folding."""
    model = timm.create_model(name).eval()
    known = erfscope.wrap(model)
    adapter = ModuleAdapter(model, spec=name, weights=known.weights, preprocess=known.preprocess)
    x = torch.randn(2, 3, 160, 160)
    with torch.no_grad():
        index = len(known.stages) - 2
        expected = model.forward_intermediates(x, indices=[index], norm=False, intermediates_only=True)[0]
        found = adapter.features(x, adapter.site(known.stages[index])).map
    torch.testing.assert_close(found, expected)


def test_non_square_dynamic_vit():
    adapter = load("test_vit", weights="random", input_size=(160, 320), model_kwargs={"dynamic_img_size": True})
    assert adapter.features(torch.randn(1, 3, 160, 320), adapter.site("blocks.2")).map.shape == (1, 64, 10, 20)


def test_items_of_containers_and_other_layouts_are_layers():
    def pyramid(m, x):
        a = m.a(x)
        return {"out": a, "more": [a, m.b(a)]}

    x = torch.randn(1, 3, 16, 16)
    adapter = erfscope.wrap(Does(pyramid, a=conv(3, 4, s=2), b=conv(4, 6, s=2)), input_size=(16, 16))
    assert adapter.features(x, adapter.site("output[out]")).map.shape == (1, 4, 8, 8)
    assert adapter.features(x, adapter.site("output[more][1]")).map.shape == (1, 6, 4, 4)
    one_line(lambda: adapter.site("output"), r"output\[out\]")
    last = nn.Sequential(conv(3, 8), Does(lambda m, x: x.permute(0, 2, 3, 1) * 2))
    adapter = erfscope.wrap(last, input_size=(16, 16), layout="NHWC")
    assert adapter.features(x, adapter.site("1")).map.shape == (1, 8, 16, 16)


def test_repeated_and_unknown_layers_are_refused():
    adapter = erfscope.wrap(Does(lambda m, x: m.conv(m.conv(x)), conv=conv(3, 3)), input_size=(8, 8))
    x = torch.randn(1, 3, 8, 8)
    one_line(lambda: adapter.features(x, adapter.site("conv")), "runs 2 times", MeasurementError)
    assert adapter.default_layer == "output"
    one_line(lambda: adapter_of("test_resnet", input_size=64).site("layer5"), "did you mean 'layer4'")


def test_a_layer_without_a_map_and_other_channels_are_refused(small_net):
    adapter = erfscope.wrap(small_net, input_size=(32, 32))
    one_line(lambda: adapter.site("head"), "spatial map", MeasurementError)
    one_line(lambda: adapter.site("down", shape=(7, 32, 32)), "7 channels", MeasurementError)
    with pytest.raises(RuntimeError, match="7 channels"):
        adapter.features(torch.randn(1, 7, 32, 32), adapter.site("down"))


def test_another_calling_convention():
    module = Does(lambda m, batch: m.conv(batch["left"] - batch["right"]), conv=conv())
    adapter = erfscope.wrap(module, forward=lambda m, x: m({"left": x, "right": x * 0.5}), input_size=(12, 12))
    assert adapter.default_layer == "output"
    result = erfscope.analyze(adapter, samples=2)
    assert result.ok
    assert result.trf.size_px == (3, 3)


@pytest.mark.slow
def test_a_model_built_made_or_measured_in_inference_mode_can_be_measured(small_net):
    """Parameters made there can never require a gradient, nor can what is computed from them inside."""
    small, options = (
        {"input_size": (32, 32), "samples": 2, "layer": "down", "measures": "r50"},
        {"input_size": (32, 32), "samples": 2},
    )
    spec = {"samples": 1, "weights": "random", "measures": "r50", "input_size": 64}
    plain, given = (
        float(erfscope.analyze(model, **words)["r50"]) for model, words in (("test_resnet", spec), (small_net, small))
    )
    with torch.inference_mode():
        assert float(erfscope.analyze(small_net, **small)["r50"]) == given
        assert float(erfscope.analyze("test_resnet", **spec)["r50"]) == plain
        made = nn.Sequential(conv(3, 4, s=2), nn.ReLU(inplace=True), conv(4, 4, s=2))
        inside = erfscope.analyze(made, **options)
    outside = erfscope.analyze(made, **options)
    assert inside.ok
    assert outside["r50"].value == inside["r50"].value
    assert all(p.is_inference() for p in made.parameters())


def test_what_an_adapter_cannot_honour_is_refused():
    adapter, words = erfscope.wrap(conv(), input_size=(16, 16)), "used as it is"
    images = torch.randn(2, 3, 160, 160)
    one_line(lambda: erfscope.analyze("test_resnet", images=images, input_size=96, weights="random"), words)
    one_line(lambda: erfscope.analyze(adapter, images=torch.randn(2, 5, 16, 16)), words)
    for name, value in {"mean": (9, 9, 9), "in_chans": 7, "checkpoint": "x.pth", "weights": "pretrained"}.items():
        call = lambda name=name, value=value: erfscope.analyze(adapter, **{name: value})  # noqa: E731
        one_line(call, f"^{name} is for models")


def test_a_chosen_layer_and_assumed_numbers_are_said():
    result = erfscope.analyze(conv(), input_size=(16, 16), samples=2)
    assert result.layer_chosen
    # Synthetic images are drawn at the input's size: they are normalised, and neither resized nor cropped.
    (assumed,) = (finding.text for finding in result.findings if finding.code == "assumed")
    assert assumed == "mean and std of the input assumed: mean 0.485 0.456 0.406, std 0.229 0.224 0.225"
    asked = erfscope.analyze(conv(), images=torch.randn(2, 3, 16, 16), layer="output")
    assert not asked.layer_chosen
    assert "assumed" not in {w.code for w in asked.findings}


def test_layers_are_listed_in_the_order_they_run():
    names = [row.name for row in erfscope.layers(adapter_of("test_resnet", input_size=64)).rows]
    assert names.index("layer1") < names.index("layer2.0.conv1") < names.index("layer2") < names.index("layer4")


class Moody(nn.Module):
    """Fails, or looks at its numbers, as asked."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.conv, self.kind = conv(s=2), kind

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "assert":
            assert x.shape[-1] == 64, "wrong width"
        if self.kind == "custom":
            raise type("MyError", (Exception,), {})("custom trouble")
        return self.conv(x) * 2 if self.kind == "data" and float(x.detach().mean()) > 1e9 else self.conv(x)


@pytest.mark.parametrize(
    ("kind", "text"), [("assert", "AssertionError: wrong width"), ("custom", "MyError: custom trouble")]
)
def test_whatever_a_forward_raises_is_a_failed_model(kind, text):
    words = f"Moody fails on an input of 3 channels at 32x32: {text}"
    one_line(lambda: erfscope.layers(Moody(kind), input_size=(32, 32)), words, MeasurementError)
    assert text in (erfscope.analyze(Moody(kind), input_size=(32, 32), samples=2, errors="row").error or "")
    adapter = erfscope.wrap(Moody(kind), input_size=(32, 32))
    one_line(lambda: needed_keys(adapter, "conv"), "fails on an input", MeasurementError)


def test_a_model_that_looks_at_its_numbers_is_recorded_with_some():
    with pytest.warns(ErfWarning, match="has data-dependent control flow"):
        trf = erfscope.theoretical(Moody("data"), input_size=(32, 32))
    assert (trf.size_px, trf.exact) == ((3, 3), True)
    assert needed_keys(erfscope.wrap(Moody("data"), input_size=(32, 32)), "conv") == {"conv.weight", "conv.bias"}


@pytest.mark.slow
def test_an_adapter_is_measured_in_another_dtype_and_stays_in_its_own():
    adapter = load("mobilenetv3_small_050", weights="random", input_size=64)
    before = {name: (t.dtype, t.data_ptr()) for name, t in adapter.module.state_dict().items()}
    first, second = (erfscope.analyze(adapter, samples=1, dtype="float64", measures="r50").map.values for _ in range(2))
    assert {name: (t.dtype, t.data_ptr()) for name, t in adapter.module.state_dict().items()} == before
    np.testing.assert_array_equal(first, second)
