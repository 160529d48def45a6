"""What halos shorter than the exact one cut off: against closed forms, and against the seams that they leave."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import erfscope
from erfscope import ErfscopeError, HaloBudget, TilePlan
from erfscope.apps.tile.costs import tile_costs
from erfscope.apps.tile.shown import budget_table, plan_json
from erfscope.show import random_weights
from erfscope.show.terminal import draw_parts
from erfscope.show.view.terminal.console import as_plain_text

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("memory_unplanned")]
#: Box kernels in a row: the ERF is that of a sum of as many uniform steps of -1, 0 or 1.
DEPTH = 12


def boxes() -> nn.Module:
    net = nn.Sequential(*(nn.Conv2d(1, 1, 3, padding=1, bias=False) for _ in range(DEPTH))).eval().double()
    for layer in net:
        nn.init.constant_(layer.weight, 1 / 9)
    return net


def line() -> np.ndarray:
    """The ERF of the stack along one axis."""
    found = np.ones(1)
    for _ in range(DEPTH):
        found = np.convolve(found, np.full(3, 1 / 3))
    return found


@pytest.fixture(scope="module")
def stack() -> tuple[nn.Module, TilePlan, HaloBudget]:
    net = boxes()
    plan = erfscope.tile(net, 24, in_chans=1, input_size=32)
    return net, plan, erfscope.halo_budget(net, plan, samples=4)


def test_the_share_cut_off_is_the_tail_of_the_closed_form(stack: tuple[nn.Module, TilePlan, HaloBudget]) -> None:
    _, plan, budget = stack
    assert plan.halo == ((DEPTH, DEPTH),) * 2
    tail = [line()[DEPTH + 1 + halo :].sum() for halo in range(DEPTH + 1)]
    energy = line() ** 2 / (line() ** 2).sum()
    for axis in range(2):
        for side in range(2):
            assert budget.share[axis, side] == pytest.approx(tail, rel=1e-5, abs=1e-12)
            squares = [energy[DEPTH + 1 + halo :].sum() for halo in range(DEPTH + 1)]
            assert budget.seam[axis, side] ** 2 == pytest.approx(squares, rel=1e-5, abs=1e-12)
    assert budget.se == pytest.approx(0, abs=1e-6)  # a linear model has one ERF for all images


def test_the_share_cut_off_follows_the_tail_of_a_gaussian(stack: tuple[nn.Module, TilePlan, HaloBudget]) -> None:
    sigma = math.sqrt(DEPTH * 2 / 3)
    for halo in range(6):
        tail = math.erfc((halo + 0.5) / sigma / math.sqrt(2)) / 2
        assert stack[2].share[0, 0, halo] == pytest.approx(tail, rel=0.1)


def test_the_tolerance_gives_the_shortest_halo_below_it(stack: tuple[nn.Module, TilePlan, HaloBudget]) -> None:
    _, plan, budget = stack
    halo = budget.shortest(plan, 1e-2)[0][0]
    assert budget.share[0, 0, halo] < 1e-2 <= budget.share[0, 0, halo - 1]
    assert budget.shortest(plan, 1e-12) == plan.halo


def test_seams_are_as_large_as_predicted(stack: tuple[nn.Module, TilePlan, HaloBudget]) -> None:
    net, plan, budget = stack
    image = torch.randn(1, 1, 72, 72, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    *short, exact = erfscope.seams(net, image, plan, [0, 4, 8, DEPTH], budget=budget)
    for seam in short:
        assert seam.predicted is not None
        assert 0.5 < seam.rms / seam.predicted < 2
        assert seam.largest > seam.rms
    assert exact.largest < 1e-12


def test_halos_of_a_strided_stack_are_whole_steps_of_the_alignment() -> None:
    net = nn.Sequential(nn.Conv1d(1, 1, 5, stride=4, padding=2, bias=False), nn.Conv1d(1, 1, 5, padding=2, bias=False))
    for layer in net:
        nn.init.constant_(layer.weight, 0.2)
    plan = erfscope.tile(net.eval().double(), 16, in_chans=1, input_size=(64,))
    budget = erfscope.halo_budget(net, plan, samples=4)
    # A unit at cell 0 reads cells -10 to 10, and its own four are 0 to 3; each tap of the second kernel reads five.
    erf = np.zeros(21)
    for tap in range(0, 20, 4):
        erf[tap : tap + 5] += 1 / 25
    assert plan.halo == ((10, 7),)
    before, after = [erf[: 10 - halo].sum() for halo in range(11)], [erf[14 + halo :].sum() for halo in range(8)]
    assert budget.share[0, 0] == pytest.approx(before, rel=1e-5, abs=1e-12)
    assert budget.share[0, 1, :8] == pytest.approx(after, rel=1e-5, abs=1e-12)
    assert budget.shortest(plan, 0.15) == ((8, 4),)
    # Crops begin and end at multiples of 4.
    least = tuple(next(halo for halo, share in enumerate(side) if share < 0.15) for side in (before, after))
    assert budget.least(plan, 0.15) == (least,) == ((7, 4),)
    text = tile_text_of(plan, budget, 0.15)
    assert "halo 8 samples before, 4 samples after, cuts off less than 0.15 of the ERF on each side" in text
    assert "rounded up from 7 samples before, 4 samples after, since crops begin and end at multiples of 4" in text


def tile_text_of(plan: TilePlan, budget: HaloBudget, tolerance: float) -> str:
    return " ".join(as_plain_text(draw_parts(plan.parts(budget=budget, tolerance=tolerance))).split())


def test_where_an_operation_reads_the_whole_image_no_halo_reaches_the_tolerance() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.InstanceNorm2d(2), nn.ReLU(), nn.Conv2d(2, 1, 3, padding=1))
    plan = erfscope.tile(net.eval(), 16, in_chans=1, input_size=32)
    budget = erfscope.halo_budget(net, plan, samples=4)
    assert not plan.possible
    assert budget.share[..., -1].max() > 1e-3
    assert budget.shortest(plan, 1e-3) is None
    assert budget.shortest(plan, 0.9) == ((0, 0), (0, 0))
    document = plan_json(plan, (), budget=budget, tolerance=1e-3)["budget"]
    assert document["halo"] is None
    assert document["weights"]["source"] == "given"
    text = tile_text_of(plan, budget, 1e-3)
    share = f"{budget.longest_share(plan):.2g}"
    assert f"no halo reaches 0.001: even the longest, 2 px before, 2 px after, cuts off {share} of the ERF" in text
    assert "measured over 4 synthetic images (dead leaves); weights as provided" in text
    assert "cuts off less" not in text


def test_untrained_weights_are_said_where_an_overlap_is_chosen() -> None:
    plan = erfscope.tile("test_resnet", 16, input_size=32, layer="layer1")
    budget = erfscope.halo_budget("test_resnet", plan, samples=1, draws=1, weights="random")
    assert budget.measured is not None
    warning = random_weights(budget.measured)
    assert "RANDOM WEIGHTS" in warning
    assert warning in tile_text_of(plan, budget, 0.1)
    figure = plan.figure(budget, 0.1)
    said = " ".join(text.get_text() for ax in figure.axes for text in ax.texts) + " ".join(
        text.get_text() for text in figure.texts
    )
    assert warning in " ".join(said.split())


def test_what_follows_from_the_plan_is_no_option(stack: tuple[nn.Module, TilePlan, HaloBudget]) -> None:
    with pytest.raises(ErfscopeError, match="unit follows from the plan"):
        erfscope.halo_budget(stack[0], stack[1], unit="centre")
    with pytest.raises(ErfscopeError, match="one tile, without seams"):
        erfscope.seams(stack[0], torch.zeros(1, 1, 24, 24, dtype=torch.float64), stack[1], [0])


def test_tiles_for_a_memory_are_the_largest_and_the_least_computing(
    stack: tuple[nn.Module, TilePlan, HaloBudget],
) -> None:
    plan = stack[1]
    assert plan.memory is not None
    asked, largest = tile_costs(plan, memory=4 * plan.memory)
    # The crop of 24 + 2 * 12 cells may have twice the sides.
    assert (asked.crop, largest.crop, largest.tile) == ((48, 48), (96, 96), (72, 72))
    assert plan.with_tile(72).memory == largest.memory == 4 * plan.memory
    costs = tile_costs(plan, (100, 100), memory=4 * plan.memory)
    # Tiles of 72 leave 28 for a second one; two of 50 along each side compute less: 4 crops of 74 x 74.
    assert [(each.names, each.tile, each.tiles) for each in costs[1:]] == [
        (("largest",), (72, 72), 4),
        (("least",), (50, 50), 4),
    ]
    assert costs[2].wasted == pytest.approx(1 - 100**2 / (4 * 74**2))
    assert len(tile_costs(plan, memory=1)) == 1
    (_, whole) = tile_costs(plan, (100, 60), memory=2**40)
    assert (whole.names, whole.tiles, whole.crop, whole.wasted) == (("largest", "least"), 1, (100, 60), 0)


def test_a_share_that_is_zero_has_no_error(stack: tuple[nn.Module, TilePlan, HaloBudget]) -> None:
    _, plan, budget = stack
    whole = budget_table(plan, replace(budget, se=np.zeros_like(budget.se))).rows
    some = budget_table(plan, replace(budget, se=np.where(budget.share > 0, 0.01, 0))).rows
    assert [row.cells[1] for row in whole] == [f"{budget.share[..., int(row.cells[0])].max():.2g}" for row in whole]
    assert [("±" in row.cells[1]) for row in some] == [True] * (len(some) - 1) + [False]
    assert some[-1].cells[1] == "0"


@pytest.mark.parametrize(
    ("samples", "draws", "over"),
    [(4, 1, "± standard error over images"), (1, 8, "over random draws (other images are not in it)"), (1, 2, "")],
)
def test_errors_of_shares_say_what_they_are_over(samples, draws, over):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 2, 3, padding=1), nn.Tanh(), nn.Conv2d(2, 2, 3, padding=1)).eval()
    plan = erfscope.tile(net, 16, input_size=32)
    budget = erfscope.halo_budget(net, plan, samples=samples, draws=draws)
    drawn = " ".join(text.get_text() for text in plan.figure(budget, 1e-2).texts)
    for said in (tile_text_of(plan, budget, 1e-2), " ".join(drawn.split())):
        assert over in said
        assert ("±" in said) == bool(over)
