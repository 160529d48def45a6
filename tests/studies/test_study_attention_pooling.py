"""Attention pooling: graphs are as described, nets count, AUC and weak supervision are right against brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from erfscope import studies
from erfscope.apps.lab.studies.graph_attention import attention_pooling
from erfscope.apps.lab.studies.graph_attention.attention_pooling import GREEN, colour_graphs, fresh


@pytest.fixture(scope="module")
def found() -> studies.StudyResult:
    return studies.run("attention-pooling", effort="smoke")


@pytest.mark.slow
def test_nets_count_better_than_chance_and_attention_that_is_told_finds_green(found, check_shown):
    plain, told = found["sum over nodes"], found["supervised"]
    assert found.passed
    assert plain.accuracy > 4 * attention_pooling.CHANCE
    assert told.auc_attention > 0.99
    assert told.auc_erf > 0.95
    assert found["weakly supervised"].auc_attention > 0.95
    assert plain.auc_attention is None
    # It is right in larger graphs more often than in those that differ in their colours alone.
    assert plain.accuracy_unseen < plain.accuracy_large
    check_shown(found)


def test_graphs_have_up_to_ten_green_nodes_and_unseen_colours_change_the_others_alone():
    graphs = colour_graphs(400, 25, torch.Generator().manual_seed(0))
    assert graphs.x.sum(2).eq(1).all()
    assert sorted(set(graphs.count.tolist())) == list(range(11))
    assert torch.equal(graphs.adjacency, graphs.adjacency.transpose(1, 2))
    assert graphs.adjacency.diagonal(dim1=1, dim2=2).eq(0).all()
    # Uniform between 1 and 2: the mean over 400 graphs is off by sqrt(1/12 + 1.5/25) / 20 = .02.
    assert float((graphs.adjacency.sum((1, 2)) / 2 / 25).mean()) == pytest.approx(1.5, abs=0.1)
    assert graphs.truth.sum(1) == pytest.approx(torch.ones(400))
    some = graphs.count > 0
    assert graphs.truth[some][graphs.green[some]].min() >= 0.1 - 1e-6
    assert graphs.truth[some][~graphs.green[some]].max() == 0
    seen, unseen = (colour_graphs(50, 40, torch.Generator().manual_seed(5), unseen=each) for each in (False, True))
    assert torch.equal(seen.green, unseen.green)
    assert torch.equal(seen.adjacency, unseen.adjacency)
    assert torch.equal(seen.x[seen.green], unseen.x[unseen.green])
    assert seen.x[..., 3].eq(0).all()
    others = unseen.x[~unseen.green]
    assert others[:, GREEN].eq(0).all()
    # Each of the eight mixtures of three channels is as likely: 1750 nodes give a share of 1/8 within five deviations
    # of .008.
    codes = (others[:, [0, 2, 3]] @ torch.tensor([1.0, 2.0, 4.0])).long()
    assert torch.bincount(codes, minlength=8) / len(codes) == pytest.approx(torch.full((8,), 1 / 8), abs=0.04)


def test_a_net_gates_its_hidden_nodes_by_the_attention_that_their_colours_get():
    graphs = colour_graphs(3, 9, torch.Generator().manual_seed(1), unseen=True)
    net = fresh("threshold", 4)
    net.requires_grad_(False)
    counts, scores = net(graphs.x, graphs.adjacency)
    p = net.pool.weight[0]
    alpha = (graphs.x @ p[:4]).softmax(1)[..., None]
    kept = (alpha > 0.03).float()
    hidden = net.first(graphs.x, graphs.adjacency) * alpha * kept
    left = graphs.adjacency * kept * kept.transpose(1, 2)
    assert counts == pytest.approx(net.head((net.second(hidden, left) * kept).sum(1))[:, 0], rel=1e-5)
    assert scores.softmax(1) == pytest.approx(alpha[..., 0], rel=1e-5)


def test_the_erf_of_a_count_is_its_gradient_its_truth_what_removing_nodes_gives_and_auc_pairs_in_order():
    graphs = colour_graphs(2, 7, torch.Generator().manual_seed(0))
    counter = fresh("threshold", 0)
    erf, green = attention_pooling.erf_of(counter, graphs, 1)
    x = graphs.x[1:].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(counter(x, graphs.adjacency[1:])[0].sum(), x)
    assert erf == pytest.approx(gradient[0].norm(dim=1).numpy(), rel=1e-5, abs=1e-8)
    assert green.tolist() == graphs.green[1].tolist()
    # A judge whose answer is the number of green nodes: each green node's removal changes it by one, another's by
    # nothing.

    class Judge(torch.nn.Module):
        def forward(self, x, adjacency):
            assert adjacency.shape[1:] == (x.shape[1], x.shape[1])
            return x[..., GREEN].sum(1), None

    graphs = colour_graphs(6, 8, torch.Generator().manual_seed(2))
    (target,) = attention_pooling.removed(Judge(), [graphs])
    assert target == pytest.approx(graphs.truth, abs=1e-6)
    generator = np.random.default_rng(0)
    scores, green = generator.integers(0, 4, (3, 9)).astype(float), generator.random((3, 9)) < 0.4
    said = []
    for values, which in zip(scores, green, strict=True):
        pairs = list(itertools.product(values[which], values[~which]))
        said.append(np.mean([(a > b) + 0.5 * (a == b) for a, b in pairs]))
    assert attention_pooling.auc(scores, green) == pytest.approx(np.mean(said), abs=1e-12)
