"""Models that noise does not open, and states of another type: the maps of plain autograd."""

import copy

import numpy as np
import torch
import torch.nn.functional as F
from oracle import plain_gradient
from torch import nn

import erfscope


class Opens(nn.Module):
    """Passes on nothing but what is smooth and brighter than a threshold that rises with the column."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x):
        threshold = torch.linspace(1, 6, x.shape[-1], device=x.device, dtype=x.dtype)
        low = F.avg_pool2d(x.mean(1, keepdim=True), 9, 1, 4)
        return self.inner(x) * 0.1 + (low - threshold).relu()


def measured(model, x, **options):
    words = {
        "layer": "output",
        "input_size": (48, 48),
        "convention": "luo",
        "measures": "r50",
        "images": x,
        "unit": (18, 18),
    }
    return erfscope.analyze(model, **words | options)


def bright():
    """Smooth, and of a brightness between the threshold where the unit is and that in the middle of any crop."""
    ramp = torch.linspace(-0.1, 0.1, 48, dtype=torch.float64)
    return (3.2 + ramp[:, None] + ramp).expand(1, 3, 48, 48).clone()


def oracle(model, x):
    maps = plain_gradient(model, x, lambda y: y[:, :, 18, 18]).abs().sum(1).mean(0)
    return (maps / maps.sum()).numpy()


def test_a_gate_that_noise_never_opens_is_right():
    torch.manual_seed(0)
    model, x = Opens().double().eval(), bright()
    truth = oracle(model, x)
    for plain in (False, True):
        result = measured(model, x, plain=plain)
        assert result.status == "ok"
        assert np.abs(result.map.values - truth).sum() <= 1e-9
        assert (result.computed.share < 1) is not plain


class Recurrent(nn.Module):
    """A recurrent convolution whose state begins with zeros of PyTorch's default type."""

    def __init__(self):
        super().__init__()
        self.into, self.back, self.out = (
            nn.Conv2d(3, 4, 3, padding=1),
            nn.Conv2d(4, 4, 3, padding=1),
            nn.Conv2d(4, 4, 3, padding=1),
        )

    def forward(self, x):
        hidden = torch.zeros(len(x), 4, *x.shape[2:], device=x.device)
        for _ in range(2):
            hidden = (self.into(x) + self.back(hidden)).tanh()
        return self.out(hidden)


def test_a_recurrent_model_runs_in_float64_and_can_be_verified_there():
    torch.manual_seed(0)
    model, x = Recurrent().eval(), bright()
    checked = measured(model, x.float(), verify=True)
    assert checked.status == "ok"
    assert checked.verification.holds
    given, double = x.clone().requires_grad_(True), copy.deepcopy(model).double()
    hidden = torch.zeros(1, 4, 48, 48, dtype=torch.float64)
    for _ in range(2):
        hidden = (double.into(given) + double.back(hidden)).tanh()
    truth = torch.autograd.grad(double.out(hidden)[:, :, 18, 18].sum(), given)[0].abs().sum(1)[0]
    result = measured(model, x, dtype="float64")
    assert (result.status, result.dtype) == ("ok", "float64")
    assert np.abs(result.map.values - (truth / truth.sum()).numpy()).sum() <= 1e-9
    assert torch.get_default_dtype() == torch.float32
    assert np.abs(checked.map.values - result.map.values).sum() <= 1e-4
