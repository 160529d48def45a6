"""The figure of a plan of tiles holds the plan's numbers, and those of its shorter halos."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from matplotlib.patches import Rectangle
from torch import nn

import erfscope
from erfscope import ErfscopeError, HaloBudget, TilePlan
from erfscope.apps.tile.budget import Seam
from erfscope.show.plot import figure_bytes

pytestmark = pytest.mark.usefixtures("memory_unplanned")


def planned(convolution: type[nn.Module], pool: type[nn.Module], axes: int) -> TilePlan:
    """Two convolutions with a pooling by 2 between them."""
    net = nn.Sequential(convolution(1, 2, 7, padding=3), pool(2), convolution(2, 1, 3, padding=1)).eval()
    return erfscope.tile(net, 16, in_chans=1, input_size=(32,) * axes)


@pytest.mark.parametrize(
    ("convolution", "pool", "axes"),
    [(nn.Conv1d, nn.MaxPool1d, 1), (nn.Conv2d, nn.MaxPool2d, 2), (nn.Conv3d, nn.MaxPool3d, 3)],
)
def test_the_boxes_of_a_tile_are_as_wide_as_the_plan(
    convolution: type[nn.Module], pool: type[nn.Module], axes: int
) -> None:
    plan = planned(convolution, pool, axes)
    figure = plan.figure()
    boxes = {each.get_gid(): each for each in figure.axes[0].patches if isinstance(each, Rectangle)}
    assert plan.halo[-1] == (5, 5)
    widths = {"valid": plan.tile[-1], "halo": plan.tile[-1] + 10, "crop": plan.crop[-1]}
    assert {name: box.get_width() for name, box in boxes.items()} == widths
    assert boxes["valid"].get_x() - boxes["halo"].get_x() == 5
    places = {line.get_xdata()[0] for line in figure.axes[0].lines if np.ptp(line.get_xdata()) == 0}
    assert {place % plan.alignment[-1] for place in places} == {0}
    assert figure_bytes(figure, ".svg") == figure_bytes(plan.figure(), ".svg")


def test_a_grid_of_many_lines_is_thinned_and_a_plan_without_a_halo_has_no_figure() -> None:
    net = nn.Sequential(nn.Conv1d(1, 1, 3, padding=1)).eval()
    figure = erfscope.tile(net, 98, in_chans=1, input_size=(128,)).figure()
    assert np.diff([line.get_xdata()[0] for line in figure.axes[0].lines]).tolist() == [3] * 33
    assert [text.get_text() for text in figure.legends[0].texts][-1] == "alignment 1 sample, a line for every 3"
    plan = TilePlan(possible=False, blockers=("attention",), axes=(), model="net", layer="")
    with pytest.raises(ErfscopeError, match="net has no halo to draw: attention"):
        plan.figure()


def test_shares_are_drawn_up_to_the_exact_halo_with_the_tolerance_and_measured_errors_beside_them() -> None:
    plan = planned(nn.Conv2d, nn.MaxPool2d, 2)
    share = np.tile([0.5, 0.2, 0.1, 0.02, 0.01, 0.0], (2, 2, 1))
    budget = HaloBudget(share=share, se=share / 10, seam=share)
    seams = [Seam(0, 1.5, 0.4, None), Seam(4, 0.1, 0.02, None)]
    _, ax, below = plan.figure(budget, 0.05, seams).axes[:3]
    lines = {line.get_gid(): line for line in ax.lines}
    assert lines["share 1 0"].get_ydata().tolist() == [0.5, 0.2, 0.1, 0.02, 0.01]
    assert set(lines["tolerance"].get_ydata()) == {0.05}
    assert set(lines["exact 0 1"].get_xdata()) == {plan.halo[0][1]}
    lines = {line.get_gid(): line for line in below.lines}
    assert lines["RMS"].get_xydata().tolist() == [[0, 0.4], [4, 0.02]]
    assert lines["largest"].get_ydata().tolist() == [1.5, 0.1]
    np.testing.assert_allclose(lines["predicted"].get_ydata(), share[0, 0, :-1])
    assert [ax.get_ylabel() for ax in plan.figure(seams=seams).axes][1] == "error, log axis"


def test_the_erf_at_the_corner_lies_where_its_unit_sees() -> None:
    # Behind a stride of 3 the unit of a tile's first three cells sees cells -1 to 3 of them.
    net = nn.Conv2d(1, 1, 5, stride=3, padding=1).eval().requires_grad_(False)
    net.weight[:] = torch.arange(1.0, 26).reshape(1, 1, 5, 5)
    plan = erfscope.tile(net, 6, in_chans=1, input_size=30, image_size=30)
    budget = erfscope.halo_budget(net, plan, samples=1, draws=1, in_chans=1)
    (image,) = plan.figure(budget).axes[0].images
    left, _, _, top = image.get_extent()
    rows, columns = np.nonzero(image.get_alpha())
    assert (top + rows.min(), top + rows.max(), left + columns.min(), left + columns.max()) == (-1, 3, -1, 3)
    strongest = np.unravel_index(image.get_alpha().argmax(), image.get_alpha().shape)
    assert (top + strongest[0], left + strongest[1]) == (3, 3)
