"""A model whose operations cannot be recorded is measured by its shapes, and its results say so."""

import numpy as np
import pytest
import torch
from torch import nn

import erfscope


class Observed(nn.Module):
    """The observer of PyTorch's quantisation writes to several of its buffers by one operation."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, stride=2, padding=1)
        self.observer = torch.ao.quantization.FusedMovingAvgObsFakeQuantize()

    def forward(self, x):
        return self.last(self.observer(self.first(x)))


def test_sizes_are_those_around_the_natural_centre_and_what_is_assumed_is_said():
    torch.manual_seed(0)
    net = Observed().eval()
    (row,) = erfscope.sweep(net, input_size=32, samples=2, draws=1, layer="last")
    assert row.ok
    assert row.computed.path == "plain"
    assert (row.trf.exact, row.trf.box_px, row.trf.center_px) == (False, ((0, 31), (0, 31)), (16.5, 16.5))
    assert {"assumed_layout", "centre_not_exact", "trf_inexact", "needed_numbers"} <= {f.code for f in row.findings}
    assert np.abs(row.map.values[14:20, 14:20]).sum() == pytest.approx(1)


def test_a_model_that_fails_is_told_so():
    class Failing(nn.Module):
        def forward(self, x):
            raise ValueError("no")

    (row,) = erfscope.sweep(Failing(), input_size=32)
    assert row.error == "fails on an input of 3 channels at 32x32: ValueError: no"
