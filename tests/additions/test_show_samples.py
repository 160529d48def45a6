"""``--show-samples``: the points of the first image that deformable convolutions and grid_sample read for a unit."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import torchvision
from nets import Does
from oracle import plain_gradient
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


def deformable(m: Does, x: Tensor) -> Tensor:
    """One that reads by one tap, whose offsets do not depend on the image, on every second pixel."""
    weight = torch.zeros(1, 1, 9, dtype=x.dtype, device=x.device)
    weight[..., m.tap] = 1
    y = x.mean(1, keepdim=True)
    return torchvision.ops.deform_conv2d(y, m.offsets.expand(len(x), -1, -1, -1), weight.view(1, 1, 3, 3), None, 2)


def sampled(align: bool) -> Callable[[Does, Tensor], Tensor]:
    def forward(m: Does, x: Tensor) -> Tensor:
        grid = 0.9 * m.flow(x).tanh().permute(0, 2, 3, 1)
        return F.grid_sample(x, grid.detach(), align_corners=align)

    return forward


TAPS = {
    f"tap {tap}": (Does(deformable, tap=tap, offsets=nn.Parameter(torch.rand(18, 9, 9) - 0.5)), tap)
    for tap in (0, 4, 5, 7)
}
SAMPLED = {f"align {align}": (Does(sampled(align), flow=nn.Conv2d(3, 2, 3, padding=1)), 0) for align in (False, True)}


@pytest.mark.parametrize("name", [*TAPS, *SAMPLED])
def test_points_are_where_an_operation_reads(name: str) -> None:
    net, number = (TAPS | SAMPLED)[name]
    x, net = torch.randn(1, 3, SIDE, SIDE, dtype=torch.float64), net.double()
    words = {"layer": "output", "measures": "r50", "dtype": "float64", "show_samples": True}
    found = erfscope.analyze(net, images=x, unit=(3, 5), **words)
    assert found.sampling_points is not None
    (points,) = found.sampling_points
    gradient = plain_gradient(net, x, lambda y: y[0, :, 3, 5])
    assert len(points.points_px) == (9 if name in TAPS else 1)
    assert points.points_px[number] == pytest.approx(center_of(gradient[0]), abs=1e-9)


def offsets() -> nn.Module:
    """A deformable convolution whose offsets are predicted."""
    parts = {"offset": nn.Conv2d(3, 18, 3, padding=1), "weight": nn.Parameter(torch.randn(5, 3, 3, 3))}
    return Does(lambda m, x: torchvision.ops.deform_conv2d(x, m.offset(x), m.weight, padding=1), **parts)


def test_points_are_stored_said_and_drawn(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(offsets(), nn.Conv2d(5, 4, 3, padding=1)).eval()
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


def test_points_are_of_the_image_and_of_few_cells() -> None:
    words = {"samples": 1, "measures": "r50", "show_samples": True}
    with pytest.raises(erfscope.ErfscopeError, match="leave --show-samples or --wrt out"):
        erfscope.analyze(nn.Sequential(nn.Conv2d(3, 3, 3), offsets()), input_size=SIDE, wrt="0", **words)
    assert erfscope.analyze(nn.Conv2d(3, 2, 3), input_size=SIDE, **words).sampling_points == ()
    # Of an operation of which the unit needs many cells it is not said that there is none.
    found = erfscope.analyze(nn.Sequential(offsets(), nn.AvgPool2d(21, 1, 10)), input_size=32, layer="1", **words)
    assert found.sampling_points == ()
    heads = [each.head for each in extras(found, 0)]
    assert heads == ["no sampling points: no recorded operation of which the unit needs few cells has any"]
