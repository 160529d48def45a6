"""Errors of numbers that a function makes of a map: those of measures, where it makes these."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import erfscope
from erfscope import MeasurementError


def measured() -> erfscope.Result:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 5, padding=2), nn.Tanh(), nn.Conv2d(4, 2, 5, padding=2)).eval()
    return erfscope.analyze(net, input_size=24, samples=6, measures=["sigma_row", "sigma_col"])


def sigmas(magnitudes: np.ndarray) -> np.ndarray:
    """The standard deviations of a map along its axes."""
    weights, places = magnitudes / magnitudes.sum(), np.indices(magnitudes.shape)
    means = (weights * places).sum((1, 2), keepdims=True)
    return np.sqrt((weights * (places - means) ** 2).sum((1, 2)))


def test_the_errors_of_a_measure_computed_anew_are_its_own():
    result = measured()
    own = [result[name] for name in ("sigma_row", "sigma_col")]
    np.testing.assert_allclose(sigmas(result.map.values), [each.value for each in own], rtol=1e-12)
    np.testing.assert_allclose(result.errors_of(sigmas), [each.se for each in own], rtol=1e-6)


def test_there_are_no_errors_without_the_sums_of_groups():
    result = measured()
    assert np.isnan(replace(result, sums=None).errors_of(sigmas)).all()
    with pytest.raises(MeasurementError, match="has no map"):
        replace(result, map=None).errors_of(sigmas)
