"""The gradient of strided convolutions of few channels."""

from itertools import product

import pytest
import torch

from erfscope.core.graph.rules.few_channels import CONVOLUTIONS, pays, strided_convolution

#: Taps, strides and padding along each axis, and the space, with cells behind the last window.
CASES = {
    "resnet": ([7, 7], [2, 2], [3, 3], [20, 21]),
    "patches": ([4, 4], [4, 4], [0, 0], [18, 16]),
    "strides wider than the window": ([1, 3], [3, 5], [0, 1], [11, 14]),
    "axes of different strides": ([5, 2], [1, 2], [2, 0], [9, 9]),
    "sound": ([10], [5], [0], [83]),
    "volume": ([3, 2, 5], [2, 1, 3], [1, 0, 2], [7, 5, 11]),
}


@pytest.mark.parametrize(("case", "channels"), [*product(CASES, [1, 3])])
def test_gradient_is_pytorchs(case, channels):
    generator = torch.Generator().manual_seed(0)
    taps, strides, padding, space = CASES[case]
    x = torch.randn(2, channels, *space, dtype=torch.float64, generator=generator).requires_grad_()
    kernel = torch.randn(5, channels, *taps, dtype=torch.float64, generator=generator)
    shift = torch.randn(5, dtype=torch.float64, generator=generator)
    expected = CONVOLUTIONS[len(taps)](x, kernel, shift, tuple(strides), tuple(padding))
    obtained = strided_convolution(x, kernel, shift, strides, padding)
    assert torch.equal(obtained, expected)
    g = torch.randn(expected.shape, dtype=torch.float64, generator=generator)
    ours, theirs = (torch.autograd.grad(y, x, g)[0] for y in (obtained, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_is_taken_for_images_on_a_processor_alone():
    x, kernel = torch.zeros(1, 3, 8, 8, requires_grad=True), torch.zeros(4, 3, 2, 2)
    assert pays(x, kernel, (2, 2))
    assert not pays(x, kernel, (1, 1))
    assert not pays(x, torch.zeros(4, 5, 2, 2), (2, 2))
    assert not pays(x.detach(), kernel, (2, 2))
    assert not pays(torch.zeros(1, 3, 8, 8, device="meta", requires_grad=True), kernel, (2, 2))
    with torch.no_grad():
        assert not pays(x, kernel, (2, 2))
