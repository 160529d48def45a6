"""Attention pooling: graphs are as described, nets count, AUC and weak supervision are right against brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from erfscope import studies
from erfscope.studies import attention_pooling
from erfscope.studies.attention_pooling import CHANCE, auc, erf_of, removed
from erfscope.studies.colour_graphs import GREEN, Counter, colour_graphs


@pytest.fixture(scope="module")
def found() -> studies.StudyResult:
    return studies.run("attention-pooling", effort="smoke")


def test_nets_count_better_than_chance_and_attention_that_is_told_finds_green(found):
    assert found.passed
    assert found["sum over nodes"].accuracy > 4 * CHANCE
    told = found["supervised"]
    assert told.auc_attention > 0.99
    assert told.auc_erf > 0.95
    assert found["weakly supervised"].auc_attention > 0.95
    assert found["sum over nodes"].auc_attention is None


def test_the_conclusion_has_the_dispute_and_the_numbers(found):
    told = found["supervised"]
    assert "disputed" in found.conclusion
    assert f"{told.accuracy_large:.0%}" in found.conclusion


def test_graphs_have_up_to_ten_green_nodes_and_one_to_two_links_per_node():
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


def test_auc_is_the_share_of_pairs_in_order():
    generator = np.random.default_rng(0)
    scores, green = generator.integers(0, 4, (3, 9)).astype(float), generator.random((3, 9)) < 0.4
    said = []
    for values, which in zip(scores, green, strict=True):
        pairs = list(itertools.product(values[which], values[~which]))
        said.append(np.mean([(a > b) + 0.5 * (a == b) for a, b in pairs]))
    assert auc(scores, green) == pytest.approx(np.mean(said), abs=1e-12)


def test_removing_a_node_of_a_net_that_counts_exactly_gives_the_truth():
    """A judge whose answer is the number of green nodes: each green node's removal changes it by one, another's by nothing."""

    class Judge(torch.nn.Module):
        def forward(self, x, adjacency):
            assert adjacency.shape[1:] == (x.shape[1], x.shape[1])
            return x[..., GREEN].sum(1), None

    graphs = colour_graphs(6, 8, torch.Generator().manual_seed(2))
    (target,) = removed({"sum over nodes": Judge()}, [graphs])
    assert target == pytest.approx(graphs.truth, abs=1e-6)


def test_the_erf_of_a_count_is_its_gradient():
    graphs = colour_graphs(2, 7, torch.Generator().manual_seed(0))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        counter = Counter("threshold")
    erf, green = erf_of(counter, graphs, 1)
    x = graphs.x[1:].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(counter(x, graphs.adjacency[1:])[0].sum(), x)
    assert erf == pytest.approx(gradient[0].norm(dim=1).numpy(), rel=1e-5, abs=1e-8)
    assert green.tolist() == graphs.green[1].tolist()


def test_the_same_seed_trains_the_same_net_and_a_cache_gives_it_back(tmp_path):
    train = [colour_graphs(4, nodes, torch.Generator().manual_seed(nodes)) for nodes in (5, 6)]
    asked = studies.Asked(effort="smoke", cache=tmp_path)
    nets = [attention_pooling._trained("any", "top_k", "", train, None, each) for each in (asked, asked, studies.Asked(effort="smoke"))]
    for one, two, three in zip(*(net.state_dict().values() for net in nets), strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)


def test_the_table_is_printed_and_the_figure_drawn(found, tmp_path):
    assert len(found.table(format="plain").splitlines()) == 6
    found.save(tmp_path / "pooling")
    assert (tmp_path / "pooling/figure.png").stat().st_size > 10_000


def test_the_table_fits_80_columns_without_losing_a_word(found, lost_words):
    assert lost_words(found, 80) == []
