"""What units see of an image without borders."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import erfscope
from erfscope.core.run.tiling.reach import Reach, reach_of


def reach(net: nn.Module, *size: int) -> tuple[Reach, ...]:
    return reach_of(erfscope.wrap(net.eval(), in_chans=1, input_size=size).recording, "output")[0]


def test_units_of_a_strided_stack_see_beyond_the_border_by_the_closed_form() -> None:
    net = nn.Sequential(nn.Conv1d(1, 1, 3, padding=1, stride=2), nn.Conv1d(1, 1, 5, padding=4, dilation=2))
    (axis,) = reach(net, 40)
    units = np.arange(20)
    np.testing.assert_array_equal(axis.first, 2 * units - 9)
    np.testing.assert_array_equal(axis.last, 2 * units + 9)
    assert (axis.stride, axis.center, axis.period, axis.size) == (2, 0.0, 2, 40)
    assert axis.crop_margin == axis.border_reflection == (0, 0)


def test_all_operations_begin_anew_after_the_least_common_multiple_of_their_strides() -> None:
    class Branches(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            two = F.interpolate(F.avg_pool1d(x, 2), scale_factor=2)
            return two + F.interpolate(F.avg_pool1d(x, 3), scale_factor=3)

    (axis,) = reach(Branches(), 60)
    assert (axis.stride, axis.period) == (1, 6)
    np.testing.assert_array_equal(axis.first[12:18] - 12, [0, 0, 0, 2, 3, 3])
    np.testing.assert_array_equal(axis.last[12:18] - 12, [2, 2, 3, 5, 5, 5])


def test_a_larger_output_has_a_stride_below_one() -> None:
    (axis,) = reach(nn.ConvTranspose1d(1, 1, 4, stride=2, padding=1), 20)
    assert axis.stride == Fraction(1, 2)
    np.testing.assert_array_equal(axis.first[:4], [-1, 0, 0, 1])


def test_mirrored_cells_reach_further_into_the_image() -> None:
    (axis,) = reach(nn.Sequential(nn.ReflectionPad1d((3, 0)), nn.Conv1d(1, 1, 4)), 20)
    assert axis.border_reflection == (3, 0)


def test_padding_behind_a_slice_stands_inside_the_image() -> None:
    class Cut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv1d(1, 1, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x[:, :, 4:-5])

    assert reach(Cut(), 30)[0].crop_margin == (4, 5)


def test_a_cast_to_the_type_of_the_image_reads_no_image() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(1, 1, 1))

        def forward(self, x: Tensor) -> Tensor:
            return x - self.mean.type_as(x)

    recording = erfscope.wrap(Shifted().eval().double(), in_chans=1, input_size=(20,)).recording
    axes, obstacles = reach_of(recording, "output")
    assert (axes[0].border_reflection, obstacles) == ((0, 0), ())
