"""What noise on the reference says of a gradient, from its definitions: shares of energy, errors, and images joined."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from erfscope.core.answer.maps.probe import Probe, is_off
from erfscope.core.answer.maps.trust import Region, Step, Trust, are_off, join

FOUND = np.array([0.5, -1.25, 2.0, 0.25])


def probe(predicted: Sequence[float], found: Sequence[float], images: Sequence[int] | None = None) -> Probe:
    count = len(found)
    return Probe(
        sigma=1e-3,
        images=tuple(range(count) if images is None else images),
        predicted=tuple(predicted),
        found=tuple(found),
        shares=(1.0,) * count,
    )


def slope(predicted: np.ndarray, found: np.ndarray) -> float:
    return float(predicted @ found / (predicted @ predicted))


@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_what_is_found_splits_into_a_part_in_proportion_and_one_at_right_angles(scale: float) -> None:
    """found = 2 p + q with q at right angles to p: of |found|^2 the share |q|^2 is unexplained."""
    p, q = scale * np.array([1.0, 2.0, -1.0, 0.0]), scale * np.array([2.0, -1.0, 0.0, 3.0])
    own = probe(p, 2 * p + q)
    assert own.unexplained == pytest.approx(14 / (4 * 6 + 14), rel=1e-12)
    assert own.misfit == pytest.approx((6 + 14) / 6, rel=1e-12)
    assert own.missed == pytest.approx(scale**2 * (6 + 14) / 4, rel=1e-12)
    assert own.slope.value == pytest.approx(2, rel=1e-12)
    assert (probe(p, 0 * p).unexplained, probe(0 * p, p).unexplained) == (1, 0)


def test_a_gradient_that_explains_less_than_half_or_errs_by_more_than_it_predicts_is_off() -> None:
    p, q = np.array([1.0, 1.0]), np.array([1.0, -1.0])
    assert [is_off(probe(p, p + share * q)) for share in (0, 1.1)] == [False, True]
    assert is_off(probe(p, 2.1 * p))
    # Either is enough: what is in proportion may be small and its error wide.
    assert is_off(probe(p, 0.5 * p + 0.6 * q))
    # Of two draws errors are wide, and half as much again may be chance.
    assert not is_off(probe([1, 1], [1.5, 1.49]))


def test_what_the_gradient_explains_at_larger_noise_overrules_only_what_finds_nothing() -> None:
    """Two sigmas that miss the same say that a gradient is off, though a third agrees; a model that rounds is flat at
    both, and there the third is right."""
    p, q = np.array([1.0, -1.0, 2.0]), np.array([1.0, 1.0, 0.0])

    def at(sigma: float, found: np.ndarray) -> Probe:
        return replace(probe(p, found), sigma=sigma)

    for found, expected in ((0.6 * p + 0.2 * q, True), (0 * p, False)):
        assert are_off([at(1e-3, found), at(2e-3, found), at(1e-2, p)]) is expected


@pytest.mark.parametrize(("count", "by"), [(8, "image"), (7, "draw")])
def test_errors_are_over_images_where_there_are_eight_and_else_over_draws(count: int, by: str) -> None:
    """The delete-one jackknife, written out."""
    predicted, noise = np.random.default_rng(count).normal(size=(2, 2 * count))
    images = [number // 2 for number in range(2 * count)]
    found = predicted + 0.1 * noise
    groups = np.array(images if by == "image" else range(2 * count))
    left = np.array([slope(predicted[groups != one], found[groups != one]) for one in np.unique(groups)])
    se = math.sqrt((len(left) - 1) / len(left) * float(((left - left.mean()) ** 2).sum()))
    assert probe(predicted, found, images).slope.se == pytest.approx(se, rel=1e-12)


def test_tests_of_parts_of_the_images_join_to_that_of_all() -> None:
    def of(images: Sequence[int], pick: Callable[[np.ndarray], np.ndarray] = lambda each: each) -> Trust:
        own = probe(FOUND[[*images]] + 0.1, FOUND[[*images]], images)
        energies = tuple(float(image + 1) for image in images)
        sigmas = {0.01: (1.0,) * len(images), 0.1: energies, 1.0: (0.5,) * len(images)}
        steps = tuple(Step(sigma=sigma, images=tuple(images), energies=each) for sigma, each in sigmas.items())
        return Trust(
            gradient=(own,),
            regions=(Region(name="within", ends_at=3.0, cells=9, probe=own, further=(own,)),),
            amplitudes=energies,
            ladder=steps,
            passes=5 * len(images),
            lost_in_rounding=len(images),
            grey_levels=50.0,
        )

    whole = join([of([0, 1]), of([2]), of([3])])
    assert whole == of([0, 1, 2, 3])
    assert whole.at_tenth == whole.ladder[1].ratio == (2.5, pytest.approx(math.sqrt(5 / 3 / 4)))
    assert whole.n_images == 4
