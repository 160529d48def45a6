"""Graph layers against the equations of the theory, in float64."""

import numpy as np
import pytest
import torch
from block_bench import H, N, W, close, function, made, nodes, same_in_another_order
from torch import nn
from torch.autograd.functional import jacobian

from erfscope.adapters.blocks import GAT, GCN, GIN, ChebNet, ChebyGIN, GATv2, GivenGraph, GridGraph, Pipeline

C = 3
X = nodes(C)


def directed(loops=True):
    """A 0/1 adjacency that is not symmetric; rows have one to five neighbours."""
    g = np.random.default_rng(5)
    adjacency = (g.random((N, N)) < 0.25).astype(float)
    np.fill_diagonal(adjacency, 1.0 if loops else 0.0)
    if not loops:
        adjacency[2] = 0
        adjacency[2, 5] = 1
        adjacency[adjacency.sum(1) == 0, 1] = 1
    return torch.tensor(adjacency)


def row_stochastic(adjacency):
    return adjacency / adjacency.sum(1, keepdim=True)


@pytest.mark.parametrize("normalisation", ["none", "row", "symmetric"])
def test_a_linear_gcn_has_the_jacobian_of_theorem_one(normalisation):
    a = directed()
    layer = made(GCN, C, 5, 3, 2, None, graph=a, normalisation=normalisation)
    if normalisation == "row":
        a = row_stochastic(a)
    if normalisation == "symmetric":
        a = a / torch.sqrt(a.sum(1)[:, None] * a.sum(1))
    product = torch.linalg.multi_dot([conv.lin.weight.T for conv in layer.convs])
    wanted = torch.einsum("pi,sr->pris", torch.matrix_power(a, 3), product)
    close(jacobian(function(layer), X), wanted)


def test_a_relu_gcn_has_the_gradient_of_theorem_two():
    a = directed()
    layer = made(GCN, C, 4, 3, 2, "relu", graph=a, normalisation="none", bias=False)
    weights = [conv.lin.weight.T for conv in layer.convs]
    x = X
    hidden, gates = x, []
    for weight in weights[:-1]:
        gates.append((a @ hidden @ weight > 0).double())
        hidden = torch.relu(a @ hidden @ weight)
    full = jacobian(function(layer), x)
    for p in range(N):
        seed = torch.zeros(N, 2, dtype=torch.float64)
        seed[p] = 1
        nabla = a.T @ seed @ weights[-1].T
        for gate, weight in zip(reversed(gates), reversed(weights[:-1]), strict=True):
            nabla = a.T @ (nabla * gate) @ weight.T
        close(full[p].sum(0), nabla)


def test_a_gcn_with_a_self_term_is_that_of_the_matrices():
    a = row_stochastic(GridGraph(self_loops=False).adjacency(H, W))
    layer = made(GCN, C, 4, 2, graph=GridGraph(self_loops=False), self_weight=True)
    first, second = layer.convs
    x = X
    hidden = torch.relu(a @ x @ first.lin.weight.T + x @ first.lin_self.weight.T + first.bias)
    wanted = a @ hidden @ second.lin.weight.T + hidden @ second.lin_self.weight.T + second.bias
    close(function(layer)(x), wanted)
    scalar = made(GCN, 1, 1, 3, act=None, graph=GridGraph(self_loops=False), self_weight=True, bias=False)
    for conv in scalar.convs:
        conv.lin.weight.data.fill_(0.8)
        conv.lin_self.weight.data.fill_(-0.3)
    power = torch.matrix_power(0.8 * a - 0.3 * torch.eye(N, dtype=torch.float64), 3)
    close(jacobian(function(scalar), nodes(1))[:, 0, :, 0], power)


@pytest.mark.parametrize("act", [None, "relu"])
def test_a_fully_connected_gcn_is_influenced_alike_by_every_node(act):
    layer = made(GCN, C, 6, 2, act=act, graph="full")
    influence = jacobian(function(layer), X)
    assert float(influence.abs().max()) > 0.01
    assert float(influence.std(2).max()) < 1e-12


def test_gin_is_its_equation_and_has_its_jacobian():
    a = directed(loops=False)
    # The self-loops of the graph do not count: the node itself comes with 1 + eps.
    layer = made(GIN, C, 2, 5, 0.3, graph=GivenGraph(a, self_loops=True))
    x = X
    first, _, last = layer.nn
    z = 1.3 * x + a @ x
    wanted = torch.relu(z @ first.weight.T + first.bias) @ last.weight.T + last.bias
    close(function(layer)(x), wanted)
    gates = (z @ first.weight.T + first.bias > 0).double()
    slope = torch.einsum("rh,ph,hs->prs", last.weight, gates, first.weight)
    operator = 1.3 * torch.eye(N, dtype=torch.float64) + a
    close(jacobian(function(layer), x), torch.einsum("pi,prs->pris", operator, slope))
    learnt = GIN(C, train_eps=True, eps=0.1)
    assert isinstance(learnt.eps, nn.Parameter)
    assert GIN(C, eps=0.1).double().eps == 0.1


def scaled_laplacian(adjacency, lambda_max):
    adjacency = adjacency - torch.diag(adjacency.diagonal())
    scale = adjacency.sum(1) ** -0.5
    laplacian = torch.eye(len(adjacency), dtype=torch.float64) - scale[:, None] * adjacency * scale
    if lambda_max == "exact":
        lambda_max = float(torch.linalg.eigvals(laplacian).real.max())
    return 2 * laplacian / lambda_max - torch.eye(len(adjacency), dtype=torch.float64)


def polynomials(operator, count):
    """T_k by the definition of Chebyshev's polynomials, cos(k arccos), on the eigenvalues."""
    values, vectors = torch.linalg.eigh(operator)
    angles = torch.arccos(values.clamp(-1, 1))
    return [vectors @ torch.diag(torch.cos(k * angles)) @ vectors.T for k in range(count)]


@pytest.mark.parametrize("lambda_max", [2, "exact"])
def test_chebynet_is_a_polynomial_of_the_laplacian_and_reaches_k_minus_one_hops(lambda_max):
    layer = made(ChebNet, C, 2, 4, lambda_max=lambda_max)
    operator = scaled_laplacian(GridGraph().adjacency(H, W), lambda_max)
    x = X
    powers = polynomials(operator, 4)
    wanted = sum(t @ x @ lin.weight.T for t, lin in zip(powers, layer.lins, strict=True)) + layer.bias
    close(function(layer)(x), wanted)
    found = jacobian(function(layer), x)
    weights = torch.stack([lin.weight for lin in layer.lins])
    close(found, torch.einsum("kpi,krs->pris", torch.stack(powers), weights))
    beyond = torch.matrix_power(GridGraph().adjacency(H, W), 3) == 0
    assert bool(beyond.any())
    assert not bool(found.abs().amax((1, 3))[beyond].any())


def test_chebynet_takes_an_isolated_node_for_itself():
    adjacency = torch.tensor([[0.0, 1, 0], [1, 0, 0], [0, 0, 0]], dtype=torch.float64)
    layer = made(ChebNet, 2, 2, 3, lambda_max=1.5, graph=adjacency)
    x = torch.randn(1, 2, 1, 3, dtype=torch.float64)
    # L = 1 there, so that L~ = 2 / 1.5 - 1, T_1 = 1/3 and T_2 = 2/9 - 1.
    node = x[0, :, 0, 2]
    wanted = sum(t * lin.weight @ node for t, lin in zip((1, 1 / 3, 2 / 9 - 1), layer.lins, strict=True)) + layer.bias
    close(layer(x)[0, :, 0, 2], wanted)


@pytest.mark.parametrize(("k", "hidden"), [(1, 0), (1, 4), (3, 0), (3, 4)])
def test_chebygin_scales_by_the_receiving_nodes_degree(k, hidden):
    layer = made(ChebyGIN, C, 2, k, hidden)
    a = GridGraph(self_loops=False).adjacency(H, W)
    x, degree = X, a.sum(1, keepdim=True)
    if k == 1:
        loops = a + torch.eye(N, dtype=torch.float64)
        scale = loops.sum(1) ** -0.5
        y = loops.sum(1, keepdim=True) * (scale[:, None] * loops * scale @ x)
    else:
        first, *rest = (t @ x for t in polynomials(scaled_laplacian(a, 2), k))
        y = torch.cat([first, *(degree * t for t in rest)], 1)
    if hidden:
        y = torch.relu(y @ layer.fc[0].weight.T + layer.fc[0].bias)
    last = layer.fc[2 if hidden else 0]
    close(function(layer)(x), y @ last.weight.T + last.bias)
    plain = made(ChebyGIN, C, 2, 3, 0, "mean")
    y = torch.cat([t @ x for t in polynomials(scaled_laplacian(a, 2), 3)], 1)
    close(function(plain)(x), y @ plain.fc[0].weight.T + plain.fc[0].bias)


def neighbours_of(adjacency):
    return [row.nonzero().flatten().tolist() for row in adjacency]


def slope_of(u, slope=0.2):
    return torch.where(u > 0, torch.ones_like(u), slope)


def test_gatv2_has_the_jacobian_of_its_closed_form():
    a = directed()
    layer = made(GATv2, C, 4, graph=a)
    x, theta_l, theta_r, att = X, layer.lin_l.weight, layer.lin_r.weight, layer.att[0, 0]
    values, targets = x @ theta_l.T + layer.lin_l.bias, x @ theta_r.T + layer.lin_r.bias
    wanted = torch.zeros(N, 4, N, C, dtype=torch.float64)
    output = torch.zeros(N, 4, dtype=torch.float64)
    for i, near in enumerate(neighbours_of(a)):
        u = values[near] + targets[i]
        slopes = slope_of(u)
        alpha = ((u * slopes) @ att).softmax(0)
        mean = alpha @ values[near]
        output[i] = mean + layer.bias
        for q, weight, slope in zip(near, alpha, slopes, strict=True):
            centred = torch.outer(values[q] - mean, (att * slope) @ theta_l)
            wanted[i, :, q] += weight * (theta_l + centred)
            wanted[i, :, i] += weight * torch.outer(values[q] - mean, (att * slope) @ theta_r)
    close(function(layer)(x), output)
    close(jacobian(function(layer), x), wanted)


@pytest.mark.slow
@pytest.mark.parametrize("concat", [True, False])
@pytest.mark.parametrize("graph", ["grid4", "grid8", "full", "links", "given", "knn"])
@pytest.mark.parametrize("kind", [GAT, GATv2])
def test_graph_attention_is_the_sum_over_neighbours_head_by_head(kind, graph, concat):
    x = X
    graphs = {"links": GridGraph(links="opposite"), "given": directed(loops=False)}
    layer = made(kind, C, 4, 3, concat, graph=graphs.get(graph, graph))
    if graph == "knn":
        adjacency = layer.graph.adjacency_of(x.T.reshape(1, C, H, W))[0]
    else:
        adjacency = layer.graph.adjacency(H, W)
    near = neighbours_of(adjacency + torch.eye(N))  # the layer adds self-loops
    out = torch.zeros(N, 3, 4, dtype=torch.float64)
    if kind is GATv2:
        left, right = ((lin(x)).reshape(N, 3, 4) for lin in (layer.lin_l, layer.lin_r))
    else:
        left = right = layer.lin(x).reshape(N, 3, 4)
    for i in range(N):
        for head in range(3):
            v, own = left[near[i], head], right[i, head]
            if kind is GATv2:
                u = v + own
                scores = (u * slope_of(u)) @ layer.att[0, head]
            else:
                u = v @ layer.att_src[0, head] + own @ layer.att_dst[0, head]
                scores = u * slope_of(u)
            out[i, head] = scores.softmax(0) @ v
    wanted = (out.flatten(1) if concat else out.mean(1)) + layer.bias
    close(function(layer)(x), wanted)


def test_parameters_are_named_and_shaped_as_in_pytorch_geometric():
    def shapes(layer):
        return {name: tuple(value.shape) for name, value in layer.state_dict().items()}

    sides = {f"lin_{side}.{name}": (12, *more) for side in "lr" for name, more in (("weight", (5,)), ("bias", ()))}
    assert shapes(GATv2(5, 4, 3)) == {"att": (1, 3, 4), "bias": (12,), **sides}
    single = {"att_src": (1, 3, 4), "att_dst": (1, 3, 4), "bias": (4,), "lin.weight": (12, 5)}
    assert shapes(GAT(5, 4, 3, False)) == single
    shared = GATv2(5, 4, share_weights=True)
    assert shared.lin_r is shared.lin_l


@pytest.mark.parametrize("kind", [GAT, GATv2])
def test_nodes_without_neighbours_get_the_bias_and_no_nan(kind):
    layer = made(kind, C, 4, 2, add_self_loops=False, graph=torch.zeros(N, N))
    x = nodes(C).requires_grad_()
    y = function(layer)(x)
    torch.testing.assert_close(y, layer.bias.detach().expand_as(y))
    gradients = torch.autograd.grad((y * y).sum(), [x, *layer.parameters()], allow_unused=True)
    assert all(g is None or bool(g.isfinite().all()) for g in gradients)


@pytest.mark.parametrize("concat", [True, False])
@pytest.mark.parametrize("shift", [0.0, 2.5, 100.0])
def test_dead_targets_are_those_whose_lin_r_gets_no_gradient(shift, concat):
    layer = made(GATv2, C, 2, 3, concat, add_self_loops=False, graph=directed(loops=False))
    layer.lin_l.bias.data += shift  # moves the hidden features to one side of the LeakyReLU
    x = X
    dead = layer.dead_targets(x.T.reshape(1, C, H, W))
    assert dead.shape == (1, N, 3)
    seeds = torch.randn(N, 3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    for i in range(N):
        for head in range(3):
            # A loss that sees one node and, with the other heads' values removed, one head.
            y = function(layer)(x)[i]
            loss = (y.reshape(3, 2)[head] if concat else y) @ seeds[i, head]
            (gradient,) = torch.autograd.grad(loss, layer.lin_r.weight)
            share = gradient.reshape(3, 2, C)[head].abs().max()
            assert bool(dead[0, i, head]) == bool(share < 1e-11)
    assert bool(dead[0, 2].all())  # a single neighbour
    assert bool(dead.all()) == (shift == 100)
    assert float(dead.double().mean()) > 0.1


def test_dead_targets_of_the_grid_ignore_what_lies_beyond_its_border():
    layer = made(GATv2, C, 4, 2)
    x = torch.randn(2, C, H, W, dtype=torch.float64)
    given = made(GATv2, C, 4, 2, graph=GridGraph().adjacency(H, W))
    for mine in (x, 5 + x):
        assert torch.equal(layer.dead_targets(mine), given.dead_targets(mine))
    video = torch.randn(2, C, 3, H, W, dtype=torch.float64)
    assert layer.dead_targets(video).shape == (6, N, 2)
    layer.negative_slope = 1.0
    assert bool(layer.dead_targets(x).all())


def test_another_order_of_the_nodes_gives_the_same_in_that_order():
    a = directed()
    a = ((a + a.T) > 0).double()
    order = torch.randperm(N, generator=torch.Generator().manual_seed(2))
    for make in (
        lambda a: GCN(C, 4, 2, graph=a),
        lambda a: GCN(C, 4, 2, graph=a, normalisation="symmetric", self_weight=True),
        lambda a: GIN(C, graph=a),
        lambda a: ChebNet(C, 2, graph=a),
        lambda a: ChebyGIN(C, 2, graph=a),
        lambda a: GAT(C, 2, 2, graph=a),
        lambda a: GATv2(C, 2, 2, graph=a),
    ):
        same_in_another_order(made(make, a), made(make, a[order][:, order]), order, C)


def test_a_pipeline_is_projection_layers_projection_and_skip():
    layer = made(Pipeline, 6, lambda c: GCN(c, c, 1), inner=4, act="elu")
    for norm in (layer.norm_in, layer.norm_out):
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    x = torch.randn(2, 6, H, W, dtype=torch.float64)

    def normed(norm, y):
        y = (y - norm.running_mean[:, None, None]) / torch.sqrt(norm.running_var + norm.eps)[:, None, None]
        return y * norm.weight[:, None, None] + norm.bias[:, None, None]

    y = normed(layer.norm_in, torch.einsum("oc,bchw->bohw", layer.conv_in.weight[..., 0, 0], x))
    y = layer.layers[1](nn.functional.elu(layer.layers[0](y)))
    y = normed(layer.norm_out, torch.einsum("oc,bchw->bohw", layer.conv_out.weight[..., 0, 0], y))
    close(layer(x), x + y)
    layer.residual = False
    close(layer(x), y)
    assert len(Pipeline(6, nn.Identity).layers) == 2
    still = Pipeline(6, lambda c: nn.Identity(), zero_init=True).eval()
    assert torch.equal(still(x.float()), x.float())
