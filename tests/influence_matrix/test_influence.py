"""Influence matrices against the full Jacobian, closed forms and invariances; what they leave alone; what they
refuse."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from erfscope import ErfWarning, influence
from erfscope.apps.lab.influence_matrix.compute import Products, can_be_taken_together
from erfscope.core import ErfscopeError, MeasurementError

DOUBLE = torch.float64
#: Sums over the channels of the full Jacobian J[p, r, i, s], as docs/theory.md defines them.
DEFINED = {
    "jacobian": lambda j: j.square().sum((1, 3)).sqrt(),
    "energy": lambda j: j.square().sum((1, 3)),
    "luo": lambda j: j.sum(1).abs().sum(2),
    "signed": lambda j: j.sum((1, 3)),
    "abs": lambda j: j.abs().sum((1, 3)),
}


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = DOUBLE) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def attend(x: Tensor) -> Tensor:
    """Softmax attention with a residual and a ReLU: nothing about it is linear, 3 channels in and 4 out."""
    q, k, v = (x @ normal(3, 4, seed=seed).to(x) for seed in (1, 2, 3))
    return torch.relu(torch.softmax(q @ k.T, 1) @ v) + 0.3 * v


def pool(x: Tensor) -> Tensor:
    """Fewer outputs than inputs, and an output that depends on nothing."""
    return torch.stack([x[:3].prod(0), x.sum(0) ** 2, torch.ones_like(x[0])])


def expected(fn, x: Tensor, convention: str) -> np.ndarray:
    return DEFINED[convention](torch.autograd.functional.jacobian(fn, x)).numpy()


@pytest.mark.parametrize("convention", DEFINED)
def test_influence_is_the_sum_over_channels_of_the_full_jacobian_and_its_mean_over_samples(convention):
    x = normal(7, 3)
    for fn in (attend, pool):
        found = influence(fn, x, convention)
        np.testing.assert_allclose(found.values, expected(fn, x, convention), rtol=0, atol=1e-12)
        assert (found.values.dtype, found.n_outputs, found.n_samples, found.se) == (np.float64, len(fn(x)), 1, None)
    x = normal(6, 5, 3)
    each = np.stack([expected(attend, sample, convention) for sample in x])
    found = influence(attend, x, convention)
    np.testing.assert_allclose(found.values, each.mean(0), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(found.se, each.std(0, ddof=1) / np.sqrt(6), rtol=1e-10, atol=1e-13)
    assert found.n_samples == 6


@pytest.mark.parametrize("convention", DEFINED)
def test_products_taken_together_in_any_number_give_the_same(convention, monkeypatch):
    x = normal(6, 3)
    for size in (1, 2, 5, 1000):
        monkeypatch.setattr("erfscope.apps.lab.influence_matrix.compute.TOGETHER", size)
        found = influence(attend, x, convention).values
        np.testing.assert_allclose(found, expected(attend, x, convention), rtol=0, atol=1e-12)


def test_rows_are_the_outputs_asked_for_in_the_order_asked_for_and_permuted_nodes_have_the_permuted_matrix():
    x, order = normal(7, 3), torch.randperm(7, generator=torch.Generator().manual_seed(3))
    whole, some = influence(attend, x).values, influence(attend, x, outputs=[5, -7, -1, 5])
    assert some.outputs == (5, 0, 6, 5)
    np.testing.assert_array_equal(some.values, whole[[5, 0, 6, 5]])
    np.testing.assert_array_equal(influence(attend, x, outputs=np.array([2])).values, whole[[2]])
    np.testing.assert_allclose(influence(attend, x[order]).values, whole[order][:, order], rtol=1e-12, atol=1e-14)
    a, w = normal(5, 8, seed=1), normal(3, 2, seed=2)
    found = influence(lambda x: a @ x @ w, normal(8, 3), "signed")
    np.testing.assert_allclose(found.values, (a * w.sum()).numpy(), rtol=1e-13)


def test_derivatives_are_in_the_dtype_of_x_sums_in_float64_and_spreads_not_lost_in_rounding():
    seen = []

    def fn(x: Tensor) -> Tensor:
        seen.append(x.dtype)
        return 1e-30 * x

    found = influence(fn, normal(3, 2, dtype=torch.float32), "energy")
    assert seen == [torch.float32]
    # In float32 the square would be zero.
    np.testing.assert_allclose(found.values, 2e-60 * np.eye(3), rtol=1e-6)
    # A sum of squares minus the square of a sum would have no digit left at 1e9 + 1, 1e9 + 2, ...
    slopes = iter([1e9 + k for k in (1.0, 2, 3, 4)])
    found = influence(lambda x: next(slopes) * x, torch.zeros(4, 1, 1, dtype=DOUBLE), "signed")
    assert found.values.item() == 1e9 + 2.5
    assert found.se.item() == pytest.approx(np.std([1, 2, 3, 4], ddof=1) / 2, rel=1e-9)


def test_an_output_that_does_not_depend_on_x_has_a_row_of_zeros():
    np.testing.assert_array_equal(influence(pool, normal(4, 2)).values[2], 0)
    free = nn.Parameter(torch.ones(3, 2, dtype=DOUBLE))
    np.testing.assert_array_equal(influence(lambda x: free * 2, normal(4, 2)).values, np.zeros((3, 4)))
    for fn in (lambda x: torch.ones(3, 2), lambda x: x.detach() * 2):
        with pytest.warns(ErfWarning, match="if fn detaches, or runs without gradients, take that out"):
            found = influence(fn, normal(4, 2)).values
        np.testing.assert_array_equal(found, np.zeros((len(fn(normal(4, 2))), 4)))


@pytest.mark.parametrize(
    ("whose", "draw"),
    [
        ("PyTorch's", lambda x: nn.functional.dropout(x, 0.5)),
        ("NumPy's", lambda x: x * float(np.random.rand())),  # noqa: NPY002
        ("Python's", lambda x: x * random.random()),
    ],
)
def test_one_draw_of_random_numbers_is_said_to_be_one(whose, draw):
    with pytest.warns(ErfWarning, match=rf"draws random numbers \({whose}\).* one draw"):
        influence(draw, normal(4, 2))


@pytest.mark.parametrize(
    "mode",
    [torch.no_grad, torch.inference_mode, torch.enable_grad, lambda: torch.autocast("cpu", dtype=torch.bfloat16)],
)
def test_the_callers_mode_does_not_matter_and_stays(mode):
    x, linear = normal(6, 3, dtype=torch.float32), nn.Linear(3, 4)
    wanted, alone = influence(attend, normal(5, 3)).values, influence(linear, x).values
    with mode():
        before = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
        np.testing.assert_array_equal(influence(attend, normal(5, 3)).values, wanted)
        np.testing.assert_array_equal(influence(linear, x).values, alone)
        after = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
        assert before == after
        x = normal(5, 3)
    np.testing.assert_array_equal(influence(attend, x).values, wanted)


def test_x_and_the_modules_are_left_as_found_and_the_function_is_called_once_per_sample():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU()).double().train()
    net[1].eval()
    frozen = {name: value.clone() for name, value in net.state_dict().items()}
    net[0].bias.grad = torch.full((4,), 7.0, dtype=DOUBLE)
    x = normal(6, 3).requires_grad_(True)
    x.grad = torch.ones_like(x)
    influence(net, x)
    assert x.requires_grad
    assert x.grad.eq(1).all()
    assert net[0].weight.grad is None
    assert net[0].bias.grad.eq(7).all()
    assert [module.training for module in net] == [True, False, True]
    assert all(torch.equal(value, frozen[name]) for name, value in net.state_dict().items())
    plain = normal(6, 3)
    influence(net, plain)
    assert not plain.requires_grad
    norm = nn.BatchNorm1d(3).double()
    assert (influence(norm, normal(5, 3)).values > 1e-6).all()
    assert np.count_nonzero(influence(norm.eval(), normal(5, 3)).values) == 5
    calls = []
    influence(lambda x: calls.append(1) or x * 2, normal(3, 40, 2))
    assert len(calls) == 3


def times_three(backward) -> type[torch.autograd.Function]:
    """y = 3 x, with a backward pass of its own."""
    methods = {"forward": staticmethod(lambda ctx, x: 3 * x), "backward": staticmethod(lambda ctx, g: backward(g))}
    return type("Times", (torch.autograd.Function,), methods)


#: One that numpy computes, so that vmap cannot batch it, and one that is right for one product and not for several.
PLAIN = times_three(lambda g: torch.from_numpy(3 * g.numpy()))
WRONG = times_three(lambda g: 3 * g if not torch._C._functorch.is_legacy_batchedtensor(g) else 4 * g)


def made(fn, n: int = 20) -> Products:
    x = normal(n, 2).requires_grad_(True)
    return Products(x=x, y=fn(x), outputs=range(n), exact=True)


@pytest.mark.parametrize("function", [PLAIN, WRONG], ids=["numpy", "wrong"])
def test_products_that_cannot_be_taken_together_are_looped(function):
    assert not can_be_taken_together(made(function.apply))
    np.testing.assert_allclose(influence(function.apply, normal(20, 2), "signed").values, 6 * np.eye(20), rtol=1e-15)


def test_what_does_not_fit_into_memory_is_taken_in_parts_or_refused_before_it_is_made(monkeypatch):
    taken, right = [], Products.together

    def small(own, numbers):
        taken.append(len(numbers))
        if len(numbers) > 8:
            raise MemoryError
        return right(own, numbers)

    monkeypatch.setattr(Products, "together", small)
    x = normal(6, 3)
    np.testing.assert_allclose(influence(attend, x).values, expected(attend, x, "jacobian"), rtol=0, atol=1e-12)
    assert taken == [2, 24, 16, 8, 8, 8]
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=2000))
    with pytest.raises(MeasurementError, match=r"a matrix of 10 x 10 needs about .* of memory.*ask for fewer outputs"):
        influence(torch.sin, normal(10, 2))
    assert influence(torch.sin, normal(10, 2), outputs=[0]).values.shape == (1, 10)


def nan_at(x: Tensor) -> Tensor:
    y = x * 1
    y[2, 1] = torch.nan
    return y


X = normal(4, 2).abs()


@pytest.mark.parametrize(
    ("fn", "x", "outputs", "words"),
    [
        (lambda x: (x, x), X, None, r"gives a tuple; it must give a tensor \(m, c'\)"),
        (lambda x: x.sum(), X, None, r"shape \(\).*must give a dense one, \(m, c'\)"),
        (lambda x: x.argsort(0), X, None, "gives int64, which has no derivative"),
        (nan_at, X, None, "output 2 of fn is not finite, in channel 1"),
        (
            lambda x: (x * torch.tensor([[1.0], [1], [0], [0]])).sqrt(),
            *(X, None, "derivative of output 0 with respect to input 2 is not finite"),
        ),
        (torch.sin, np.ones((3, 2)), None, r"x is a ndarray; influence takes a torch.Tensor"),
        (torch.sin, torch.ones(3), None, r"x has shape \(3,\); influence takes node features \(n, c\)"),
        (torch.sin, torch.ones(3, 2, dtype=torch.int32), None, "x is int32, which has no derivative"),
        (torch.sin, torch.full((3, 2), torch.inf), None, "x holds numbers that are not finite"),
        (torch.sin, X, [0, 4], "no output 4; fn gives 4, numbers 0 to 3"),
        (torch.sin, X, [], "outputs is empty"),
        (torch.sin, X, [0.5], "list of numbers of output nodes"),
    ],
)
def test_what_is_no_finite_map_of_nodes_is_refused(fn, x, outputs, words):
    with pytest.raises(MeasurementError if x is X and outputs is None else ErfscopeError, match=words):
        influence(fn, x, outputs=outputs)


def test_the_sample_that_fails_is_named():
    x = torch.ones(3, 4, 2, dtype=DOUBLE)
    x[1, 3] = -1
    with pytest.raises(MeasurementError, match="output 3 of sample 1 of fn is not finite"):
        influence(torch.log, x)
    x[1, 3] = 0
    words = "derivative of output 0 of sample 1 with respect to input 3 is not finite"
    with pytest.raises(MeasurementError, match=words):
        influence(torch.sqrt, x)
    with pytest.raises(MeasurementError, match="2 outputs of sample 1, and 1 of the first"):
        influence(lambda s: s[: 1 + int(s[0, 0])], torch.stack([torch.zeros(4, 1), torch.ones(4, 1)]))


def test_the_result_is_read_only_and_an_array_to_numpy():
    found = influence(attend, normal(2, 5, 3), "luo", outputs=[0, 3])
    for array in (found.values, found.se):
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0] = 1
    np.testing.assert_array_equal(np.asarray(found), found.values)
    np.testing.assert_array_equal(np.asarray(found, dtype=np.float32), found.values.astype(np.float32))
    assert repr(found) == "<Influence luo: 2 of 5 outputs x 5 inputs, mean of 2 samples>"
    assert repr(influence(attend, normal(5, 3))) == "<Influence jacobian: 5 outputs x 5 inputs>"


def convolved(mode: str, n: int = 12):
    """A line of nodes of one channel through a kernel of three ones, padded by one."""

    def fn(x: Tensor) -> Tensor:
        padded = nn.functional.pad(x.T[None], (1, 1), mode=mode)
        return nn.functional.conv1d(padded, torch.ones(1, 1, 3, dtype=x.dtype))[0].T

    return fn


@pytest.mark.parametrize(
    ("mode", "first", "bias"),
    [("constant", [2, 3, 3], 1 / 3), ("circular", [3, 3, 3], 0), ("reflect", [2, 4, 3], 1 / 3)],
)
def test_the_boundary_bias_is_that_of_the_padding(mode, first, bias):
    """docs/theory.md, C11: T(i) is uniform for circular and replicate padding, off by a third for zeros and
    reflection."""
    found = influence(convolved(mode), normal(12, 1), "signed")
    totals = found.marginals(interior=range(3, 9))
    np.testing.assert_allclose(totals.per_input, [*first, *[3] * 6, *first[::-1]], rtol=1e-13)
    np.testing.assert_allclose(totals.per_output, found.values.sum(1), rtol=1e-13)
    assert totals.interior == pytest.approx(3)
    assert totals.boundary_bias == pytest.approx(bias, abs=1e-13)
    mask = np.zeros((3, 4), dtype=bool).ravel()
    mask[3:9] = True
    assert found.marginals(mask.reshape(3, 4)).boundary_bias == totals.boundary_bias


def test_marginals_without_an_interior_claim_no_bias_and_one_that_does_not_fit_is_refused():
    totals = influence(attend, normal(5, 3), outputs=[1, 2]).marginals()
    assert (len(totals.per_output), len(totals.per_input), totals.interior, totals.boundary_bias) == (2, 5, None, None)
    found = influence(convolved("circular"), normal(12, 1), "signed")
    for interior in ([], [12], [-13], [0.5], np.zeros(12, dtype=bool), np.ones(11, dtype=bool), "middle"):
        with pytest.raises(ErfscopeError, match="a mask of 12 truth values, not all false, or numbers from 0 to 11"):
            found.marginals(interior)
    with pytest.raises(ErfscopeError, match="needs the influence on all outputs"):
        influence(convolved("circular"), normal(12, 1), outputs=[0]).marginals([5])
    with pytest.raises(ErfscopeError, match="have no influence in total"):
        influence(lambda x: x * 0, normal(12, 1)).marginals([5])


def test_hops_are_those_of_a_walk_from_the_outputs_own_nodes_or_from_those_named():
    # Two steps of a walk on a ring that stays or moves to either side with equal chance: 3, 4 and 2 of 9 ways end 0, 1
    # and 2 hops away.
    line = torch.eye(9, dtype=DOUBLE)
    step = (line + line.roll(1, 0) + line.roll(-1, 0)) / 3
    ring = step.numpy()
    profiles = influence(lambda x: step @ (step @ x), normal(9, 1), "signed").hops(ring)
    assert len(profiles) == 9
    for profile in profiles:
        np.testing.assert_allclose(profile.mass, [3 / 9, 4 / 9, 2 / 9, 0, 0], rtol=1e-13, atol=1e-15)
        assert profile.mean_hop == pytest.approx(8 / 9)
    found = influence(lambda x: x[[3, 1]], normal(4, 1), "signed")
    chain = np.eye(4, k=1)
    with pytest.raises(ErfscopeError, match="adjacency has shape"):
        found.hops(np.eye(4)[:2])
    own, named = found.hops(chain), found.hops(chain, sources=[3, 1])
    # Output 0 reads node 3, three hops from node 0.
    assert [profile.mean_hop for profile in own] == [3, 0]
    assert [profile.mass[0] for profile in named] == [1, 1]
    assert found.hops(chain, sources=[-1, -3])[0].mass[0] == 1
