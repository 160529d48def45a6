"""A model whose residual branches are zero at initialisation has a finding, and a trained model has none."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch
from nets import Does
from safetensors.torch import save_file
from torch import nn

import erfscope
from erfscope import Result
from erfscope.adapters.weights.reactivate import dormant, reactivate, untrained
from erfscope.adapters.weights.weights import sha256

pytestmark = pytest.mark.usefixtures("memory_unplanned")

OPTIONS = {"input_size": 64, "samples": 1, "measures": "r50"}


def told(result: Result) -> list[str]:
    return [finding.text for finding in result.findings if finding.code == "zero_branches"]


def wide():
    return nn.Conv2d(8, 8, 9, padding=4)


def rezero(gain: float) -> nn.Module:
    """x + g conv(x), g one number."""
    return Does(lambda m, x: x + m.res_scale * m.conv(x), conv=wide(), res_scale=nn.Parameter(torch.tensor(gain)))


def norm_last(norm: nn.Module) -> nn.Module:
    """x + norm(conv(x)), the norm starting at zero."""
    nn.init.zeros_(norm.weight)
    return Does(lambda m, x: x + m.norm(m.conv(x)), conv=wide(), norm=norm)


def trained(model: nn.Module, *, steps: int = 3) -> nn.Module:
    """A few real steps: every norm and gain gets a gradient of its own per channel."""
    torch.manual_seed(0)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    model.train()
    for _ in range(steps):
        optimiser.zero_grad()
        y = model(torch.randn(4, 3, 64, 64))
        (y - torch.randn_like(y)).square().mean().backward()
        optimiser.step()
    return model.eval()


def plain() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.BatchNorm2d(8)
    )


def with_stem(*blocks: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), *blocks)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "count"),
    [
        (lambda: timm.create_model("resnet18"), 8),
        (lambda: timm.create_model("convnext_atto"), 12),  # 2 + 2 + 6 + 2 blocks
        (lambda: with_stem(rezero(0.0), rezero(1e-3)), 2),
        (lambda: with_stem(norm_last(nn.BatchNorm2d(8)), norm_last(nn.GroupNorm(2, 8))), 2),
        (lambda: with_stem(rezero(0.0)).half(), 1),
        (plain, 0),
        (lambda: timm.create_model("resnet18", zero_init_last=False), 0),
        (lambda: with_stem(rezero(0.5)), 0),
    ],
)
def test_branches_that_are_zero_at_initialisation_are_counted_and_the_model_stays_as_it_is(make, count):
    model = make()
    before = sha256(model)
    assert len(untrained(model)) == count
    assert sha256(model) == before
    if count and isinstance(model, nn.Sequential) and model[0].weight.dtype == torch.float32:
        assert untrained(trained(model)) == []  # training ends it


@pytest.mark.slow
def test_a_live_module_is_told_with_the_count_and_a_fix_that_works():
    model = timm.create_model("resnet18")
    before = sha256(model)
    first = erfscope.analyze(model, **OPTIONS)
    (text,) = told(first)
    assert text.startswith("8 residual branches start at zero (layer1.0.bn2.weight, ")
    assert "so that the ERF is that of the skip path" in text
    assert "erfscope.adapters.reactivate.reactivate(model)" in text
    assert sha256(model) == before
    assert told(erfscope.analyze(erfscope.wrap(model, input_size=(64, 64)), samples=1, measures="r50")) == [text]
    assert reactivate(model) == 8
    second = erfscope.analyze(model, **OPTIONS)
    assert told(second) == []
    assert float(second["r50"]) > 3 * float(first["r50"])


@pytest.mark.slow
def test_random_raw_weights_name_the_option_that_switches_them_on():
    (text,) = told(erfscope.analyze("test_convnext", weights="random-raw", **OPTIONS))
    assert text.startswith("9 residual branches start at zero (")
    assert text.endswith("measure with --weights random, which switches them on")
    assert told(erfscope.analyze("test_convnext", weights="random", **OPTIONS)) == []


@pytest.mark.slow
def test_a_factory_and_a_checkpoint_are_told_what_helps_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("nets.py").write_text("import timm\n\ndef make():\n    return timm.create_model('test_resnet')\n")
    (text,) = told(erfscope.analyze("nets.py:make", **OPTIONS))
    assert "load trained weights with --checkpoint FILE" in text
    save_file(timm.create_model("test_resnet").state_dict(), tmp_path / "start.safetensors")
    (text,) = told(erfscope.analyze("test_resnet", checkpoint=tmp_path / "start.safetensors", **OPTIONS))
    assert text.endswith("the checkpoint holds these zeros: load one of a trained model")
    # The arguments of the factory work.
    weights = trained(timm.create_model("test_resnet"), steps=1).state_dict()
    save_file(weights, tmp_path / "trained.safetensors")
    assert told(erfscope.analyze("nets.py:make", checkpoint=tmp_path / "trained.safetensors", **OPTIONS)) == []


@pytest.mark.slow
def test_a_trained_net_with_norms_that_are_zero_is_not_alarmed():
    """Zeros of some channels, a whole norm that was pruned away, tiny trained gains."""
    net = trained(timm.create_model("resnet18"))
    with torch.no_grad():
        net.layer1[0].bn2.weight[::2] = 0
        net.layer2[0].bn2.weight.zero_()
        net.layer2[1].bn2.weight.zero_()
        net.layer2[1].bn2.bias.zero_()
    assert len(dormant(net)) >= 2
    assert untrained(net) == []
    assert told(erfscope.analyze(net, **OPTIONS)) == []
    scaled = trained(with_stem(rezero(0.0037)))
    with torch.no_grad():
        scaled[2].res_scale.fill_(0.0037)
    assert dormant(scaled)
    assert untrained(scaled) == []
    layered = timm.create_model("test_convnext")
    with torch.no_grad():
        for name, parameter in layered.named_parameters():
            if name.endswith("gamma"):
                parameter.normal_(0, 1e-3)
    assert dormant(layered)
    assert untrained(layered) == []
    # A new branch on a trained backbone is told.
    assert untrained(nn.Sequential(*trained(plain()), norm_last(nn.BatchNorm2d(8)))) == ["5.norm.weight"]


@pytest.mark.slow
def test_what_is_said_is_of_the_moment_of_measuring():
    model = timm.create_model("test_resnet", num_classes=10)
    adapter = erfscope.wrap(model, input_size=(64, 64))
    monitor = erfscope.ErfMonitor(model, input_size=64, samples=1, quiet=True, every=1)
    assert told(erfscope.analyze(adapter, samples=1, measures="r50"))
    assert told(monitor.step(0))
    trained(model)
    assert told(erfscope.analyze(adapter, samples=1, measures="r50")) == []
    assert told(monitor.step(1)) == []
    # A model without numbers is asked for none.
    with torch.device("meta"):
        assert untrained(timm.create_model("resnet18")) == []
    assert len(erfscope.layers("test_resnet", input_size=64).rows) > 4
