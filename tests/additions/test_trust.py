"""Whether a gradient is the model's derivative, by forward passes: against closed forms, and on nets whose gradient is
made wrong."""

import json

import numpy as np
import pytest
import torch
from loaded import adapter_of
from nets import Does
from torch import nn

import erfscope
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


def net(does=lambda x: x, activation=torch.tanh, *, name="between"):
    """Two convolutions with something between them, in a module of some name or in the forward."""

    def forward(m, x):
        y = activation(m.before(x))
        return m.after(activation(m.get_submodule(name)(y) if name else does(y)))

    found = Does(forward, before=nn.Conv2d(3, 6, 5, padding=2), after=nn.Conv2d(6, 6, 3, padding=1))
    if name:
        found.add_module(name, Does(lambda _, x: does(x)))
    return found


def partly_detached(share):
    return lambda x: share * x.detach() + (1 - share) * x


def hooked(rule):
    def does(x):
        y = x.clone()
        if y.requires_grad:
            y.register_hook(rule)
        return y

    return does


def without_gradients(function):
    def does(x):
        with torch.no_grad():
            return function(x)

    return does


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
    "no_grad": lambda x: x + without_gradients(lambda z: 2 * z)(x),
    "dropout": lambda x: nn.functional.dropout(x, 0.2, training=True),
    "in place": lambda x: without_gradients(lambda z: z.mul_(2))(x.clone()),
    "data": replaced_data,
    "fake quantisation": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.02, 0, -128, 127),
    "rounding": lambda x: (8 * x).round() / 8,
}


@pytest.mark.slow
@pytest.mark.parametrize("wrt", ["image", "before", "after:in"])
@pytest.mark.parametrize("convention", ["jacobian", "signed"])
def test_of_a_linear_net_noise_finds_the_gradients_energy_where_the_gradient_has_it(convention, wrt):
    trust = erfscope.analyze(
        net(activation=lambda x: x), **SMALL, convention=convention, wrt=wrt, trust=True, dtype="float64"
    ).trust
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
    result = erfscope.analyze(net(partly_detached(share), activation=lambda x: x), **SMALL, trust=True)
    value, _ = result.trust.ratio
    # float32: rounding errors of 1e-7 over a step of 3e-4.
    assert value == pytest.approx(1 / (1 - share) ** 2, rel=5e-3)
    assert result.ok == (share == 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_a_gradient_that_is_wrong_is_found_and_its_module_named(name):
    torch.manual_seed(0)
    plain = erfscope.analyze(net(WRONG[name]), **SMALL)
    assert any(finding.code == "gradient_unproved" and "between" in finding.text for finding in plain.findings) or (
        name == "wrong backward" and any("Halved" in finding.text for finding in plain.findings)
    )
    result = erfscope.analyze(net(WRONG[name]), **SMALL, trust=True)
    assert result.status == "degenerate"
    assert result.trust.disagrees
    assert result.trust.module == "between"
    assert any(finding.code == "gradient_disagrees" and "between" in finding.text for finding in result.findings)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["output", "image", "module", ""])
def test_a_module_of_any_name_is_told_from_the_models_own_forward(name):
    result = erfscope.analyze(net(WRONG["detach"], name=name), **SMALL, trust=True)
    assert result.trust.module == name
    assert f"the first operation without a true derivative is in {name or 'the model itself'}" in result.error


@pytest.mark.slow
@pytest.mark.parametrize(
    "activation", [torch.tanh, torch.relu, nn.functional.gelu, lambda x: nn.functional.max_pool2d(x, 3, 1, 1)]
)
@pytest.mark.parametrize("seed", range(2))
def test_a_gradient_that_is_right_is_not_doubted(activation, seed):
    torch.manual_seed(seed)
    result = erfscope.analyze(net(activation=activation), **SMALL, seed=seed, trust=True)
    assert result.ok
    assert not result.trust.disagrees
    assert not any(finding.code.startswith("gradient_") for finding in result.findings)


@pytest.mark.slow
def test_what_was_found_is_stored_and_shown_and_shards_together_say_what_the_whole_run_says(tmp_path):
    model = net()
    parts = [erfscope.sweep(model, **SMALL | {"samples": 8}, shard=f"{number}/2", trust=True) for number in (1, 2)]
    report = erfscope.merge(parts)
    trust = report[0].trust
    assert (trust.n_images, trust.passes) == (8, sum(part[0].trust.passes for part in parts))
    assert trust.ratio.value == pytest.approx(1, abs=0.01)
    report.save(tmp_path / "run")
    again = erfscope.read(tmp_path / "run")
    assert again[0].trust == trust
    entry = json.loads((tmp_path / "run" / "report.json").read_text())["results"][0]["trust"]
    assert (entry["ratio"], entry["disagrees"]) == (trust.ratio.value, False)
    assert trust_text(again[0]) in " ".join(str(again[0]).split())
    assert "forward passes" in methods_sentence(report)


@pytest.mark.slow
def test_tokens_beside_the_map_get_no_noise_and_what_can_be_accepted_is_named():
    result = erfscope.analyze(adapter_of("test_vit"), samples=2, wrt="blocks.0", trust=True)
    assert result.trust.ratio.value == pytest.approx(1, abs=0.01)
    assert result.trust.grey_levels is None
    with pytest.raises(erfscope.ErfscopeError, match="gradient_disagrees"):
        erfscope.analyze(net(), **SMALL, trust=True, accept="everything")


@pytest.mark.slow
def test_the_command_says_it_in_one_line_and_ends_with_its_exit_code(tmp_path, command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets.py").write_text(
        "import torch\n\n\n"
        "class Net(torch.nn.Conv2d):\n"
        "    def forward(self, x):\n"
        "        return super().forward(0.5 * x.detach() + 0.5 * x)\n\n\n"
        "def build():\n"
        "    return Net(3, 4, 3)\n"
    )
    words = ["nets.py:build", "--input-size", "24", "--samples", "4", "--layer", "output", "--trust"]
    code, shown, _ = command("analyze", *words)
    assert code == 3
    assert "the gradient disagrees" in " ".join(shown.split())
    assert command("analyze", *words, "--accept", "gradient_disagrees")[0] == 0
    assert command("check", *words)[0] == 3


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
