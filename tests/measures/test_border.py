"""What borders cut off, as estimated from a map, beside what a larger input shows."""

from __future__ import annotations

import functools

import pytest
import torch
from nets import Does
from torch import nn

import erfscope
from erfscope.core.answer.measures.border import lost_at_borders, stands_at_border


def stack(depth: int, seed: int = 0) -> nn.Sequential:
    """Convolutions with positive weights: the ERF is nearly Gaussian, sqrt(2 / 3 * depth) wide."""
    torch.manual_seed(seed)
    layers = [nn.Conv2d(1, 1, 3, padding=1, bias=False) for _ in range(depth)]
    for layer in layers:
        nn.init.uniform_(layer.weight, 0.5, 1.5)
    return nn.Sequential(*layers).eval()


@functools.cache
def measured(depth: int, size: int, **options) -> erfscope.Result:
    asked = {"in_chans": 1, "samples": 1, "measures": "r50", "convention": "luo", "dtype": "float64"}
    return erfscope.analyze(stack(depth), input_size=(size, size), **asked | options)


def codes(result: erfscope.Result) -> set[str]:
    return {finding.code for finding in result.findings} & {"clipped", "trf_cut", "at_border"}


@pytest.mark.parametrize(("depth", "size"), [(12, 9), (12, 12), (12, 15), (20, 12), (20, 18), (40, 18), (40, 24)])
def test_the_estimate_is_half_to_one_and_a_half_times_what_a_larger_input_shows(depth, size):
    """Zeros around the image take the more from the border, the more of the ERF lies beyond it."""
    small, large = measured(depth, size), measured(depth, 4 * depth)
    lost, growth = lost_at_borders(small.map)
    middle, half = 2 * depth, size // 2
    inside = large.map.values[middle - half : middle - half + size, middle - half : middle - half + size].sum()
    assert 0.5 * (1 - inside) <= lost <= 1.5 * (1 - inside)
    assert growth is not None
    assert 0.25 <= growth / (large["r50"].value / small["r50"].value - 1) <= 1.5


@pytest.mark.parametrize(
    ("depth", "size", "code"),
    [
        *((12, 12, "clipped"), (12, 15, "trf_cut"), (20, 15, "clipped"), (20, 18, "trf_cut")),
        *((40, 21, "clipped"), (40, 24, "trf_cut"), (20, 64, None)),
    ],
)
def test_the_strong_words_stand_where_sizes_move(depth, size, code):
    found = measured(depth, size)
    assert codes(found) == ({code} - {None})
    moves = measured(depth, 4 * depth)["r50"].value / found["r50"].value - 1 > 0.05
    assert moves == (code == "clipped")


def test_a_unit_at_the_border_is_told_so_and_is_not_sent_to_a_larger_input():
    for size in (24, 96):
        assert codes(measured(20, size, unit="corner")) >= {"at_border"}
        assert "clipped" not in codes(measured(20, 96, unit="corner"))
    assert stands_at_border(measured(3, 40, unit=(0, 20)).map)
    assert not stands_at_border(measured(3, 40).map)


def test_the_only_unit_of_a_layer_stands_at_no_border():
    assert not stands_at_border(measured(2, 2).map)


def test_a_sequence_has_two_borders():
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Conv1d(1, 1, 3, padding=1) for _ in range(20))).eval()
    erf = erfscope.analyze(net, input_size=(10,), in_chans=1, samples=1, measures="r50", convention="luo").map
    assert lost_at_borders(erf)[0] > 0


def dilated(*rates: int) -> nn.Module:
    """A stem of stride 8, then dilated branches beside a plain one."""
    torch.manual_seed(0)
    stem = nn.Sequential(*(m for c in (3, 8, 8) for m in (nn.Conv2d(c, 8, 3, stride=2, padding=1), nn.ReLU())))
    branches = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=rate, dilation=rate) for rate in rates)
    branches.append(nn.Conv2d(8, 8, 1))
    joined = Does(lambda m, x: torch.cat([m.branches[-1](x), *(b(x) for b in m.branches[:-1])], 1), branches=branches)
    return nn.Sequential(stem, joined).eval()


@pytest.mark.slow
@pytest.mark.parametrize(("rates", "small", "large"), [((12, 24), 96, 512), ((20,), 96, 448), ((2, 3), 96, 192)])
def test_branches_of_which_all_taps_lie_outside_are_not_promised_to_hold(rates, small, large):
    found, more = (
        erfscope.analyze(dilated(*rates), input_size=side, samples=4, measures="r50") for side in (small, large)
    )
    grows = more["r50"].value / found["r50"].value - 1 > 0.5
    assert grows == (rates != (2, 3))
    assert ("clipped" in codes(found)) == grows
    assert not codes(more)
    if grows:
        # The fall-off inside shows nothing of it.
        assert lost_at_borders(found.map)[0] < 0.01
        assert sum(found.trf.unseen_share) > 0.3


@pytest.mark.parametrize(("depth", "size"), [(12, 12), (12, 15), (20, 15), (20, 18), (40, 24), (40, 36)])
def test_stacks_of_convolutions_have_no_unseen_paths(depth, size):
    assert sum(measured(depth, size).trf.unseen_share) < 0.1


def test_a_unit_that_sees_the_whole_input_is_said_to_grow_with_it():
    # The mean of all positions beside each.
    mixed = Does(lambda _, x: x + 3 * x.mean((2, 3), keepdim=True) * x.shape[2])
    net = nn.Sequential(nn.Conv2d(3, 8, 4, 4), mixed)
    torch.manual_seed(0)
    small, large = (erfscope.analyze(net.eval(), input_size=side, samples=2, measures="r50") for side in (32, 96))
    assert "sees_all" in {finding.code for finding in small.findings}
    assert large["r50"].value > 1.5 * small["r50"].value
    assert "sees_all" not in {finding.code for finding in measured(12, 12).findings}
