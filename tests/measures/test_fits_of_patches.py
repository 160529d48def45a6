"""A fit is named and drawn where it holds most of the map, not where it is that of a bright patch alone."""

from __future__ import annotations

import numpy as np
import pytest

from erfscope import ErfMap
from erfscope.core.answer.measures import measure_map

NAMES = ["gaussian_sigma_row", "gaussian_r2", "best_shape"]


def blob(base: float, sigma: float = 3.0, side: int = 81) -> ErfMap:
    """A Gaussian on a flat base, which holds ``base`` of the mass."""
    z = (np.arange(side) - side // 2) / sigma
    peak = np.exp(-np.add.outer(z**2, z**2) / 2)
    values = (1 - base) * peak / peak.sum() + base / side**2
    return ErfMap(values=values, center_px=(side // 2,) * 2, stride_px=(1.0, 1.0))


@pytest.mark.parametrize("base", [0.0, 0.3])
def test_a_gaussian_that_holds_most_of_the_map_is_named(base):
    found = measure_map(blob(base), NAMES)
    assert found["best_shape"] == "gaussian"
    assert found["gaussian_sigma_row"] == pytest.approx(3, rel=0.05)


def test_a_bright_patch_that_holds_a_quarter_of_the_map_is_no_simple_shape():
    """As a ViT's own patch: the fit explains the variance, and misses the mass."""
    found = measure_map(blob(0.75), NAMES)
    assert found["gaussian_r2"] > 0.8
    assert found["best_shape"] == "none"
    assert found["gaussian_sigma_row"] is None
