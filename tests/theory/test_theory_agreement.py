"""Influence of a Jacobian in every convention, comparing it with a closed form, and the boundary bias of paddings."""

from __future__ import annotations

import numpy as np
import pytest

from erfscope import ErfscopeError, theory


@pytest.fixture
def jacobian():
    return np.random.default_rng(1).standard_normal((3, 2, 4, 5))


def test_conventions_are_those_of_blocks_and_the_energy_is_the_mean_over_random_seeds(jacobian):
    # Entry by entry, from numpy's own norms.
    for p in range(3):
        for i in range(4):
            block = jacobian[p, :, i]
            expected = {
                "jacobian": np.linalg.norm(block),
                "energy": np.linalg.norm(block) ** 2,
                "luo": sum(abs(block[0, s] + block[1, s]) for s in range(5)),
                "signed": block.sum(),
                "abs": np.abs(block).sum(),
            }
            for name, value in expected.items():
                assert theory.influence_of(jacobian, name)[p, i] == pytest.approx(value, rel=1e-13)
    assert set(theory.INFLUENCES) == set(expected)
    with pytest.raises(ErfscopeError, match=r"unknown convention 'jacobi'.*did you mean 'jacobian'"):
        theory.influence_of(jacobian, "jacobi")
    # E over signs v of |v^T J|^2 is the squared Frobenius norm.
    every = [
        np.square(np.einsum("r,pris->pis", np.array(v), jacobian)).sum(2) for v in ((1, 1), (1, -1), (-1, 1), (-1, -1))
    ]
    np.testing.assert_allclose(np.mean(every, 0), theory.influence_of(jacobian, "energy"), rtol=1e-13)


def test_a_comparison_finds_the_worst_entry_and_nothing_that_is_not_finite_agrees():
    closed = np.array([[4.0, 0.0], [1.0, -8.0]])
    measured = closed + np.array([[1e-3, 0], [-4e-3, 2e-3]])
    agreement = theory.agreement(measured, closed)
    assert agreement.max_absolute == pytest.approx(4e-3)
    assert agreement.max_relative == pytest.approx(4e-3 / 8)  # of the largest entry, not of the entry itself
    assert agreement.worst == (1, 0)
    assert agreement.within(1e-3)
    assert not agreement.within(1e-4)
    assert theory.agreement(closed, closed).max_absolute == 0
    agreement = theory.agreement([[0.0, 3e-4]], [[0.0, 0.0]])
    assert agreement.max_relative == agreement.max_absolute == 3e-4  # against zero the error is absolute
    nan, inf = np.nan, np.inf
    for measured, closed in (([nan, 1], [0, 1]), ([0, 1], [nan, 1]), ([inf, 1], [inf, 1]), ([1, 1], [1, inf])):
        agreement = theory.agreement([measured], [closed])
        assert agreement.max_absolute == agreement.max_relative == np.inf
        assert not agreement.within(1e300)
    assert theory.agreement([[np.nan, 1]], [[0, 1]]).worst == (0, 0)


def test_the_boundary_bias_of_a_plane_is_taken_from_its_middle_or_from_what_is_given():
    """Those of paddings: docs/theory.md, C11, in the study of padding."""
    totals = np.full((5, 7), -2.0)
    totals[0, 3] = -1.0
    assert theory.boundary_bias(totals) == theory.boundary_bias(totals, -2.0) == 0.5
    assert theory.boundary_bias(totals, -4.0) == 0.75
