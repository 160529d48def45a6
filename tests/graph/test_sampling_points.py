"""Operations that read a map at points which other tensors give: deformable convolution and grid_sample."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn

import erfscope

SIDE = 20


class Deformable(nn.Module):
    """A strided deformable convolution, modulated or not, whose offsets are predicted."""

    def __init__(self, *, modulated: bool) -> None:
        super().__init__()
        self.stem, self.modulated = nn.Conv2d(3, 4, 3, padding=1), modulated
        self.offset, self.mask = nn.Conv2d(4, 18, 3, 2, 1), nn.Conv2d(4, 9, 3, 2, 1)
        self.weight, self.bias = nn.Parameter(torch.randn(5, 4, 3, 3)), nn.Parameter(torch.randn(5))

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x).tanh()
        mask = self.mask(y).sigmoid() if self.modulated else None
        return torchvision.ops.deform_conv2d(y, self.offset(y), self.weight, self.bias, 2, 1, mask=mask)


class Warp(nn.Module):
    """A map sampled where the image says, at another size."""

    def __init__(self, *, align: bool) -> None:
        super().__init__()
        self.stem, self.flow, self.align = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(3, 2, 3, padding=1), align

    def forward(self, x: Tensor) -> Tensor:
        eye = torch.eye(2, 3, dtype=x.dtype, device=x.device).expand(len(x), 2, 3)
        grid = F.affine_grid(eye, [len(x), 3, 10, 10], align_corners=self.align)
        flow = F.avg_pool2d(self.flow(x), 2).tanh().permute(0, 2, 3, 1)
        return F.grid_sample(self.stem(x).tanh(), grid + 0.2 * flow, align_corners=self.align)


NETS = {
    "deformable": (Deformable(modulated=False), "deform_conv2d", (6.0, 10.0), 2.0),
    "modulated": (Deformable(modulated=True), "deform_conv2d", (6.0, 10.0), 2.0),
    "warp": (Warp(align=False), "grid_sampler", (6.5, 10.5), 2.0),
    "warp from corner to corner": (Warp(align=True), "grid_sampler", (3 * 19 / 9, 5 * 19 / 9), 19 / 9),
}


@pytest.mark.parametrize("name", NETS)
def test_the_map_is_the_gradient_and_the_unit_stands_on_the_regular_grid(name: str) -> None:
    net, operation, center, stride = NETS[name]
    torch.manual_seed(0)
    net = net.eval().double()
    x = torch.randn(1, 3, SIDE, SIDE, dtype=torch.float64, requires_grad=True)
    asked = {"unit": "3,5", "measures": "r50", "dtype": "float64", "convention": "kim", "layer": "output"}
    found = erfscope.analyze(net, images=x.detach(), **asked)  # type: ignore[arg-type]
    assert (found.status, found.computed.path) == ("ok", "graph")
    (gradient,) = torch.autograd.grad(net(x)[0, :, 3, 5].sum(), x)
    expected = gradient[0].sum(0).clamp(min=0).numpy()
    ours = np.asarray(found.map)
    np.testing.assert_allclose(ours / ours.sum(), expected / expected.sum(), atol=1e-12)
    trf = found.trf
    assert trf is not None
    assert trf.center_px == pytest.approx(center)
    assert trf.stride_px == pytest.approx((stride, stride))
    assert not trf.center_exact
    assert operation in trf.center_inexact_reason
    assert (trf.box_px, trf.exact, trf.inexact_by) == (((0, SIDE - 1),) * 2, False, (operation,))
    assert {"trf_inexact", "centre_not_exact"} <= {finding.code for finding in found.findings}
