"""A forward pass to a part of a layer's map, by the operations that the part needs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from erfscope.core import OUTPUT, open_model


class Sorts(nn.Module):
    """Has data-dependent control flow, so that the model itself is run."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if float(x.detach().sum()) > 0 else x


@pytest.mark.parametrize("last", [nn.Identity, Sorts])
@pytest.mark.parametrize("part", [((3, 9), (10, 31)), ((0, 1), (0, 1)), ((0, 32), (0, 40))])
def test_a_part_of_the_output_and_its_gradient_are_those_of_the_whole_model(last, part):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 5, padding=2), nn.BatchNorm2d(8), nn.PixelShuffle(2), nn.Conv2d(2, 3, 3, 1, 1), last()
    )
    net = net.double().eval()
    x = torch.rand(4, 3, 16, 20, dtype=torch.float64, requires_grad=True)
    with open_model(net, input_size=(16, 20), dtype="float64") as model:
        found = model.part_pass(model.site(OUTPUT), part, 4)(x)
        (gradient,) = torch.autograd.grad((found**2).sum(), x)
    expected = net(x)[..., slice(*part[0]), slice(*part[1])]
    (whole,) = torch.autograd.grad((expected**2).sum(), x)
    assert torch.allclose(found, expected, rtol=1e-12, atol=1e-12)
    assert torch.allclose(gradient, whole, rtol=1e-10, atol=1e-12)
