"""ERFs beside covariances: the data have the covariance they are said to have, and the claims hold in numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import erfscope
from erfscope import studies, theory
from erfscope.adapters.blocks import SelfAttention, on_nodes
from erfscope.studies.scenes import correlations
from erfscope.studies.scenes.correlated_maps import (
    CHANNELS,
    PARTNER,
    SIDE,
    SOFT_TIED,
    UNIT,
    covariance,
    mixing,
    nets,
    samples,
    signal_to_noise,
    theorem_3,
)

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


def test_softmax_attention_follows_the_covariance_less_closely_than_dot_products_and_no_claim_hangs_on_it(found):
    soft = found[f"{SOFT_TIED}, layer 1"]
    assert 0.85 < soft.with_input < found["attention, keys = queries, layer 1"].with_input
    rows = [row for row in found if row.net.startswith("softmax")]
    assert [(row.net, row.layer) for row in rows] == [
        (SOFT_TIED, 1),
        (SOFT_TIED, 2),
        ("softmax attention", 1),
        ("softmax attention", 2),
    ]
    assert all(row.passed for row in rows)
    assert not any(row.held for row in rows)
    # Far from the unit a softmax leaves a floor: about as much around the partner as a uniform ERF has.
    uniform = float((correlations._hops(PARTNER) <= correlations.NEAR).mean())
    assert found["softmax attention, layer 2"].near_partner == pytest.approx(uniform, abs=0.02)


def test_softmax_attention_is_a_uniform_erf_plus_that_of_dot_products_while_scores_are_small():
    """softmax(s) = (1 + s - mean s) / n + O(s^2): with the same weights, both ERFs have the same shape off the unit."""
    x = samples(3, torch.Generator().manual_seed(2)).flatten(2).transpose(1, 2) / 100
    soft, dot = (SelfAttention(CHANNELS, 8, mode=mode).double() for mode in ("softmax", "dot_product"))
    dot.load_state_dict(soft.state_dict())
    erfs = [erfscope.influence(on_nodes(layer, SIDE, SIDE), x, "signed", [INDEX]).values[0] for layer in (soft, dot)]
    off = np.arange(SIDE**2) != INDEX
    assert np.corrcoef(erfs[0][off], erfs[1][off])[0, 1] > 0.999
    floor = soft.value.weight.sum().item() / SIDE**2
    assert erfs[0][off] - floor == pytest.approx(
        (erfs[1][off] - erfs[1].mean()) / np.sqrt(CHANNELS), rel=0.05, abs=1e-3 * abs(floor)
    )


def test_samples_have_the_covariance_that_they_are_said_to_have():
    """32 channels of 150 samples: 4800 draws, so that a correlation is off by about 1 / sqrt(4800) = .014; five of
    that."""
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
    layer = SelfAttention(1, mode="dot_product", over_n=False).double()
    for weight in layer.parameters():
        torch.nn.init.ones_(weight)
    influence = erfscope.influence(on_nodes(layer, SIDE, SIDE), x, "signed", [INDEX])
    said = theory.dot_attention_mean(covariance(), [[1.0]], [[1.0]], [[1.0]])[INDEX]
    off = np.arange(SIDE**2) != INDEX
    z = (influence.values[0] - said)[off] / influence.se[0][off]
    assert np.abs(z).max() < 5
    assert np.corrcoef(said[off], covariance()[INDEX][off])[0, 1] == pytest.approx(1, abs=1e-12)


def test_theorem_3_is_met_within_its_noise_with_weights_of_their_own_and_needs_the_samples_that_are_told(found):
    """z-scores over 440 pixels have the size 1; correlated, within a third. With more samples the noise falls as their
    root."""
    tied, own = (nets(0)[name][0][0] for name in correlations.DOT)
    x = samples(50, torch.Generator().manual_seed(4)).float()
    off = np.arange(SIDE**2) != INDEX
    ratios = []
    for layer in (tied, own):
        influence = erfscope.influence(on_nodes(layer, SIDE, SIDE), x.flatten(2).transpose(1, 2), "signed", [INDEX])
        z = (influence.values[0] - theorem_3(layer))[off] / influence.se[0][off]
        assert np.sqrt(np.square(z).mean()) == pytest.approx(1, abs=0.4)
        ratios.append(theorem_3(layer)[off].std() / np.sqrt(np.square(influence.se[0][off]).mean()))
        assert signal_to_noise(layer, x) == pytest.approx(ratios[-1])
    assert ratios[0] > 3
    assert ratios[1] < 0.1
    rows = [found[f"{name}, layer 1"] for name in correlations.DOT]
    assert [row.signal_to_noise * (50 / row.samples) ** 0.5 for row in rows] == pytest.approx(ratios, rel=0.5)
    assert correlations._wanted(rows[0]) < 1000 < 1e5 < correlations._wanted(rows[1])
    said = [f"{row.signal_to_noise:.2g} times" for row in rows]
    assert f"{said[0]} the standard error of the one mean and {said[1]} that of the other" in found.conclusion
    assert all(row.signal_to_noise is None for row in found if row.name not in {each.name for each in rows})


def test_the_graph_joins_every_pixel_to_the_one_opposite():
    p = mixing()
    assert p.sum(1) == pytest.approx(np.ones(SIDE**2))
    assert p[INDEX, PARTNER[0] * SIDE + PARTNER[1]] == pytest.approx(1 / 6)
    middle = SIDE**2 // 2
    assert p[middle, middle] == pytest.approx(1 / 5)


def test_the_same_seed_gives_the_same_row_and_another_does_not():
    weights = [nets(seed)["convolution"][0][0].weight for seed in (0, 0, 1)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    x = samples(2, torch.Generator().manual_seed(0))
    rows = [correlations._looked_at("ReLU GCN", nets(0)["ReLU GCN"][0], 9, x, 0).row for _ in range(2)]
    assert rows[0] == rows[1]


def test_the_table_is_printed_and_the_figure_drawn(found, tmp_path):
    assert len(found.table(format="plain").splitlines()) == len(found) + 1
    found.save(tmp_path / "correlations")
    assert (tmp_path / "correlations/figure.png").stat().st_size > 10_000


def test_the_figure_has_every_layer_of_the_paper_in_four_views_and_no_layer_is_left_out(found):
    picture = found.findings.picture
    columns = ["conv 4", "conv 9", "GCN 9", "dot 1", "dot 2", "softmax 1", "softmax 2"]
    assert [[panel.title for panel in row] for row in picture.rows[:4]] == [columns] * 4
    assert [row[0].log for row in picture.rows[:4]] == [False, False, True, False]
    without = picture.rows[1][5].values
    assert without[UNIT] == 0
    assert np.array_equal(np.delete(without.ravel(), INDEX), np.delete(picture.rows[0][5].values.ravel(), INDEX))
    assert {panel.title for panel in picture.rows[4]} == {
        "input",
        "GCN 1",
        "ReLU GCN 9",
        "dot, own 1",
        "dot, own 2",
        "softmax, own 1",
        "softmax, own 2",
    }
    assert len(picture.headings) == 5


def test_the_table_fits_80_columns_without_losing_a_word(found, lost_words):
    assert lost_words(found, 80) == []
