"""Every rule's second half under autograd: a part of a net computed from what it needs has the derivative of the
whole.
"""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from nets import CASES, REARRANGED, conv, parts
from oracle import FIRST, Net, Seen

from erfscope.core.graph.rules.parts import cut, whole
from erfscope.core.graph.run import Forward, Wanted, crop
from erfscope.core.system.containers import tensors_of


def check_gradients(module, space, times=2):
    """The channels of three units, and the gradient of a random sum of them."""
    seen = Seen(module, space)
    x = torch.randn(2, 2, *space, dtype=torch.float64, requires_grad=True)
    full = seen.module(x)
    image = Wanted(seen.positions.image, FIRST)
    layer = Wanted(seen.node, seen.layout)
    generator = np.random.default_rng(0)
    for _ in range(times):
        units = [tuple(int(generator.integers(side)) for side in seen.grid) for _ in range(3)]
        plan = crop(seen.graph, seen.positions.numbers, layer, image, units, 2)
        leaf = x.detach()[(..., *(slice(*axis) for axis in plan.image))].clone().requires_grad_(True)
        channels, reference = Forward(plan, tensors_of(seen.module))(leaf)
        assert reference is leaf
        theirs = seen.layout.to_map(full)
        theirs = torch.stack([theirs[(slice(None), slice(None), *unit)] for unit in units], 2)
        torch.testing.assert_close(channels, theirs, rtol=1e-12, atol=1e-12)
        weights = torch.randn(theirs.shape, dtype=torch.float64)
        (expected,) = torch.autograd.grad(theirs, x, weights, retain_graph=True)
        (part,) = torch.autograd.grad(channels, leaf, weights)
        found = torch.zeros_like(expected)
        found[(..., *(slice(*axis) for axis in plan.image))] = part
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_of_some_units_is_that_of_the_whole_net(name):
    check_gradients(*CASES[name])


@pytest.mark.parametrize("name", REARRANGED)
def test_so_it_is_in_windows_and_lists(name):
    check_gradients(Net(REARRANGED[name], **parts()), (12, 15))


def test_a_reference_inside_has_the_gradient_of_the_whole_net():
    module, space = CASES["residual"]
    seen = Seen(module, space)
    (inner,) = seen.graph.marks["a"].outputs.values()
    plan = crop(seen.graph, seen.positions.numbers, Wanted(seen.node, FIRST), Wanted(inner, FIRST), [(4, 4)], 2)
    x = torch.randn(2, 2, *space, dtype=torch.float64)
    channels, reference = Forward(plan, tensors_of(seen.module))(x[(..., *(slice(*axis) for axis in plan.image))])
    (found,) = torch.autograd.grad(channels.sum(), reference)
    y = seen.module.a(x).detach().requires_grad_(True)
    out = seen.module.c(x + seen.module.b(y))
    torch.testing.assert_close(found, torch.autograd.grad(out[:, :, 4, 4].sum(), y)[0], rtol=1e-12, atol=1e-12)
    shape = tuple(y.shape)
    torch.testing.assert_close(
        cut(reference, whole(shape), plan.parts[inner]), cut(y, whole(shape), plan.parts[inner]), rtol=1e-12, atol=1e-12
    )


def test_attention_of_a_tensor_on_itself_and_windows_on_padding_alone_are_exact():
    check_gradients(Net(lambda n, x: F.scaled_dot_product_attention(x, x, x)), (6, 5), times=1)
    check_gradients(Net(lambda n, x: n.a(x)[:, :, :6, :5] + x, a=conv(2, padding=3)), (6, 5), times=8)
