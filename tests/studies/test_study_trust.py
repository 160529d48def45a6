"""Gradients that lose a share, Captum's infidelity of them, and nets whose weights are drawn anew part by part."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from captum.metrics import infidelity as captum_infidelity
from safetensors.torch import save_file
from torch import nn

import erfscope
from erfscope import ErfscopeError, UnitReadout, studies
from erfscope.apps.lab.studies import trust
from erfscope.apps.lab.studies.trust import NETS, Found, Net, _stage, built, cascade, detached, infidelity

#: The columns of a wide terminal.
EVERY = tuple(replace(column, optional=False) for column in trust.COLUMNS)


@pytest.fixture(scope="module")
def found() -> studies.StudyResult:
    return studies.run("trust", effort="smoke")


def tiny(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 4, 3, padding=1)).eval()


def made_up(share: float, ratio: float, se: float = 0.01, *, disagrees: bool = False, normalised: float = 0.1) -> Found:
    found = {"disagrees": disagrees, "module": "layer3" if disagrees else None, "sigma": 1e-4}
    found |= {"infidelity": np.linspace(1.0, 2.0, 8) * (1 + share), "normalised": np.full(8, normalised)}
    return Found(share=share, ratio=(ratio, se), energy=np.full(8, 4.0 * (1 - share) ** 2), **found)


def row(share: float, ratio: float, **given: float) -> studies.StudyRow:
    return trust._row(NETS[0], "layer3", [made_up(share, ratio, **given)], [made_up(0, 1.0)])


@pytest.mark.slow
def test_shares_are_found_infidelity_sees_no_factor_and_other_weights_leave_less_of_the_order(
    found, check_shown, monkeypatch
):
    whole, lost = found["test_vit, blocks.4, 0%"], found["test_vit, blocks.4, 5%"]
    assert abs(whole.ratio - 1) < 0.01
    assert lost.ratio == pytest.approx(1 / 0.95**2, abs=0.01)
    assert (whole.found, lost.found, lost.named) == (0, 1, 1)
    assert lost.ratio_z > lost.infidelity_z > 3
    assert found.passed
    # Normalised, infidelity sees no factor, but a branch.
    assert lost.normalised == pytest.approx(1, abs=0.01)
    assert found["test_vit, blocks.5.attn, 5%"].normalised > 1.5
    rows = [row for row in found if row.correlation is not None]
    assert [row.case for row in rows][:2] == ["weights kept", "redrawn from blocks.5 on"]
    assert rows[-1].correlation < rows[0].correlation
    assert rows[-1].overlap > 0.5
    check_shown(found)
    monkeypatch.setattr(studies.StudyResult, "figure", lambda *_: None)  # drawn once
    check_shown(replace(found, columns=EVERY), 100)


def test_a_ratio_that_is_off_or_a_share_that_is_missed_fails_and_ranks_correlate():
    expected = 1 / 0.8**2
    for passes, share, ratio, more in (
        (True, 0.2, expected, {"disagrees": True}),
        (False, 0.2, 1.1 * expected, {"disagrees": True}),
        (False, 0.2, expected, {}),
        (False, 0.2, expected, {"disagrees": True, "normalised": 0.2}),
        (False, 0.0, 1.0, {"disagrees": True}),
        (True, 0.0, 1.0, {}),
        (True, 0.0, 1.2, {"se": 0.1}),
    ):
        assert row(share, ratio, **more).passed is passes
    assert trust._mean_of([(1.0, 0.3), (2.0, 0.4)]) == pytest.approx((1.5, 0.25))
    assert trust._over_images([np.array([1.0, 3.0]), np.array([5.0])]) == pytest.approx((3.0, 2 / 3**0.5))
    one = np.array([[1.0, 2.0], [3.0, 94.0]])
    assert _stage("", one, 7 * one).overlap == pytest.approx(1)
    turned = _stage("", one, np.array([[3.0, 2.0], [1.0, 94.0]]))
    assert turned.correlation == pytest.approx(0.2)
    assert turned.overlap == pytest.approx(0.98)


def test_a_detached_share_leaves_values_bit_equal_and_takes_its_part_of_the_gradient():
    adapter = erfscope.wrap(tiny(), input_size=8)
    x = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0), requires_grad=True)
    before = adapter.module(x)
    (g,) = torch.autograd.grad(before.sum(), x)
    with detached(adapter, "1", 0.3):
        after = adapter.module(x)
        (lost,) = torch.autograd.grad(after.sum(), x)
    assert torch.equal(before, after)
    assert lost == pytest.approx(0.7 * g, rel=1e-5, abs=1e-9)
    assert torch.equal(torch.autograd.grad(adapter.module(x).sum(), x)[0], g)


@pytest.mark.slow
def test_infidelity_is_captums_and_that_of_a_gradient_with_a_lost_share_is_its_energy():
    adapter = erfscope.wrap(tiny().double(), input_size=8)
    readout = UnitReadout(adapter, unit=(3, 3), seed=5)
    x = torch.randn(1, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    (g,) = torch.autograd.grad(readout(x).sum(), x)
    x, step = x.detach(), 1e-4
    right, lost = (infidelity(readout, x, given, step=step, samples=4000) / step**2 for given in (g, 0.9 * g))
    assert right < 1e-6
    # The mean square of 4000 normal numbers has a standard error of 2.2 %.
    assert lost == pytest.approx(0.01 * float(g.square().sum()), rel=0.1)
    assert infidelity(readout, x, 0.9 * g, step=step, samples=50, normalize=True) < 1e-4 * lost * step**2

    def perturb(inputs):
        noise = step * torch.randn(inputs.shape, dtype=torch.float64)
        return noise, inputs - noise

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        theirs = float(captum_infidelity(readout, perturb, x, 0.9 * g, n_perturb_samples=4000))
    assert lost * step**2 == pytest.approx(theirs, rel=0.1)


@pytest.mark.slow
def test_a_cascade_gives_the_parts_the_other_weights_from_the_output_down():
    one, other = (erfscope.wrap(tiny(seed), input_size=16) for seed in (0, 1))
    net = Net(name="tiny", block="0", branch="1", parts=(("first", ("0.",)), ("last", ("2.",))))
    own = one.module[0].weight.detach().clone()
    stages = cascade(net, one, other, samples=8, seed=0)
    assert [next(stages).part for _ in range(2)] == ["", "last"]
    assert torch.equal(one.module[2].weight, other.module[2].weight)
    assert torch.equal(one.module[0].weight, own)
    assert next(stages).part == "first"
    assert torch.equal(one.module[0].weight, other.module[0].weight)


@pytest.mark.slow
def test_weights_are_taken_by_name_and_each_is_in_one_part(tmp_path):
    for net in NETS:
        for key in built(net.name, 0).module.state_dict():
            parts = [part for part, starts in net.parts if key.startswith(starts)]
            assert len(parts) == (0 if key.startswith(("fc.", "head.", "norm.")) else 1), key
    with pytest.raises(ErfscopeError, match=r"no weights of test_vit: neither test_vit.safetensors nor test_vit.pth"):
        built("test_vit", 0, tmp_path)
    drawn = built("test_vit", 7).module.state_dict()
    save_file(drawn, tmp_path / "test_vit.safetensors")
    read = built("test_vit", 0, tmp_path).module.state_dict()
    assert all(torch.equal(read[key], value) for key, value in drawn.items())
