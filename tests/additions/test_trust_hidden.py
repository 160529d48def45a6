"""What a map lacks because its gradient misses it: found by noise on rings of the map, and bounded in its terms."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from nets import Does
from torch import nn

import erfscope
from erfscope import ErfMap
from erfscope.core.answer.from_sums import with_trust
from erfscope.core.answer.hidden import hidden_of
from erfscope.core.answer.maps.probe import Probe, miss_alike
from erfscope.core.answer.maps.trust import Hidden, Region, Size, Trust, are_off
from erfscope.core.answer.measures import Geometry, measure_map
from erfscope.show.view.extras import trust_text

ASKED = {"samples": 8, "measures": "r50,r90,far_mass", "trust": True}


def probe(found, predicted=None, *, sigma=1e-3, dtype=None, images=None):
    """A probe of one draw per image."""
    n = len(found)
    predicted = np.zeros(n) if predicted is None else predicted
    return Probe(
        sigma=sigma,
        images=tuple(range(n)) if images is None else images,
        predicted=tuple(map(float, predicted)),
        found=tuple(map(float, found)),
        shares=(1.0,) * n,
        dtype=dtype,
    )


# --- The bound ---


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_the_energy_that_is_missed_is_within_its_bound_in_nineteen_of_twenty_cases(spread):
    """Missed is what is drawn here, of images alike and of images with a log-normal spread."""
    rng = np.random.default_rng(0)
    within = 0
    for _ in range(1000):
        norms = np.exp(spread * rng.standard_normal(8))
        within += probe(norms * rng.standard_normal(8)).most_missed >= np.mean(norms**2)
    assert within >= 950 - 3 * math.sqrt(1000 * 0.05 * 0.95)


def test_what_is_not_finite_bounds_nothing_and_what_is_explained_misses_nothing():
    assert probe([math.nan, 1.0]).most_missed == math.inf
    assert probe([0.3, -0.2], [0.3, -0.2]).most_missed == 0


def disc(size=65, radius=6.0):
    """A map that is the same within a radius and zero outside."""
    rows, cols = np.mgrid[:size, :size] - size // 2
    values = (np.hypot(rows, cols) <= radius).astype(float)
    return ErfMap(values=values / values.sum(), center_px=(size // 2,) * 2, stride_px=(1.0, 1.0))


def lacking(erf, energy):
    """A test of a map whose gradient may miss so much energy beyond r99.9, and nothing elsewhere."""
    radius = 6.5
    # One draw whose bound is the energy.
    wanted = probe([1.0])
    outer = probe([math.sqrt(energy / wanted.most_missed)])
    cells = int((Geometry(erf).distance > radius).sum())
    return Trust(
        gradient=(probe([1.0], [0.0]),),
        regions=(
            Region(name="within", ends_at=radius, probe=probe([1.0], [1.0])),
            Region(name="beyond r99.9", cells=cells, probe=outer),
        ),
        box=tuple((0, side) for side in erf.values.shape),
        amplitudes=(erf.values.sum() / np.linalg.norm(erf.values),),
        passes=2,
    )


@pytest.mark.parametrize(("energy", "cells"), [(1e-3, 1.0), (1e-4, 0.1), (2e-5, 0.02)])
def test_a_map_that_lacks_the_largest_share_has_the_largest_sizes(energy, cells):
    """Oracle: the map with what it may lack spread evenly over all cells beyond the largest r90, or beyond the quarter
    diagonal. Where a tenth lies beyond r90 and nothing before it, r90 is unique within one cell only."""
    erf = disc()
    hidden = hidden_of(lacking(erf, energy), erf)
    distance, norm = Geometry(erf).distance, np.linalg.norm(erf.values)
    for name, beyond in (("r90", hidden.sizes["r90"].largest), ("far_mass", math.hypot(65, 65) / 4)):
        far = np.clip(distance - beyond + 0.5, 0, 1) if name == "r90" else distance > beyond
        whole = erf.values + norm * far * math.sqrt(energy / far.sum())
        moved = ErfMap(values=whole / whole.sum(), center_px=erf.center_px, stride_px=erf.stride_px)
        error = cells if name == "r90" else 1e-9
        assert hidden.sizes[name].largest == pytest.approx(measure_map(moved, [name])[name], abs=error)
        assert hidden.sizes[name].printed == measure_map(erf, [name])[name]


def test_a_map_that_lacks_nothing_has_the_sizes_that_are_printed():
    erf = disc()
    hidden = hidden_of(lacking(erf, 0.0), erf)
    assert hidden.sizes["r90"].largest == pytest.approx(measure_map(erf, ["r90"])["r90"], abs=1e-6)
    assert hidden.sizes["far_mass"].largest == 0
    assert hidden.is_within
    # Cells that get no noise hold nothing: the graph needs no others.
    trust = lacking(erf, 1e-3)
    inside = hidden_of(replace(trust, box=((22, 43), (22, 43))), erf)
    assert inside.sizes["far_mass"].largest == 0
    assert inside.sizes["r90"].largest < hidden_of(trust, erf).sizes["r90"].largest


def test_energy_is_worth_its_root_in_a_map_of_amplitudes_and_itself_in_one_of_energies():
    erf = disc()
    of_energies = ErfMap(values=erf.values, center_px=erf.center_px, stride_px=erf.stride_px, scale="energy")
    assert hidden_of(lacking(erf, 1e-4), erf).sizes["far_mass"].largest > 0.03
    assert hidden_of(lacking(erf, 1e-4), of_energies).sizes["far_mass"].largest == pytest.approx(1e-4, rel=0.01)


def test_of_a_unit_without_a_place_the_share_of_the_map_is_bounded():
    erf = disc()
    without = ErfMap(values=erf.values, center_px=(), stride_px=())
    hidden = hidden_of(lacking(erf, 1e-3), without)
    assert hidden.sizes == {}
    assert hidden.share > 0.05
    assert not hidden.is_within


# --- Evidence that agrees ---


def pair(missed, predicted):
    """Two probes in float64 that miss the same."""
    return [
        probe(predicted + missed * (1 + noise), predicted, sigma=sigma, dtype="float64")
        for sigma, noise in ((1.5e-8, 0.0), (6e-6, 2e-3))
    ]


def test_two_sigmas_that_miss_the_same_decide_though_a_larger_one_agrees_better():
    """A larger sigma averages over a pole of the derivative; it is further from the derivative."""
    rng = np.random.default_rng(0)
    predicted = rng.standard_normal(8)
    # Of another size each, so that the ratio alone is too uncertain.
    missed = rng.standard_normal(8) * np.exp(rng.standard_normal(8)) * 0.6
    coarse = probe(predicted + 0.1 * rng.standard_normal(8), predicted, sigma=5e-3)
    fine = pair(missed, predicted)
    assert miss_alike(*fine)
    assert are_off([coarse, *fine])
    assert not are_off([coarse])


def test_a_smaller_sigma_that_is_explained_overrules_two_larger_ones():
    rng = np.random.default_rng(0)
    predicted, missed = rng.standard_normal((2, 8))
    coarse = [probe(predicted + 0.1 * missed, predicted, sigma=sigma) for sigma in (3e-4, 5e-3)]
    assert are_off(coarse)
    assert not are_off([*coarse, probe(predicted, predicted, sigma=1.5e-8, dtype="float64")])


def test_steps_of_rounding_at_which_nothing_moves_decide_nothing():
    predicted = np.random.default_rng(0).standard_normal(8)
    flat = [probe(np.zeros(8), predicted, sigma=sigma, dtype="float64") for sigma in (1.5e-8, 6e-6)]
    assert are_off(flat)
    assert not are_off([probe(1.001 * predicted, predicted, sigma=5e-3), *flat])


class Clamped(torch.autograd.Function):
    """A power of what it gets, with a derivative that is clamped where it is large."""

    @staticmethod
    def forward(ctx, x, power, least):
        ctx.save_for_backward(x)
        ctx.power, ctx.least = power, least
        return x.sign() * x.abs() ** power

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * ctx.power * x.abs().clamp_min(ctx.least) ** (ctx.power - 1), None, None


@pytest.mark.slow
@pytest.mark.parametrize(("power", "seed"), [(1 / 2, 0), (1 / 3, 1), (1 / 2, 2)])
def test_a_derivative_that_is_clamped_where_it_is_large_is_refuted(power, seed):
    def net(least):
        torch.manual_seed(seed)
        parts = {"a": nn.Conv2d(3, 8, 5, padding=2), "b": nn.Conv2d(8, 8, 5, padding=2)}
        return Does(lambda m, x: m.b(Clamped.apply(torch.tanh(m.a(x)), power, least)), **parts)

    assert erfscope.analyze(net(0.09), **ASKED | {"samples": 4}, input_size=24).trust.disagrees
    right = erfscope.analyze(net(0.0), **ASKED, input_size=24)
    assert right.status == "ok"
    assert not right.trust.disagrees


# --- Gates and side paths ---


def context(kind, weight, *, is_detached, seed=0):
    """A convolution, and what the mean of the whole image does to it."""

    def forward(m, x):
        y = m.conv(x)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not is_detached):
            whole = weight * m.mix(y.mean((2, 3), keepdim=True))
            gate = torch.sigmoid(whole)
        return y * gate if kind == "gate" else y + whole

    torch.manual_seed(seed)
    return Does(forward, conv=nn.Conv2d(3, 8, 3, padding=1), mix=nn.Conv2d(8, 8, 1)).eval()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "weight", "size"),
    [("gate", 2, 24), ("gate", 20, 64), ("side", 0.05, 24), ("side", 1, 64), ("side", 3, 24)],
)
def test_what_a_detached_path_does_is_found_and_the_true_sizes_lie_within_the_largest(kind, weight, size):
    """Oracle: the same net with the path attached."""
    nets = (context(kind, weight, is_detached=is_detached, seed=1) for is_detached in (False, True))
    true, cut = (erfscope.analyze(net, **ASKED, input_size=size) for net in nets)
    assert (true.status, true.trust.disagrees, true.trust.hidden.is_within) == ("ok", False, True)
    assert true.trust.hidden.region == true.trust.hidden.in_doubt == ""
    assert cut.status == "degenerate"
    assert cut.trust.hidden.region == "beyond r99.9"
    for name, size_of in cut.trust.hidden.sizes.items():
        assert size_of.printed == float(cut[name])
        assert float(true[name]) <= size_of.largest
    assert "beyond r99.9 it predicts nothing of what noise does" in cut.error
    assert f"r90 up to {cut.trust.hidden.sizes['r90']}" in trust_text(cut)
    # The true r90, and the one that is printed, tell what was wrong.
    assert (kind == "side" and weight < 1) or float(true["r90"]) > 1.1 * float(cut["r90"])


@pytest.mark.slow
def test_what_passes_cannot_exclude_is_a_finding_where_an_operation_may_lack_its_derivative():
    result = erfscope.analyze(context("side", 0.0, is_detached=True), **ASKED, input_size=24)
    assert result.status == "ok"
    assert result.trust.has_unproved
    assert not [finding for finding in result.findings if finding.code.startswith("gradient_")]
    possible = Hidden(share=0.4, sizes={"r90": Size(printed=1.68, largest=9.0, unit="px", tolerance=0.1)})
    trust = replace(result.trust, hidden=possible)
    doubted = with_trust(result, trust)
    assert doubted.status == "ok"
    (text,) = [finding.text for finding in doubted.findings if finding.code == "gradient_unproved"]
    assert "what is printed is not proved, since forward passes leave r90 up to 9.00 px (1.68 printed) possible" in text
    # What rounding hides of a model whose operations all have their derivatives warns of nothing.
    plain = with_trust(doubted, replace(trust, has_unproved=False))
    assert not [finding for finding in plain.findings if finding.code.startswith("gradient_")]


@pytest.mark.slow
def test_shards_together_bound_the_map_of_all_images(tmp_path):
    parts = [
        erfscope.sweep(context("gate", 20, is_detached=True), **ASKED, input_size=24, shard=f"{number}/2")
        for number in (1, 2)
    ]
    merged = erfscope.merge(parts)
    assert merged[0].trust.hidden.region == "beyond r99.9"
    assert merged[0].trust.hidden.sizes["r90"].printed == float(merged[0]["r90"])
    assert len([finding for finding in merged[0].findings if finding.code == "gradient_disagrees"]) == 1
    merged.save(tmp_path / "run")
    assert erfscope.read(tmp_path / "run")[0].trust == merged[0].trust
