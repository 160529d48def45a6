"""Captum's methods through erfscope: each equals a direct call on the public readout, and leaves the model as it
was."""

from __future__ import annotations

import copy
import warnings

import captum.attr
import numpy as np
import pytest
import timm
import torch
from captum.attr import NoiseTunnel
from nets import Does
from oracle import plain_gradient
from torch import Tensor, nn

import erfscope
from erfscope import CONVENTIONS, ErfscopeError
from erfscope.adapters import ModuleAdapter
from erfscope.core import Unit
from erfscope.core.answer.convention import convention_of, random_signs
from erfscope.core.run.attribution import Question, captum_parameters
from erfscope.core.run.attribution.captum_methods import IG_STEPS, NOISE_SAMPLES, NOISE_STDEV, captum_draws

pytestmark = pytest.mark.usefixtures("memory_unplanned")

UNIT = Unit(index=(3, 4))
NAMES = ["input_x_gradient", "integrated_gradients", "guided_backprop", "smoothgrad", "occlusion"]
DOUBLE = torch.float64
#: Captum itself rounds to float32: the steps of integrated gradients, and the result of occlusion.
SINGLE = 1e-6


def ours(adapter: ModuleAdapter, x: Tensor, method, convention: str = "signed", **options) -> np.ndarray:
    """Contributions of each image, (B, *space)."""
    images = options.pop("images", range(len(x)))
    site = adapter.site("down", options.pop("wrt", "image"))
    question = Question(site=site, units=[UNIT], convention=CONVENTIONS[convention], **options)
    each = (captum_draws(adapter, x[at : at + 1], question, image, method=method) for at, image in enumerate(images))
    return np.concatenate([draw.maps.numpy() for (draws,) in each for draw in draws])


def direct(readout: erfscope.UnitReadout, x: Tensor, method: str, number: int) -> Tensor:
    """A plain call of Captum on the readout."""
    x = x.clone().requires_grad_(True)
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        torch.manual_seed(number)
        if method == "input_x_gradient":
            return captum.attr.InputXGradient(readout).attribute(x)
        if method == "integrated_gradients":
            return captum.attr.IntegratedGradients(readout).attribute(x, n_steps=IG_STEPS)
        if method == "guided_backprop":
            return captum.attr.GuidedBackprop(readout).attribute(x)
        if method == "smoothgrad":
            deviation = NOISE_STDEV * float((x.max() - x.min()).detach())
            tunnel = NoiseTunnel(captum.attr.Saliency(readout))
            return tunnel.attribute(x, nt_samples=NOISE_SAMPLES, nt_samples_batch_size=4, stdevs=deviation, abs=False)
        return captum.attr.Occlusion(readout).attribute(x, sliding_window_shapes=(3, 2, 2), strides=(3, 2, 2))


def plain(net: nn.Module, x: Tensor, wrt: str = "image") -> Tensor:
    return plain_gradient(net.eval(), x, lambda y: y[:, :, 3, 4], "down", wrt)


@pytest.mark.slow
@pytest.mark.parametrize("convention", ["signed", "jacobian"])
@pytest.mark.parametrize("method", NAMES)
def test_every_method_equals_a_direct_call_on_the_public_readout(small, pictures, method, convention):
    # Occlusion, the slowest, draws no random numbers, which are those of an image's number.
    for image in (0, 2)[method == "occlusion" :]:
        readout = erfscope.UnitReadout(small, "down", UNIT, convention, 5, image=image)
        g = direct(readout, pictures[image : image + 1], method, 5 * 1_000_003 + image)
        expected = (g.sum(1) if convention == "signed" else g.square().sum(1)).detach().numpy()
        found = ours(small, pictures[image : image + 1], method, convention, images=[image], seed=5)
        rounding = SINGLE if method == "occlusion" else 1e-12
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=rounding * np.abs(expected).max())
        assert np.abs(expected).max() > 0


def test_each_draw_is_a_direct_call_with_signs_of_its_own(small, pictures):
    x = pictures[1:2]
    found = ours(small, x, "input_x_gradient", "jacobian", images=[1], draws=3)
    readouts = [erfscope.UnitReadout(small, "down", UNIT, image=1, draw=draw) for draw in range(3)]
    expected = [direct(readout, x, "input_x_gradient", 0)[0].square().sum(0).detach().numpy() for readout in readouts]
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert not np.allclose(found[0], found[1])


@pytest.mark.slow
def test_input_x_gradient_and_integrated_gradients_by_hand(small, small_net, pictures):
    """Gauss-Legendre steps between black (zero after normalisation) and the image; completeness holds up to the steps'
    error."""
    x = pictures[:1]
    np.testing.assert_allclose(
        ours(small, x, "input_x_gradient")[0], (x * plain(small_net, x)).sum(1)[0], rtol=1e-9, atol=1e-14
    )
    nodes, weights = np.polynomial.legendre.leggauss(IG_STEPS)
    total = sum(w / 2 * plain(small_net, (1 + t) / 2 * x) for t, w in zip(nodes, weights, strict=True))
    found = ours(small, x, "integrated_gradients")[0]
    np.testing.assert_allclose(found, (x * total).sum(1)[0], rtol=1e-9, atol=SINGLE * np.abs(found).max())
    readout = erfscope.UnitReadout(small, "down", UNIT, "signed")
    change = float(readout(x) - readout(torch.zeros_like(x)))
    assert found.sum() == pytest.approx(change, abs=0.01 * np.abs(found).sum())


@pytest.mark.slow
def test_occlusion_is_the_change_when_a_patch_goes_black(small, pictures):
    x = pictures[:1]
    readout = erfscope.UnitReadout(small, "down", UNIT, "signed")
    found = ours(small, x, "occlusion")[0]
    with torch.no_grad():
        for row, col in ((12, 16), (10, 18), (0, 0)):
            covered = x.clone()
            covered[..., row : row + 2, col : col + 2] = 0
            # The patch's change is given to each of its three channels, which the convention adds up.
            change = 3 * float(readout(x) - readout(covered))
            np.testing.assert_allclose(
                found[row : row + 2, col : col + 2], change, rtol=1e-9, atol=SINGLE * np.abs(found).max()
            )
    assert found[0, 0] == 0


class Guided(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g.clamp(min=0) * (x > 0)


@pytest.mark.slow
def test_guided_backprop_on_in_place_activations_equals_a_guided_relu():
    """timm's ResNets overwrite their tensors; the same net with a hand-written rule says what must come out."""
    net = timm.create_model("test_resnet").double().eval()
    assert any(isinstance(module, nn.ReLU) and module.inplace for module in net.modules())
    x = torch.randn(1, 3, 64, 64, dtype=DOUBLE)
    asked = {"images": x, "layer": "layer3", "unit": (2, 2), "convention": "luo", "measures": "r50"}
    result, unguided = (erfscope.analyze(net, **asked, method=method) for method in ("guided_backprop", "gradient"))
    twin = copy.deepcopy(net)
    for name, module in [*twin.named_modules()]:
        if isinstance(module, nn.ReLU):
            twin.set_submodule(name, Does(lambda _, x: Guided.apply(x)))
    expected = plain_gradient(twin, x, lambda y: y[0, :, 2, 2], "layer3")[0].abs().sum(0).numpy()
    np.testing.assert_allclose(result.map.values, expected / expected.sum(), rtol=1e-9, atol=1e-15)
    assert np.abs(unguided.map.values - result.map.values).sum() > 0.05


# -- with respect to a module


@pytest.mark.slow
@pytest.mark.parametrize("wrt", ["stem", "act", "body", "body:in", "act:in"])
def test_layer_methods_follow_the_module_even_where_it_is_overwritten(small, small_net, pictures, wrt):
    """The stem's output is overwritten by the activation after it."""
    x = pictures[:1]
    g = plain(small_net, x, wrt)
    with torch.no_grad():
        stem = small_net.eval().stem(x)
        act = stem.relu()
        tensors = {"stem": stem, "act:in": stem, "act": act, "body:in": act, "body": small_net.body(act.clone())}
    product = (g * tensors[wrt]).sum(1)[0]
    np.testing.assert_allclose(ours(small, x, "input_x_gradient", wrt=wrt)[0], product, rtol=1e-9, atol=1e-14)
    if wrt in ("body", "body:in"):
        return

    def tail(z: Tensor) -> Tensor:
        a = z.relu()
        return small_net.down(a + small_net.body(a.clone()))[0, :, 3, 4].sum()

    with torch.no_grad():
        base = small_net.stem(torch.zeros_like(x))
    start, end = (base, stem) if wrt != "act" else (base.relu(), act)
    nodes, weights = np.polynomial.legendre.leggauss(IG_STEPS)
    total = torch.zeros_like(end)
    for t, w in zip(nodes, weights, strict=True):
        z = (start + (1 + t) / 2 * (end - start)).requires_grad_(True)
        total += w / 2 * torch.autograd.grad(tail(z), z)[0]
    expected = ((end - start) * total).sum(1)[0].numpy()
    found = ours(small, x, "integrated_gradients", wrt=wrt)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=SINGLE * np.abs(expected).max())


@pytest.mark.slow
def test_smoothgrad_with_respect_to_a_module_is_the_mean_gradient_over_noisy_pictures(small, small_net, pictures):
    x = pictures[:1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4 * 1_000_003)
        deviation = NOISE_STDEV * float(x.max() - x.min())
        copies = [x + torch.normal(0, torch.full((4, *x.shape[1:]), deviation)) for _ in range(NOISE_SAMPLES // 4)]
    expected = torch.cat([plain(small_net, copy, "stem") for copy in copies]).mean(0).sum(0)
    np.testing.assert_allclose(ours(small, x, "smoothgrad", wrt="stem", seed=4)[0], expected, rtol=1e-9, atol=1e-14)
    # What lies behind the stem depends on the image.
    assert not np.allclose(plain(small_net, x, "stem").sum(1)[0], expected)


def test_the_noise_check_weighs_channels_as_the_readout_does_there(small, pictures):
    """Of the sum of squares y_c^2 the weights are 2 y_c; with random signs each channel has their root mean square."""
    x, convention = pictures[:1], convention_of((lambda y, _signs: y.square().sum(1), lambda g: g.square().sum(1)))
    question = Question(site=small.site("down"), units=[UNIT], convention=convention, seed=3)
    ((draw,),) = captum_draws(small, x, question, 0, method="input_x_gradient", compare=True)
    leaf = x.clone().requires_grad_(True)
    y = small.features(leaf, question.site).map[:, :, 3, 4]
    signs = random_signs(y.shape[1], seed=3, image=0, draw=0).to(y)
    (g,) = torch.autograd.grad((y * signs * (2 * y.detach()).square().mean().sqrt()).sum(), leaf)
    np.testing.assert_allclose(draw.squares[1], (x * g).square().sum(1), rtol=1e-9)


@pytest.mark.parametrize(
    ("layer", "unit", "words"),
    [("down", ("a", "b"), "a readout takes the index of a unit"), ("nowhere", (3, 4), "nowhere")],
)
def test_a_readout_that_cannot_be_read_is_refused_when_it_is_made(small, layer, unit, words):
    with pytest.raises(erfscope.ErfscopeError, match=words):
        erfscope.UnitReadout(small, layer, unit)


def test_the_captum_class_goes_through_captums_noise_tunnel(small, pictures):
    """NoiseTunnel calls what Captum's own decorator wraps, so the class must carry it."""
    attribution = erfscope.ErfAttribution(small, "down", "body")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        smooth = NoiseTunnel(attribution).attribute(pictures, nt_samples=2, stdevs=1e-9, unit=(3, 4), convention="luo")
    np.testing.assert_allclose(
        smooth, attribution.attribute(pictures, unit=(3, 4), convention="luo"), rtol=1e-4, atol=1e-9
    )


@pytest.mark.slow
def test_token_layers_are_read_as_maps():
    adapter = erfscope.wrap(timm.create_model("test_vit", img_size=64).eval())
    result = erfscope.analyze(
        adapter, samples=1, draws=1, wrt="blocks.0", method="integrated_gradients", measures="r50"
    )
    assert (result.ok, result.map.values.shape, result.map.cell_px) == (True, (4, 4), (16.0, 16.0))


# -- refusals


class Doubled:
    """The least that a method must be."""

    def __init__(self, readout: erfscope.UnitReadout) -> None:
        self.readout = readout

    def attribute(self, x: Tensor) -> Tensor:
        return 2 * torch.autograd.grad(self.readout(x).sum(), x)[0]


@pytest.mark.slow
def test_guided_backprop_needs_relus_that_depend_on_the_picture(small, pictures):
    smooth = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.GELU(), nn.Conv2d(4, 4, 3, 1, 1))
    # A bias that is made with a ReLU of its own, as SwinV2 does.
    parts = {"conv": nn.Conv2d(3, 4, 3, 2, 1), "bias": nn.Sequential(nn.Linear(1, 4), nn.ReLU())}
    biased = Does(lambda m, x: m.conv(x) + m.bias(torch.ones(1, 1)).reshape(1, 4, 1, 1), **parts)
    for model, more, words in (
        (smooth, {}, r"has none; use --method gradient"),
        (biased, {"layer": "output"}, r"every nn\.ReLU to depend on the image"),
        (
            small,
            {"method": "gradcam", "layer": "down"},
            "unknown method 'gradcam'; there is: gradient, input_x_gradient",
        ),
        (
            small,
            {"method": Doubled, "layer": "down", "wrt": "body"},
            r"shape of 'body', which is \(1, 8, 16, 20\); it returned \(1, 3, 32, 40\)",
        ),
    ):
        images = pictures if model is small else pictures.float()
        with pytest.raises(ErfscopeError, match=words) as caught:
            erfscope.analyze(model, images=images, **{"method": "guided_backprop", **more})
        assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_callable_makes_a_method(small, pictures):
    options = {"images": pictures, "layer": "down", "unit": (3, 4), "convention": "luo", "measures": "r50"}
    gradient = erfscope.analyze(small, **options)
    for method in (Doubled, lambda readout: Doubled(readout)):
        result = erfscope.analyze(small, method=method, **options)
        np.testing.assert_allclose(result.map.values, gradient.map.values, rtol=1e-9, atol=1e-15)
    assert erfscope.analyze(small, method=Doubled, **options).method == "Doubled"
    shap = erfscope.analyze(small, method=captum.attr.DeepLift, **(options | {"layer": "stem"}))
    assert shap.ok


def state(module: nn.Module) -> list[object]:
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    counts = [tuple(len(getattr(m, name)) for name in hooks) for m in module.modules()]
    flags = [m.training for m in module.modules()] + [getattr(m, "inplace", None) for m in module.modules()]
    values = [each.tolist() for each in (*module.parameters(), *module.buffers())]
    return [counts, flags, [(p.requires_grad, p.grad) for p in module.parameters()], values]


@pytest.mark.slow
@pytest.mark.parametrize("method", NAMES)
def test_nothing_is_left_behind_and_nothing_is_said_also_of_a_model_that_fails_half_way(small_net, pictures, method):
    net = small_net.double().train()
    net.body[0].requires_grad_(False)
    before, generator = state(net), torch.random.get_rng_state()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for wrt in ("image", "stem")[: 1 + (method not in ("occlusion", "guided_backprop"))]:
            result = erfscope.analyze(net, images=pictures[:1], layer="down", method=method, wrt=wrt, measures="r50")
            assert result.method == method
    assert [str(entry.message) for entry in said] == []
    assert state(net) == before
    assert torch.equal(torch.random.get_rng_state(), generator)

    def failing(m, x):
        y = m.act(m.conv(x))
        if x.device.type != "meta":
            raise RuntimeError("out of coffee")
        return m.late(y)

    fails = Does(failing, conv=nn.Conv2d(3, 4, 3, 2, 1), act=nn.ReLU(), late=nn.Conv2d(4, 4, 3, 1, 1))
    before = state(fails)
    result = erfscope.analyze(fails, input_size=16, samples=1, layer="late", method=method, errors="row")
    assert "out of coffee" in result.error
    assert state(fails) == before


@pytest.mark.slow
@pytest.mark.parametrize("method", NAMES)
def test_results_are_reproducible_and_depend_on_the_image_number_alone(small, pictures, method):
    torch.manual_seed(123)
    together = ours(small, pictures[1:], method, images=[1, 2], seed=3)
    torch.manual_seed(321)
    np.testing.assert_array_equal(ours(small, pictures[2:], method, images=[2], seed=3)[0], together[1])
    assert np.array_equal(ours(small, pictures[2:], method, images=[2], seed=4)[0], together[1]) is (
        method != "smoothgrad"
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", ["integrated_gradients", "occlusion"])
def test_copies_run_one_by_one_give_what_copies_run_together_give(small, pictures, method, monkeypatch):
    x = pictures[:1]
    together = ours(small, x, method)
    monkeypatch.setattr(captum_parameters, "FULL_PIXELS", 1)
    assert captum_parameters.copies(method, x[0, 0].numel()) == 1
    np.testing.assert_allclose(ours(small, x, method), together, rtol=0, atol=1e-12 * np.abs(together).max())
    assert np.abs(together).max() > 0
