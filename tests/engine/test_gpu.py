"""Where there is a graphics processor: the same sizes as on the CPU, and the same whatever is computed how."""

from __future__ import annotations

import pytest
import torch

import erfscope

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no graphics processor here")]
ASKED = {"weights": "random", "samples": 6, "input_size": 128}


@pytest.mark.parametrize("model", ["resnet18", "test_vit", "convnext_atto"])
def test_sizes_agree_with_those_of_the_cpu(model):
    there, here = (erfscope.analyze(model, device=device, **ASKED) for device in ("cuda", "cpu"))
    assert there.device.startswith("cuda")
    for name in ("r50", "r90", "context_r50", "sigma_row", "far_mass"):
        assert float(there[name]) == pytest.approx(float(here[name]), rel=5e-3), name


def test_auto_takes_it():
    assert erfscope.analyze("test_resnet", **ASKED).device.startswith("cuda")


def test_autocast_says_what_it_changes():
    found = erfscope.analyze("resnet18", amp_dtype="bfloat16", device="cuda", **ASKED)
    assert any(warning.code == "amp_error" for warning in found.findings)
