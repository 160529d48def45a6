"""ERFs beside covariances: the data have the covariance they are said to have, and the claims hold in numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import erfscope
from erfscope import studies
from erfscope.adapters.blocks import on_nodes
from erfscope.apps.lab.studies.scenes import correlations
from erfscope.apps.lab.studies.scenes.correlations import PARTNER, SIDE, SOFT_TIED, UNIT, covariance, samples

INDEX = UNIT[0] * SIDE + UNIT[1]


@pytest.fixture(scope="module")
def found() -> studies.StudyResult:
    return studies.run("correlations", effort="smoke")


@pytest.mark.slow
def test_attention_follows_the_covariance_softmax_less_closely_and_the_gcn_its_links(found, check_shown):
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
    # Convolutions have no second mode, and a ReLU GCN has one.
    assert [found[f"convolution, layer {layer}"].near_partner for layer in (4, 9)] == [0, 0]
    assert found["ReLU GCN, layer 9"].near_partner > 0.4
    check_shown(found)
    soft = found[f"{SOFT_TIED}, layer 1"]
    assert 0.85 < soft.with_input < found["attention, keys = queries, layer 1"].with_input
    rows = [row for row in found if row.net.startswith("softmax")]
    expected = [(net, layer, True, False) for net in (SOFT_TIED, "softmax attention") for layer in (1, 2)]
    assert [(row.net, row.layer, row.passed, bool(row.held)) for row in rows] == expected
    # Far from the unit a softmax leaves a floor: about as much around the partner as a uniform ERF has.
    uniform = float((correlations._hops(PARTNER) <= correlations.NEAR).mean())
    assert found["softmax attention, layer 2"].near_partner == pytest.approx(uniform, abs=0.02)


def test_samples_have_their_covariance_and_the_graph_joins_every_pixel_to_the_one_opposite():
    # 32 channels of 150 samples: 4800 draws, so that a correlation is off by about 1 / sqrt(4800) = .014; five of that.
    maps = samples(150, torch.Generator().manual_seed(3)).flatten(0, 1).flatten(1)
    measured = maps.T @ maps[:, INDEX] / len(maps)
    said = covariance()[INDEX]
    scale = covariance()[INDEX, INDEX]
    assert np.abs(measured.numpy() - said).max() / scale < 5 * 0.0145
    assert said[INDEX] == pytest.approx(1.25, abs=1e-6)
    assert said[PARTNER[0] * SIDE + PARTNER[1]] == pytest.approx(1.0, abs=1e-6)
    assert np.linalg.eigvalsh(covariance()).min() > -1e-9
    p = correlations.mixing()
    assert p.sum(1) == pytest.approx(np.ones(SIDE**2))
    assert p[INDEX, PARTNER[0] * SIDE + PARTNER[1]] == pytest.approx(1 / 6)
    middle = SIDE**2 // 2
    assert p[middle, middle] == pytest.approx(1 / 5)


@pytest.mark.slow
def test_theorem_3_is_met_within_its_noise_with_weights_of_their_own_and_needs_the_samples_that_are_told(found):
    """z-scores over 440 pixels have the size 1; correlated, within a third. With more samples the noise falls as their
    root."""
    tied, own = (correlations.nets(0)[name][0][0] for name in correlations.DOT)
    x = samples(50, torch.Generator().manual_seed(4)).float()
    off = np.arange(SIDE**2) != INDEX
    ratios = []
    for layer in (tied, own):
        influence = erfscope.influence(on_nodes(layer, SIDE, SIDE), x.flatten(2).transpose(1, 2), "signed", [INDEX])
        z = (influence.values[0] - correlations.theorem_3(layer))[off] / influence.se[0][off]
        assert np.sqrt(np.square(z).mean()) == pytest.approx(1, abs=0.4)
        ratios.append(correlations.theorem_3(layer)[off].std() / np.sqrt(np.square(influence.se[0][off]).mean()))
        assert correlations.signal_to_noise(layer, x) == pytest.approx(ratios[-1])
    assert ratios[0] > 3
    assert ratios[1] < 0.1
    rows = [found[f"{name}, layer 1"] for name in correlations.DOT]
    assert [row.signal_to_noise * (50 / row.samples) ** 0.5 for row in rows] == pytest.approx(ratios, rel=0.5)
    assert correlations._wanted(rows[0]) < 1000 < 1e5 < correlations._wanted(rows[1])
    assert all(row.signal_to_noise is None for row in found if row.name not in {each.name for each in rows})
