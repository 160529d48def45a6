"""Leave-one-out influence of the nodes of a feature map, and what stands beside it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from loaded import adapter_of
from nets import Does
from scipy.stats import spearmanr
from torch import Tensor, nn

import erfscope

pytestmark = pytest.mark.usefixtures("memory_unplanned")


@pytest.fixture
def net() -> nn.Sequential:
    """Attention-like: every cell reads every other."""

    def tail(m: nn.Module, z: Tensor) -> Tensor:
        y = torch.tanh(m.first(z))
        return m.last(y + (y * z.mean(1, keepdim=True)).mean((-2, -1), keepdim=True))

    parts = {"first": nn.Conv2d(6, 6, 3, padding=1), "last": nn.Conv2d(6, 5, 1)}
    return nn.Sequential(nn.Conv2d(3, 6, 3, stride=2, padding=1), Does(tail, **parts)).double()


@pytest.fixture
def x() -> Tensor:
    return torch.randn(1, 3, 10, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def removed(net: nn.Sequential, x: Tensor, unit: tuple[int, int]) -> np.ndarray:
    """Node by node, written out: y - y_i, (n, C)."""
    z = net[0](x)
    found = []
    with torch.no_grad():
        y = net[1](z)[0, :, unit[0], unit[1]]
        for row in range(z.shape[2]):
            for col in range(z.shape[3]):
                without = z.clone()
                without[:, :, row, col] = 0
                found.append(y - net[1](without)[0, :, unit[0], unit[1]])
    return torch.stack(found).numpy()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("convention", "wrt"), [("jacobian", "0"), ("energy", "1:in"), ("luo", "0"), ("signed", "1:in")]
)
def test_the_map_is_the_share_of_the_change_without_each_node(net, x, wrt, convention):
    result = erfscope.analyze(net, images=x, layer="1", wrt=wrt, unit=(2, 3), method="occlusion", convention=convention)
    change = removed(net, x, (2, 3))
    total = change.sum(1)
    expected = {
        "jacobian": np.linalg.norm(change, axis=1),
        "energy": (change**2).sum(1),
        "luo": abs(total),
        "signed": total,
    }[convention]
    np.testing.assert_allclose(result.map.values.ravel(), expected / abs(expected).sum(), rtol=0, atol=1e-12)
    assert result.input.n_draws == 1


@pytest.mark.slow
def test_the_rank_correlation_is_with_the_gradient_of_the_same_pictures_and_is_kept(net, x, tmp_path):
    options = {"images": x, "layer": "1", "wrt": "0", "unit": (2, 3)}
    report, gradient = erfscope.sweep(net, method="occlusion", **options), erfscope.analyze(net, **options)
    expected = spearmanr(report[0].map.values.ravel(), gradient.map.values.ravel()).statistic
    assert report[0].rank_correlation == pytest.approx(expected, abs=1e-12)
    assert gradient.rank_correlation is None
    report.save(tmp_path / "erf.json")
    assert erfscope.read(tmp_path / "erf.json")[0].rank_correlation == pytest.approx(expected)
    dead = nn.Sequential(nn.Identity(), nn.Conv2d(1, 2, 3, padding=1)).double()
    nn.init.zeros_(dead[1].weight)  # a node of zeros is no loss
    words = {"layer": "1", "wrt": "0", "method": "occlusion"}
    result = erfscope.analyze(dead, images=torch.ones(1, 1, 5, 5, dtype=torch.float64), **words)
    assert (result.status, result.rank_correlation) == ("degenerate", None)


def test_a_linear_net_ranks_nodes_by_what_they_hold():
    """y_i - y = -W x_i at a node: for one channel the leave-one-out influence is |gradient x input|."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Identity(), nn.Conv2d(1, 1, 3, padding=1, bias=False)).double()
    x = torch.randn(1, 1, 5, 5, dtype=torch.float64)
    result = erfscope.analyze(net, images=x, layer="1", wrt="0", unit=(2, 2), method="occlusion", convention="signed")
    product = (net[1].weight[0, 0] * x[0, 0, 1:4, 1:4]).detach().numpy()
    np.testing.assert_allclose(result.map.values[1:4, 1:4], product / abs(product).sum(), atol=1e-12)
    assert abs(result.map.values).sum() == pytest.approx(abs(result.map.values[1:4, 1:4]).sum())


@pytest.mark.slow
def test_prefix_tokens_are_no_nodes():
    words = {"samples": 1, "layer": "blocks.4", "wrt": "blocks.0", "measures": "r50"}
    result = erfscope.analyze(adapter_of("test_vit"), method="occlusion", **words)
    assert result.ok
    assert result.map.values.shape == erfscope.analyze(adapter_of("test_vit"), **words).map.values.shape
    assert math.isfinite(result.rank_correlation)
