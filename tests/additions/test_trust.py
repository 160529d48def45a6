"""Whether a gradient is the model's derivative, by forward passes: against closed forms, and on nets whose gradient is
made wrong."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import erfscope
from erfscope.cli.main import main
from erfscope.core.answer.maps.trust import Probe, crossing, is_off
from erfscope.show.view.extras import trust_text
from erfscope.show.view.sentences import methods_sentence

SMALL = {"input_size": 24, "samples": 4, "layer": "after", "measures": "r50,r90"}


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return (4 * x).round() / 4

    @staticmethod
    def backward(ctx, g):
        return g


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g / 2


class Odd(nn.Module):
    """A module that does something to its input."""

    def __init__(self, does):
        super().__init__()
        self.does = does

    def forward(self, x):
        return self.does(x)


class Net(nn.Module):
    """Two convolutions with something between them."""

    def __init__(self, does, activation=torch.tanh):
        super().__init__()
        self.before, self.between, self.after = nn.Conv2d(3, 6, 5, padding=2), Odd(does), nn.Conv2d(6, 6, 3, padding=1)
        self.activation = activation

    def forward(self, x):
        return self.after(self.activation(self.between(self.activation(self.before(x)))))


def same(x):
    return x


def partly_detached(share):
    return lambda x: share * x.detach() + (1 - share) * x


def hooked(rule):
    def does(x):
        y = x.clone()
        if y.requires_grad:
            y.register_hook(rule)
        return y

    return does


def without_gradients(x):
    with torch.no_grad():
        y = 2 * x
    return x + y


def changed_in_place(x):
    y = x.clone()
    with torch.no_grad():
        y.mul_(2)
    return y


def replaced_data(x):
    y = x.clone()
    y.data = 2 * y.data
    return y


WRONG = {
    "detach": partly_detached(0.3),
    "straight through": Rounded.apply,
    "wrong backward": Halved.apply,
    "clipped gradient": hooked(lambda g: g.clamp(-1e-3, 1e-3)),
    "scaled gradient": hooked(lambda g: 0.7 * g),
    "no_grad": without_gradients,
    "dropout": lambda x: nn.functional.dropout(x, 0.2, training=True),
    "in place": changed_in_place,
    "data": replaced_data,
    "fake quantisation": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.02, 0, -128, 127),
    "rounding": lambda x: (8 * x).round() / 8,
}


@pytest.mark.slow
@pytest.mark.parametrize("wrt", ["image", "before", "after:in"])
@pytest.mark.parametrize("convention", ["jacobian", "luo", "signed"])
def test_of_a_linear_net_noise_finds_the_gradients_energy_where_the_gradient_has_it(convention, wrt):
    net = Net(same, activation=same)
    trust = erfscope.analyze(net, **SMALL, convention=convention, wrt=wrt, trust=True, dtype="float64").trust
    # A linear net's rounding errors, over a step of 3e-9 standard deviations.
    for probe in trust.gradient:
        assert probe.energy.value == pytest.approx(1, abs=1e-4)
        np.testing.assert_allclose(probe.found, probe.predicted, atol=1e-4)
    for region in trust.regions:
        assert region.probe.energy.value == pytest.approx(region.probe.share, abs=1e-4)
    assert sum(region.probe.share for region in trust.regions) == pytest.approx(1)
    assert [step.ratio.value for step in trust.ladder] == pytest.approx([1] * 4, abs=1e-4)
    assert trust.linear_to is None
    assert not trust.disagrees


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 0.1, 0.9])
def test_a_detached_share_of_a_linear_net_shows_by_its_closed_form(share):
    result = erfscope.analyze(Net(partly_detached(share), activation=same), **SMALL, trust=True)
    value, _ = result.trust.ratio
    # float32: rounding errors of 1e-7 over a step of 3e-4.
    assert value == pytest.approx(1 / (1 - share) ** 2, rel=5e-3)
    assert result.ok == (share == 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_a_gradient_that_is_wrong_is_found_and_its_module_named(name):
    torch.manual_seed(0)
    plain = erfscope.analyze(Net(WRONG[name]), **SMALL)
    assert any(finding.code == "gradient_unproved" and "between" in finding.text for finding in plain.findings) or (
        name == "wrong backward" and any("Halved" in finding.text for finding in plain.findings)
    )
    result = erfscope.analyze(Net(WRONG[name]), **SMALL, trust=True)
    assert result.status == "degenerate"
    assert result.trust.disagrees
    assert result.trust.module == "between"
    assert any(finding.code == "gradient_disagrees" and "between" in finding.text for finding in result.findings)


class Named(nn.Module):
    """A module that goes wrong, by some name, or a forward that does."""

    def __init__(self, name):
        super().__init__()
        self.first, self.last, self.name = nn.Conv2d(3, 6, 5, padding=2), nn.Conv2d(6, 6, 3, padding=1), name
        if name:
            self.add_module(name, Odd(WRONG["detach"]))

    def forward(self, x):
        y = torch.tanh(self.first(x))
        return self.last(self.get_submodule(self.name)(y) if self.name else WRONG["detach"](y))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["output", "image", "module", ""])
def test_a_module_of_any_name_is_told_from_the_models_own_forward(name):
    result = erfscope.analyze(Named(name), **{**SMALL, "layer": "last"}, trust=True)
    assert result.trust.module == name
    assert f"the first operation without a true derivative is in {name or 'the model itself'}" in result.error


@pytest.mark.slow
@pytest.mark.parametrize(
    "activation", [torch.tanh, torch.relu, nn.functional.gelu, lambda x: nn.functional.max_pool2d(x, 3, 1, 1)]
)
@pytest.mark.parametrize("seed", range(3))
def test_a_gradient_that_is_right_is_not_doubted(activation, seed):
    torch.manual_seed(seed)
    result = erfscope.analyze(Net(same, activation), **SMALL, seed=seed, trust=True)
    assert result.ok
    assert not result.trust.disagrees
    assert not any(finding.code.startswith("gradient_") for finding in result.findings)


@pytest.mark.slow
def test_a_gradient_that_disagrees_can_be_accepted_by_name():
    result = erfscope.analyze(Net(partly_detached(0.3)), **SMALL, trust=True, accept="gradient_disagrees")
    assert result.ok
    assert any(finding.code == "gradient_disagrees" for finding in result.findings)
    with pytest.raises(erfscope.ErfscopeError, match="gradient_disagrees"):
        erfscope.analyze(Net(same), **SMALL, trust=True, accept="everything")


def test_methods_of_captum_have_no_gradient_to_compare():
    with pytest.raises(erfscope.ErfscopeError, match="leave --trust or --method out"):
        erfscope.analyze(Net(same), **SMALL, trust=True, method="occlusion")


@pytest.mark.slow
def test_what_was_found_is_stored_and_shown(tmp_path):
    torch.manual_seed(0)
    report = erfscope.sweep(Net(same), **SMALL, trust=True)
    report.save(tmp_path / "run")
    again = erfscope.read(tmp_path / "run")
    assert again[0].trust == report[0].trust
    entry = json.loads((tmp_path / "run" / "report.json").read_text())["results"][0]["trust"]
    assert entry["ratio"] == report[0].trust.ratio.value
    assert entry["disagrees"] is False
    assert trust_text(again[0]) in " ".join(str(again[0]).split())
    assert "forward passes" in methods_sentence(report)


@pytest.mark.slow
def test_shards_together_say_what_the_whole_run_says(tmp_path):
    torch.manual_seed(0)
    net = Net(same)
    parts = [erfscope.sweep(net, **SMALL | {"samples": 8}, shard=f"{number}/2", trust=True) for number in (1, 2)]
    merged = erfscope.merge(parts)[0]
    assert merged.trust.n_images == 8
    assert merged.trust.passes == sum(part[0].trust.passes for part in parts)
    assert merged.trust.ratio.value == pytest.approx(1, abs=0.01)


@pytest.mark.slow
def test_a_finished_run_is_measured_again_where_it_lacks_what_is_asked_for(tmp_path):
    torch.manual_seed(0)
    net = Net(same)
    erfscope.sweep(net, **SMALL).save(tmp_path / "run")
    assert erfscope.sweep(net, **SMALL, trust=True, resume=tmp_path / "run")[0].trust is not None


@pytest.mark.slow
def test_tokens_beside_the_map_get_no_noise():
    result = erfscope.analyze("test_vit", weights="random", samples=2, wrt="blocks.0", trust=True)
    assert result.trust.ratio.value == pytest.approx(1, abs=0.01)
    assert result.trust.grey_levels is None


@pytest.mark.slow
def test_the_command_says_it_in_one_line_and_ends_with_its_exit_code(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets.py").write_text(
        "import torch\n\n\n"
        "class Net(torch.nn.Conv2d):\n"
        "    def forward(self, x):\n"
        "        return super().forward(0.5 * x.detach() + 0.5 * x)\n\n\n"
        "def build():\n"
        "    return Net(3, 4, 3)\n"
    )
    words = ["analyze", "nets.py:build", "--input-size", "24", "--samples", "4", "--layer", "output", "--trust"]

    def ended(*given):
        with pytest.raises(SystemExit) as end:
            main([*given])
        return end.value.code

    assert ended(*words) == 3
    assert "the gradient disagrees" in " ".join(capsys.readouterr().out.split())
    assert ended(*words, "--accept", "gradient_disagrees") == 0
    assert ended("check", "nets.py:build", *words[2:]) == 3


@pytest.mark.parametrize(
    ("ladder", "expected"),
    [
        ([(0.1, 1.0), (1.0, 1.05)], None),
        ([(0.1, 1.2), (1.0, 2.0)], 0.1),
        ([(0.1, 1.0), (1.0, 0.8)], 10**-0.5),
    ],
)
def test_where_a_ratio_leaves_one_lies_between_the_steps(ladder, expected):
    assert crossing(ladder) == (expected if expected is None else pytest.approx(expected))


def test_chance_and_kinks_are_no_disagreement():
    rng = np.random.default_rng(0)
    predicted = rng.standard_normal(16)
    found = predicted + 0.2 * rng.standard_normal(16)
    probe = Probe(sigma=0.1, images=(*range(16),), predicted=(*predicted,), found=(*found,), shares=(1.0,) * 16)
    assert not is_off(probe)
    assert is_off(
        Probe(sigma=0.1, images=(*range(16),), predicted=(*predicted,), found=(*(1.2 * predicted),), shares=(1.0,) * 16)
    )
