"""Influence of a Jacobian in every convention, comparing it with a closed form, and the boundary bias of paddings."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from erfscope import ErfscopeError, theory


@pytest.fixture
def jacobian():
    return np.random.default_rng(1).standard_normal((3, 2, 4, 5))


def test_conventions_are_those_of_blocks(jacobian):
    """Entry by entry, from numpy's own norms."""
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


def test_the_energy_is_the_mean_over_random_seeds(jacobian):
    """E over signs v of |v^T J|^2 is the squared Frobenius norm."""
    every = [
        np.square(np.einsum("r,pris->pis", np.array(v), jacobian)).sum(2) for v in ((1, 1), (1, -1), (-1, 1), (-1, -1))
    ]
    np.testing.assert_allclose(np.mean(every, 0), theory.influence_of(jacobian, "energy"), rtol=1e-13)


def test_unknown_conventions_and_shapes_are_named(jacobian):
    with pytest.raises(ErfscopeError, match=r"unknown convention 'jacobi'.*did you mean 'jacobian'"):
        theory.influence_of(jacobian, "jacobi")
    with pytest.raises(ValueError, match=r"the Jacobian has shape \(3, 4\); it must be \(m, c_out, n, c_in\)"):
        theory.influence_of(np.ones((3, 4)))
    with pytest.raises(ValueError, match=r"takes \(4, 5\) \(nodes, channels\), the inner one gives \(3, 2\)"):
        theory.chain(jacobian, jacobian)
    with pytest.raises(ValueError, match=r"turns \(4, 5\) into \(3, 2\)"):
        theory.with_residual(jacobian)
    with pytest.raises(ValueError, match=r"each of 0 \.\. 2 once"):
        theory.permuted(np.eye(3), [0, 1, 1])
    with pytest.raises(ValueError, match="needs a square one"):
        theory.permuted(np.ones((2, 3)), [0, 1])


def test_a_comparison_finds_the_worst_entry():
    closed = np.array([[4.0, 0.0], [1.0, -8.0]])
    measured = closed + np.array([[1e-3, 0], [-4e-3, 2e-3]])
    agreement = theory.agreement(measured, closed)
    assert agreement.max_absolute == pytest.approx(4e-3)
    assert agreement.max_relative == pytest.approx(4e-3 / 8)  # of the largest entry, not of the entry itself
    assert agreement.worst == (1, 0)
    assert agreement.within(1e-3)
    assert not agreement.within(1e-4)
    assert theory.agreement(closed, closed).max_absolute == 0


def test_nothing_that_is_not_finite_agrees():
    for measured, closed in (
        ([[np.nan, 1]], [[0, 1]]),
        ([[0, 1]], [[np.nan, 1]]),
        ([[np.inf, 1]], [[np.inf, 1]]),
        ([[1, 1]], [[1, np.inf]]),
    ):
        agreement = theory.agreement(measured, closed)
        assert agreement.max_absolute == agreement.max_relative == np.inf
        assert not agreement.within(1e300)
    assert theory.agreement([[np.nan, 1]], [[0, 1]]).worst == (0, 0)


def test_against_zero_the_error_is_absolute():
    agreement = theory.agreement([[0.0, 3e-4]], [[0.0, 0.0]])
    assert agreement.max_relative == agreement.max_absolute == 3e-4


def test_other_shapes_do_not_compare():
    with pytest.raises(ValueError, match=r"shape \(2,\) cannot be compared with a closed form of shape \(1, 2\)"):
        theory.agreement([1.0, 2.0], [[1.0, 2.0]])
    with pytest.raises(ValueError, match="cannot be compared"):
        theory.agreement(np.empty((0, 3)), np.empty((0, 3)))


PADDINGS = {
    "full": lambda x: F.pad(x, (2, 2)),
    "circular": lambda x: F.pad(x, (1, 1), mode="circular"),
    "replicate": lambda x: F.pad(x, (1, 1), mode="replicate"),
    "same": lambda x: F.pad(x, (1, 1)),
    "valid": lambda x: x,
    "reflect": lambda x: F.pad(x, (1, 1), mode="reflect"),
}


@pytest.mark.parametrize(
    ("padding", "bias"),
    [("full", 0), ("circular", 0), ("replicate", 0), ("same", 1 / 3), ("valid", 2 / 3), ("reflect", 1 / 3)],
)
def test_padding_biases_the_border(padding, bias):
    """C11 of docs/theory.md: one layer with the kernel [1, 1, 1]."""
    x = torch.zeros(1, 1, 11, dtype=torch.float64, requires_grad=True)
    y = F.conv1d(PADDINGS[padding](x), torch.ones(1, 1, 3, dtype=torch.float64))
    totals = torch.autograd.grad(y.sum(), x)[0][0, 0].numpy()
    assert theory.boundary_bias(totals) == pytest.approx(bias, abs=1e-15)
    assert theory.boundary_bias(totals, 3.0) == pytest.approx(bias, abs=1e-15)


def test_the_boundary_bias_of_a_plane_is_taken_from_its_middle():
    totals = np.full((5, 7), -2.0)
    totals[0, 3] = -1.0
    assert theory.boundary_bias(totals) == 0.5
    with pytest.raises(ValueError, match="the interior's total influence is 0"):
        theory.boundary_bias(np.zeros(5))
    with pytest.raises(ValueError, match="there are no totals"):
        theory.boundary_bias([])
