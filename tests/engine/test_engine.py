"""The gradient engine against plain autograd, Captum, and other tools' published procedures."""

from __future__ import annotations

import captum.attr
import numpy as np
import pytest
import torch
from oracle import contributions_of, sound_norms
from torch import Tensor, nn

import erfscope
from erfscope import CONVENTIONS
from erfscope.adapters import ModuleAdapter
from erfscope.core import FloatArray, Unit
from erfscope.core.run.attribution import ModelForward, Question

pytestmark = pytest.mark.usefixtures("memory_unplanned")

UNIT = Unit(index=(3, 4))


def gradient_draws(adapter, x, units, convention, *, images, layer, wrt="image", **asked):
    question = Question(site=adapter.site(layer, wrt), units=units, convention=convention, **asked)
    forward = ModelForward(adapter, question)
    return [draw for draws in contributions_of(forward, x, question, images) for draw in draws]


def maps(adapter: ModuleAdapter, x: Tensor, convention: str, **options) -> FloatArray:
    """Contributions of each image, (B, H, W)."""
    (draw,) = gradient_draws(
        adapter,
        x,
        [UNIT],
        CONVENTIONS[convention],
        layer="down",
        **{"images": list(range(len(x))), "draws": 1, **options},
    )
    return draw.maps.numpy()


def features(net: nn.Module, x: Tensor) -> Tensor:
    """The layer's map by plain calls."""
    net.eval()
    y = net.act(net.stem(x))
    return net.down(y + net.body(y))


def plain_gradient(net: nn.Module, x: Tensor, readout) -> Tensor:
    x = x.clone().requires_grad_(True)
    with sound_norms():
        y = features(net, x)[:, :, 3, 4]
    return torch.autograd.grad(readout(y), x)[0]


def test_saliency_of_the_public_readout_equals_the_engine(small, pictures):
    readout = erfscope.UnitReadout(small, "down", UNIT, "luo")
    g = captum.attr.Saliency(readout).attribute(pictures.clone().requires_grad_(True), abs=False)
    expected = g.abs().sum(1).detach().numpy()
    np.testing.assert_allclose(maps(small, pictures, "luo"), expected, rtol=1e-9, atol=1e-12 * expected.max())


def frobenius(net: nn.Module, x: Tensor) -> FloatArray:
    """Squared Frobenius norm of the unit's Jacobian block, channel by channel."""
    jacobian = torch.autograd.functional.jacobian(lambda z: features(net, z)[0, :, 3, 4], x[:1])
    return jacobian.square().sum((0, 1, 2)).numpy()


@pytest.mark.slow
def test_random_signs_converge_to_the_exact_map_as_one_over_the_root_of_draws(small, small_net, pictures):
    expected = frobenius(small_net, pictures)
    draws = gradient_draws(small, pictures[:1], [UNIT], CONVENTIONS["energy"], layer="down", images=[0], draws=1024)
    stack = np.stack([draw.maps.numpy()[0] for draw in draws])

    def error(n: int) -> float:
        """Root mean square over disjoint blocks of n draws."""
        blocks = stack.reshape(1024 // n, n, *stack.shape[1:]).mean(1)
        return float(np.sqrt(((blocks - expected) ** 2).sum((1, 2)).mean() / (expected**2).sum()))

    slope = np.polyfit(np.log([4, 16, 64]), np.log([error(4), error(16), error(64)]), 1)[0]
    # 16 blocks at the largest size give the logarithm of its error a spread of about 1/sqrt(2 * 16) = 0.18, the slope
    # one of about 0.07.
    assert slope == pytest.approx(-0.5, abs=0.15)


def test_a_modules_input_before_an_in_place_activation_is_the_tensor_before_it(small, pictures):
    """The activation overwrites the stem's output; its input and the stem's output are still the same place in the
    graph."""
    (before,) = gradient_draws(
        small, pictures, [UNIT], CONVENTIONS["luo"], layer="down", wrt="act:in", images=[0, 1, 2]
    )
    (stem,) = gradient_draws(small, pictures, [UNIT], CONVENTIONS["luo"], layer="down", wrt="stem", images=[0, 1, 2])
    (after,) = gradient_draws(small, pictures, [UNIT], CONVENTIONS["luo"], layer="down", wrt="act", images=[0, 1, 2])
    np.testing.assert_array_equal(before.maps.numpy(), stem.maps.numpy())
    assert not np.allclose(before.maps.numpy(), after.maps.numpy())


@pytest.mark.parametrize("wrt", [None, "body", "body:in"])
def test_the_captum_class_returns_the_shape_of_what_it_attributes_to(small, small_net, pictures, wrt):
    attribution = erfscope.ErfAttribution(small, "down", wrt)
    assert isinstance(attribution, captum.attr.GradientAttribution)
    g = attribution.attribute(pictures, unit=(3, 4), convention="luo")
    assert tuple(g.shape) == ((3, 3, 32, 40) if wrt is None else (3, 8, 16, 20))
    if wrt is None:
        np.testing.assert_allclose(g, plain_gradient(small_net, pictures, lambda y: y.sum()), rtol=1e-9, atol=1e-13)


@pytest.mark.slow
def test_kim_equals_openerf(tmp_path, monkeypatch):
    """OpenERF accumulates in float32: 1e-6 of the peak."""
    import timm
    from openerf.erf import compute_erf
    from PIL import Image

    rng = np.random.default_rng(0)
    for i in range(3):
        Image.fromarray(rng.integers(0, 256, (170, 180, 3), dtype=np.uint8)).save(tmp_path / f"{i}.png")
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        model = timm.create_model("test_resnet", num_classes=0, global_pool="").eval()
        theirs = compute_erf(model, tmp_path, target_layer="layer4", device="cpu", show_progress=False).erf_map
    finally:
        torch.set_default_dtype(before)
    # Their unit is h // 2, w // 2 of a 5 x 5 map.
    ours = erfscope.analyze(
        model, images=str(tmp_path), layer="layer4", unit=(2, 2), convention="kim", dtype="float64", measures="r50"
    )
    assert ours.map is not None
    theirs = theirs / theirs.sum()
    assert np.abs(ours.map.values - theirs).max() < 1e-6 * theirs.max()
