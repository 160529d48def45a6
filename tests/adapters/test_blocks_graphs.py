"""Graphs against adjacency matrices counted by hand, and sums over neighbours against dense products."""

import copy
import itertools

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from erfscope.adapters.blocks import (
    GCN,
    FullGraph,
    GATv2,
    GivenGraph,
    GridGraph,
    NearestGraph,
    SelfAttention,
    as_graph,
    on_nodes,
)

H, W = 5, 4
N = H * W


def cells():
    return list(itertools.product(range(H), range(W)))


def counted(neighbours, loops, links):
    """A grid's adjacency, cell by cell."""
    adjacency = np.zeros((N, N))
    for p, (r, c) in enumerate(cells()):
        for i, (s, d) in enumerate(cells()):
            near = abs(r - s) + abs(c - d) == 1 if neighbours == 4 else max(abs(r - s), abs(c - d)) == 1
            opposite = links == "opposite" and (s, d) == (H - 1 - r, W - 1 - c) and p != i
            adjacency[p, i] = near or opposite or (loops and p == i)
    return adjacency


def directed():
    """Weighted, not symmetric, with some self-loops, a node without neighbours, and one that receives from a single
    other."""
    g = np.random.default_rng(3)
    adjacency = g.random((N, N)) * (g.random((N, N)) < 0.3)
    adjacency[7] = 0
    adjacency[8] = 0
    adjacency[8, 2] = 0.7
    adjacency[3, 3] = 0.4
    return adjacency


GRAPHS = {
    **{
        f"grid{k}-{'loops' if loops else 'bare'}-{words}": (
            lambda k=k, loops=loops, links=links: GridGraph(k, loops, links),
            (k, loops, links),
        )
        for k in (4, 8)
        for loops in (True, False)
        for words, links in (("plain", None), ("opposite", "opposite"))
    },
    "full": (FullGraph, np.ones((N, N))),
    "full-bare": (lambda: FullGraph(self_loops=False), np.ones((N, N)) - np.eye(N)),
    "given": (lambda: GivenGraph(directed()), directed()),
    "given-loops": (lambda: GivenGraph(directed(), self_loops=True), directed() + np.diag(np.diag(directed()) == 0)),
}


def case(name):
    make, matrix = GRAPHS[name]
    return make(), counted(*matrix) if isinstance(matrix, tuple) else matrix


def features(channels=3, batch=2):
    return torch.randn(batch, channels, H, W, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def dense_mix(adjacency, x, normalisation, self_loops=None):
    """The normalised product, written with matrices: x (B, C, n)."""
    adjacency = adjacency.copy()
    if self_loops is None and normalisation == "symmetric":
        self_loops = True
    diagonal = np.diag(adjacency).copy()
    if self_loops:
        adjacency[np.diag_indices(len(adjacency))] = np.where(diagonal == 0, 1, diagonal)
    elif self_loops is False:
        np.fill_diagonal(adjacency, 0)
    degree = adjacency.sum(1)
    with np.errstate(divide="ignore"):
        inverse = np.where(degree > 0, 1 / degree, 0)
    if normalisation == "row":
        adjacency = np.diag(inverse) @ adjacency
    if normalisation == "symmetric":
        adjacency = np.diag(np.sqrt(inverse)) @ adjacency @ np.diag(np.sqrt(inverse))
    return np.einsum("pi,bci->bcp", adjacency, x)


@pytest.mark.parametrize("name", GRAPHS)
def test_adjacency_neighbours_and_mixing_are_those_counted_by_hand(name):
    graph, adjacency = case(name)
    np.testing.assert_array_equal(graph.adjacency(H, W).numpy(), adjacency)
    x, unit = features(), torch.eye(N, dtype=torch.float64).reshape(1, N, H, W)
    for normalisation, self_loops in itertools.product(("none", "row", "symmetric"), (None, True, False)):
        found = graph.mix(x, normalisation, self_loops=self_loops).flatten(2).numpy()
        wanted = dense_mix(adjacency, x.flatten(2).numpy(), normalisation, self_loops)
        np.testing.assert_allclose(found, wanted, atol=1e-12)
    for self_loops in (None, True):
        values, mask = graph.neighbours(unit, self_loops=self_loops)
        # Channel i is one at node i, so that the sum over the listed neighbours of p says how often i is listed.
        listed = (values * mask).sum(2).expand(1, N, H, W).flatten(2)[0].T.numpy()
        wanted = (adjacency > 0) | (np.eye(N, dtype=bool) if self_loops else False)
        np.testing.assert_array_equal(listed, wanted)


def test_without_self_loops_the_grid_is_bipartite_and_with_a_distant_link_influence_has_two_modes():
    side, p = 21, 5 * 21 + 4
    partner = 21 * 21 - 1 - p
    bare = torch.matrix_power(GridGraph(self_loops=False).adjacency(side, side), 9)
    assert float(bare.diagonal().abs().max()) == 0
    adjacency = GridGraph(links="opposite").adjacency(side, side)
    stochastic = adjacency / adjacency.sum(1, keepdim=True)
    erf = torch.matrix_power(stochastic, 9)[p].reshape(side, side)
    assert float(erf.sum()) == pytest.approx(1, abs=1e-12)
    rows, cols = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    near_p = (rows - 5).abs() + (cols - 4).abs() <= 9
    near_partner = (rows - 15).abs() + (cols - 16).abs() <= 9
    assert not bool((near_p & near_partner).any())
    assert float(erf[near_p].sum() + erf[near_partner].sum()) == pytest.approx(1, abs=1e-12)
    assert 0.4 < float(erf[near_partner].sum()) < 0.6
    assert int(torch.where(near_partner, erf, 0).argmax()) == partner


@pytest.mark.parametrize("normalisation", ["none", "row", "symmetric"])
def test_isolated_nodes_get_zero_without_nan_in_value_and_gradient(normalisation):
    x = features().requires_grad_()
    y = GivenGraph(np.zeros((N, N))).mix(x, normalisation, self_loops=False)
    (gradient,) = torch.autograd.grad((y * y).sum() + y.sum(), x)
    assert not bool(y.any())
    assert not bool(gradient.any())
    # A map of one cell has no neighbours.
    x = torch.randn(1, 2, 1, 1)
    assert not bool(GridGraph(self_loops=False).mix(x).any())
    torch.testing.assert_close(GridGraph(links="opposite").mix(x), x)


def test_nearest_neighbours_are_those_of_the_distances_of_every_picture():
    graph, x = NearestGraph(k=4, self_loops=False), features()
    nodes = x.flatten(2).transpose(1, 2).numpy()
    found = graph.adjacency_of(x).numpy()
    for picture, adjacency in zip(nodes, found, strict=True):
        distance = np.linalg.norm(picture[:, None] - picture[None], axis=-1)
        np.fill_diagonal(distance, np.inf)
        for p in range(N):
            assert set(np.flatnonzero(adjacency[p])) == set(np.argsort(distance[p])[:4])
    table = graph.on(x)
    for normalisation in ("none", "row", "symmetric"):
        mixed = table.mix(x, normalisation).flatten(2).numpy()
        for b in range(len(found)):
            np.testing.assert_allclose(
                mixed[b], dense_mix(found[b], x[b : b + 1].flatten(2).numpy(), normalisation)[0], atol=1e-12
            )
    values, mask = table.neighbours(x)
    torch.testing.assert_close((values * mask).sum(2), table.mix(x, "none"))


def test_of_equally_near_nodes_the_first_are_taken():
    adjacency = NearestGraph(k=3).adjacency_of(torch.ones(1, 2, 2, 3))[0]
    others = [[i for i in range(6) if i != p][:3] for p in range(6)]
    assert [sorted([*found, p]) for p, found in enumerate(others)] == [
        row.nonzero().flatten().tolist() for row in adjacency
    ]


def test_the_choice_of_neighbours_is_not_differentiated():
    x = features(batch=1)
    fixed = NearestGraph(k=3).on(x)
    gcn = GCN(3, 3, 2, graph="knn", act=None).double()
    held = copy.deepcopy(gcn)
    held.graph = NearestGraph(k=8).on(x)
    one, other = (torch.autograd.functional.jacobian(net, x) for net in (gcn, held))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-14)
    assert fixed.on(x) is fixed


def test_a_given_graph_follows_its_module():
    graph = as_graph(torch.tensor(directed(), dtype=torch.float32))
    net = GCN(3, 3, 1, graph=graph)
    twin = copy.deepcopy(net)
    assert twin.graph.matrix.data_ptr() != graph.matrix.data_ptr()
    assert net.double().graph.matrix.dtype == torch.float64
    other = GCN(3, 3, 1, graph=(directed() > 0).astype(float)).double()
    other.load_state_dict(net.state_dict())
    x = features()
    torch.testing.assert_close(other(x), net(x), rtol=0, atol=0)
    meta = twin.to("meta")
    assert meta(torch.empty(2, 3, H, W, device="meta")).shape == (2, 3, H, W)


def test_nodes_are_counted_row_by_row_and_a_graph_that_is_no_grid_is_a_map_of_one_row():
    x, seen = torch.randn(N, 3), []
    block = torch.nn.Identity()
    block.register_forward_hook(lambda _m, a, _y: seen.append(a[0]))
    assert torch.equal(on_nodes(block, H, W)(x), x)
    assert torch.equal(seen[-1][0, :, 2, 3], x[2 * W + 3])
    assert torch.equal(on_nodes(block, H, W)(x.expand(4, N, 3)), x.expand(4, N, 3))
    adjacency, x = directed(), features().flatten(2)
    found = GivenGraph(adjacency).mix(x.unsqueeze(2), "row").squeeze(2).numpy()
    np.testing.assert_allclose(found, dense_mix(adjacency, x.numpy(), "row"), atol=1e-12)


def test_a_frozen_norm_as_a_function_of_nodes_has_the_gradient_of_an_affine_map():
    # PyTorch's own is wrong for one sample, whose map has other strides than those of a batch.
    norm = torch.nn.BatchNorm2d(3).double().eval()
    norm.running_var.copy_(torch.tensor([0.5, 2.0, 3.0]))
    found = torch.autograd.functional.jacobian(on_nodes(norm, H, W), torch.randn(N, 3, dtype=torch.float64))
    wanted = torch.einsum("pi,rs->pris", torch.eye(N), torch.diag((norm.running_var + norm.eps) ** -0.5))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


class Largest(TorchDispatchMode):
    """Notes the largest tensor that is made."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, (tuple, list)) else (out,):
            self.numel = max(self.numel, t.numel() if isinstance(t, torch.Tensor) else 0)
        return out


@pytest.mark.parametrize(
    "block",
    [
        lambda: GCN(16, 16, 3),
        lambda: GCN(16, 16, 3, graph=GridGraph(8, links="opposite"), normalisation="symmetric"),
        lambda: GCN(16, 16, 3, graph="full"),
        lambda: GATv2(16, 4, heads=4, graph="grid8"),
        lambda: SelfAttention(16, mode="dot_product"),
    ],
)
def test_on_a_large_grid_nothing_grows_with_the_square_of_its_nodes(block):
    n = 64 * 64
    x = torch.empty(1, 16, 64, 64, device="meta", requires_grad=True)
    with Largest() as largest:
        torch.autograd.grad(block().to("meta")(x).sum(), x)
    # Nine neighbours of sixteen channels.
    assert n * 16 <= largest.numel <= 10 * n * 16
