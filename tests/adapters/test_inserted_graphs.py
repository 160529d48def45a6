"""Reports on graph blocks in a model: hops along their links, and attention that gets no gradient."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from loaded import adapter_of
from torch import nn

import erfscope
from erfscope import adapters
from erfscope.adapters.blocks import GCN, FullGraph, GATv2, GivenGraph, GridGraph, NearestGraph, Pipeline
from erfscope.apps.lab.influence_matrix.hops import hop_distances
from erfscope.apps.lab.theory import mean_adjacency

pytestmark = pytest.mark.usefixtures("memory_unplanned")


def ring(n: int) -> np.ndarray:
    """Everybody receives from the next and the one after it: a directed ring with self-loops."""
    return np.eye(n) + np.roll(np.eye(n), 1, axis=1) + np.roll(np.eye(n), 2, axis=1)


@pytest.mark.parametrize(
    "graph",
    [
        GridGraph(4, links="opposite"),
        GridGraph(8, links="opposite"),
        FullGraph(),
        GivenGraph(ring(35)),
        GivenGraph(np.eye(35)),
    ],
    ids=["opposite", "opposite8", "full", "ring", "isolated"],
)
def test_hops_are_those_of_the_adjacency(graph):
    distances = hop_distances(graph.adjacency(5, 7).numpy())
    for node in ((0, 0), (2, 3), (4, 6)):
        np.testing.assert_array_equal(graph.hops_from((5, 7), node).ravel(), distances[node[0] * 7 + node[1]])


def test_a_plain_grid_and_neighbours_in_feature_space_have_no_hops():
    assert GridGraph(4).hops_from((5, 7), (0, 0)) is None
    assert NearestGraph(3).hops_from((5, 7), (0, 0)) is None
    assert FullGraph().hops_from((2, 5, 7), (0, 0, 0)) is None


@pytest.fixture
def host() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Tanh(), nn.Identity()).double()


@pytest.mark.slow
def test_a_gcn_on_a_ring_has_the_hop_mass_of_its_matrix(host):
    """One channel-mixing matrix per layer: the energy of the ERF at node i is ((P^L)_pi)^2, up to a factor."""
    n, layers = 35, 3
    block = GCN(4, 4, layers, act=None, graph=GivenGraph(ring(n)), bias=False).double()
    x = torch.randn(2, 3, 5, 7, dtype=torch.float64)
    result = erfscope.analyze(
        host, images=x, insert=[(block, "1")], layer="2", wrt="1.gcn:in", unit=(2, 3), convention="energy", draws="all"
    )
    node = 2 * 7 + 3
    energy = np.linalg.matrix_power(mean_adjacency(ring(n)), layers)[node] ** 2
    hops = hop_distances(ring(n), [node])[0]
    expected = np.array([energy[hops == hop].sum() for hop in range(int(hops.max()) + 1)]) / energy.sum()
    np.testing.assert_allclose(result.hops.mass, expected, atol=1e-12)
    assert result.hops.mean_hop == pytest.approx(float(expected @ np.arange(len(expected))), abs=1e-12)
    assert result.hops.mass[layers + 1 :].sum() == 0


@pytest.mark.slow
def test_hops_are_stored_and_of_inputs_of_blocks_alone(host, tmp_path):
    block, x = GCN(4, 4, 1, graph="full").double(), torch.randn(1, 3, 5, 7, dtype=torch.float64)
    options = {"images": x, "insert": [(block, "1")], "layer": "2", "measures": "r50"}
    assert [row.hops for row in erfscope.sweep(host, wrt="image,0,1.gcn", **options)] == [None] * 5
    adapter = adapter_of("test_resnet", input_size=64)
    report = erfscope.sweep(adapter, samples=1, insert="gcn@stages[2]:graph=full", wrt="gcn:in", measures="r50")
    report.save(tmp_path / "erf.json")
    stored, found = erfscope.read(tmp_path / "erf.json")[1].hops, report[1].hops
    np.testing.assert_allclose(stored.mass, found.mass)
    assert found.mass.sum() == pytest.approx(1)
    assert len(found.mass) == 2
    assert report[0].hops is None


@pytest.mark.slow
def test_a_fully_connected_gcn_without_a_skip_is_influenced_by_every_node_alike(host):
    adapter = adapters.insert(
        # A value that is the same for every node has no image position, so that the layout is given.
        erfscope.wrap(host, input_size=(6, 6), layout="NCHW"),
        Pipeline(4, lambda c: GCN(c, c, 1, graph="full"), inner=8, residual=False).double().eval(),
        "1",
    )
    result = erfscope.analyze(
        adapter, images=torch.randn(2, 3, 6, 6, dtype=torch.float64), layer="1.pipeline", wrt="1.pipeline:in"
    )
    np.testing.assert_allclose(result.map.values, 1 / 36, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_dead_attention_is_named_with_its_nodes_and_heads(host):
    """A large bias gives every neighbour the same slopes, so that lin_r learns nothing anywhere."""
    block = GATv2(4, 4, heads=2, concat=False, graph="grid4").double()
    with torch.no_grad():
        block.lin_l.weight.mul_(0.01)
        block.lin_l.bias.fill_(10.0)
        block.lin_r.weight.zero_()
        block.lin_r.bias.zero_()
    x = torch.randn(1, 3, 5, 5, dtype=torch.float64)
    result = erfscope.analyze(host, images=x, insert=[(block, "1")], layer="2")
    said = [finding.text for finding in result.findings if finding.code == "dead_attention"]
    assert len(said) == 1
    assert "100.0% of its nodes and heads (heads 0, 1; nodes (0,0), (0,1), (0,2), (0,3) and 21 more)" in said[0]


def test_attention_that_learns_everywhere_is_not_mentioned(host):
    block = GATv2(4, 16, heads=1, graph="full").double()
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.normal_()
    x = torch.randn(1, 3, 5, 5, dtype=torch.float64)
    wide = nn.Sequential(block, nn.Conv2d(16, 4, 1).double())
    adapter = adapters.insert(erfscope.wrap(host, input_size=(5, 5)), wide, "1")
    found = erfscope.analyze(adapter, images=x, layer="2")
    assert "dead_attention" not in [finding.code for finding in found.findings]
    assert not any(module._forward_pre_hooks for module in adapter.module.modules())
