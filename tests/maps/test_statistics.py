"""Group sums, the jackknife and paired differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from erfscope.core import MeasureValue
from erfscope.core.answer.maps.accumulator import GROUPS, GroupSums, error_bar, jackknife_se, signed_noise_floor


def dealt(maps: np.ndarray, indices) -> GroupSums:
    sums = GroupSums(shape=maps.shape[1:])
    for index in indices:
        sums.add(index % GROUPS, maps[index])
    return sums


def test_mean_and_leave_one_out_are_plain_means_over_the_images():
    maps = np.random.default_rng(0).normal(size=(23, 4, 5))
    sums = dealt(maps, range(23))
    np.testing.assert_allclose(sums.mean(), maps.mean(axis=0), atol=1e-14)
    assert sums.counts == {group: 3.0 if group < 3 else 2.0 for group in range(10)}
    without = sums.leave_one_out()
    assert len(without) == 10
    for group, found in enumerate(without):
        np.testing.assert_allclose(found, maps[np.arange(23) % 10 != group].mean(axis=0), atol=1e-14)


def test_sums_of_other_boxes_or_shapes_and_groups_there_are_not_are_refused():
    box = (slice(0, 2), slice(1, 3))
    boxed, whole = GroupSums(shape=(2, 2), box=box), GroupSums(shape=(2, 2))
    for one, other in ((boxed, whole), (whole, boxed), (whole, GroupSums(shape=(2, 3)))):
        with pytest.raises(ValueError, match="cannot be merged"):
            one.merge(other)
    whole.merge(GroupSums())
    for group in (-1, GROUPS):
        with pytest.raises(ValueError, match=f"group {group} is not in 0 .. 9"):
            whole.add(group, np.ones((2, 2)))


def test_a_sum_of_several_contributions_counts_as_that_many():
    maps = np.random.default_rng(1).normal(size=(5, 3))
    one_by_one, together = dealt(maps, range(5)), GroupSums(shape=(3,))
    together.add(0, maps[:3].sum(axis=0), weight=3.0)
    together.add(1, maps[3:].sum(axis=0), weight=2.0)
    np.testing.assert_allclose(together.mean(), one_by_one.mean(), atol=1e-15)
    assert together.counts == {0: 3.0, 1: 2.0}
    np.testing.assert_allclose(together.leave_one_out()[0], maps[3:].mean(axis=0), atol=1e-15)


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(st.permutations(range(6)), st.integers(0, 2**32 - 1))
def test_shards_merge_in_any_order(order, seed):
    rng = np.random.default_rng(seed)
    maps = rng.exponential(size=(40, 3, 4)) * 10.0 ** rng.uniform(-6, 0, size=(40, 1, 1))
    owner = rng.integers(6, size=40)
    merged = GroupSums(shape=(3, 4))
    for shard in order:
        merged.merge(dealt(maps, np.flatnonzero(owner == shard)))
    whole = dealt(maps, range(40))
    np.testing.assert_allclose(merged.mean(), whole.mean(), rtol=1e-12)
    assert merged.counts == whole.counts
    for ours, theirs in zip(merged.leave_one_out(), whole.leave_one_out(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def test_leaving_a_group_out_never_makes_a_non_negative_map_negative():
    sums = GroupSums(shape=(3,))
    for group in range(3):
        sums.add(group, np.array([0.1, 1e-20, 0.0]) * (1e16 if group == 0 else 1))
    assert all(part.min() >= 0 for part in sums.leave_one_out())
    np.testing.assert_allclose(sums.leave_one_out()[0], [0.1, 1e-20, 0.0], rtol=1e-15)


def test_one_group_or_none_has_nothing_to_leave_out():
    sums = GroupSums(shape=(2,))
    assert sums.leave_one_out() == []
    with pytest.raises(ValueError, match="no contribution"):
        sums.mean()
    sums.add(4, np.ones(2))
    assert sums.leave_one_out() == []
    np.testing.assert_array_equal(sums.mean(), np.ones(2))


def test_a_box_is_placed_in_the_full_map():
    sums = GroupSums(shape=(2, 3), box=(slice(1, 3), slice(4, 7)))
    sums.add(0, np.full((2, 3), 2.0))
    full = sums.full((5, 8))
    assert full.sum() == 12
    np.testing.assert_array_equal(full[1:3, 4:7], np.full((2, 3), 2.0))
    assert sums.full((5, 8), np.ones((2, 3))).sum() == 6
    with pytest.raises(ValueError, match="do not fill"):
        sums.full((2, 8))


def test_the_jackknife_of_a_mean_is_its_standard_error():
    values = np.random.default_rng(0).normal(size=10)
    without = (values.sum() - values) / 9
    assert jackknife_se(without.tolist()) == pytest.approx(values.std(ddof=1) / math.sqrt(10), rel=1e-12)


@settings(deadline=None, max_examples=30)
@given(st.floats(-90, 90), st.lists(st.floats(-20, 20), min_size=2, max_size=10))
def test_the_error_of_an_angle_does_not_depend_on_where_the_axis_points(angle, steps):
    turned = [(angle + step + 90) % 180 - 90 for step in steps]
    assert jackknife_se(turned, period=180.0) == pytest.approx(jackknife_se(steps), abs=1e-6)


@given(st.floats(-90, 90), st.lists(st.floats(-20, 20), min_size=4, max_size=10))
def test_the_jackknifes_error_of_a_value_is_that_of_its_difference_from_what_never_varies(angle, steps):
    turned = [(angle + step + 90) % 180 - 90 for step in steps]
    for ours, kind in ((steps, "radius"), (turned, "angle")):
        found, fixed = value(ours[0], ours, kind), value(1.0, [1.0] * len(steps), kind)
        expected = pytest.approx(jackknife_se(steps), abs=1e-6)
        # In pairs, and of two separate measurements.
        assert (found.jackknife_se(), found.jackknife_se(fixed)) == (expected, expected)
        assert found.jackknife_se(value(1.0, [1.0] * (len(steps) + 1), kind)) == expected


def value(number, without=(), kind="radius") -> MeasureValue:
    return MeasureValue(value=number, leave_one_out=tuple(without), kind=kind)


def test_a_paired_difference_cancels_what_both_maps_share():
    rng = np.random.default_rng(0)
    shared, own = rng.normal(size=10), 0.1 * rng.normal(size=10)
    difference, error = value(own.mean() + 2.0, 2.0 + shared + own).minus(value(0.0, shared))
    assert difference == pytest.approx(own.mean() + 2.0)
    bias = 9 * ((own + 2.0).mean() - difference)
    assert bias == pytest.approx(0, abs=1e-12)
    assert error == pytest.approx(error_bar(0.0, (own - own.mean()).tolist()), rel=1e-9)
    assert error < 0.3 * error_bar(0.0, (shared - shared.mean()).tolist())


def test_a_paired_difference_of_angles_takes_the_short_way_round():
    a, b = value(89.0, [88.0, 89.0, 90.0, -89.0], "angle"), value(-89.0, [-89.0] * 4, "angle")
    difference, error = a.minus(b)
    assert difference == pytest.approx(-2.0)
    assert error == pytest.approx(error_bar(-2.0, [-3.0, -2.0, -1.0, 0.0]))


@pytest.mark.parametrize(("ours", "theirs"), [(3, 3), (10, 9), (0, 0)])
def test_a_paired_difference_without_four_common_groups_has_no_error(ours, theirs):
    assert value(2.0, np.arange(ours)).minus(value(0.5, np.arange(theirs))) == (1.5, None)


def test_words_and_missing_values_have_no_difference():
    assert value(None).minus(value(1.0)) == (None, None)
    assert value("box", kind="shape").minus(value("box", kind="shape")) == (None, None)


def test_the_mean_of_signed_noise_falls_with_the_root_of_the_number_of_images():
    noise = np.random.default_rng(0).normal(size=(64, 4000))
    assert np.abs(noise.mean(axis=0)).mean() / np.abs(noise).mean() == pytest.approx(signed_noise_floor(64), rel=0.05)
    with pytest.raises(ValueError, match="one image"):
        signed_noise_floor(0)
