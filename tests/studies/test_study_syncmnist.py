"""SyncMNIST: digits move as they are said to, nets have the paper's shapes, and inserted layers look where the theory
says."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from erfscope import studies
from erfscope.apps.lab.studies import syncmnist
from erfscope.apps.lab.studies.syncmnist import GLYPHS, SMALL, Scale, glyph, moving_digits, video_net


@pytest.fixture(scope="module")
def found() -> studies.StudyResult:
    return studies.run("syncmnist", effort="smoke")


@pytest.mark.slow
def test_a_fully_connected_gcn_looks_at_all_other_cells_alike_and_attention_does_not(found, check_shown):
    alone, gcn, attention = (found[name] for name in ("I3D-S", "I3D-S + GCN", "I3D-S + SA"))
    assert gcn.spread < 1e-6
    assert attention.spread > 1e-6
    assert attention.spread_trained > attention.spread
    assert gcn.other_frames == attention.other_frames == 0
    # The residual makes the unit's own cell the largest by far.
    assert gcn.own > 0.5
    assert (alone.spread, alone.accuracies) == (None, None)
    assert found.passed
    assert (Scale().classes, SMALL.classes) == (46, 4)
    # Accuracies are shares, with the errors of a sample.
    share = np.array(attention.accuracies)
    assert share.shape == (4,)
    assert share.min() >= 0
    assert share.max() <= 1
    assert attention.errors == pytest.approx(np.sqrt(share * (1 - share) / 19))
    chart, _ = (panel for line in found.picture.rows for panel in line if isinstance(panel, studies.Chart))
    assert chart.curves[0].error == pytest.approx(100 * np.array(attention.errors))
    check_shown(found)


def test_the_first_two_digits_are_in_step_within_the_distance():
    scale, generator = Scale(), np.random.default_rng(0)
    for distance in (20, 100):
        for _ in range(20):
            paths = syncmnist._paths(True, distance, scale, generator)
            apart = paths[1] - paths[0]
            assert (apart == apart[0]).all()
            assert np.hypot(*apart[0]) <= distance
            assert (np.stack(paths) >= 0).all()
            assert (np.stack(paths) <= scale.side - 14).all()
            assert not (paths[2] - paths[0] == (paths[2] - paths[0])[0]).all()


def test_videos_show_their_digits_in_every_frame_which_move_alike_for_one_pattern():
    two = Scale(frames=3, side=64, zoom=1, digits=2, symbols=2)
    videos, _ = moving_digits(5, 30, two, np.random.default_rng(0), same=True)
    assert videos.shape == (5, 1, 3, 64, 64)
    # Digits 0 and 1 only, which may overlap.
    ink = sum(glyph(digit, 1).sum() for digit in (0, 1))
    assert (videos.sum((3, 4)) <= ink).all()
    assert (videos.sum((3, 4)) >= max(glyph(digit, 1).sum() for digit in (0, 1))).all()
    assert len({glyph(digit, 2).tobytes() for digit in range(10)}) == len(GLYPHS) == 10
    assert glyph(8, 2).shape == (14, 14)
    assert Scale(frames=3, side=64, zoom=1, digits=1, symbols=10).classes == 46
    videos, classes = moving_digits(6, 60, Scale(), np.random.default_rng(0), same=True)
    assert (classes < 45).all()
    # A digit is 10 of 14 columns and all 14 rows; centres of mass move alike up to their shapes.
    rows = torch.arange(128.0)
    centres = (videos[:, 0].sum(3) * rows).sum(2) / videos[:, 0].sum((2, 3))
    steps = centres.diff(dim=1)
    assert float((steps - steps.mean(0)).abs().max()) < 1.5
    other, _ = moving_digits(6, 60, Scale(), np.random.default_rng(0))
    spread = (other[:, 0].sum(3) * rows).sum(2) / other[:, 0].sum((2, 3))
    assert float((spread.diff(dim=1) - spread.diff(dim=1).mean(0)).abs().max()) > 1.5


@pytest.mark.slow
def test_nets_have_the_papers_map_and_nearly_its_parameters():
    net = video_net("I3D-S + GCN", 46).eval()
    with torch.no_grad():
        y = net[:3](torch.zeros(1, 1, 10, 128, 128))
    assert y.shape == (1, 128, 5, 16, 16)
    for name, published in syncmnist.PARAMETERS.items():
        count = sum(parameter.numel() for parameter in video_net(name, 46).parameters())
        assert count == pytest.approx(published, rel=0.08)
