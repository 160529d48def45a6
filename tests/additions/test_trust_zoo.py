"""What forward passes with noise say of models of many kinds as they are: their gradient is their derivative."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import erfscope
from erfscope.core.answer.maps.trust import Probe, is_off
from erfscope.show.view.extras import trust_text

FEW = {"measures": "r50,r90", "trust": True}


def agrees(result: erfscope.Result) -> bool:
    """Whether a gradient was compared, and is right."""
    assert (result.status, result.error) == ("ok", None)
    value, se = result.trust.ratio
    return not result.trust.disagrees and abs(value - 1) <= max(0.05, 3.5 * se) and se < 0.1


class ChannelsLast(nn.Module):
    """A convolution, then a norm of every cell, channels last, then another convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 6, 3, 2, 1), nn.Conv2d(6, 4, 3, 2, 1)
        self.norm = nn.LayerNorm(6)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, 4, H / 4, W / 4)."""
        return self.last(self.norm(self.first(x).movedim(1, -1)).movedim(-1, 1).tanh())


def test_noise_lands_on_an_inner_map_whose_channels_come_last():
    result = erfscope.analyze(ChannelsLast(), wrt="norm", images=torch.randn(4, 3, 24, 32), **FEW)
    assert agrees(result)
    assert result.trust.grey_levels is None


class Weak(nn.Module):
    """A net whose output is all but constant: what the image does to it is much less than its rounding errors."""

    def __init__(self, hidden: float = 0.0) -> None:
        super().__init__()
        self.body, self.hidden = nn.Conv2d(3, 16, 5, 2, 2), hidden

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, 16, H / 2, W / 2)."""
        y = self.body(x)
        return 1 + 1e-5 * y + self.hidden * y.detach()


@pytest.mark.parametrize("convention", ["jacobian", "luo", "kim"])
def test_a_gradient_that_rounding_hides_is_confirmed_in_double_precision(convention):
    result = erfscope.analyze(Weak(), layer="output", convention=convention, images=torch.randn(4, 3, 24, 24), **FEW)
    assert agrees(result)
    assert result.trust.is_in_double
    assert "float64" in trust_text(result)


@pytest.mark.slow
def test_a_small_gradient_of_a_unit_that_moves_much_disagrees():
    result = erfscope.analyze(Weak(hidden=0.1), layer="output", images=torch.randn(4, 3, 24, 24), **FEW)
    assert result.trust.disagrees
    assert result.trust.lost_in_rounding == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_twentieth_that_is_missing_is_found_under_many_kinks(seed):
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        *(layer for _ in range(6) for layer in (nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1))),
    )
    assert agrees(erfscope.analyze(net, input_size=32, samples=8, seed=seed, **FEW))
    net[8].register_forward_hook(lambda _module, _args, y: 0.05 * y.detach() + 0.95 * y)
    broken = erfscope.analyze(net, input_size=32, samples=8, seed=seed, **FEW).trust
    assert broken.disagrees
    assert broken.ratio.value == pytest.approx(0.95**-2, abs=1e-3)
    assert broken.module == "8"


@pytest.mark.slow
@pytest.mark.parametrize("images", [4, 8])
def test_a_right_gradient_under_much_curvature_is_seldom_refuted(images):
    """Student's t: of few images, 3.5 standard errors are exceeded by chance in one case of twenty."""
    rng, off = np.random.default_rng(0), 0
    for _ in range(2000):
        predicted = rng.standard_normal(8)
        found = predicted + 0.3 * rng.standard_normal(8)
        names = tuple(number % images for number in range(8))
        probe = Probe(sigma=1e-3, images=names, predicted=tuple(predicted), found=tuple(found), shares=(1.0,) * 8)
        off += is_off(probe)
    assert off <= 0.01 * 2000
