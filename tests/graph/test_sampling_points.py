"""Operations that read a map at points which other tensors give: deformable convolution and grid_sample."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision
from nets import Does
from oracle import plain_gradient
from torch import Tensor, nn

import erfscope

SIDE = 20


def deformable(m: Does, x: Tensor) -> Tensor:
    """A strided deformable convolution whose offsets are predicted, and its modulation where there is one."""
    y = m.stem(x).tanh()
    mask = m.mask(y).sigmoid() if hasattr(m, "mask") else None
    return torchvision.ops.deform_conv2d(y, m.offset(y), m.weight, None, 2, 1, mask=mask)


def warp(*, align: bool) -> Callable[[Does, Tensor], Tensor]:
    """A map sampled where the image says, at another size."""

    def forward(m: Does, x: Tensor) -> Tensor:
        eye = torch.eye(2, 3, dtype=x.dtype, device=x.device).expand(len(x), 2, 3)
        grid = F.affine_grid(eye, [len(x), 3, 10, 10], align_corners=align)
        flow = F.avg_pool2d(m.flow(x), 2).tanh().permute(0, 2, 3, 1)
        return F.grid_sample(m.stem(x).tanh(), grid + 0.2 * flow, align_corners=align)

    return forward


STEM, FLOW, WEIGHT = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(3, 2, 3, padding=1), nn.Parameter(torch.randn(5, 4, 3, 3))
READS = {"stem": STEM, "offset": nn.Conv2d(4, 18, 3, 2, 1), "weight": WEIGHT}
NETS = {
    "deformable": (Does(deformable, **READS), "deform_conv2d", (6.0, 10.0), 2.0),
    "modulated": (Does(deformable, **READS, mask=nn.Conv2d(4, 9, 3, 2, 1)), "deform_conv2d", (6.0, 10.0), 2.0),
    "warp": (Does(warp(align=False), stem=STEM, flow=FLOW), "grid_sampler", (6.5, 10.5), 2.0),
    "warp from corner to corner": (
        Does(warp(align=True), stem=STEM, flow=FLOW),
        "grid_sampler",
        (3 * 19 / 9, 5 * 19 / 9),
        19 / 9,
    ),
}


@pytest.mark.parametrize("name", NETS)
def test_the_map_is_the_gradient_and_the_unit_stands_on_the_regular_grid(name: str) -> None:
    net, operation, center, stride = NETS[name]
    net, x = net.eval().double(), torch.randn(1, 3, SIDE, SIDE, dtype=torch.float64)
    asked = {"unit": "3,5", "measures": "r50", "dtype": "float64", "convention": "kim", "layer": "output"}
    found = erfscope.analyze(net, images=x, **asked)  # type: ignore[arg-type]
    assert (found.status, found.computed.path) == ("ok", "graph")
    expected = plain_gradient(net, x, lambda y: y[0, :, 3, 5])[0].sum(0).clamp(min=0).numpy()
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
