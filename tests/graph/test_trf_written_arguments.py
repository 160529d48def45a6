"""Operations that return a new tensor and also write to an argument: both depend on the image."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import erfscope


class Net(nn.Module):
    """What is done lies on the longer of two ways: without it the field is 5 pixels wide, with it 11."""

    def __init__(self, does) -> None:
        super().__init__()
        self.first, self.wide, self.last = (nn.Conv2d(c, 4, k, padding=k // 2) for c, k in ((3, 3), (4, 7), (4, 3)))
        self.does = does

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return self.last(y + self.wide(self.does(self, y)))


DOES = {"rrelu": lambda _, y: F.rrelu(y), "rrelu in training": lambda _, y: F.rrelu(y, training=True)}


@pytest.mark.parametrize("name", DOES)
def test_the_field_goes_through_what_is_returned(name):
    torch.manual_seed(0)
    net = Net(DOES[name]).eval()
    field = erfscope.theoretical(net, "output", unit=(16, 16), input_size=(32, 32))
    x = torch.randn(1, 3, 32, 32, requires_grad=True)
    reached = torch.autograd.grad(net(x)[0, :, 16, 16].sum(), x)[0][0].ne(0).any(0).nonzero()
    seen = tuple(zip(reached.amin(0).tolist(), reached.amax(0).tolist(), strict=True))
    assert field.exact
    assert field.box_px == ((11, 21), (11, 21)) == seen


@pytest.mark.slow
def test_layers_behind_it_can_be_asked_for():
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.RReLU(),
        nn.Conv2d(4, 4, 3, padding=1),
        nn.RReLU(),
        nn.Conv2d(4, 4, 3, padding=1),
    )
    result = erfscope.analyze(net, input_size=(32, 32), samples=1, measures="r50")
    assert (result.layer, result.trf.size_px) == ("output", (7, 7))
    assert "gradient_unproved" not in {finding.code for finding in result.findings}, (
        "nothing is random in evaluation mode"
    )
    assert "gradient_unproved" in {
        finding.code
        for finding in erfscope.analyze(Net(DOES["rrelu in training"]), input_size=(32, 32), samples=1).findings
    }
