"""Whether a gradient is the model's derivative, of models whose forward passes are hard to compare with."""

import numpy as np
import pytest
import torch
from nets import Does
from torch import Tensor, nn

import erfscope
from erfscope.core.answer.maps.trust import Probe, Step, Trust, is_off, sharpest
from erfscope.show.view.extras import trust_text

SMALL = {"input_size": 24, "samples": 4, "layer": "after", "measures": "r50,r90", "trust": True}


def seeded(*between):
    """Two convolutions with something between them."""
    torch.manual_seed(0)
    parts = {"before": nn.Conv2d(3, 6, 3, padding=1), "after": nn.Conv2d(6, 6, 3, padding=1)}
    layers = (each if isinstance(each, nn.Module) else Does(lambda _, x, each=each: each(x)) for each in between)
    return Does(lambda m, x: m.after(m.between(m.before(x))), between=nn.Sequential(*layers), **parts)


def stored(report, path):
    """The same report, read from a file."""
    report.save(path)
    return erfscope.read(path)[0]


def only_in_float32(x):
    assert x.dtype != torch.float64, "float32 only"
    return x


@pytest.mark.slow
@pytest.mark.parametrize("shift", [1e4, 1e6])
def test_changes_that_rounding_errors_hide_are_judged_in_double_precision(tmp_path, shift):
    report = erfscope.sweep(seeded(lambda x: torch.relu(x + shift)), **SMALL)
    result = report[0]
    assert result.ok
    assert not result.trust.lost_in_rounding
    assert result.trust.is_in_double
    assert result.trust.ratio.value == pytest.approx(1, abs=1e-3)
    assert not [finding for finding in result.findings if finding.code.startswith("gradient")]
    assert stored(report, tmp_path / "run").trust == result.trust


@pytest.mark.slow
@pytest.mark.parametrize("shift", [1e4, 1e6])
def test_changes_that_rounding_errors_hide_from_a_model_that_runs_in_float32_only_are_not_judged(tmp_path, shift):
    report = erfscope.sweep(seeded(lambda x: torch.relu(only_in_float32(x) + shift)), **SMALL)
    result = report[0]
    assert result.ok
    assert result.trust.lost_in_rounding == 4
    (finding,) = [finding for finding in result.findings if finding.code.startswith("gradient")]
    assert finding.code == "gradient_unproved"
    assert "the model cannot be run in float64 (float32 only)" in finding.text
    assert "no more than rounding errors" in trust_text(result)
    assert stored(report, tmp_path / "run").trust == result.trust


@pytest.mark.slow
@pytest.mark.parametrize(("activation", "seed"), [(nn.Identity(), 0), (nn.Tanh(), 1), (nn.Softplus(), 2)])
def test_a_derivative_that_is_missing_in_one_direction_is_found_and_its_module_named(activation, seed):
    """The gradient of a norm that is held constant keeps the part along the features, which the true derivative has
    not."""
    torch.manual_seed(seed)
    normalised = Does(lambda _, x: x / x.detach().norm(dim=1, keepdim=True))
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), activation, normalised, nn.Conv2d(8, 8, 3, padding=1), nn.Tanh())
    result = erfscope.analyze(net, **SMALL | {"layer": "4", "samples": 8})
    assert result.trust.disagrees
    assert result.trust.module == "2"
    net[2].function = lambda _, x: x / x.norm(dim=1, keepdim=True)
    assert not erfscope.analyze(net, **SMALL | {"layer": "4", "samples": 8}).trust.disagrees


@pytest.mark.slow
def test_a_step_function_has_no_ladder_and_its_report_can_be_read(tmp_path):
    report = erfscope.sweep(seeded(lambda x: x.round().detach() + x - x.detach(), lambda x: 1e-3 * x), **SMALL)
    assert report[0].trust.disagrees
    assert stored(report, tmp_path / "run").trust == report[0].trust


@pytest.mark.slow
def test_noise_that_makes_nan_is_said_and_its_report_can_be_read(tmp_path):
    net = seeded(lambda x: torch.where(x.detach().std((2, 3)).amax() > 1e-6, float("nan"), x))
    # Of an image without any contrast there is no border either.
    net.before = nn.Conv2d(3, 6, 1)
    report = erfscope.sweep(net, **SMALL | {"samples": None}, image=torch.full((1, 3, 24, 24), 0.5))
    result = report[0]
    assert result.ok
    assert result.trust.not_finite == 1
    assert "NaN" in trust_text(result)
    assert any(finding.code == "gradient_unproved" for finding in result.findings)
    assert stored(report, tmp_path / "run").trust == result.trust


@pytest.mark.slow
def test_complex_weights_have_a_copy_in_double_precision():
    """As in Fourier neural operators."""

    def spectral(m, x):
        return torch.fft.irfft2(torch.einsum("bchw,cd->bdhw", torch.fft.rfft2(x), m.weight), s=x.shape[-2:])

    weight = nn.Parameter(torch.randn(6, 6, dtype=torch.complex64) / 6)
    trust = erfscope.analyze(seeded(lambda x: torch.relu(x + 1e4), Does(spectral, weight=weight)), **SMALL).trust
    assert trust.is_in_double
    assert trust.ratio.value == pytest.approx(1, abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("gain", [12, 16, 18])
def test_a_gradient_that_rounding_errors_have_changed_is_not_called_wrong(gain):
    """A saturated sigmoid has steps in float32 that it has not in float64, and gradients of zero."""
    result = erfscope.analyze(seeded(lambda x: 1e6 * (1 - torch.sigmoid(x + gain))), **SMALL)
    assert result.status == "ok"
    assert not result.trust.disagrees
    assert gain == 12 or "its gradient in float64 is" in result.trust.silent_because


@pytest.mark.slow
@pytest.mark.parametrize("shift", [1e3, 1e4, 1e5])
def test_rounding_errors_inside_a_model_that_runs_in_float32_only_are_no_disagreement(shift):
    net = seeded(lambda x: torch.tanh(only_in_float32(x) + shift - shift))
    result = erfscope.analyze(net, **SMALL | {"samples": 8})
    assert (result.status, result.trust.disagrees) == ("ok", False)
    assert shift < 1e5 or "no more than rounding errors" in result.trust.silent_because


def test_a_probe_that_finds_nothing_of_what_is_predicted_explains_nothing():
    lists = {"images": (0, 1), "predicted": (1.0, -1.0), "shares": (1.0, 1.0)}
    silent, right = Probe(sigma=1e-3, found=(0.0, 0.0), **lists), Probe(sigma=1e-2, found=(1.01, -1.0), **lists)
    assert silent.unexplained == 1
    assert sharpest([silent, right]) is right


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_a_module_that_is_wrong_in_a_residual_branch_is_named(share):
    """Which is small beside the skip path."""

    def branch():
        parts = {"first": nn.Conv2d(6, 6, 3, padding=1), "norm": nn.BatchNorm2d(6)}
        return Does(lambda m, x: torch.relu(x + m.norm(m.first(x))), **parts)

    torch.manual_seed(0)
    ends = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
    net = nn.Sequential(ends[0], branch(), branch(), branch(), ends[1]).eval()
    net[2].norm.register_forward_hook(lambda _module, _args, y: share * y.detach() + (1 - share) * y)
    trust = erfscope.analyze(net, **SMALL | {"layer": "4"}).trust
    assert trust.disagrees
    assert trust.module == "2.norm"


# --- models of many kinds as they are

FEW = {"measures": "r50,r90", "trust": True}


def agrees(result: erfscope.Result) -> bool:
    """Whether a gradient was compared, and is right."""
    assert (result.status, result.error) == ("ok", None)
    value, se = result.trust.ratio
    return not result.trust.disagrees and abs(value - 1) <= max(0.05, 3.5 * se) and se < 0.1


def test_noise_lands_on_an_inner_map_whose_channels_come_last():
    parts = {"first": nn.Conv2d(3, 6, 3, 2, 1), "last": nn.Conv2d(6, 4, 3, 2, 1), "norm": nn.LayerNorm(6)}
    net = Does(lambda m, x: m.last(m.norm(m.first(x).movedim(1, -1)).movedim(-1, 1).tanh()), **parts)
    result = erfscope.analyze(net, wrt="norm", images=torch.randn(4, 3, 24, 32), **FEW)
    assert agrees(result)
    assert result.trust.grey_levels is None


def weak(hidden: float = 0.0) -> nn.Module:
    """A net whose output is all but constant: what the image does to it is much less than its rounding errors."""

    def forward(m: Does, x: Tensor) -> Tensor:
        y = m.body(x)
        return 1 + 1e-5 * y + hidden * y.detach()

    return Does(forward, body=nn.Conv2d(3, 16, 5, 2, 2))


@pytest.mark.parametrize("convention", ["jacobian", "luo", "kim"])
def test_a_gradient_that_rounding_hides_is_confirmed_in_double_precision(convention):
    result = erfscope.analyze(weak(), layer="output", convention=convention, images=torch.randn(4, 3, 24, 24), **FEW)
    assert agrees(result)
    assert result.trust.is_in_double
    assert "float64" in trust_text(result)


@pytest.mark.slow
def test_a_small_gradient_of_a_unit_that_moves_much_disagrees():
    result = erfscope.analyze(weak(hidden=0.1), layer="output", images=torch.randn(4, 3, 24, 24), **FEW)
    assert result.trust.disagrees
    assert result.trust.lost_in_rounding == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_twentieth_that_is_missing_is_found_under_many_kinks(seed):
    torch.manual_seed(seed)
    layers = (layer for _ in range(6) for layer in (nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1)))
    net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), *layers)
    assert agrees(erfscope.analyze(net, input_size=32, samples=8, seed=seed, **FEW))
    net[8].register_forward_hook(lambda _module, _args, y: 0.05 * y.detach() + 0.95 * y)
    broken = erfscope.analyze(net, input_size=32, samples=8, seed=seed, **FEW).trust
    assert broken.disagrees
    assert broken.ratio.value == pytest.approx(0.95**-2, abs=1e-3)
    assert broken.module == "8"


@pytest.mark.slow
@pytest.mark.parametrize("images", [4, 8])
def test_a_right_gradient_under_much_curvature_is_seldom_refuted(images):
    """Student's t: of few images, 3.5 standard errors are exceeded by chance in one case of twenty."""
    rng, off = np.random.default_rng(0), 0
    for _ in range(2000):
        predicted = rng.standard_normal(8)
        found = predicted + 0.3 * rng.standard_normal(8)
        names = tuple(number % images for number in range(8))
        probe = Probe(sigma=1e-3, images=names, predicted=tuple(predicted), found=tuple(found), shares=(1.0,) * 8)
        off += is_off(probe)
    assert off <= 0.01 * 2000


def test_a_single_draw_has_no_error_and_tells_nothing():
    alone = Probe(sigma=1e-3, images=(0,), predicted=(1.0,), found=(1.06,), shares=(1.0,))
    assert not is_off(alone)
    assert alone.energy.se == alone.slope.se == np.inf
    assert Step(sigma=0.1, images=(0,), energies=(1.2,)).ratio == (1.2, np.inf)
    assert "too uncertain to decide" in Trust(gradient=(alone,), passes=2).silent_because
