"""Comparing closed forms with derivatives of node features."""

from __future__ import annotations

import numpy as np
import torch


def jacobian(function, x):
    """(m, c_out, n, c_in) of a function of node features, by autograd."""
    return torch.autograd.functional.jacobian(function, torch.from_numpy(x)).numpy()


def agree(obtained, expected, tolerance=1e-12):
    """Both are the same to a share of the largest entry."""
    assert obtained.shape == expected.shape
    assert obtained.dtype == np.float64
    assert np.abs(obtained - expected).max() <= tolerance * max(np.abs(expected).max(), 1e-300)
