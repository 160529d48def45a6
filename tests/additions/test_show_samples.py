"""``--show-samples``: the points of the first image that deformable convolutions and grid_sample read for a unit."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn

import erfscope
from erfscope.show.figures.draw import figure_of
from erfscope.show.view.extras import extras

SIDE = 20


def center_of(gradient: Tensor) -> tuple[float, float]:
    """Where the bilinear weights of one point lie together."""
    weights = gradient.abs().sum(0)
    rows, columns = (torch.arange(SIDE, dtype=torch.float64),) * 2
    return (
        float((weights.sum(1) * rows).sum() / weights.sum()),
        float((weights.sum(0) * columns).sum() / weights.sum()),
    )


class OneTap(nn.Module):
    """A deformable convolution whose offsets do not depend on the image, on every second pixel."""

    def __init__(self, tap: int) -> None:
        super().__init__()
        self.tap, self.offsets = tap, nn.Parameter(torch.rand(18, 9, 9) - 0.5)

    def forward(self, x: Tensor) -> Tensor:
        weight = torch.zeros(1, 1, 9, dtype=x.dtype, device=x.device)
        weight[..., self.tap] = 1
        y = x.mean(1, keepdim=True)
        return torchvision.ops.deform_conv2d(
            y, self.offsets.expand(len(x), -1, -1, -1), weight.view(1, 1, 3, 3), None, 2
        )


def test_points_of_a_deformable_convolution_are_where_its_taps_read() -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 3, SIDE, SIDE, dtype=torch.float64, requires_grad=True)
    for tap in range(9):
        net = OneTap(tap).double()
        found = erfscope.analyze(
            net, images=x.detach(), unit="3,5", layer="output", measures="r50", dtype="float64", show_samples=True
        )
        assert found.sampling_points is not None
        (points,) = found.sampling_points
        (gradient,) = torch.autograd.grad(net(x)[0, 0, 3, 5], x)
        assert len(points.points_px) == 9
        assert points.points_px[tap] == pytest.approx(center_of(gradient[0]), abs=1e-9)


@pytest.mark.parametrize("align", [False, True])
def test_points_of_grid_sample_are_where_it_reads(align: bool) -> None:
    torch.manual_seed(0)
    flow = nn.Conv2d(3, 2, 3, padding=1)

    class Sampled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.flow = flow

        def forward(self, x: Tensor) -> Tensor:
            grid = 0.9 * self.flow(x).tanh().permute(0, 2, 3, 1)
            return F.grid_sample(x, grid.detach(), align_corners=align)

    net = Sampled().double()
    x = torch.randn(1, 3, SIDE, SIDE, dtype=torch.float64, requires_grad=True)
    found = erfscope.analyze(
        net, images=x.detach(), unit="7,4", layer="output", measures="r50", dtype="float64", show_samples=True
    )
    assert found.sampling_points is not None
    (points,) = found.sampling_points
    (gradient,) = torch.autograd.grad(net(x)[0, :, 7, 4].sum(), x)
    assert points.points_px == (pytest.approx(center_of(gradient[0]), abs=1e-9),)


class Offsets(nn.Module):
    """A deformable convolution whose offsets are predicted."""

    def __init__(self) -> None:
        super().__init__()
        self.offset, self.weight = nn.Conv2d(3, 18, 3, padding=1), nn.Parameter(torch.randn(5, 3, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torchvision.ops.deform_conv2d(x, self.offset(x), self.weight, padding=1)


def test_points_are_stored_said_and_drawn(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(Offsets(), nn.Conv2d(5, 4, 3, padding=1)).eval()
    report = erfscope.compare([net], input_size=SIDE, samples=2, unit="4,4", measures="r50", show_samples=True)
    (result,) = report
    assert result.sampling_points is not None
    (points,) = result.sampling_points
    assert points.operation == "deform_conv2d in 0"
    assert len(points.points_px) == 9 * 9  # of nine cells of the convolution behind it
    report.save(tmp_path / "found")
    (again,) = erfscope.read(tmp_path / "found")
    assert again.sampling_points == result.sampling_points
    drawn = [line for axes in figure_of([result], "panel").axes for line in axes.lines if line.get_gid() == "samples"]
    assert [len(line.get_xdata()) for line in drawn] == [81]
    assert [each.head for each in extras(result, 0)] == [
        "deform_conv2d in 0 reads the first image at 81 points for the unit"
    ]


def test_of_an_operation_of_which_the_unit_needs_many_cells_it_is_not_said_that_there_is_none() -> None:
    net = nn.Sequential(Offsets(), nn.AvgPool2d(21, 1, 10))
    found = erfscope.analyze(net, input_size=32, samples=1, measures="r50", show_samples=True, layer="1")
    assert found.sampling_points == ()
    heads = [each.head for each in extras(found, 0)]
    assert heads == ["no sampling points: no recorded operation of which the unit needs few cells has any"]


def test_a_unit_that_reads_at_no_given_points_has_none() -> None:
    found = erfscope.analyze(nn.Conv2d(3, 2, 3), input_size=SIDE, samples=1, measures="r50", show_samples=True)
    assert found.sampling_points == ()


def test_points_are_of_the_image() -> None:
    net = nn.Sequential(nn.Conv2d(3, 3, 3), Offsets())
    with pytest.raises(erfscope.ErfscopeError, match="leave --show-samples or --wrt out"):
        erfscope.analyze(net, input_size=SIDE, samples=1, measures="r50", show_samples=True, wrt="0")
