"""Adapters: layers are found and read rightly, and the model is left as it was found."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn

import erfscope
from erfscope import ErfscopeError, ErfWarning, MeasurementError
from erfscope.adapters import ModuleAdapter, load
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


def test_how_many_tokens_there_are_says_nothing_of_where_they_stand():
    for shape in ((1, 100, 64), (1, 197, 64), (1, 13, 64), (1, 1000)):
        assert guess_layout(shape, (224, 224)) is None


def test_to_map_keeps_rows_and_columns_of_tokens():
    tokens = torch.arange(1 + 6).float().reshape(1, 7, 1)
    grid = Layout(dims=(1,), grid=(2, 3), prefix=1).to_map(tokens)
    assert grid.tolist() == [[[[1, 2, 3], [4, 5, 6]]]]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "test_vit_relpos", "test_maxvit", "test_mambaout"])
def test_a_stage_read_by_a_hook_equals_forward_intermediates(name):
    """Positions of NHWC maps and of tokens with a prefix, read off the operations, against timm's own folding."""
    model = timm.create_model(name).eval()
    stages = erfscope.wrap(model).stages
    adapter = ModuleAdapter(
        model, spec=name, weights=erfscope.wrap(model).weights, preprocess=erfscope.wrap(model).preprocess
    )
    x = torch.randn(2, 3, 160, 160)
    with torch.no_grad():
        expected = model.forward_intermediates(x, indices=[len(stages) - 2], norm=False, intermediates_only=True)[0]
        found = adapter.features(x, adapter.site(stages[-2])).map
    torch.testing.assert_close(found, expected)


def test_non_square_dynamic_vit():
    adapter = load("test_vit", weights="random", input_size=(160, 320), model_kwargs={"dynamic_img_size": True})
    assert adapter.features(torch.randn(1, 3, 160, 320), adapter.site("blocks.2")).map.shape == (1, 64, 10, 20)


class Pyramid(nn.Module):
    """Returns a dict of maps, one of them a list."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 4, 3, 2, 1)
        self.b = nn.Conv2d(4, 6, 3, 2, 1)

    def forward(self, x: Tensor) -> dict[str, object]:
        a = self.a(x)
        return {"out": a, "more": [a, self.b(a)]}


def test_items_of_containers_are_layers():
    adapter = erfscope.wrap(Pyramid(), input_size=(16, 16))
    assert adapter.features(torch.randn(1, 3, 16, 16), adapter.site("output[out]")).map.shape == (1, 4, 8, 8)
    assert adapter.features(torch.randn(1, 3, 16, 16), adapter.site("output[more][1]")).map.shape == (1, 6, 4, 4)
    with pytest.raises(ErfscopeError, match=r"output\[out\]"):
        adapter.site("output")


def test_a_repeated_module_is_refused():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 3, 1, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(self.conv(x))

    adapter = erfscope.wrap(Twice(), input_size=(8, 8))
    with pytest.raises(MeasurementError, match="runs 2 times"):
        adapter.features(torch.randn(1, 3, 8, 8), adapter.site("conv"))
    assert adapter.default_layer == "output"


def test_an_unknown_layer_names_the_nearest():
    with pytest.raises(ErfscopeError, match="did you mean 'layer4'"):
        load("test_resnet", weights="random").site("layer5")


def state(module: nn.Module) -> tuple:
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks)) for m in module.modules()]
    flags = [m.training for m in module.modules()]
    gradients = [(p.requires_grad, p.grad is None, str(p.device), p.dtype) for p in module.parameters()]
    return hooks, flags, gradients, {k: v.clone() for k, v in module.state_dict().items()}


def same(before: tuple, after: tuple) -> bool:
    return before[:3] == after[:3] and all(torch.equal(before[3][k], after[3][k]) for k in before[3])


@pytest.mark.slow
def test_a_live_module_in_training_mode_is_handed_back_unchanged(small_net):
    small_net.train()
    small_net.body[1].eval()
    small_net.stem.weight.requires_grad_(False)
    before, rng = state(small_net), torch.get_rng_state()
    erfscope.analyze(small_net, input_size=(32, 32), samples=3, layer="down", measures="r50")
    assert same(before, state(small_net))
    assert torch.equal(rng, torch.get_rng_state())


def test_a_failing_model_is_handed_back_unchanged(small_net):
    small_net.train()
    before = state(small_net)
    adapter = erfscope.wrap(small_net, input_size=(32, 32))
    with pytest.raises(MeasurementError, match="spatial map"):
        adapter.site("head")
    with pytest.raises(MeasurementError, match="7 channels"):
        adapter.site("down", shape=(7, 32, 32))
    with pytest.raises(RuntimeError, match="7 channels"):
        adapter.features(torch.randn(1, 7, 32, 32), adapter.site("down"))
    assert same(before, state(small_net))


@pytest.mark.slow
def test_inference_mode_compiled_and_data_parallel_modules_can_be_measured(small_net):
    options = {"input_size": (32, 32), "samples": 2, "layer": "down", "measures": "r50"}
    plain = float(erfscope.analyze(small_net, **options)["r50"])
    with torch.inference_mode():
        assert float(erfscope.analyze(small_net, **options)["r50"]) == plain
    with torch.no_grad():
        assert float(erfscope.analyze(nn.DataParallel(small_net), **options)["r50"]) == plain
    wrapped = torch.compile(copy.deepcopy(small_net), backend="eager")
    assert float(erfscope.analyze(wrapped, **options)["r50"]) == plain


def test_another_calling_convention():
    class TwoInputs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3, 1, 1)

        def forward(self, batch: dict[str, Tensor]) -> Tensor:
            return self.conv(batch["left"] - batch["right"])

    adapter = erfscope.wrap(TwoInputs(), forward=lambda m, x: m({"left": x, "right": x * 0.5}), input_size=(12, 12))
    assert adapter.default_layer == "output"
    result = erfscope.analyze(adapter, samples=2)
    assert result.ok
    assert result.trf is not None
    assert result.trf.size_px == (3, 3)


def test_other_layouts_can_be_named():
    class Last(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.permute(0, 2, 3, 1) * 2

    adapter = erfscope.wrap(nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), Last()), input_size=(8, 8), layout="NHWC")
    assert adapter.features(torch.randn(2, 3, 8, 8), adapter.site("1")).map.shape == (2, 8, 8, 8)


@pytest.mark.slow
def test_a_model_built_or_made_in_inference_mode_can_be_measured():
    """Parameters made there can never require a gradient, nor can what is computed from them inside."""
    options = {"samples": 2, "weights": "random", "measures": "r50"}
    plain = float(erfscope.analyze("test_resnet", **options)["r50"])
    with torch.inference_mode():
        assert float(erfscope.analyze("test_resnet", **options)["r50"]) == plain
        made = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3, 2, 1))
        inside = erfscope.analyze(made, input_size=(32, 32), samples=2)
    outside = erfscope.analyze(made, input_size=(32, 32), samples=2)
    assert inside.ok
    assert outside["r50"].value == inside["r50"].value
    assert all(p.is_inference() for p in made.parameters())


def test_a_tensor_of_another_shape_than_the_model_is_set_up_for_is_refused():
    with pytest.raises(ErfscopeError, match="used as it is"):
        erfscope.analyze("test_resnet", images=torch.randn(2, 3, 160, 160), input_size=96, weights="random")
    adapter = erfscope.wrap(nn.Conv2d(3, 4, 3, 1, 1), input_size=(16, 16))
    with pytest.raises(ErfscopeError, match="used as it is"):
        erfscope.analyze(adapter, images=torch.randn(2, 5, 16, 16))


@pytest.mark.parametrize(
    "option", [{"mean": (9, 9, 9)}, {"in_chans": 7}, {"checkpoint": "x.pth"}, {"weights": "pretrained"}]
)
def test_options_that_an_adapter_cannot_honour_are_refused(option):
    with pytest.raises(ErfscopeError, match=f"^{next(iter(option))} is for models"):
        erfscope.analyze(erfscope.wrap(nn.Conv2d(3, 4, 3, 1, 1), input_size=(16, 16)), **option)


def test_a_chosen_layer_and_assumed_numbers_are_said():
    result = erfscope.analyze(nn.Conv2d(3, 4, 3, 1, 1), input_size=(16, 16), samples=2)
    assert result.layer_chosen
    # Synthetic images are drawn at the input's size: they are normalised, and neither resized nor cropped.
    (assumed,) = (finding.text for finding in result.findings if finding.code == "assumed")
    assert assumed == "mean and std of the input assumed: mean 0.485 0.456 0.406, std 0.229 0.224 0.225"
    asked = erfscope.analyze(
        nn.Conv2d(3, 4, 3, 1, 1), input_size=(16, 16), images=torch.randn(2, 3, 16, 16), layer="output"
    )
    assert not asked.layer_chosen
    assert "assumed" not in {w.code for w in asked.findings}


def test_layers_are_listed_in_the_order_they_run():
    names = [row.name for row in erfscope.layers("test_resnet").rows]
    assert names.index("layer1") < names.index("layer2.0.conv1") < names.index("layer2") < names.index("layer4")


@pytest.mark.slow
def test_submodules_can_be_reached_right_after_the_import():
    import subprocess
    import sys

    code = "import erfscope; print(erfscope.adapters.load.__name__)"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
        == "load"
    )


class Moody(nn.Module):
    """Fails, or looks at its numbers, as asked."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.conv, self.kind = nn.Conv2d(3, 4, 3, 2, 1), kind

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "assert":
            assert x.shape[-1] == 64, "wrong width"
        if self.kind == "custom":
            raise type("MyError", (Exception,), {})("custom trouble")
        if self.kind == "data" and float(x.detach().mean()) > 1e9:
            return self.conv(x) * 2
        return self.conv(x)


@pytest.mark.parametrize(
    ("kind", "text"), [("assert", "AssertionError: wrong width"), ("custom", "MyError: custom trouble")]
)
def test_whatever_a_forward_raises_is_a_failed_model(kind, text):
    with pytest.raises(MeasurementError, match=f"Moody fails on an input of 3 channels at 32x32: {text}"):
        erfscope.layers(Moody(kind), input_size=(32, 32))
    assert text in (erfscope.analyze(Moody(kind), input_size=(32, 32), samples=2, errors="row").error or "")


def test_a_model_that_looks_at_its_numbers_is_recorded_with_some():
    with pytest.warns(ErfWarning, match="has data-dependent control flow"):
        trf = erfscope.theoretical(Moody("data"), input_size=(32, 32))
    assert trf.size_px == (3, 3)
    assert trf.exact


def test_a_checkpoint_for_a_model_that_fails_is_one_clear_error(tmp_path):
    from erfscope.adapters.weights.checkpoint import needed_keys

    for kind in ("assert", "custom"):
        with pytest.raises(MeasurementError, match="fails on an input"):
            needed_keys(erfscope.wrap(Moody(kind), input_size=(32, 32)), "conv")
    assert needed_keys(erfscope.wrap(Moody("data"), input_size=(32, 32)), "conv") == {"conv.weight", "conv.bias"}


@pytest.mark.slow
def test_an_adapter_is_measured_in_another_dtype_and_stays_in_its_own():
    adapter = load("mobilenetv3_small_050", weights="random", input_size=64)
    before = {name: (t.dtype, t.data_ptr()) for name, t in adapter.module.state_dict().items()}
    first, second = (erfscope.analyze(adapter, samples=1, dtype="float64", measures="r50").map.values for _ in range(2))
    assert {name: (t.dtype, t.data_ptr()) for name, t in adapter.module.state_dict().items()} == before
    np.testing.assert_array_equal(first, second)
