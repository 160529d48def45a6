"""ERFs beside covariances: the data have the covariance they are said to have, and the claims hold in numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import erfscope
from erfscope import studies, theory
from erfscope.adapters.blocks import on_nodes
from erfscope.studies import correlations
from erfscope.studies.correlations import PARTNER, SIDE, UNIT, covariance, mixing, samples

INDEX = UNIT[0] * SIDE + UNIT[1]


@pytest.fixture(scope="module")
def found() -> studies.StudyResult:
    return studies.run("correlations", effort="smoke")


def test_attention_follows_the_covariance_and_the_gcn_its_links(found):
    tied = found["attention, keys = queries, layer 1"]
    assert tied.with_input > 0.99
    assert tied.held
    assert found.passed
    gcn = found["linear GCN, layer 9"]
    assert gcn.error < 1e-10
    assert (gcn.near_unit, gcn.near_partner) == (pytest.approx(0.493, abs=5e-4), pytest.approx(0.469, abs=5e-4))
    # One step: five cells and the one opposite, a sixth each.
    one = found["linear GCN, layer 1"]
    assert (one.near_unit, one.near_partner) == (pytest.approx(5 / 6, abs=1e-12), pytest.approx(1 / 6, abs=1e-12))


def test_convolutions_have_no_second_mode_and_a_relu_gcn_has(found):
    assert [found[f"convolution, layer {layer}"].near_partner for layer in (4, 9)] == [0, 0]
    assert found["ReLU GCN, layer 9"].near_partner > 0.4


def test_samples_have_the_covariance_that_they_are_said_to_have():
    """32 channels of 150 samples: 4800 draws, so that a correlation is off by about 1 / sqrt(4800) = .014; five of that."""
    maps = samples(150, torch.Generator().manual_seed(3)).flatten(0, 1).flatten(1)
    measured = maps.T @ maps[:, INDEX] / len(maps)
    said = covariance()[INDEX]
    scale = covariance()[INDEX, INDEX]
    assert np.abs(measured.numpy() - said).max() / scale < 5 * 0.0145
    assert said[INDEX] == pytest.approx(1.25, abs=1e-6)
    assert said[PARTNER[0] * SIDE + PARTNER[1]] == pytest.approx(1.0, abs=1e-6)
    assert np.linalg.eigvalsh(covariance()).min() > -1e-9


def test_the_mean_of_one_layer_is_that_of_theorem_3():
    """Signed influence of one channel, weight 1: 2 C_pi off the unit, within four standard errors of 200 samples."""
    x = samples(7, torch.Generator().manual_seed(1)).flatten(0, 1).flatten(1)[:200, :, None]
    layer = correlations.SelfAttention(1, mode="dot_product", over_n=False).double()
    for weight in layer.parameters():
        torch.nn.init.ones_(weight)
    influence = erfscope.influence(on_nodes(layer, SIDE, SIDE), x, "signed", [INDEX])
    said = theory.dot_attention_mean(covariance(), [[1.0]], [[1.0]], [[1.0]])[INDEX]
    off = np.arange(SIDE**2) != INDEX
    z = (influence.values[0] - said)[off] / influence.se[0][off]
    assert np.abs(z).max() < 5
    assert np.corrcoef(said[off], covariance()[INDEX][off])[0, 1] == pytest.approx(1, abs=1e-12)


def test_the_graph_joins_every_pixel_to_the_one_opposite():
    p = mixing()
    assert p.sum(1) == pytest.approx(np.ones(SIDE**2))
    assert p[INDEX, PARTNER[0] * SIDE + PARTNER[1]] == pytest.approx(1 / 6)
    middle = SIDE**2 // 2
    assert p[middle, middle] == pytest.approx(1 / 5)


def test_the_same_seed_gives_the_same_row_and_another_does_not():
    nets = [correlations.nets(seed)["convolution"][0][0].weight for seed in (0, 0, 1)]
    assert torch.equal(nets[0], nets[1])
    assert not torch.equal(nets[0], nets[2])
    x = samples(2, torch.Generator().manual_seed(0))
    rows = [correlations._looked_at("ReLU GCN", correlations.nets(0)["ReLU GCN"][0], 9, x, 0).row for _ in range(2)]
    assert rows[0] == rows[1]


def test_the_table_is_printed_and_the_figure_drawn(found, tmp_path):
    assert len(found.table(format="plain").splitlines()) == len(found) + 1
    found.save(tmp_path / "correlations")
    assert (tmp_path / "correlations/figure.png").stat().st_size > 10_000


def test_the_table_fits_80_columns_without_losing_a_word(found, lost_words):
    assert lost_words(found, 80) == []
