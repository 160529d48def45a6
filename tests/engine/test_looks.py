"""A run that ends at an error: simulated with images of which the truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from erfscope import CONVENTIONS, ErfMap
from erfscope.core.answer.maps.accumulator import MapAccumulator, jackknife_se
from erfscope.core.run.engine.looks import look, places_of_looks
from erfscope.core.run.engine.outcome import half_mass_radius

CELLS, TARGET, LIMIT = 41, 0.04, 2000


def shares(rng: np.random.Generator, count: int) -> np.ndarray:
    """Energies of images on a line: a narrow bell and a wide one, whose weight is log-normal."""
    offsets = np.arange(CELLS) - CELLS // 2
    narrow, wide = (np.exp(-(offsets**2) / (2 * width**2)) for width in (2.0, 8.0))
    found = narrow + 0.3 * np.exp(1.2 * rng.normal(size=(count, 1))) * wide
    return found / found.sum(1, keepdims=True)


def erf_of(average: MapAccumulator) -> ErfMap:
    return ErfMap(values=average.values(), center_px=(CELLS // 2,), stride_px=(1.0,))


def run(images: np.ndarray) -> MapAccumulator:
    """The sums of a run over these images that ends at the error."""
    average = MapAccumulator(CONVENTIONS["energy"], LIMIT, (CELLS,), None)
    for place in places_of_looks(LIMIT):
        for image in images[average.n_images : place]:
            average.sums.add(average.group_of(average.n_images), image)
            average.n_images += 1
        r50 = look(erf_of(average), average)
        if r50.se <= TARGET * float(r50):
            break
    return average


def test_looks_are_at_the_same_images_whatever_comes_behind_them():
    assert places_of_looks(7) == [7]
    assert places_of_looks(40) == [40]
    assert places_of_looks(200) == [40, 50, 60, 70, 80, 100, 120, 150, 180, 200]
    assert set(places_of_looks(1000)[:-1]) < set(places_of_looks(5000))


def test_a_single_look_prints_the_error_of_its_images():
    average = run(shares(np.random.default_rng(0), LIMIT))
    average.looks = ()
    own = look(erf_of(average), average)
    assert average.spread == pytest.approx(1)
    assert average.looks == ((average.n_images, pytest.approx(jackknife_se(own.leave_one_out) ** 2)),)


@pytest.mark.slow
def test_the_truth_lies_within_the_errors_of_runs_that_end_at_one():
    rng = np.random.default_rng(3)
    many = MapAccumulator(CONVENTIONS["energy"], LIMIT, (CELLS,), None)
    many.sums.add(0, shares(rng, 200_000).mean(0))
    truth, offs, ends = float(look(erf_of(many), many)), [], []
    for _ in range(400):
        average = run(shares(rng, LIMIT))
        r50 = half_mass_radius(erf_of(average), average)
        offs.append(abs(float(r50) - truth) / r50.se)
        ends.append(average.n_images)
    assert 40 < np.mean(ends) < 400
    assert 0.64 <= np.mean(np.array(offs) < 1) <= 0.74
    assert 0.92 <= np.mean(np.array(offs) < 2) <= 0.98
