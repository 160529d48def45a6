"""``--verify``: the first image beside the plain model in float64."""

from __future__ import annotations

import pytest
import torch
from oracle import plain_gradient
from torch import nn

import erfscope
from erfscope.core.run.attribution import GraphForward

WORDS = {"input_size": (96, 120), "samples": 2, "unit": "0,0,3,4", "measures": "r50"}


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 6, 3, 2, 1), nn.BatchNorm2d(6), nn.GELU(), nn.Conv2d(6, 8, 3, 4, 1)).eval()


def brightened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what is measured be of an image that is half as bright again."""
    honest = GraphForward.__call__
    monkeypatch.setattr(GraphForward, "__call__", lambda forward, x: honest(forward, 1.5 * x))


@pytest.mark.parametrize("dtype, allowed", [("float32", 1e-2), ("float64", 1e-9)])
@pytest.mark.parametrize("convention", ["jacobian", "luo"])
def test_a_right_measurement_is_verified(dtype, allowed, convention):
    for result in erfscope.sweep(net(), **WORDS, dtype=dtype, convention=convention, verify=True):
        found = result.verification
        assert found.holds
        assert found.allowed == allowed
        assert result.computed.share < 1
        # The dtype shows: float32 rounds, and float64 agrees to its own rounding.
        assert found.map < 1e-5 if dtype == "float32" else found.map < 1e-13
        assert found.value < 1e-5 if dtype == "float32" else found.value < 1e-13


def test_the_difference_is_that_of_plain_autograd(monkeypatch):
    """The oracle: value and map at the image and at the brighter one, by plain autograd."""
    module, x = net().double(), torch.randn(1, 3, 96, 120, dtype=torch.float64)
    values = [module(scale * x)[0, :, 3, 4].detach() for scale in (1, 1.5)]
    maps = [plain_gradient(module, scale * x, lambda y: y[0, :, 3, 4]).abs().sum(1) for scale in (1, 1.5)]
    brightened(monkeypatch)
    found = erfscope.analyze(module, images=x, unit=(3, 4), convention="luo", measures="r50", verify=True).verification
    assert not found.holds
    assert found.value == pytest.approx(float((values[1] - values[0]).abs().sum() / values[0].abs().sum()), rel=1e-9)
    assert found.map == pytest.approx(float((maps[1] - maps[0]).abs().sum() / maps[0].abs().sum()), rel=1e-9)


@pytest.mark.slow
def test_the_command_prints_both_and_ends_with_1_where_they_differ(monkeypatch, command):
    words = [
        "analyze",
        "test_resnet",
        "--weights",
        "random",
        "--input-size",
        "64",
        "--layer",
        "layer1",
        "--samples",
        "1",
        "--verify",
    ]
    code, shown, _ = command(*words)
    assert not code
    assert "verified: on the first image the unit's value differs by" in " ".join(shown.split())
    brightened(monkeypatch)
    code, shown, _ = command(*words)
    assert code == 1
    assert "NOT VERIFIED" in shown
