"""Theoretical receptive fields against brute force and against what is published."""

import pytest
import torch.nn.functional as F
from nets import CASES, REARRANGED, conv, over_windows, parts
from oracle import Net, Seen, check, opened
from torch import nn


@pytest.mark.parametrize(("kernel", "padding"), [(3, 1), (5, 0)])
def test_the_oracle_sees_exactly_the_window_of_one_convolution(kernel, padding):
    support = Seen(opened(nn.Conv2d(2, 3, kernel, padding=padding)), (12, 10)).support((4, 3))
    assert support == ((4 - padding, 4 - padding + kernel - 1), (3 - padding, 3 - padding + kernel - 1))


@pytest.mark.parametrize("name", CASES)
def test_the_box_is_what_a_change_of_the_input_shows(name):
    module, space = CASES[name]
    module = opened(module)
    for child in module.modules():
        if isinstance(child, nn.Linear) and child.out_features == 2:  # attention that is not uniform
            nn.init.normal_(child.weight)
    check(module, space, gates=False)


@pytest.mark.parametrize("name", REARRANGED)
def test_so_it_is_in_windows_and_lists(name):
    check(Net(REARRANGED[name], **parts()), (12, 15))


SELECTIVE = {
    "max pooling": Net(lambda n, x: F.max_pool2d(n.conv(x), 3, 2, 1), conv=conv()),
    "dilated max pooling": Net(lambda n, x: F.max_pool2d(n.conv(x), 3, 2, 1, dilation=2, ceil_mode=True), conv=conv()),
    "adaptive max pooling": Net(lambda n, x: F.adaptive_max_pool2d(n.conv(x), 5), conv=conv()),
    "cropped": Net(lambda n, x: n.conv(n.conv(x)[:, :, 3:-2, 2:]), conv=conv()),
    "negative padding": Net(lambda n, x: n.conv(F.pad(x, (-2, 0, 1, -3))), conv=conv()),
}


@pytest.mark.parametrize("name", SELECTIVE)
def test_the_box_covers_operations_that_pick_or_crop(name):
    check(SELECTIVE[name], (14, 13), equal=False)


def test_what_is_summed_over_windows_is_read_by_the_same_place_in_each():
    field = check(Net(over_windows, **parts()), (12, 15), global_by="sum over positions").trf((4, 5))
    assert field.clipped_box_px == ((1, 10), (2, 14))
    assert field.local_size_px == (1, 1)
