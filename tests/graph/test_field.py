"""Theoretical receptive fields against brute force and against what is published."""

import pytest
from nets import Does
from nets.parts import over_windows, parts
from oracle import Seen, check, positive
from torch import nn


@pytest.mark.parametrize(("kernel", "padding"), [(3, 1), (5, 0)])
def test_the_oracle_sees_exactly_the_window_of_one_convolution(kernel, padding):
    support = Seen(positive(nn.Conv2d(2, 3, kernel, padding=padding)), (12, 10)).support((4, 3))
    assert support == ((4 - padding, 4 - padding + kernel - 1), (3 - padding, 3 - padding + kernel - 1))


def test_what_is_summed_over_windows_is_read_by_the_same_place_in_each():
    field = check(Does(over_windows, **parts()), (12, 15), global_by="sum over positions").trf((4, 5))
    assert field.clipped_box_px == ((1, 10), (2, 14))
    assert field.local_size_px == (1, 1)
