"""Radii and sides are exact roots of their definitions, written out here cell by cell."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from erfscope import ErfMap
from erfscope.core.answer.measures import measure_map


def erf_of(values, center) -> ErfMap:
    return ErfMap(values=values, center_px=center, stride_px=(1.0, 1.0))


def number(erf: ErfMap, name: str) -> float:
    value = measure_map(erf, [name])[name]
    assert isinstance(value, float)
    return value


def enclosed_by_radius(erf: ErfMap, r: float) -> float:
    p = erf.values / erf.values.sum()
    return sum(
        p[i, j] * min(max(r - math.hypot(i - erf.center_px[0], j - erf.center_px[1]) + 0.5, 0), 1)
        for i in range(p.shape[0])
        for j in range(p.shape[1])
    )


def enclosed_by_square(erf: ErfMap, a: float) -> float:
    p = erf.values / erf.values.sum()
    return sum(
        p[i, j]
        * min(max(a + 0.5 - abs(i - erf.center_px[0]), 0), 1)
        * min(max(a + 0.5 - abs(j - erf.center_px[1]), 0), 1)
        for i in range(p.shape[0])
        for j in range(p.shape[1])
    )


def bisected(function, share: float, high: float) -> float:
    low = 0.0
    if function(low) >= share:
        return low
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if function(middle) >= share else (middle, high)
    return high


@pytest.mark.parametrize("center", [(6.0, 7.0), (0.5, 11.5), (3.27, 9.81), (-2.0, 4.0)])
def test_radii_and_sides_agree_with_bisection_on_their_definitions(center):
    erf = erf_of(np.random.default_rng(3).exponential(size=(12, 15)) ** 2, center)
    for share in (50, 90, 95):
        expected = bisected(lambda r: enclosed_by_radius(erf, r), share / 100, 40)
        assert number(erf, f"r{share}") == pytest.approx(expected, abs=1e-9)
    for share in (20, 30, 50, 99):
        expected = 2 * bisected(lambda a: enclosed_by_square(erf, a), share / 100, 40)
        assert number(erf, f"side{share}") == pytest.approx(expected, abs=1e-9)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(
    values=hnp.arrays(
        np.float64, st.tuples(st.integers(1, 7), st.integers(1, 7)), elements=st.sampled_from([0.0, 0.0, 1.0, 2.0, 7.5])
    ).filter(lambda values: values.sum() > 0),
    center=st.tuples(st.floats(-1, 7), st.floats(-1, 7)),
)
def test_a_radius_or_side_is_the_smallest_that_holds_the_share_even_on_maps_with_gaps(values, center):
    erf = erf_of(values, center)
    r50, half50 = number(erf, "r50"), number(erf, "side50") / 2
    assert enclosed_by_radius(erf, r50) >= 0.5 - 1e-9
    assert enclosed_by_square(erf, half50) >= 0.5 - 1e-9
    assert r50 == 0 or enclosed_by_radius(erf, r50 - 1e-6) < 0.5
    assert half50 == 0 or enclosed_by_square(erf, half50 - 1e-6) < 0.5


@pytest.mark.parametrize("count", range(2, 30))
def test_rounding_does_not_move_a_radius_or_side_across_a_gap(count):
    values = np.zeros((1, 200))
    values[0, :count] = 1 / count
    values[0, 150] = 1
    for outside in (0.0, 0.3):
        erf = erf_of(values, (0.0, -outside))
        assert number(erf, "r50") == pytest.approx(count - 0.5 + outside, abs=1e-6)
        assert number(erf, "side50") == pytest.approx(2 * (count - 0.5 + outside), abs=1e-6)
