"""Where there is a graphics processor: the numbers of the CPU, whatever is computed how, and the same again."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import erfscope

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no graphics processor here")]
#: Eight architectures that are computed by different kernels.
MODELS = (
    "resnet50",
    "densenet121",
    "efficientnet_b0",
    "convnext_atto",
    "vit_tiny_patch16_224",
    "swin_tiny_patch4_window7_224",
    "mixer_s32_224",
    "sequencer2d_s",
)
ASKED = {"weights": "random", "samples": 2, "measures": "r50,r90,context_r50,sigma_row,far_mass"}


def measured(model, device="cuda", **options) -> erfscope.Result:
    result = erfscope.analyze(model, device=device, **{**ASKED, **options})
    assert result.ok, result.error
    assert result.device.startswith(device)
    return result


def difference(ours: erfscope.Result, theirs: erfscope.Result) -> float:
    """Relative L1 of two maps of sum 1."""
    return float(np.abs(ours.map.values - theirs.map.values).sum())


@pytest.mark.parametrize("model", MODELS)
def test_maps_are_those_of_the_cpu_in_float64_whatever_is_computed_how(model):
    """TF32 would be off by 2e-2."""
    theirs, ours = measured(model, "cpu", dtype="float64"), measured(model)
    assert difference(measured(model, dtype="float64"), theirs) < 1e-12
    assert difference(ours, theirs) < 1e-3
    for name in ("r50", "r90", "context_r50", "sigma_row", "far_mass"):
        assert float(ours[name]) == pytest.approx(float(theirs[name]), rel=1e-3), name
    assert difference(measured(model, plain=True), ours) < 1e-3
    assert difference(measured(model), ours) < 1e-5


@pytest.mark.parametrize("model", ["resnet18", "convnext_atto", "vit_tiny_patch16_224"])
def test_float64_on_the_cpu_is_reproduced(model):
    checked = measured(model, verify=True).verification
    assert checked.holds, checked


@pytest.mark.parametrize("model", ["resnet18", "test_vit"])
def test_forward_passes_agree_with_the_gradient(model):
    result = measured(model, trust=True, input_size=128)
    assert result.trust.moved_without_gradient == 0
    ratio, se = result.trust.ratio
    assert ratio == pytest.approx(1, abs=max(0.05, 3 * se))


def test_the_sizes_of_all_units_are_those_of_the_cpu():
    ours, theirs = (measured("resnet18", device, unit="all", input_size=64) for device in ("cuda", "cpu"))
    np.testing.assert_allclose(ours.positions.r50, theirs.positions.r50, rtol=1e-3)


def test_maps_relative_to_an_inner_layer_are_those_of_the_cpu():
    options = {"layer": "layer4", "wrt": "layer2"}
    ours, theirs = measured("resnet50", **options), measured("resnet50", "cpu", dtype="float64", **options)
    assert difference(ours, theirs) < 1e-3


def test_captums_methods_give_the_sizes_of_the_cpu():
    ours, theirs = (measured("resnet18", device, method="input_x_gradient") for device in ("cuda", "cpu"))
    assert float(ours["r50"]) == pytest.approx(float(theirs["r50"]), rel=1e-3)


def test_a_live_module_is_measured_where_it_lies_and_stays_there():
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()).cuda().train()
    result = erfscope.analyze(net, input_size=32, samples=2)
    assert (result.ok, result.device) == (True, "cuda:0")
    assert all(parameter.is_cuda for parameter in net.parameters())


def test_auto_takes_it():
    assert erfscope.analyze("test_resnet", **ASKED).device.startswith("cuda")


@pytest.mark.parametrize(("code", "option"), [("amp_error", {"amp_dtype": "bfloat16"}), ("tf32_error", {"tf32": True})])
def test_less_precision_says_what_it_changes(code, option):
    (text,) = [finding.text for finding in measured("resnet50", **option).findings if finding.code == code]
    assert 1e-2 < float(text.partition(" by ")[2].partition("%")[0]) < 50, text


def test_the_switches_of_tf32_are_as_found_afterwards():
    found = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    measured("test_resnet")
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == found


def test_the_gate_is_quiet_over_a_repeated_run(tmp_path):
    options = {"weights": "random", "samples": 8, "device": "cuda", "baseline": tmp_path / "erf.json"}
    erfscope.check("resnet18", update=True, **options)
    verdict = erfscope.check("resnet18", **options)
    assert verdict.exit_code == 0, verdict.text
