"""Modules that have kept tensors of an ordinary forward pass with gradients, as LeViT keeps its attention's biases."""

import numpy as np
import pytest
import torch
from torch import nn

import erfscope
from erfscope.core.system.copies import copy_module

SIZE = 8


class Holder:
    """Any object."""


class Keeps(nn.Module):
    """A bias that is computed once and kept in a way of its own."""

    def __init__(self, how):
        super().__init__()
        self.conv, self.table, self.how = nn.Conv2d(3, 4, 3, padding=1), nn.Parameter(torch.randn(4, SIZE, SIZE)), how
        self.kept, self.holder = {}, Holder()

    def forward(self, x):
        bias = (2 * self.table).exp()
        if self.how == "attribute":
            self.bias = getattr(self, "bias", bias)
            bias = self.bias
        elif self.how == "dict":
            bias = self.kept.setdefault(str(x.device), bias)
        elif self.how == "list":
            bias = self.kept.setdefault("list", [bias])[0]
        elif self.how == "object":
            self.holder.bias = getattr(self.holder, "bias", bias)
            bias = self.holder.bias
        else:  # the last features, as a loss reads them
            self.features = self.conv(x)
        return (self.conv(x) * bias).tanh()


@pytest.mark.parametrize("how", ["attribute", "dict", "list", "object", "features"])
@pytest.mark.parametrize("options", [{"verify": True}, {"trust": True}, {"dtype": "float64"}], ids=" ".join)
def test_a_model_that_keeps_a_graph_is_copied_and_measured(how, options):
    torch.manual_seed(0)
    module, x = Keeps(how).eval(), torch.randn(1, 3, SIZE, SIZE)
    module(x)
    leaf = x.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(module(leaf)[0, :, 4, 4].sum(), leaf, retain_graph=True)
    truth = gradient.abs().sum((0, 1)).double()
    words = {"layer": "output", "unit": (4, 4), "convention": "luo", "measures": "r50", "input_size": SIZE}
    images = x.double() if "dtype" in options else x
    result = erfscope.analyze(module, images=images, **words, **options)
    assert np.abs(result.map.values - (truth / truth.sum()).numpy()).sum() <= 1e-5
    assert "verify" not in options or result.verification.holds
    module(x).sum().backward()  # what was kept has its graph still
    assert module.table.grad is not None or how == "features"


def test_a_copy_has_the_numbers_of_what_was_kept_and_no_graph():
    module = Keeps("dict").eval()
    module(torch.randn(1, 3, SIZE, SIZE))
    copied = copy_module(module)
    (kept,), (theirs,) = copied.kept.values(), module.kept.values()
    assert torch.equal(kept, theirs)
    assert (kept.grad_fn, theirs.grad_fn is None) == (None, False)
    assert copied.table is not module.table
    assert torch.equal(copied.table, module.table)
